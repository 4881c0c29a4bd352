//! Taking the huge pages of a VMA away.

use super::{sharing::leave_tables, unmap_file::zap_own};
use crate::{
    platform::Platform,
    space::AddressSpace,
    vma::{Vma, flags::VmFlags},
};
use freehold_vmspace::{UserRange, VmGather};

impl<P: Platform> AddressSpace<P> {
    /// Takes away what `vma`, which is detached, maps: first its part in tables that others use as well, then
    /// the entries of its own.
    ///
    /// Nobody faults here, and nobody shares a table with this VMA again: once it has left the tables of
    /// others, all tables are its own. So others wait, at i_mmap, for as long as that takes, a thing of
    /// 512 pages at a time, and not for the zap.
    pub(crate) fn zap_huge_pages(&self, vma: &Vma<P>, gather: &mut VmGather<'_, P>) {
        let Some(file) = vma.object().file() else { return };
        let kept_by_file = self.kept_by_file(vma).is_some();
        if !kept_by_file && !vma.flags().contains(VmFlags::MAYSHARE) {
            // It shares nothing, and others need not wait.
            return zap_own(&self.vm, vma.range(), vma.zap(), None, gather);
        }
        let edit = file.mapping().edit();
        if let Some(own) = vma.hugetlb() {
            own.close(&edit);
        }
        leave_tables(&self.vm, vma.range(), &edit, gather);
        gather.flush();
        if kept_by_file {
            zap_own(&self.vm, vma.range(), vma.zap(), None, gather);
            gather.flush();
        } else {
            drop(edit);
            zap_own(&self.vm, vma.range(), vma.zap(), None, gather);
        }
    }

    /// DONTNEED: the pages of `part` go; a private owner's are reserved again, if they are free then. Done
    /// before a fault of this VMA can ask the pool for a page.
    pub(crate) fn discard_huge_pages(&self, vma: &Vma<P>, part: UserRange) {
        let Some(size) = vma.huge_page_size() else { return };
        let _alone = vma.unshare_tables(&self.vm, part);
        let _excluded = self.kept_by_file(vma).map(|file| file.mapping().edit());
        let mut gather = self.vm.gather();
        let reserves = vma.hugetlb().and_then(|own| own.reserves());
        let zap = vma.zap().keep_wp(vma.keeps_wp());
        zap_own(&self.vm, part, zap, reserves.map(|reserves| (&**reserves, vma, size)), &mut gather);
        gather.finish();
    }
}
