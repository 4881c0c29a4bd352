//! References to pages of page caches, taken without a lock.
//!
//! A lookup finds a frame in a cache. Immediately afterwards the frame may leave the cache and become another
//! page. The word `refs` therefore has a bit, `CACHED`, that says that a cache holds one of the references. A
//! lookup raises the count by a compare-and-swap that fails if the bit is clear:
//!
//! ```text
//! lookup    1. finds the frame
//!           2. raises the count, which has the bit
//!           3. checks again that the cache has the frame at the same place. If so, the reference is good.
//!              Otherwise the lookup drops the reference and has found nothing.
//! remover   1. marks the place in the cache, so that lookups do not find the frame there
//!           2. reads the count by a read-modify-write. A task that raises the count later
//!              drops its reference itself.
//!           3. clears the bit and drops the cache's reference
//! ```
//!
//! The lookup and the remover both change `refs` in step 2, so one of the two changes precedes the other. If
//! the lookup is first, the count that the remover reads includes the lookup's reference. If the remover is
//! first, the lookup has read from the remover's write, and its second check finds the mark. While the bit is
//! set the cache has a reference, so a lookup never raises a count of zero. Without the bit, only a task that
//! has a reference raises the count. The [rule](super) therefore holds for every frame, whatever page the
//! frame held before. `loom_tests.rs` tests the protocol.
//!
//! A swap cache (`swap/` of `freehold`) uses the same bit and the same steps for pages that entries may map.
//! A frame is in at most one cache: [`enter_swap_cache`](Frame::enter_swap_cache) fails while the bit is set.

use super::{ANON, CACHED, DIRTY, Frame, MAX_REFS, SHMEM, page::CachePage};
use crate::PageIndex;
use freehold_sync::atomic::Ordering::{AcqRel, Relaxed, Release};

freehold_sync::error_enum! {
    /// The reason why a page that was found in a cache is not mapped.
    pub enum NotMapped {
        /// The page has too many references.
        TooManyReferences,
        /// The page is no longer in a cache.
        Gone,
        /// The page is no longer in a cache, and the caller has a reference to it.
        ///
        /// The caller releases the reference while it holds no lock of a table, because the reference may be
        /// the last.
        Stale,
    }
}

#[doc(hidden)]
impl Frame {
    /// Turns the reference of the task that made the page into the cache's reference. Lookups can find the
    /// frame afterwards.
    #[inline]
    pub fn enter_cache(&self) {
        // Release: if a lookup expects the frame's earlier page and raises the count, its second check finds
        // that the earlier page is gone.
        self.refs.store(1 | CACHED, Release);
    }

    /// Makes the frame, which holds a page of shared memory, a page of the swap cache. No cache of a file has
    /// the frame any more, and the caller has a reference.
    pub fn become_swapped(&self) {
        self.clear_rmap();
        self.change_kind(SHMEM | DIRTY, ANON);
    }

    /// Makes the frame, which comes from the swap cache, a page that is about to
    /// [return](Self::return_to_cache) to the cache of its file. The caller has a reference, and no task
    /// expects this frame in a swap cache.
    pub fn become_shared(&self, kind: CachePage, index: PageIndex) {
        self.change_kind(ANON, SHMEM);
        self.index.store(index.get(), Relaxed);
        // Release: as in `init_anon`.
        self.rmap.store(kind.rmap, Release);
    }

    /// Changes bits of the kind and the flags. Other tasks may change the age and the marks at the same time.
    fn change_kind(&self, clear: u32, set: u32) {
        // Relaxed: the word of the file or of the slot publishes the frame.
        let _ = self.word.fetch_update(Relaxed, Relaxed, |word| Some(word & !clear | set));
    }

    /// Turns a reference of the caller into the cache's reference, like [`enter_cache`](Self::enter_cache),
    /// for a frame to which other tasks may have references. No cache has the frame.
    #[inline]
    pub fn return_to_cache(&self) {
        // Release: as in `enter_cache`. Acquire: the swap cache has finished with the frame.
        let before = self.refs.fetch_add(CACHED, AcqRel);
        debug_assert_eq!(before & CACHED, 0, "a frame is in two caches");
    }

