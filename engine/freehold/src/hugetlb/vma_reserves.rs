//! The end of a VMA's reservations: releases the reservations that a private VMA of huge pages has not used.
//!
//! `space/change/vma_list.rs` calls [`end_reservations`](Vma::end_reservations) once for each removed VMA in
//! the retire step, after its pages are unmapped. The number of released reservations must be the number of
//! offsets that the set does not list as used. If the two numbers differ, the pool's count of reserved pages
//! is wrong; `tests/hugetlb/pools.rs` checks that count. `state/reserves.rs` describes the sets.

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
    #[cfg_attr(feature = "inline", inline(always))]
    pub(crate) fn end_reservations(&self, memory: &Memory<P>) {
        if let Some(own) = self.hugetlb() {
            self.end_own_reservations(own, memory);
        }
    }

    /// Implements [`end_reservations`](Self::end_reservations) for a VMA of huge pages.
    #[cold]
    fn end_own_reservations(&self, own: &HugetlbVma<P>, memory: &Memory<P>) {
        let Some((reserves, size)) = own.own_reservations().zip(self.huge_page_size()) else { return };
        let range = indices(self, size);
        let left = range.len().get() - reserves.used_in::<P>(range);
        memory.huge_pool(size).unreserve(memory.platform(), left);
    }
}
