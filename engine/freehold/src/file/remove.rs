//! Removing pages from the cache. A page is hidden from lookups first, and dropped when no entry maps it.
//!
//! The steps of `Mapping::cut` are: mark the words of the pages, zap the entries that map the pages, check
//! the reference counts, and drop the pages. The caller holds the content and invalidate locks for writing,
//! so that no page is added during these steps. `mapping.rs` describes the states of a word, and
//! `change/truncate.rs` explains why no fault can map a page that was removed.
//!
//! `change/truncate.rs`, `kinds/segment.rs` (through `clear`), `rmap/lose.rs` and the drop of a file use
//! these functions. A cut cannot fail: [`prepare_cut`](Mapping::prepare_cut) allocates for it in advance.
//! Pages beyond the end must not stay in the cache, and an empty node of the index must not stay allocated
//! (`tests/heap_in_use/page_index.rs`).

use crate::{
    Pfn,
    file::{
        FillError, Mapping, Word,
        cache::{
            entry::LEAVING,
            radix::{Alone, Locked, Stay},
        },
    },
    platform::Platform,
};
use core::ops::ControlFlow;
use freehold_sync::{
    RwSemWriteGuard,
    atomic::{
        AtomicU64,
        Ordering::{Relaxed, Release, SeqCst},
        fence,
    },
};
use freehold_vmspace::{PageIndex, PageRange};

/// Treatment of private copies when file pages are cut.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copies {
    /// Zaps private copies too: nothing may be mapped beyond the end of a file.
    Go,
    /// Keeps private copies, which are independent of the file.
    Stay,
}

impl<P: Platform> Mapping<P> {
    /// Hides the pages of `range` from lookups, and removes the pages that are being read. Returns true if
    /// there was any page. The caller holds `invalidate` for writing.
    pub(crate) fn mark_leaving(&self, pages_go: &RwSemWriteGuard<'_, P>, range: PageRange) -> bool {
        let mut any = false;
        let _: ControlFlow<()> = self.cache.each(Stay::locked(pages_go), range, |index, word| {
            // Relaxed: words change under `invalidate`, which the caller holds for writing, with one
            // exception: a read may end, so the word of a page that is being read is removed by an exchange.
            // Table locks and reference counts decide which lookups see the mark.
            if word.load(Relaxed) != 0 && !self.remove_reading(index, word) {
                word.fetch_or(LEAVING, Relaxed);
                any = true;
            }
            ControlFlow::Continue(())
        });
        any
    }

    /// Returns the span of the marked pages of `range` that have references besides the cache's. The span
    /// reaches from the first such page to the last. The caller holds `invalidate` for writing.
    pub(super) fn marked_in_use(&self, pages_go: &impl Locked, range: PageRange) -> Option<PageRange> {
        let mut used: Option<PageRange> = None;
        let _: ControlFlow<()> = self.cache.each(Stay::locked(pages_go), range, |index, word| {
            // Relaxed: as in `mark_leaving`.
            let held = Word(word.load(Relaxed)).held();
            if held.is_some_and(|pfn| self.files().platform().frame(pfn).refs_of_marked() > 1) {
                used = Some(PageRange::new(used.map_or(index, |used| used.start), index + 1));
            }
            ControlFlow::Continue(())
        });
        used
    }

    /// Drops the pages of `range` that were marked and zapped. Returns their number. The caller holds
    /// `invalidate` for writing.
    pub(super) fn drop_leaving(&self, pages_go: &impl Locked, range: PageRange) -> u64 {
        let (mut count, mut held) = (0, 0);
        let _: ControlFlow<()> = self.cache.each(Stay::locked(pages_go), range, |_, word| {
            // Relaxed: as in `mark_leaving`.
            let old = Word(word.load(Relaxed));
            if old != Word(0) {
                word.store(0, Relaxed);
                count += 1;
            }
            if let Some(page) = old.swapped_out() {
                held += 1;
                self.forget_swapped(page);
            }
            if let Some(pfn) = old.held() {
                held += 1;
                if self.is_direct() {
                    self.release_frame(pfn);
                } else {
                    self.files().platform().frame(pfn).leave_cache();
                    self.files().memory().put_frame(pfn);
                }
            }
            ControlFlow::Continue(())
        });
        self.pages_went(held);
        count
    }

    /// Removes a page from the cache if it is clean, only the cache has a reference to it, and the pager
    /// releases it. Returns the frame, whose last reference the caller now has and drops. The caller holds
    /// `invalidate` for writing, and counts the page.
    pub(in crate::file) fn drop_if_clean(
        &self,
        pages_go: &RwSemWriteGuard<'_, P>,
        index: PageIndex,
        word: &AtomicU64,
    ) -> Option<Pfn> {
        // Relaxed, here and below: the words of pages in the cache change under the lock.
        let shown = word.load(Relaxed);
        let pfn = Word(shown).visible().filter(|pfn| self.seems_unused(*pfn))?;
        // A write that has just dropped its reference is about to end, and its mark keeps the leaf.
        let (dirty, writing) = self.cache.marks_of(Stay::locked(pages_go), index);
        if writing || dirty && self.guards_writes() {
            return None;
        }
        // The mark comes first, so that a fault that cannot get the page waits for the lock instead of
        // retrying.
        word.store(shown | LEAVING, Relaxed);
        if !self.take_unused(index, pfn) {
            // Release pairs with the acquire of lookups.
            word.store(shown, Release);
            return None;
        }
        word.store(0, Relaxed);
        Some(pfn)
    }

