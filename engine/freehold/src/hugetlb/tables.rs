//! Tables that address spaces share: keeping them, filling them, leaving them. What is shared, and when:
//! `hugetlb/sharing.rs`.

use super::sharing::{SPAN, SharedTablesGuard, unshare};
use crate::{
    VirtAddr,
    file::File,
    platform::Platform,
    rmap::tree::{IMmap, RmapReadGuard, RmapWriteGuard},
    space::{AddressSpace, HugetlbLock},
    vma::{Vma, flags::VmFlags},
};
use freehold_pagetable::{Kind, Level, MarkerKind, PmdTable, TableError};
use freehold_sync::atomic::Ordering::{Acquire, Relaxed};
use freehold_vmspace::{PageRange, UserRange};

impl<P: Platform> AddressSpace<P> {
    /// The file whose i_mmap lock keeps the tables of `vma`; none: a lock of the VMA's own does. This alone
    /// asks which design it is.
    pub(super) fn kept_by_file<'v>(&self, vma: &'v Vma<P>) -> Option<&'v File<P>> {
        let file = vma.object().file().map(|file| &**file);
        file.filter(|_| self.locking().hugetlb == HugetlbLock::FileLock)
    }

    /// Keeps the tables of `vma` as long as entries of it are looked at or filled. Of VMAs of other pages
    /// nothing is kept: nobody takes their tables away.
    ///
    /// # Locks
    ///
    /// The hugetlb VMA lock for reading, or by the design the i_mmap lock.
    pub(crate) fn keep_tables<'v>(&self, vma: &'v Vma<P>) -> SharedTablesGuard<'v, P> {
        if !vma.flags().contains(VmFlags::HUGETLB) {
            return SharedTablesGuard::Own;
        }
        match self.kept_by_file(vma) {
            Some(file) if vma.flags().contains(VmFlags::MAYSHARE) => {
                SharedTablesGuard::File(file.mapping().mappers())
            }
            // Without a lock nothing is shared, so nothing is taken away.
            _ => vma.hugetlb().map_or(SharedTablesGuard::Own, |own| SharedTablesGuard::Vma(own.lock.read())),
        }
    }

    /// The table of 2 MiB entries for `address` in `vma`: that of another VMA, if one can be shared, or its
    /// own.
    pub(crate) fn pmd_table_to_fill<'s>(
        &'s self,
        vma: &Vma<P>,
        file: &File<P>,
        address: VirtAddr,
        kept: &SharedTablesGuard<'_, P>,
    ) -> Result<PmdTable<'s, P::Format, P>, TableError> {
        if let Some(table) = self.vm.pmd_table(address) {
            return Ok(table);
        }
        let span = address.get() - address.get() % SPAN;
        let whole = vma.start() <= span && span + SPAN <= vma.end();
        if whole && vma.shares(UserRange::at(span, SPAN)) {
            match kept {
                SharedTablesGuard::File(lookups) => self.share_table(vma, file, span, lookups)?,
                // It hangs before this is let go of, or is one of ours that others find.
                SharedTablesGuard::Vma(_) | SharedTablesGuard::Own => {
                    self.share_table(vma, file, span, &file.mapping().mappers())?
                }
            }
        }
        self.vm.pmd_table_alloc(address)
    }

    /// Hangs in a table of another VMA, if there is one for `span` of `vma`.
    fn share_table(
        &self,
        vma: &Vma<P>,
        file: &File<P>,
        span: u64,
        lookups: &RmapReadGuard<'_, P, IMmap>,
    ) -> Result<(), TableError> {
        let allows = |vma: &Vma<P>| vma.hugetlb().is_some_and(|own| own.sharing_allowed.load(Acquire));
        // Relaxed: changed with the lock that we hold.
        let apart = file.mapping().huge.as_ref().is_some_and(|huge| huge.apart.load(Relaxed) != 0);
        if apart || !allows(vma) {
            return Ok(());
        }
        let first = vma.pgoff_of(span);
        for mapper in lookups.mappers(PageRange::one(first)) {
            let (other, at) = (mapper.vma, mapper.range.start());
            let fits = at.is_multiple_of(SPAN) && other.start() <= at && at + SPAN <= other.end();
            if core::ptr::eq(vma, other) || !fits || !allows(other) || !vma.is_like(other) {
                continue;
            }
            if let Some(table) =
                mapper.vm.pmd_table(VirtAddr::new(at)).filter(|table| !is_poisoned(table, at))
            {
                return self.vm.share(VirtAddr::new(span), table).map(|_| ());
            }
        }
        Ok(())
    }

    /// Verifies that no VMA has a part of a shared table only (hazard C-12), and none that must share
    /// nothing.
    ///
    /// # Panics
    ///
    /// When it has.
    pub(crate) fn check_shared_tables(&self, vma: &Vma<P>) {
        if vma.huge_page_size().is_none() {
            return;
        }
        for span in (vma.start() - vma.start() % SPAN..vma.end()).step_by(SPAN as usize) {
            let whole = vma.start() <= span && span + SPAN <= vma.end();
            if !whole || !vma.shares(UserRange::at(span, SPAN)) {
                let shared = self.vm.has_shared_tables(UserRange::page(span));
                assert!(
                    !shared,
                    "a part of a VMA, or one that shares nothing, has a shared table at {span:#x}"
                );
            }
        }
    }

    /// Leaves the shared table that `at`, inside `vma`, lies in the middle of: a VMA is about to end there.
    /// The VMA is write-locked, so it has no fault under way (hazard C-12).
    pub(crate) fn unshare_at(&self, vma: &Vma<P>, at: u64, edit: Option<&RmapWriteGuard<'_, P, IMmap>>) {
        if let Some(edit) = edit
            && !at.is_multiple_of(SPAN)
            && vma.shares(UserRange::page(at))
        {
            unshare(&self.vm, UserRange::page(at), edit);
        }
    }
}

/// Whether a userfaultfd has declared pages lost that the table has entries for: lost to the space that the
/// userfaultfd was of. The VMA is registered no more, so there will be no others.
fn is_poisoned<P: Platform>(table: &PmdTable<'_, P::Format, P>, at: u64) -> bool {
    let guard = table.lock();
    (at..at + SPAN).step_by(Level::Pmd.span() as usize).any(|at| {
        let kind = guard.get(VirtAddr::new(at)).kind(Level::Pmd);
        matches!(kind, Kind::Marker { kind: MarkerKind::Poison, .. })
    })
}
