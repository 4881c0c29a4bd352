//! Page tables of 2 MiB entries that address spaces share: keeping them in place, sharing one in a fault,
//! unsharing one for a split.
//!
//! `sharing.rs` describes when tables are shared, and which locks prevent that. Faults, remote access,
//! reports and userfaultfds look up tables of VMAs of huge pages. Such code must call
//! [`keep_tables`](AddressSpace::keep_tables) first, and keep the result until it has finished with the
//! table. Without this guard, the table may be unshared and freed while it is in use. `check_shared_tables`
//! checks the rules after tests, and `tests/hugetlb/shared.rs` tests which VMAs share a table.

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
use freehold_sync::atomic::Ordering::Relaxed;
use freehold_vmspace::{PageRange, UserRange};

impl<P: Platform> AddressSpace<P> {
    /// Returns the file whose i_mmap lock keeps the tables of `vma` in place. Returns `None` if a lock of the
    /// VMA keeps the tables in place. The setting `Locking::hugetlb` chooses between the two, and only this
    /// function reads the setting.
    pub(super) fn kept_by_file<'v>(&self, vma: &'v Vma<P>) -> Option<&'v File<P>> {
        let file = vma.object().file().map(|file| &**file);
        file.filter(|_| self.locking().hugetlb == HugetlbLock::FileLock)
    }

    /// Keeps the tables of `vma` in place while entries are read or filled. Takes no lock for a VMA without
    /// huge pages of a pool, whose tables are never shared.
    ///
    /// # Locks
    ///
    /// The hugetlb VMA lock for reading, or the i_mmap lock for reading with `HugetlbLock::FileLock`.
    pub(crate) fn keep_tables<'v>(&self, vma: &'v Vma<P>) -> SharedTablesGuard<'v, P> {
        if !vma.flags().contains(VmFlags::HUGETLB) {
            return SharedTablesGuard::Own;
        }
        match self.kept_by_file(vma) {
            Some(file) if vma.flags().contains(VmFlags::MAYSHARE) => {
                SharedTablesGuard::File(file.mapping().mappers())
            }
            // A VMA without a hugetlb VMA lock shares no tables, so no other task can unshare its tables.
            _ => vma.hugetlb().map_or(SharedTablesGuard::Own, |own| SharedTablesGuard::Vma(own.lock.read())),
        }
    }

    /// Returns the table of 2 MiB entries for `address` in `vma`: the table of another VMA, if one can be
    /// shared, or a table of its own.
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
                // A shared table is linked before this lock is released. If no table was found, the space
                // makes a table of its own after the release, and faults of other spaces may share that
                // table.
                SharedTablesGuard::Vma(_) | SharedTablesGuard::Own => {
                    self.share_table(vma, file, span, &file.mapping().mappers())?
                }
            }
        }
        self.vm.pmd_table_alloc(address)
    }

    /// Links a table of another VMA, if there is one for `span` of `vma`.
    fn share_table(
        &self,
        vma: &Vma<P>,
        file: &File<P>,
        span: u64,
        lookups: &RmapReadGuard<'_, P, IMmap>,
    ) -> Result<(), TableError> {
        let allows = |vma: &Vma<P>| vma.hugetlb().is_some_and(|own| !own.closers.any());
        // Relaxed: changes are made with the i_mmap lock held exclusively, and this task holds it shared.
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

    /// Verifies that no VMA covers only a part of a shared table (hazard C-12), and that no shared table lies
    /// in a VMA that must not share tables.
    ///
    /// # Panics
    ///
    /// Panics if a check fails.
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
                    "shared table at {span:#x} in a VMA that covers only a part of it or must not share"
                );
            }
        }
    }

    /// Unshares the table around `at`, which lies inside `vma`, because the VMA will be split there. Does
    /// nothing at a boundary between two tables. The VMA is write-locked, so no fault is running in it
    /// (hazard C-12).
    pub(crate) fn unshare_at(&self, vma: &Vma<P>, at: u64, edit: Option<&RmapWriteGuard<'_, P, IMmap>>) {
        if let Some(edit) = edit
            && !at.is_multiple_of(SPAN)
            && vma.shares(UserRange::page(at))
        {
            unshare(&self.vm, UserRange::page(at), edit);
        }
    }
}

/// Returns true if the table has poison markers of a userfaultfd. The pages at these markers are lost only to
/// the space of that userfaultfd. The VMA is no longer registered, so the table gets no further markers.
fn is_poisoned<P: Platform>(table: &PmdTable<'_, P::Format, P>, at: u64) -> bool {
    let guard = table.lock();
    (at..at + SPAN).step_by(Level::Pmd.span() as usize).any(|at| {
        let kind = guard.get(VirtAddr::new(at)).kind(Level::Pmd);
        matches!(kind, Kind::Marker { kind: MarkerKind::Poison, .. })
    })
}
