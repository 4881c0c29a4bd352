//! Pages that go: hidden from lookups first, dropped when nobody maps them any more.

use crate::{
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
        Ordering::{Relaxed, SeqCst},
        fence,
    },
};
use freehold_vmspace::{PageIndex, PageRange};

/// What a cut takes besides pages of the file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copies {
    /// Private copies too: beyond the end of a file nothing may be mapped.
    Go,
    /// Private copies stay: they have nothing to do with the file any more.
    Stay,
}

impl<P: Platform> Mapping<P> {
    /// Hides the pages of `range` from lookups; returns whether there was any. Under `invalidate` held for
    /// writing.
    pub(crate) fn mark_leaving(&self, pages_go: &RwSemWriteGuard<'_, P>, range: PageRange) -> bool {
        let mut any = false;
        let _: ControlFlow<()> = self.cache.each(Stay::locked(pages_go), range, |_, word| {
            // Relaxed: words change under `invalidate`, which the caller holds for writing. Which
            // lookups find the mark is decided by locks of tables, and by the counts of references.
            if word.load(Relaxed) != 0 {
                word.fetch_or(LEAVING, Relaxed);
                any = true;
            }
            ControlFlow::Continue(())
        });
        any
    }

    /// The pages of `range`, which were marked, from the first to the last that somebody besides the cache
    /// has a reference to. Under `invalidate` held for writing.
    pub(super) fn marked_in_use(&self, pages_go: &impl Locked, range: PageRange) -> Option<PageRange> {
        let mut used: Option<PageRange> = None;
        let _: ControlFlow<()> = self.cache.each(Stay::locked(pages_go), range, |index, word| {
            // Relaxed: as above.
            let held = Word(word.load(Relaxed)).held();
            if held.is_some_and(|pfn| self.files().platform().frame(pfn).refs_of_marked() > 1) {
                used = Some(PageRange::new(used.map_or(index, |used| used.start), index + 1));
            }
            ControlFlow::Continue(())
        });
        used
    }

    /// Drops the pages of `range` that were marked, and zapped, under `invalidate` held for writing. Returns
    /// how many.
    pub(super) fn drop_leaving(&self, pages_go: &impl Locked, range: PageRange) -> u64 {
        let (mut count, mut held) = (0, 0);
        let _: ControlFlow<()> = self.cache.each(Stay::locked(pages_go), range, |_, word| {
            // Relaxed: as above.
            let old = Word(word.load(Relaxed));
            if old != Word(0) {
                word.store(0, Relaxed);
                count += 1;
            }
            if let Some(pfn) = old.held() {
                held += 1;
                if self.is_direct() {
                    self.let_go_of(pfn);
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

    /// Gives back what the index needs for pages of `range`, as far as there are none any more. Under
    /// `invalidate` held for writing.
    pub(crate) fn prune(&self, pages_go: &RwSemWriteGuard<'_, P>, range: PageRange) {
        self.cache.prune(pages_go, range);
    }

    /// Takes whole pages away, from page tables by `unmap`. Under `content` and `invalidate` held for
    /// writing, after the size was published.
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
        // Pairs with the one in `is_inside`.
        fence(SeqCst);
        // A task that links a VMA after this sees the marks and the size: it takes the i_mmap lock after we
        // let go of it.
        if !self.mappers().is_empty() {
            unmap(pages);
            if let Some(held) = self.marked_in_use(pages_go, pages) {
                unmap(held);
            }
        }
        let gone = if cached { self.drop_leaving(pages_go, pages) } else { 0 };
        // Mappings may have reservations of pages beyond the end of the file, and the index may have room for
        // some.
        let end = if copies == Copies::Go { PageIndex::END } else { pages.end };
        let with_room = PageRange::new(pages.start, end);
        if let Some(huge) = &self.huge {
            huge.cut(self.files().memory(), with_room, gone);
        }
        self.prune(pages_go, with_room);
        self.pager().discard(pages);
    }

    /// A cut to come needs no memory. Under `content` and `invalidate` held for writing.
    pub(super) fn prepare_cut(&self) -> Result<(), FillError> {
        Ok(self.huge.as_ref().map_or(Ok(()), |huge| huge.prepare_cut::<P>())?)
    }

    /// Takes all pages away of a file that nothing maps any more, and makes it empty.
    ///
    /// # Errors
    ///
    /// No memory; nothing happened.
    ///
    /// # Locks
    ///
    /// The file's content and invalidate locks for writing.
    pub(in crate::file) fn clear(&self) -> Result<(), FillError> {
        let _content = self.content.write();
        let pages_go = self.invalidate.write();
        self.prepare_cut()?;
        let (old, pages) = (self.size(), PageRange::new(PageIndex::ZERO, self.end()));
        self.publish_size(0);
        self.uncharge_cut(old, 0);
        self.cut(&pages_go, pages, Copies::Go, |_| debug_assert!(false, "a VMA maps memory that is to go"));
        Ok(())
    }

    /// Verifies the tree of VMAs and, where nobody brings or takes pages, their number.
    ///
    /// # Panics
    ///
    /// If something is wrong, with a description of it.
    pub fn check(&self) {
        if let Some(lock) = self.invalidate.try_write() {
            let mut pages = 0;
            let _: ControlFlow<()> = self.each_page(&lock, PageRange::ALL, |_| {
                pages += 1;
                ControlFlow::Continue(())
            });
            assert_eq!(self.present_pages(), pages, "pages of a file were miscounted");
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
