//! The age of a page: a small number that memory reclaim stores in the record of the page's frame.
//!
//! The age is the high byte of the word of the flags. The store that makes a page clears it, so a new page
//! has the age 0, and a fault does no work for reclaim. `reclaim/` of `freehold` reads the records of all
//! frames in the order of their numbers, without locks and without references.
//!
//! Reclaim changes the age by a compare-and-swap of the whole word. The word of a page is never 0, so the
//! change fails for a frame that was freed since the word was read. If the frame holds another page with the
//! same flags and age by then, that page gets the age of the old one. A plain store of a flag may restore the
//! old age. Both are wrong hints and do no harm.

use super::{
    AGAIN, ANON, CACHED, EXCLUSIVE, FAILED, Frame, HUGETLB, LAZY, ONCE, RssKind, SECRET, kind_of, pin,
};
use freehold_sync::atomic::Ordering::Relaxed;

/// The first bit of the age in the word.
const SHIFT: u32 = 24;

/// The part of a record that reclaim reads.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glance {
    /// The kind of the page.
    pub kind: RssKind,
    /// The age of the page; 0 if reclaim has not set it.
    pub age: u8,
    /// True for an anonymous page that was freed lazily.
    pub lazy: bool,
    /// The word of the flags, to [change](Frame::set_age) the age.
    seen: u32,
}

/// Returns the word with another age.
fn with_age(word: u32, age: u8) -> u32 {
    word & ((1 << SHIFT) - 1) | u32::from(age) << SHIFT
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
        let age = (word >> SHIFT) as u8;
        (in_use && !pinned).then_some(Glance { kind: kind_of(word), age, lazy: word & LAZY != 0, seen: word })
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
        self.word.store(with_age(self.word.load(Relaxed), age), Relaxed);
    }

    /// Sets the age of a page that is not expected to be used soon, and forgets that calls have read or
    /// written it. The caller has a reference, or the lock of a table that maps the page. Does nothing if the
    /// word changes during the call.
    #[inline]
    pub fn make_old(&self, age: u8) {
        let word = self.word.load(Relaxed);
        let new = with_age(word & !AGAIN, age);
        if new != word {
            // Relaxed, as in `set_age`.
            _ = self.word.compare_exchange(word, new, Relaxed, Relaxed);
        }
    }

    /// Sets the age of a page. Does nothing and returns false if the word has changed since `seen` was read.
    #[inline]
    pub fn set_age(&self, seen: Glance, age: u8) -> bool {
        let new = with_age(seen.seen, age);
        // Relaxed: a failure means that the page has changed. No other data depends on the age.
        new == seen.seen || self.word.compare_exchange(seen.seen, new, Relaxed, Relaxed).is_ok()
    }
}

#[cfg(all(test, not(any(loom, shuttle, sim))))]
mod tests {
    use super::super::{Frame, page::AnonPage};
    use crate::PageIndex;

    #[test]
    fn free_frame_gets_no_age() {
        let frame = Frame::new();
        frame.init_anon(AnonPage { rmap: 1, index: PageIndex::ZERO, policy: 0 });
        let seen = frame.glance().unwrap();
        frame.set_age(seen, 5);
        assert_eq!(frame.glance().unwrap().age, 5);
        let seen = frame.glance().unwrap();
        frame.sub_map();
        assert!(frame.put());
        frame.set_age(seen, 6);
        assert!(frame.is_free() && frame.glance().is_none());
    }
}
