//! Stores to a mapped page whose entry does not permit stores.
//!
//! ```text
//! shared                       grant write permission; the page becomes dirty, in its frame and in its file
//! private, frame is exclusive  grant write permission
//! private, any other frame     old entry -> nothing -> flush -> entry of a copy, under the table's lock
//! ```
//!
//! A frame counts as exclusive if it is anonymous and either marked exclusive or referenced only by this
//! entry. The number of references decides, not the number of entries: another reader (a pipe, a pin) holds a
//! reference without an entry (hazard C-56). Each attempt decides again, from the entry that it finds under
//! the lock (hazard C-2).
//!
//! The copy is installed only after no CPU can read the old page through this entry. Otherwise one thread
//! could still read the old page after another thread has written to the copy (hazard C-21).
//!
//! `resolve` in `mod.rs` calls [`write_protect_fault`](AddressSpace::write_protect_fault) while a lock keeps
//! the VMA unchanged. `freehold-vmspace/src/copy_on_write.rs` decides which frame may be written in place,
//! and replaces the entry. `huge.rs` and `hugetlb/fault/` do the same for huge pages.
//! `tests/fork/held_pages.rs` tests pages that another reader holds.
//! `c21_no_cpu_reads_the_old_page_after_a_store` in `tests/files/mapped.rs` tests the flush.

use super::{FaultOutcome, WRITTEN, file::permission_outcome, vma_pte_flags, written};
use crate::{
    VirtAddr,
    file::{File, Object},
    platform::Platform,
    space::{AddressSpace, held_lock::HeldLock},
    vma::{Vma, flags::VmFlags},
};
use freehold_pagetable::{Pte, PteTable};
use freehold_vmspace::{ReadOnly, StoreOutcome};

impl<P: Platform> AddressSpace<P> {
    /// Handles a store to a page that is mapped without write permission. Either the VMA allows stores, or
    /// the access needs no such permission.
    #[inline(never)]
    pub(super) fn write_protect_fault(
        &self,
        vma: &Vma<P>,
        page: u64,
        held: HeldLock<'_, '_, P>,
    ) -> FaultOutcome<P> {
        let address = VirtAddr::new(page);
        let Some(table) = self.vm.pte_table(address) else { return FaultOutcome::Retry };
        if vma.flags().contains(VmFlags::SHARED) {
            if let Object::Special(special) = vma.object()
                && special.ops().notifies_writes()
            {
                return self.special_mkwrite(vma, page, special, table);
            }
            let (rcu, index) = (P::rcu_read(), vma.pgoff_of(page));
            let permits = |file: &File<P>| file.mapping().permits_stores(&rcu, index);
            if let Object::File(file) = vma.object()
                && !permits(file)
            {
                return permission_outcome(file, index);
            }
            let may_grant = || !matches!(vma.object(), Object::File(file) if !permits(file));
            let granted = || mark_dirty(vma, &rcu, page);
            return Self::outcome_of(self.vm.allow_shared_store(table, address, WRITTEN, may_grant, granted));
        }
        match self.vm.allow_private_store(table, address, written(vma.flags())) {
            StoreOutcome::Copy(old) => {
                let step = self.copy(vma, table, address, old, held);
                if !old.special {
                    self.vm.memory().put_frame(old.pfn);
                }
                step
            }
            found => Self::outcome_of(found),
        }
    }

    /// Converts the result of an attempt that copied nothing.
    fn outcome_of(found: StoreOutcome) -> FaultOutcome<P> {
        match found {
            StoreOutcome::Allowed => FaultOutcome::Done,
            StoreOutcome::Changed | StoreOutcome::Copy(_) => FaultOutcome::Retry,
        }
    }

    /// Replaces the entry with an entry for a copy of `old`. The caller keeps `old` alive.
    fn copy(
        &self,
        vma: &Vma<P>,
        table: PteTable<'_, P::Format, P>,
        address: VirtAddr,
        old: ReadOnly,
        held: HeldLock<'_, '_, P>,
    ) -> FaultOutcome<P> {
        if let Err(step) = self.prepare_anon(vma, held) {
            return step.into();
        }
        let zero = self.vm.memory().is_zero(old.pfn);
        let Ok(new) = self.vm.alloc_anon(zero, vma.anon_page(address.get())) else {
            return FaultOutcome::OUT_OF_MEMORY;
        };
        if !zero {
            self.platform().copy_frame(new, old.pfn);
        }
        let entry = Pte::page(new, vma_pte_flags(vma.flags()) | written(vma.flags()));
        if self.vm.replace_by_copy(table, address, old, entry) {
            return FaultOutcome::Done;
        }
        self.vm.memory().discard_anon(new);
        FaultOutcome::Retry
    }
}

/// Marks a page as dirty in the file that `vma` maps, so that write-back finds it. The caller holds the lock
/// of the table in which an entry has become writable. Write-back may have read the entry before without the
/// lock, so the mark comes after the entry.
pub(crate) fn mark_dirty<P: Platform>(vma: &Vma<P>, rcu: &P::RcuGuard, page: u64) {
    if let Object::File(file) = vma.object() {
        file.mapping().mark_granted(rcu, vma.pgoff_of(page));
    }
}
