//! The reservations of a VMA of huge pages: their offsets in the file, and their release when the VMA ends.

use super::{HugePageSize, state::vma_lock::HugetlbVma};
use crate::{PAGE_SHIFT, platform::Platform, vma::Vma};
use freehold_vmspace::{Memory, PageRange};

/// Returns the range of pages of the file that `vma` maps, in huge pages.
fn indices<P: Platform>(vma: &Vma<P>, size: HugePageSize) -> PageRange {
    let shift = size.level().shift() - PAGE_SHIFT;
    PageRange::new(vma.pgoff().block(shift), (vma.pgoff() + vma.pages()).block(shift))
}

impl<P: Platform> Vma<P> {
    /// Releases the reservations that the VMA has not used. The VMA is detached, and its pages are unmapped.
    #[inline(always)]
    pub(crate) fn end_reservations(&self, memory: &Memory<P>) {
        if let Some(own) = self.hugetlb() {
            self.end_own_reservations(own, memory);
        }
    }

    #[cold]
    fn end_own_reservations(&self, own: &HugetlbVma<P>, memory: &Memory<P>) {
        let Some((reserves, size)) = own.own_reservations().zip(self.huge_page_size()) else { return };
        let range = indices(self, size);
        let left = range.len().get() - reserves.used_in::<P>(range);
        memory.huge_pool(size).unreserve(memory.platform(), left);
    }
}
