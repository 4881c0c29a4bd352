//! Huge pages of anonymous memory: 2 MiB mapped by one entry of the upper table.
//!
//! ```text
//! nothing       read  -> the huge zero page               write -> a huge page
//! the zero page write -> a huge page in its place, after a flush
//! a huge page   write without permission: all frames exclusive -> write permission;
//!                                         otherwise split, and copy the small page
//! ```
//!
//! A huge page is used only if the VMA allows it ([`HugePages`](crate::engine::HugePages)) and contains the
//! whole 2 MiB, and if no table is linked there. If there is no contiguous memory, the fault maps a small
//! page.
//!
//! Each of the 512 frames has its own record, which counts references like the record of a small page.
//! Splitting a huge page therefore replaces one entry by 512 entries and changes nothing else, even if the
//! page is shared. Counting 512 references costs far less than zeroing 2 MiB. Each huge page comes with a
//! preallocated table, which is *deposited* with the upper table (`EntryGuard::deposit` of
//! `freehold-pagetable`). A split links a deposited table, and therefore does not fail for lack of memory.
//!
//! `make_table` in `mod.rs` calls [`huge_fault`](AddressSpace::huge_fault) where no table is linked, and
//! [`huge_entry_fault`](AddressSpace::huge_entry_fault) where an entry maps 2 MiB. `mthp.rs` maps several
//! small pages at once where a huge page is not possible. `collapse.rs` makes huge pages of small ones.
//! `hugetlb/fault/` serves huge pages of pools. The caller keeps the VMA unchanged; entries change under the
//! lock of the upper table. `tests/huge` has the tests.

use super::{Access, FaultError, FaultOutcome, WRITTEN, present::bits_of, vma_pte_flags, written};
use crate::{
    VirtAddr,
    engine::HugePages,
    platform::Platform,
    space::{AddressSpace, held_lock::HeldLock},
    vma::{Vma, flags::VmFlags},
};
use freehold_pagetable::{Kind, Level, PmdTable, PreallocatedTable, PteFlags, TableError};
use freehold_vmspace::HugePage;

/// Size of a huge page in bytes.
pub(crate) const HUGE: u64 = Level::Pmd.span();
/// Number of frames in a huge page.
pub(super) const FRAMES: u64 = Level::Pmd.frames();

impl<P: Platform> AddressSpace<P> {
    /// Handles a fault where no table is linked yet: fills the whole 2 MiB if that is allowed. Returns `None`
    /// if small pages must serve the fault.
    #[inline(never)]
    pub(super) fn huge_fault(
        &self,
        vma: &Vma<P>,
        page: u64,
        access: Access,
        held: HeldLock<'_, '_, P>,
    ) -> Option<FaultOutcome<P>> {
        if !self.wants_huge(vma, page) {
            return None;
        }
        let first = page & !(HUGE - 1);
        let address = VirtAddr::new(first);
        let table = match self.vm.pmd_table_alloc(address) {
            Ok(table) => table,
            Err(TableError::OutOfTables) => return Some(FaultOutcome::OUT_OF_MEMORY),
            Err(TableError::Huge(_) | TableError::Marker(_)) => return None,
        };
        if !table.peek(address).is_none() {
            return None;
        }
        if self.may_have_lost_pages(vma) {
            return Some(FaultOutcome::Failed(FaultError::Bus { addr: page }));
        }
        // The anon_vma is needed for the zero page too, so that the first write finds it.
        if let Err(step) = self.prepare_anon(vma, held) {
            return Some(step.into());
        }
        let rights = vma_pte_flags(vma.flags());
        let spare = PreallocatedTable::try_new(self.platform(), self.vm.root()).ok()?;
        if !access.write {
            self.vm.map_huge_zero(table, address, rights, spare)?;
            return Some(FaultOutcome::Done);
        }
        let new = HugePage::new(&self.vm, vma.anon_page(first))?;
        // If another task has installed an entry first, the retried access uses that entry.
        self.vm.map_huge(table, address, new, rights | written(vma.flags()), spare);
        Some(FaultOutcome::Done)
    }

    /// Returns true if a fault at `page` may fill the whole 2 MiB, provided that no table is linked there.
    pub(super) fn wants_huge(&self, vma: &Vma<P>, page: u64) -> bool {
        let (first, flags) = (page & !(HUGE - 1), vma.flags());
        let fits = first >= vma.start() && page < vma.end() && vma.end() - first >= HUGE;
        fits && vma.is_anonymous()
            && !flags.intersects(VmFlags::NOHUGEPAGE | VmFlags::UFFD)
            && match self.engine.huge_pages() {
                HugePages::Never => false,
                HugePages::Madvise => flags.contains(VmFlags::HUGEPAGE),
                HugePages::Always => true,
            }
            && !self.disables_thp(vma)
    }

    /// Returns true if `vma` may contain huge pages or [blocks](super::mthp).
    pub(crate) fn may_hold_huge(&self, vma: &Vma<P>) -> bool {
        // If a huge page fits anywhere in the VMA, one fits at its end.
        let huge = vma.end().checked_sub(HUGE).is_some_and(|page| self.wants_huge(vma, page));
        huge || self.may_hold_block(vma) || self.may_hold_shared_block(vma)
    }

    /// Handles a fault at an entry that maps 2 MiB.
    #[inline(never)]
    pub(super) fn huge_entry_fault(&self, vma: &Vma<P>, page: u64, access: Access) -> FaultOutcome<P> {
        let address = VirtAddr::new(page & !(HUGE - 1));
        let Some(table) = self.vm.pmd_table(address) else { return FaultOutcome::Retry };
        let mut guard = table.lock();
        let (pfn, flags) = match guard.get(address).kind(Level::Pmd) {
            Kind::Leaf { pfn, flags } => (pfn, flags),
            Kind::None | Kind::Table { .. } | Kind::Marker { .. } => return FaultOutcome::Retry,
        };
        if !access.write || flags.contains(PteFlags::WRITE) {
            // Sets missing bits, as in `present_fault`.
            guard.grant(address, bits_of(access));
            return FaultOutcome::Done;
        }
        let writable = vma.flags().contains(VmFlags::WRITE);
        if writable && flags.contains(PteFlags::SPECIAL) {
            drop(guard);
            if let Some(step) = self.replace_zeroes(vma, table, address) {
                return step;
            }
        } else if writable && (0..FRAMES).all(|n| self.vm.may_store_to(pfn.add(n))) {
            (0..FRAMES).for_each(|n| self.platform().frame(pfn.add(n)).set_exclusive());
            guard.grant(address, WRITTEN);
            return FaultOutcome::Done;
        } else {
            drop(guard);
        }
        match self.vm.split_pmd_leaf(table, address) {
            Ok(_) => FaultOutcome::Retry,
            Err(_) => FaultOutcome::OUT_OF_MEMORY,
        }
    }

    /// Replaces the huge zero page with a huge page. Returns `None` if no huge page can be allocated.
    fn replace_zeroes(
        &self,
        vma: &Vma<P>,
        table: PmdTable<'_, P::Format, P>,
        address: VirtAddr,
    ) -> Option<FaultOutcome<P>> {
        let new = HugePage::new(&self.vm, vma.anon_page(address.get()))?;
        let replaced = self.vm.replace_huge_zero(table, address, new, vma_pte_flags(vma.flags()) | WRITTEN);
        Some(if replaced { FaultOutcome::Done } else { FaultOutcome::Retry })
    }
}
