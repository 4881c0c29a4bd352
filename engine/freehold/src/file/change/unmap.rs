//! Clearing the entries that map pages of a file.

use crate::{
    PAGE_SHIFT, VirtAddr,
    file::{Copies, Mapping},
    platform::Platform,
    vma::Vma,
};
use freehold_vmspace::{PageIndex, PageRange, Zap};

impl<P: Platform> Mapping<P> {
    /// How entries of `vma` for pages that go are zapped.
    fn zap_of(&self, vma: &Vma<P>, copies: Copies) -> Zap {
        match copies {
            // Of huge pages of a pool Linux forgets it with the end of the file.
            Copies::Go => vma.zap().keep_guards().keep_wp(vma.keeps_wp() && self.huge.is_none()),
            Copies::Stay => vma.zap().file_pages_only().keep_wp(vma.keeps_wp()),
        }
    }

    /// As [`unmap`](Self::unmap) for the page `index`, whose copies stay; but an entry that comes meanwhile
    /// may be missed. The caller counts references, and so knows.
    pub(super) fn unmap_present(&self, index: PageIndex) {
        let page = PageRange::one(index);
        if self.huge.is_some() {
            return self.unmap(page, Copies::Stay);
        }
        self.home().each_mapper(page, |mapper| {
            if !mapper.vm.flush_unless(VirtAddr::new(mapper.range.start()), |_| true) {
                mapper.vm.discard(mapper.range, self.zap_of(mapper.vma, Copies::Stay));
            }
        });
    }

    /// Clears and flushes every entry that maps one of the pages. Guard markers stay.
    pub(crate) fn unmap(&self, pages: PageRange, copies: Copies) {
        let zap = |vma: &Vma<P>| self.zap_of(vma, copies);
        if self.huge.is_some() {
            let shift = self.page_shift() - PAGE_SHIFT;
            // No page behind this one is of 4 KiB pages that have numbers, and none is mapped.
            let last = PageIndex::END.block(shift);
            let first = |index: PageIndex| index.min(last).first_in_block(shift);
            return self.unmap_huge_pages(PageRange::new(first(pages.start), first(pages.end)), zap);
        }
        self.home().each_mapper(pages, |mapper| {
            let zap = zap(mapper.vma);
            // Each is flushed before the i_mmap lock is let go of: a munmap that waits to unlink its VMA then
            // knows that an entry it finds empty is in no TLB either (hazard C-58).
            mapper.vm.discard(mapper.range, zap);
        });
    }
}
