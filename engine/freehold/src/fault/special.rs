//! Faults on special mappings: a hook is asked for the frame, and then for the right to write to it.
//!
//! Between the hook's answer and the entry the frame may have been taken back; see `file/change/revoke.rs`
//! for why that cannot be missed.

use super::{FaultError, FaultOutcome, SegvCode, WRITTEN, vma_pte_flags};
use crate::{
    VirtAddr,
    file::{HookFault, Special},
    platform::Platform,
    space::AddressSpace,
    vma::Vma,
};
use freehold_pagetable::{Kind, Level, PteFlags, PteTable};

impl HookFault {
    fn at<P: Platform>(self, page: u64) -> FaultOutcome<P> {
        match self {
            HookFault::Bus => FaultOutcome::Failed(FaultError::Bus { addr: page }),
            HookFault::Segv => FaultOutcome::Failed(FaultError::Segv { addr: page, code: SegvCode::Accerr }),
            HookFault::OutOfMemory => FaultOutcome::OUT_OF_MEMORY,
        }
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Maps the frame that the hook names: for writing where stores are shared and nobody wants to hear of
    /// the first one. A private store copies it. `table` is the one for `page`.
    #[inline(never)]
    pub(super) fn special_fault(
        &self,
        vma: &Vma<P>,
        page: u64,
        write: bool,
        special: &Special<P>,
        table: PteTable<'_, P::Format, P>,
    ) -> FaultOutcome<P> {
        let asked = special.ask();
        let found = special.ops().fault(self.vm.mmu(), &vma.info(), vma.pgoff_of(page), write);
        let pfn = match found {
            Ok(frames) => frames.first(),
            Err(error) => return error.at(page),
        };
        let mut rights = vma_pte_flags(vma.flags()) | special.entry_flags(vma.flags());
        // Of a store that comes through now; any other finds no right to write, and faults again.
        rights.set(PteFlags::DIRTY, write && rights.contains(PteFlags::WRITE));
        let rcu = P::rcu_read();
        if !asked.holds(&rcu) {
            return FaultOutcome::Retry;
        }
        // If the slot is not empty any more, or the table was reclaimed, the access will show what is there.
        self.vm.map_foreign(table, VirtAddr::new(page), core::iter::once(pfn), rights);
        FaultOutcome::Done
    }

    /// The first store through an entry of a shared special mapping.
    pub(super) fn special_mkwrite(
        &self,
        vma: &Vma<P>,
        page: u64,
        special: &Special<P>,
        table: PteTable<'_, P::Format, P>,
    ) -> FaultOutcome<P> {
        let asked = special.ask();
        if let Err(error) = special.ops().mkwrite(self.vm.mmu(), &vma.info(), vma.pgoff_of(page)) {
            return error.at(page);
        }
        let (rcu, address) = (P::rcu_read(), VirtAddr::new(page));
        let Some(mut guard) = table.lock_linked() else { return FaultOutcome::Retry };
        match guard.get(address).kind(Level::Pte) {
            // The frame is the one that it was: another would have been revoked before.
            Kind::Leaf { flags, .. } if flags.contains(PteFlags::SPECIAL) && asked.holds(&rcu) => {
                guard.grant(address, WRITTEN);
                FaultOutcome::Done
            }
            Kind::Leaf { .. } | Kind::None | Kind::Marker { .. } | Kind::Table { .. } => FaultOutcome::Retry,
        }
    }
}
