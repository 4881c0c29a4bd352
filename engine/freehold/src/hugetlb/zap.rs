//! Unmapping the huge pages of a VMA, for munmap and for MADV_DONTNEED.
//!
//! `space/change/unmap.rs` calls [`zap_huge_pages`](AddressSpace::zap_huge_pages) for a detached VMA, and
//! `call/madvise/pages.rs` calls [`discard_huge_pages`](AddressSpace::discard_huge_pages) for a mapped VMA.
//! `unmap_file.rs` clears the entries.
//!
//! The VMA must be closed and its tables unshared before an entry is cleared. Otherwise another address space
//! loses the entry, or shares a table that is being emptied: `table_being_emptied_does_not_become_shared` in
//! `tests/munmap/file_walks.rs` tests that.

use super::{sharing::unshare, unmap_file::zap_own};
use crate::{
    platform::Platform,
    space::AddressSpace,
    vma::{Vma, flags::VmFlags},
};
use freehold_vmspace::{UserRange, VmGather};

impl<P: Platform> AddressSpace<P> {
    /// Unmaps all pages of `vma`, which is detached. First unshares the VMA's tables, then clears the entries
    /// of the tables that remain.
    ///
    /// No fault can occur in this VMA, and after the first step its tables are unshared and are never shared
    /// again. Other tasks that need i_mmap wait only for the first step, which unlinks 512 pages with each
    /// table, and not for the zap.
    pub(crate) fn zap_huge_pages(&self, vma: &Vma<P>, gather: &mut VmGather<'_, P>) {
        let Some(file) = vma.object().file() else { return };
        let kept_by_file = self.kept_by_file(vma).is_some();
        if !kept_by_file && !vma.flags().contains(VmFlags::MAYSHARE) {
            // The VMA shares no tables, so i_mmap is not needed.
            return zap_own(&self.vm, vma.range(), vma.zap(), None, gather);
        }
        let edit = file.mapping().edit();
        if let Some(own) = vma.hugetlb() {
            own.close(&edit);
        }
        unshare(&self.vm, vma.range(), &edit);
        if kept_by_file {
            zap_own(&self.vm, vma.range(), vma.zap(), None, gather);
            gather.flush();
        } else {
            drop(edit);
            zap_own(&self.vm, vma.range(), vma.zap(), None, gather);
        }
    }

    /// Unmaps the pages of `part`, for DONTNEED. Pages of a private owner that become free are reserved
    /// again. The unmapping and the new reservations are complete before a fault of this VMA can take a page
    /// from the pool.
    pub(crate) fn discard_huge_pages(&self, vma: &Vma<P>, part: UserRange) {
        let Some(size) = vma.huge_page_size() else { return };
        let _alone = vma.unshare_tables(&self.vm, part);
        let _excluded = self.kept_by_file(vma).map(|file| file.mapping().edit());
        let mut gather = self.vm.gather(part.va());
        let reserves = vma.hugetlb().and_then(|own| own.reserves());
        let zap = vma.zap().keep_wp(vma.keeps_wp());
        zap_own(&self.vm, part, zap, reserves.map(|reserves| (&**reserves, vma, size)), &mut gather);
        gather.finish();
    }
}
