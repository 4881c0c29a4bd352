//! References to pages of caches, raised under no lock.
//!
//! A lookup finds a frame in a cache, and the frame may have left it, and be another page's, at the next
//! moment. So the word `refs` says by a bit of its own, `CACHED`, that a cache holds one of the references,
//! and a lookup raises the count by a compare-and-swap that fails without the bit:
//!
//! ```text
//! lookup    finds the frame; raises the count, which has the bit; looks again: does the cache still have the frame there?
//!           Then the reference is good. If not, it is given back, and nothing was found
//! taker     marks the place in the cache: lookups do not find the frame there any more; reads the count, by a
//!           read-modify-write: a reference that is not in it is given back by the task that raised it; ends the bit,
//!           and gives the cache's reference back
//! ```
//!
//! Both change `refs`, so one comes first. A lookup that comes first is in the count which the taker reads.
//! One that comes second has read from the taker's write, and its second look finds the mark. While the bit
//! is there the cache has a reference, so a lookup never raises a count of zero. Without it no count is
//! raised by a task that has no reference, so the [rule](super) holds for every frame, whatever it was
//! before.

use super::{CACHED, Frame, MAX_REFS};
use freehold_sync::atomic::Ordering::{AcqRel, Relaxed, Release};

freehold_sync::error_enum! {
    /// Why a page that was found in a cache is not mapped.
    pub enum NotMapped {
        /// The page has too many references.
        TooManyReferences,
        /// The page is in no cache any more.
        Gone,
        /// The page is in no cache any more, and the caller has a reference to it.
        ///
        /// The caller releases the reference under no lock of a table: it may be the last.
        Stale,
    }
}

#[doc(hidden)]
impl Frame {
    /// The maker's reference becomes the cache's, where lookups are about to find the frame.
    #[inline]
    pub fn enter_cache(&self) {
        // Release: a lookup that takes the frame for what it was before, and raises the count, finds by its
        // second look that it is not.
        self.refs.store(1 | CACHED, Release);
    }

    /// The cache's reference becomes the caller's, an ordinary one, which may be given back. The caller has
    /// marked the place in the cache.
    #[inline]
    pub fn leave_cache(&self) {
        self.clear_rmap();
        // Release: the next life comes after this, in which a lookup raises no count.
        let before = self.refs.fetch_sub(CACHED, AcqRel);
        debug_assert_ne!(before & CACHED, 0, "a frame left a cache that did not have it");
    }

    /// As [`leave_cache`](Self::leave_cache), but for the rmap word, if nobody else has a reference: then
    /// nobody comes to have one; false: somebody has, and nothing happened. No place need be marked.
    #[inline]
    pub fn try_leave_cache(&self) -> bool {
        // Relaxed on failure: to be tried again. Acquire on success: as in `refs`.
        self.refs.compare_exchange(1 | CACHED, 1, AcqRel, Relaxed).is_ok()
    }

    /// One reference more, for one step of a task that has just found the frame in a cache; false, and
    /// nothing happened: it is in none any more. The caller looks again then: see the module.
    #[inline]
    pub fn get_cached(&self) -> bool {
        let raise = |refs: u32| (refs & CACHED != 0).then_some(refs + 1);
        // Acquire: the second look is not before this, and finds what the taker, or the maker of another
        // page, had done before. Release: a taker that finds the reference finds the table, too, by which the
        // page is about to be mapped.
        self.refs.fetch_update(AcqRel, Relaxed, raise).is_ok()
    }

    /// As [`get_cached`](Self::get_cached), of a reference that may last; false also if there are too many.
    pub fn try_get_cached(&self) -> bool {
        !self.has_max_refs() && self.get_cached()
    }

    /// Whether there are as many references as may last.
    #[inline]
    fn has_max_refs(&self) -> bool {
        // Relaxed: others may come between, but not so many.
        self.refs.load(Relaxed) & !CACHED >= MAX_REFS
    }

    /// One more entry is about to map the frame, which was just found in a cache; `is_still` is the second
    /// look. Under the lock of the entry's table.
    ///
    /// # Errors
    ///
    /// Nothing is counted, but see [`NotMapped::Stale`].
    #[inline]
    pub fn try_map_cached(&self, is_still: impl FnOnce() -> bool) -> Result<(), NotMapped> {
        if self.has_max_refs() {
            return Err(NotMapped::TooManyReferences);
        }
        if !self.get_cached() {
            return Err(NotMapped::Gone);
        }
        if !is_still() {
            return Err(NotMapped::Stale);
        }
        self.add_map();
        Ok(())
    }

    /// How many references there are, for a task that has marked the place in the cache: a task that raises
    /// the count after this finds the mark.
    #[inline]
    pub fn refs_of_marked(&self) -> u32 {
        // A write, though it changes nothing: what is raised later reads from it, by acquire, and so comes
        // after the mark.
        self.refs.fetch_add(0, AcqRel) & !CACHED
    }
}
