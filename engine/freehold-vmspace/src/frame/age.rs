//! The age of a page: a small number that memory reclaim stores in the record of the page's frame.
//!
//! The age has the low byte of the word `index`, so a page that is made or moved gets the age [`NEW`] by the
//! store that sets its place. A fault does no other work for reclaim. `reclaim/` of `freehold` reads the
//! records of all frames in the order of their numbers, without locks and without references.
//!
//! | record of | low byte of `index` |
//! | --- | --- |
//! | a free frame | 0 |
//! | a page that reclaim has not seen yet | [`NEW`] |
//! | another page | the age that reclaim set last |
//! | a free huge page of a pool | a part of the link to the next one |
//!
//! Reclaim changes the age by a compare-and-swap of the whole word. The word of a page is never 0, so this
//! fails for a frame that was freed since the word was read. If the frame holds another page with the same
//! index by then, that page gets the age of the old one, which is a wrong hint and does no harm.

use super::{AGAIN, ANON, CACHED, EXCLUSIVE, FAILED, Frame, HUGETLB, ONCE, RssKind, SECRET, kind_of, pin};
use crate::PageIndex;
use freehold_sync::atomic::Ordering::Relaxed;

/// The age of a page that reclaim has not seen yet.
pub const NEW: u8 = 1;

/// Number of bits of `index` that hold the age.
const BITS: u32 = 8;

/// The part of a record that reclaim reads.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glance {
    /// The kind of the page.
    pub kind: RssKind,
    /// The age of the page.
    pub age: u8,
    /// The word `index`, to [change](Frame::set_age) the age.
    seen: u64,
}

/// Returns the word `index` of a page that reclaim has not seen yet.
#[inline]
pub(super) fn word_of(index: PageIndex) -> u64 {
    index.get() << BITS | u64::from(NEW)
}

/// Returns the page index in the word `index` of a page. Positions of anonymous pages may have wrapped below
/// zero, so the sign is kept.
#[inline]
pub(super) fn index_of(word: u64) -> PageIndex {
    PageIndex::new((word as i64 >> BITS) as u64)
}

#[doc(hidden)]
impl Frame {
    /// Returns the kind and the age of the page, if the frame holds a page that reclaim may take: an
    /// anonymous page that an entry maps, or a page of a cache. Returns `None` for pages of pools, secret
    /// memory, pinned pages, and memory that failed. The result is a hint.
    #[inline]
    pub fn glance(&self) -> Option<Glance> {
        // Relaxed: hints. Operations on the page check everything again.
        let (refs, word) = (self.refs.load(Relaxed), self.word.load(Relaxed));
        if refs == 0 || word & (HUGETLB | SECRET | FAILED) != 0 {
            return None;
        }
        let in_use = if word & ANON != 0 { self.maps.load(Relaxed) != 0 } else { refs & CACHED != 0 };
        let pinned = refs & !CACHED >= pin::PIN && word & (ANON | EXCLUSIVE) == ANON | EXCLUSIVE;
        let seen = self.index.load(Relaxed);
        (in_use && !pinned).then_some(Glance { kind: kind_of(word), age: seen as u8, seen })
    }

    /// Records that a call has read or written the page through the cache of its file. The first such access
    /// of a page counts as the one that it was made for. The caller has a reference.
    #[inline]
    pub fn mark_accessed(&self) {
        // Relaxed, here and below: hints. The first two accesses change the word, and the others only read
        // it.
        let word = self.word.load(Relaxed);
        let bit = if word & ONCE == 0 { ONCE } else { AGAIN };
        if word & bit == 0 {
            self.word.fetch_or(bit, Relaxed);
        }
    }

    /// Returns true if the page was [accessed](Self::mark_accessed) again since the last call. The caller
    /// has a reference, or the frame is in a cache.
    #[inline]
    pub fn take_mark(&self) -> bool {
        self.word.load(Relaxed) & AGAIN != 0 && self.word.fetch_and(!AGAIN, Relaxed) & AGAIN != 0
    }

    /// Sets the age of a page that no other task can find yet.
    #[inline]
    pub fn set_first_age(&self, age: u8) {
        let word = self.index.load(Relaxed);
        self.index.store(word & !u64::from(u8::MAX) | u64::from(age), Relaxed);
    }

    /// Sets the age of a page. Does nothing if the record has changed since `seen` was read.
    #[inline]
    pub fn set_age(&self, seen: Glance, age: u8) {
        debug_assert_ne!(age, 0, "the word of a page is not zero");
        let new = seen.seen & !u64::from(u8::MAX) | u64::from(age);
        if new != seen.seen {
            // Relaxed: a failure means that the page has changed. No other data depends on the age.
            _ = self.index.compare_exchange(seen.seen, new, Relaxed, Relaxed);
        }
    }
}
