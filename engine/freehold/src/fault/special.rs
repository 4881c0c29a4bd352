//! Faults on special mappings. The hooks of the mapping supply the frame, and then permit the first write to
//! it.
//!
//! `resolve` in `mod.rs` calls `special_fault` at an empty entry, and `cow.rs` calls `special_mkwrite` for a
//! store to a read-only entry. The hooks run with the VMA locked or the mmap lock held for reading, but
//! without the lock of the page table. `file/kinds/special.rs` has the table of hooks.
//!
//! The frame may be revoked between the hook's answer and the installation of the entry. The entry must
//! therefore be installed in a read section in which `asked.holds` is true. `file/change/revoke.rs` describes
//! why a fault detects every revocation. `tests/special/revoke.rs` has the tests.

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
    /// Converts the error of a hook to the outcome of a fault on `page`.
    fn at<P: Platform>(self, page: u64) -> FaultOutcome<P> {
        match self {
            HookFault::Bus => FaultOutcome::Failed(FaultError::Bus { addr: page }),
            HookFault::Segv => FaultOutcome::Failed(FaultError::Segv { addr: page, code: SegvCode::Accerr }),
            HookFault::OutOfMemory => FaultOutcome::OUT_OF_MEMORY,
        }
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Maps the frame that the hook returns. The entry is writable if stores are shared and the hooks do not
    /// request `mkwrite` calls. A private store makes a copy later. `table` is the table for `page`.
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
        // The entry is dirty only if the store of this fault succeeds with this entry. Otherwise the entry
        // has no write permission, so a store faults again.
        rights.set(PteFlags::DIRTY, write && rights.contains(PteFlags::WRITE));
        let rcu = P::rcu_read();
        if !asked.holds(&rcu) {
            return FaultOutcome::Retry;
        }
        // If the entry is no longer empty, or the table was reclaimed, `map_foreign` installs nothing, and
        // the access faults again if necessary.
        self.vm.map_foreign(table, VirtAddr::new(page), core::iter::once(pfn), rights);
        FaultOutcome::Done
    }

    /// Handles the first store through an entry of a shared special mapping.
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
            // The frame is unchanged. Only a revocation could have replaced the frame, and `asked.holds`
            // returns true only if there was no revocation.
            Kind::Leaf { flags, .. } if flags.contains(PteFlags::SPECIAL) && asked.holds(&rcu) => {
                guard.grant(address, WRITTEN);
                FaultOutcome::Done
            }
            Kind::Leaf { .. } | Kind::None | Kind::Marker { .. } | Kind::Table { .. } => FaultOutcome::Retry,
        }
    }
}
