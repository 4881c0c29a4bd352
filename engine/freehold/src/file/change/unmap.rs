//! Clearing the page-table entries that map pages of a file, in all address spaces.
//!
//! Truncation, hole punching, revocation and memory failure (`rmap/lose.rs`) call [`unmap`](Mapping::unmap);
//! the move of a page calls [`unmap_present`](Mapping::unmap_present). The walk holds the i_mmap lock for
//! reading, which keeps the VMAs in the tree, and takes the locks of page tables one at a time. Every entry
//! must be flushed before the i_mmap lock is released (hazard C-58, tested by `tests/files/direct.rs`). Huge
//! pages of pools are cleared by `hugetlb/unmap_file.rs`, because their tables may be shared.

use crate::{
    PAGE_SHIFT, VirtAddr,
    file::{Copies, Mapping},
    platform::Platform,
    vma::Vma,
};
use freehold_vmspace::{PageIndex, PageRange, Zap};

impl<P: Platform> Mapping<P> {
    /// Returns how the entries of `vma` for removed pages are zapped: which markers and private copies stay.
    fn zap_of(&self, vma: &Vma<P>, copies: Copies) -> Zap {
        match copies {
            // Linux drops write protection of huge pages of a pool beyond the end of the file.
            Copies::Go => vma.zap().keep_guards().keep_wp(vma.keeps_wp() && self.huge.is_none()),
            Copies::Stay => vma.zap().file_pages_only().keep_wp(vma.keeps_wp()),
        }
    }

    /// Like [`unmap`](Self::unmap) for the page `index`, but keeps private copies. May miss an entry that is
    /// made concurrently; the caller detects such an entry by counting references.
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
            // The last huge page whose 4 KiB pages all have valid indices. No page after this one is mapped.
            let last = PageIndex::END.block(shift);
            let first = |index: PageIndex| index.min(last).first_in_block(shift);
            return self.unmap_huge_pages(PageRange::new(first(pages.start), first(pages.end)), zap);
        }
        self.home().each_mapper(pages, |mapper| {
            let zap = zap(mapper.vma);
            // Every entry is flushed before the i_mmap lock is released. A munmap needs this lock to unlink
            // its VMA. When the munmap gets the lock, no TLB holds a translation of an entry that was cleared
            // here (hazard C-58).
            mapper.vm.discard(mapper.range, zap);
        });
    }
}