    /// Turns the cache's reference into an ordinary reference of the caller. The caller has marked the place
    /// in the cache, and may drop the reference.
    #[inline]
    pub fn leave_cache(&self) {
        self.clear_rmap();
        // Release: the next use of the frame comes after this change, and no lookup raises the count after
        // this change.
        let before = self.refs.fetch_sub(CACHED, AcqRel);
        debug_assert_ne!(before & CACHED, 0, "a frame left a cache that did not have it");
    }

    /// Adds a reference for the swap cache, and lets lookups find the frame, which other tasks may use. The
    /// caller has a reference. Returns false and changes nothing if a cache already has the frame.
    #[inline]
    pub fn enter_swap_cache(&self) -> bool {
        // Release: as in `enter_cache`. Acquire: another swap cache has finished with the frame.
        let enter = |refs: u32| (refs & CACHED == 0).then_some((refs + 1) | CACHED);
        self.refs.fetch_update(AcqRel, Relaxed, enter).is_ok()
    }

    /// Turns the swap cache's reference into an ordinary reference of the caller, like
    /// [`leave_cache`](Self::leave_cache). Keeps the rmap word, because entries may map the page.
    #[inline]
    pub fn leave_swap_cache(&self) {
        // Release: as in `leave_cache`.
        let before = self.refs.fetch_sub(CACHED, AcqRel);
        debug_assert_ne!(before & CACHED, 0, "a frame left a swap cache that did not have it");
    }

    /// Returns true if a page cache or the swap cache has the frame. Exact for an anonymous page that is
    /// mapped by an entry whose table is locked, in that such a page does not enter the swap cache.
    #[inline]
    pub fn is_in_cache(&self) -> bool {
        // Relaxed: the caller's lock orders the steps of a task that unmapped the page and put it there.
        self.refs.load(Relaxed) & CACHED != 0
    }

    /// Turns the cache's reference into a reference of the caller if there is no other reference. Keeps the
    /// rmap word, unlike [`leave_cache`](Self::leave_cache). Returns false and changes nothing if there is
    /// another reference. After success, no task can get another reference. The caller need not mark the
    /// place in the cache.
    #[inline]
    pub fn try_leave_cache(&self) -> bool {
        // Relaxed on failure: the caller tries again. Acquire on success: as in `refs`.
        self.refs.compare_exchange(1 | CACHED, 1, AcqRel, Relaxed).is_ok()
    }

    /// Takes a reference for one step of a task that has just found the frame in a cache. Returns false and
    /// changes nothing if the frame is no longer in a cache. After success the caller checks the cache again;
    /// see the module.
    #[inline]
    pub fn get_cached(&self) -> bool {
        let raise = |refs: u32| (refs & CACHED != 0).then_some(refs + 1);
        // Acquire: the second check comes after this change, and sees the earlier stores of the remover, or
        // of the task that made another page. Release: a remover that sees the reference also sees the table
        // in which the page is about to be mapped.
        self.refs.fetch_update(AcqRel, Relaxed, raise).is_ok()
    }

    /// Takes a reference that may be kept, like [`get_cached`](Self::get_cached). Also returns false if there
    /// are too many references.
    pub fn try_get_cached(&self) -> bool {
        !self.has_max_refs() && self.get_cached()
    }

    /// Returns true if the frame has so many references that no task may take and keep another reference.
    #[inline]
    fn has_max_refs(&self) -> bool {
        // Relaxed: other tasks may take references between the check and the use, but not enough to overflow
        // the count.
        self.refs.load(Relaxed) & !CACHED >= MAX_REFS
    }

    /// Counts an entry that is about to map the frame, which was just found in a cache. `is_still` is the
    /// second check. The caller holds the lock of the entry's table.
    ///
    /// # Errors
    ///
    /// Counts nothing on failure; but see [`NotMapped::Stale`].
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

    /// Returns the number of references, for a task that has marked the place in the cache. A task that
    /// raises the count after this finds the mark.
    #[inline]
    pub fn refs_of_marked(&self) -> u32 {
        // A write that changes nothing: a task that raises the count later reads from this write with
        // acquire, and so sees the mark.
        self.refs.fetch_add(0, AcqRel) & !CACHED
    }
}
