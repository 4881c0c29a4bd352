//! Stores to a page that is there but may not be written yet.
//!
//! ```text
//! shared                    the right to write; the page is dirty
//! private, frame is ours    the right to write       ours: anonymous, and exclusive or with this entry's reference alone
//! private, anything else    old entry -> nothing -> flush -> entry of a copy, under the table's lock
//! ```
//!
//! Whether a frame is ours is decided by references, not by how many entries map it: another reader (a pipe,
//! a pin) holds a reference without an entry (hazard C-56). It is decided anew, from the entry found under
//! the lock, by every attempt (hazard C-2). The copy is installed only when no processor can read the old
//! page through this entry any more: otherwise one thread could still read the old page after another has
//! written the new one (hazard C-21).

use super::{FaultOutcome, WRITTEN, vma_pte_flags, written};
use crate::{
    VirtAddr,
    file::Object,
    platform::Platform,
    space::{AddressSpace, held_lock::HeldLock},
    vma::{Vma, flags::VmFlags},
};
use freehold_pagetable::{Pte, PteTable};
use freehold_vmspace::{ReadOnly, StoreOutcome};

impl<P: Platform> AddressSpace<P> {
    /// A store to a page that is mapped without the right to write, in a VMA that allows stores, or by an
    /// access that needs no such permission.
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
            return Self::looked(self.vm.allow_shared_store(table, address, WRITTEN));
        }
        match self.vm.allow_private_store(table, address, written(vma.flags())) {
            StoreOutcome::Copy(old) => {
                let step = self.copy(vma, table, address, old, held);
                if !old.special {
                    self.vm.memory().put_frame(old.pfn);
                }
                step
            }
            found => Self::looked(found),
        }
    }

    /// Where nothing has to be copied.
    fn looked(found: StoreOutcome) -> FaultOutcome<P> {
        match found {
            StoreOutcome::Allowed => FaultOutcome::Done,
            StoreOutcome::Changed | StoreOutcome::Copy(_) => FaultOutcome::Retry,
        }
    }

    /// Replaces the entry by one for a copy of `old`, which the caller keeps alive.
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
