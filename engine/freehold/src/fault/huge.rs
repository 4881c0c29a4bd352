//! Huge pages of anonymous memory: 2 MiB behind one entry of the table above.
//!
//! ```text
//! nothing       read  -> the huge page of zeroes          write -> a huge page
//! zeroes        write -> a huge page in their place, after a flush
//! a huge page   write without the right: all frames ours -> the right; else split, and the small page is copied
//! ```
//!
//! Only where the VMA asks for it ([`HugePages`](crate::engine::HugePages)), spans all of the 2 MiB, and no
//! table hangs there. Without memory in one piece small pages do.
//!
//! Each of its 512 frames has a record of its own, counted as a small page's is: so a huge page is split by
//! replacing one entry by 512, also if others share it, and nothing else changes. Counting costs less than
//! zeroing by far. With each huge page comes a table, kept with the table above for the split, which
//! therefore cannot fail.

use super::{Access, FaultOutcome, WRITTEN, present::bits_of, vma_pte_flags, written};
use crate::{
    VirtAddr,
    engine::HugePages,
    platform::Platform,
    space::{AddressSpace, held_lock::HeldLock},
    vma::{Vma, flags::VmFlags},
};
use freehold_pagetable::{Kind, Level, PmdTable, PreallocatedTable, PteFlags, TableError};
use freehold_vmspace::HugePage;

/// Bytes of a huge page.
pub(crate) const HUGE: u64 = Level::Pmd.span();
/// Frames of one.
pub(super) const FRAMES: u64 = Level::Pmd.frames();

impl<P: Platform> AddressSpace<P> {
    /// A fault where no table hangs yet: fills the whole 2 MiB if it may. `None`: small pages do.
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
        // For zeroes, too: the first write is to find an anon_vma.
        if let Err(step) = self.prepare_anon(vma, held) {
            return Some(step.into());
        }
        let rights = vma_pte_flags(vma.flags());
        let spare = PreallocatedTable::try_new(self.platform()).ok()?;
        if !access.write {
            self.vm.map_huge_zero(table, address, rights, spare)?;
            return Some(FaultOutcome::Done);
        }
        let new = HugePage::new(&self.vm, vma.anon_page(first))?;
        // If something is there by now, the access will show what.
        self.vm.map_huge(table, address, new, rights | written(vma.flags()), spare);
        Some(FaultOutcome::Done)
    }

    /// Whether a fault at `page` may fill all of 2 MiB, if no table hangs there.
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

    /// Whether huge pages, or [blocks](super::mthp), may come anywhere in `vma`.
    pub(crate) fn may_hold_huge(&self, vma: &Vma<P>) -> bool {
        // If one fits anywhere, then at the end.
        let huge = vma.end().checked_sub(HUGE).is_some_and(|page| self.wants_huge(vma, page));
        huge || self.may_hold_block(vma) || self.may_hold_shared_block(vma)
    }

    /// A fault at an entry that stands for 2 MiB.
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
            // As in `present_fault`.
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
        match table.split(address) {
            Ok(_) => FaultOutcome::Retry,
            Err(_) => FaultOutcome::OUT_OF_MEMORY,
        }
    }

    /// Puts a huge page in place of the huge page of zeroes. `None`: there is none to be had.
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