    /// Returns true if only the cache has a reference to the page and the page is clean. The answer is a
    /// hint, because lookups still find the page.
    fn seems_unused(&self, pfn: Pfn) -> bool {
        let frame = self.files().platform().frame(pfn);
        frame.refs() == 1 && !frame.is_dirty()
    }

    /// Drops the cache's reference to a page that is clean, has no other reference and is released by the
    /// pager. Returns true if the reference was dropped.
    fn take_unused(&self, index: PageIndex, pfn: Pfn) -> bool {
        let frame = self.files().platform().frame(pfn);
        if !frame.try_leave_cache() {
            return false;
        }
        // Earlier holders of a reference marked the page as dirty if they wrote to it. No task can get a new
        // reference any more. The pager is asked last, because it forgets the page if it agrees.
        if frame.is_dirty() || !self.pager().release(index) {
            frame.enter_cache();
            return false;
        }
        frame.clear_rmap();
        true
    }

    /// Frees the nodes of the index that cover pages of `range`, if they hold no page. The caller holds
    /// `invalidate` for writing.
    pub(crate) fn prune(&self, pages_go: &RwSemWriteGuard<'_, P>, range: PageRange) {
        self.cache.prune(pages_go, range);
    }

    /// Removes whole pages from the cache, and calls `unmap` to remove them from page tables. The caller
    /// holds `content` and `invalidate` for writing and has published the size. The caller has begun a
    /// discard of the pages ([`begin_discard`](Self::begin_discard)), unless the storage has lost them
    /// already.
    pub(in crate::file) fn cut(
        &self,
        pages_go: &RwSemWriteGuard<'_, P>,
        pages: PageRange,
        copies: Copies,
        unmap: impl Fn(PageRange),
    ) {
        if pages.is_empty() {
            return;
        }
        let cached = self.mark_leaving(pages_go, pages);
        // Pairs with the fence in `is_inside`.
        fence(SeqCst);
        // A task that links a VMA after this check takes the i_mmap lock after this call has released that
        // lock, and therefore sees the marks and the size.
        if !self.mappers().is_empty() {
            unmap(pages);
            if let Some(held) = self.marked_in_use(pages_go, pages) {
                unmap(held);
            }
        }
        let gone = if cached { self.drop_leaving(pages_go, pages) } else { 0 };
        self.clear_marks(Stay::locked(pages_go), pages);
        // Mappings may have reserved pages beyond the end of the file, and the index may have nodes for such
        // pages.
        let end = if copies == Copies::Go { PageIndex::END } else { pages.end };
        let with_room = PageRange::new(pages.start, end);
        if let Some(huge) = &self.huge {
            huge.cut(self.files().memory(), with_room, gone);
        }
        self.prune(pages_go, with_room);
    }

    /// Allocates what a later `cut` needs, so that the cut cannot fail. The caller holds `content` and
    /// `invalidate` for writing.
    pub(super) fn prepare_cut(&self) -> Result<(), FillError> {
        Ok(self.huge.as_ref().map_or(Ok(()), |huge| huge.prepare_cut::<P>())?)
    }

    /// Removes all pages of shared memory that no VMA maps any more, and sets the size to 0. The memory has
    /// no backing store. Needs no memory: the cut covers all offsets and therefore splits no run of
    /// reservations.
    ///
    /// # Locks
    ///
    /// The file's content and invalidate locks for writing.
    pub(in crate::file) fn clear(&self) {
        let _content = self.content.write();
        let pages_go = self.invalidate.write();
        let (old, pages) = (self.size(), PageRange::new(PageIndex::ZERO, self.end()));
        self.publish_size(0);
        self.uncharge_cut(old, 0);
        self.cut(&pages_go, pages, Copies::Go, |_| {
            debug_assert!(false, "a VMA maps memory that is being cleared")
        });
    }

    /// Verifies the tree of VMAs. If the invalidate lock is free, also verifies the count of cached pages,
    /// and that write-back finds each dirty page.
    ///
    /// # Panics
    ///
    /// Panics if a check fails, with a description of the error.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::Mapping};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let file = Mapping::memfd(&engine, 4 * PAGE_SIZE).unwrap();
    /// file.write_at(0, &[7; 3 * PAGE_SIZE as usize]).unwrap();
    /// file.punch(0..PAGE_SIZE).unwrap();
    /// file.check();
    /// ```
    pub fn check(&self) {
        if let Some(lock) = self.invalidate.try_write() {
            let (mut pages, mut swapped) = (0, 0);
            // Relaxed: as in `mark_leaving`. A page that is being read counts too.
            let _: ControlFlow<()> = self.cache.each(Stay::locked(&lock), PageRange::ALL, |index, word| {
                let word = Word(word.load(Relaxed));
                let dirty = word.held().is_some_and(|pfn| self.files().platform().frame(pfn).is_dirty());
                assert!(!dirty || self.may_be_dirty(index), "page {index:?} is dirty and not marked");
                pages += u64::from(word.has_contents());
                swapped += u64::from(word.swapped_out().is_some());
                ControlFlow::Continue(())
            });
            assert_eq!(self.present_pages(), pages, "wrong count of cached pages");
            assert_eq!(self.invalidate.swapped(), swapped, "wrong count of pages that are swapped out");
        }
        self.mappers().check();
    }
}

impl<P: Platform> Drop for Mapping<P> {
    fn drop(&mut self) {
        let pages = self.drop_leaving(&Alone, PageRange::ALL);
        if let Some(huge) = &self.huge {
            huge.cut(self.files().memory(), PageRange::ALL, pages);
        }
        self.uncharge_cut(self.size(), 0);
    }
}
