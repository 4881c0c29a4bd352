//! Pins (Linux: FOLL_PIN): references that a user of a page's memory, such as a device, may keep without a
//! limit of time.
//!
//! A pin counts as [`PIN`] references in the same word, so pins cost nothing while no page is pinned. A page
//! with that many ordinary references therefore also counts as pinned. The engine tests for pins only on
//! anonymous pages that have the bit `EXCLUSIVE` and are mapped by one entry. A wrong result of the test
//! costs at most one copy. `memory/unpin.rs` drops pins. `tests/pins/` of `freehold` tests both files.
//!
//! | event | rule |
//! | --- | --- |
//! | a pin is taken | the caller holds the lock of a table whose entry maps the page; an anonymous page must be exclusive |
//! | a page is pinned | it stays exclusive while an entry maps it: fork copies it, and no task moves it. Stores therefore reach the pinned memory |
//! | a pin ends | at any time, under no lock |

use super::{ANON, CACHED, EXCLUSIVE, Frame, MAX_REFS};
use freehold_sync::atomic::Ordering::Relaxed;

/// Number of references that a pin counts as. Linux uses the same number: pages with that many mappings are
/// rare, and one million pins stay below `MAX_REFS`.
pub(crate) const PIN: u32 = 1 << 10;

#[doc(hidden)]
impl Frame {
    /// Takes a pin. Returns false if there are too many references. The caller holds the lock of the table of
    /// an entry that maps the frame.
    #[inline]
    pub fn pin(&self) -> bool {
        // Relaxed: the entry's reference is kept. Tasks may pin through other tables between the check and
        // the addition, but not often enough to overflow the count.
        let fits = self.refs.load(Relaxed) & !CACHED < MAX_REFS;
        if fits {
            self.refs.fetch_add(PIN, Relaxed);
        }
        fits
    }

    /// Drops a pin. Returns true if that was the last reference, like `put`.
    #[inline]
    pub(crate) fn unpin(&self) -> bool {
        self.put_many(PIN)
    }

    /// Returns true if the page is an anonymous page that may be pinned and must therefore not be shared or
    /// moved. The caller holds the lock of the one table that maps the page; because the page is exclusive,
    /// no pin is missed.
    #[inline]
    pub fn must_copy_on_fork(&self) -> bool {
        is_pinned(self.refs(), self.word.load(Relaxed))
    }
}

/// Returns true if a frame with this many references and this word [must be
/// copied](Frame::must_copy_on_fork).
#[inline]
pub fn is_pinned(refs: u32, word: u32) -> bool {
    refs >= PIN && word & (ANON | EXCLUSIVE) == ANON | EXCLUSIVE
}
