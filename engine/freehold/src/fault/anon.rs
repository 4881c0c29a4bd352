//! Faults on private anonymous memory at an empty entry.
//!
//! The caller keeps the VMA unchanged. `map_zero` and `map_anon` check under the lock of the page table that
//! the entry is still empty. A store first needs an anon_vma (`space/change/anon.rs`). `mthp.rs` maps several
//! small pages at once, and `huge.rs` maps 2 MiB where no table is linked yet.
//!
//! `resolve` in `mod.rs` calls this file. Only the choice of the anon_vma may need the mmap lock; a fault
//! that needs this lock climbs to the next rung. `tests/fault/concurrent.rs` runs such faults concurrently in
//! one VMA.

use super::{Access, FaultOutcome, vma_pte_flags, written};
use crate::{
    VirtAddr,
    platform::Platform,
    space::{AddressSpace, held_lock::HeldLock},
    vma::Vma,
};
use freehold_pagetable::PteTable;

impl<P: Platform> AddressSpace<P> {
    /// Maps the zero page for a read. Maps a new frame, or a [block](super::mthp) of frames, for a write.
    /// `table` is the table for `page`.
    #[inline]
    pub(super) fn anon_fault(
        &self,
        vma: &Vma<P>,
        page: u64,
        access: Access,
        held: HeldLock<'_, '_, P>,
        table: PteTable<'_, P::Format, P>,
    ) -> FaultOutcome<P> {
        let (address, flags) = (VirtAddr::new(page), vma.flags());
        let rights = vma_pte_flags(flags);
        if !access.write {
            self.vm.map_zero(table, address, rights);
            return FaultOutcome::Done;
        }
        if let Err(step) = self.prepare_anon(vma, held) {
            return step.into();
        }
        if self.engine.brings_blocks()
            && let Some(step) = self.block_fault(vma, page, table)
        {
            return step;
        }
        let Ok(frame) = self.vm.alloc_anon(true, vma.anon_page(page)) else {
            return FaultOutcome::OUT_OF_MEMORY;
        };
        // If another task has installed an entry first, `map_anon` frees the frame, and the retried access
        // uses that entry.
        self.vm.map_anon(table, address, frame, rights | written(flags));
        FaultOutcome::Done
    }
}
