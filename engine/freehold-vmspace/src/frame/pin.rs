//! Pins: references of users of a page's memory that stay as long as they like, a device say (Linux:
//! FOLL_PIN).
//!
//! A pin counts as [`PIN`] references, in the same word: to count it costs nothing where nobody pins. So a
//! page that as many places refer to counts as pinned too. That is asked only of anonymous pages with the bit
//! `EXCLUSIVE`, which one entry maps, and costs at most a copy.
//!
//! | | holds |
//! | --- | --- |
//! | a pin is taken | under the lock of a table whose entry maps the page; of an anonymous page only if the page is exclusive |
//! | a page with a pin | stays exclusive as long as an entry maps it: fork copies it, nobody moves it. So stores go to what is pinned |
//! | a pin ends | at any time, under no lock |

use super::{ANON, CACHED, EXCLUSIVE, Frame, MAX_REFS};
use freehold_sync::atomic::Ordering::Relaxed;

/// References that a pin counts as. Linux's number: pages with as many mappings are rare, and two million
/// pins fit.
pub(crate) const PIN: u32 = 1 << 10;

#[doc(hidden)]
impl Frame {
    /// One pin more; false: there are too many references. The caller has locked the table of an entry that
    /// maps the frame.
    #[inline]
    pub fn pin(&self) -> bool {
        // Relaxed: the entry's reference stays. Pins by way of other tables may come between, but not so
        // many.
        let fits = self.refs.load(Relaxed) & !CACHED < MAX_REFS;
        if fits {
            self.refs.fetch_add(PIN, Relaxed);
        }
        fits
    }

    /// One pin less; true when that was the last reference, as for `put`.
    #[inline]
    pub(crate) fn unpin(&self) -> bool {
        self.put_many(PIN)
    }

    /// Whether it is an anonymous page that must not be shared or moved, since somebody may have pinned it.
    /// Under the lock of the one table that maps it, as it is exclusive, no pin is overlooked.
    #[inline]
    pub fn must_copy_on_fork(&self) -> bool {
        is_pinned(self.refs(), self.word.load(Relaxed))
    }
}

/// Whether a frame with so many references, and this word, is [kept](Frame::must_copy_on_fork).
#[inline]
pub fn is_pinned(refs: u32, word: u32) -> bool {
    refs >= PIN && word & (ANON | EXCLUSIVE) == ANON | EXCLUSIVE
}
