//! Stores to a page that is there but may not be written yet.
//!
//! ```text
//! shared                    the right to write; the page is dirty
//! private, frame is ours    the right to write       ours: anonymous, and exclusive or with this entry's reference alone
//! private, anything else    old entry -> nothing -> flush -> entry of a copy, under the table's lock
//! ```
//!
//! Whether a frame is ours is decided by references, not by how many entries map it: whoever else may read it (a pipe, a pin)
//! holds a reference without an entry (hazard C-56). It is decided anew, from the entry found under the lock, by every
//! attempt (hazard C-2). The copy is installed only when no processor can read the old page through this entry any more:
//! otherwise one thread could still read the old page after another has written the new one (hazard C-21).

use super::{FaultOutcome, Held, WRITTEN, vma_pte_flags, written};
use crate::{
    Pfn, VirtAddr,
    object::Object,
    platform::Platform,
    space::{AddressSpace, RssKind},
    vma::{Vma, flags::VmFlags},
};
use freehold_pagetable::{Kind, Level, Pte, PteFlags, PteGuard, PteTable};

/// A page that is mapped without the right to write.
#[derive(Clone, Copy)]
struct ReadOnly {
    pfn: Pfn,
    /// The frame is not counted: the zero page, or one that the engine does not own.
    special: bool,
}

/// What the entry says now. `Err`: it needs no copy, or is something else altogether.
fn read_only<P: Platform>(
    guard: &PteGuard<'_, P::Format, P>,
    address: VirtAddr,
) -> Result<ReadOnly, FaultOutcome<P>> {
    match guard.get(address).kind(Level::Pte) {
        Kind::Leaf { flags, .. } if flags.contains(PteFlags::WRITE) => Err(FaultOutcome::Done),
        // Write-protected by a userfaultfd since it was looked at.
        Kind::Leaf { flags, .. } if flags.contains(PteFlags::UFFD_WP) => Err(FaultOutcome::Retry),
        Kind::Leaf { pfn, flags } => Ok(ReadOnly { pfn, special: flags.contains(PteFlags::SPECIAL) }),
        Kind::None | Kind::Marker { .. } | Kind::Table { .. } => Err(FaultOutcome::Retry),
    }
}

impl<P: Platform> AddressSpace<P> {
    /// A store to a page that is mapped without the right to write, in a VMA that allows stores, or by somebody who needs no
    /// such permission.
    #[inline(never)]
    pub(super) fn write_protect_fault(
        &self,
        vma: &Vma<P>,
        page: u64,
        held: Held<'_, '_, P>,
    ) -> FaultOutcome<P> {
        let address = VirtAddr::new(page);
        let Some(table) = self.vm.pte_table(address) else { return FaultOutcome::Retry };
        if vma.flags().contains(VmFlags::SHARED) {
            if let Object::Special(special) = vma.object()
                && special.ops().notifies_writes()
            {
                return self.special_mkwrite(vma, page, special, table);
            }
            return self.write_shared(table, address);
        }
        match self.reuse(vma, table, address) {
            Ok(old) => {
                let step = self.copy(vma, table, address, old, held);
                if !old.special {
                    self.vm.memory().put_frame(old.pfn);
                }
                step
            }
            Err(step) => step,
        }
    }

    /// Stores reach the file. No flush: a TLB that remembers the old rights faults once more at most.
    fn write_shared(&self, table: PteTable<'_, P::Format, P>, address: VirtAddr) -> FaultOutcome<P> {
        let mut guard = table.lock();
        match read_only(&guard, address) {
            Ok(found) => {
                if !found.special {
                    self.platform().frame(found.pfn).set_dirty();
                }
                guard.grant(address, WRITTEN);
                FaultOutcome::Done
            }
            Err(step) => step,
        }
    }

    /// Lets the store go to the frame if it is ours alone. Else returns what has to be copied, with a reference.
    fn reuse(
        &self,
        vma: &Vma<P>,
        table: PteTable<'_, P::Format, P>,
        address: VirtAddr,
    ) -> Result<ReadOnly, FaultOutcome<P>> {
        let mut guard = table.lock();
        let found = read_only(&guard, address)?;
        if found.special {
            return Ok(found);
        }
        let frame = self.platform().frame(found.pfn);
        // One reference is this entry's: nobody else has the frame, and nobody can come to have it but through this table.
        if frame.is_anon() && (frame.is_exclusive() || frame.refs() == 1) {
            if !frame.is_exclusive() {
                frame.set_exclusive();
            }
            guard.grant(address, written(vma.flags()));
            return Err(FaultOutcome::Done);
        }
        frame.get();
        Ok(found)
    }

    /// Replaces the entry by one for a copy of `old`, which the caller keeps alive.
    fn copy(
        &self,
        vma: &Vma<P>,
        table: PteTable<'_, P::Format, P>,
        address: VirtAddr,
        old: ReadOnly,
        held: Held<'_, '_, P>,
    ) -> FaultOutcome<P> {
        if let Err(step) = self.prepare_anon(vma, held) {
            return step;
        }
        let zero = self.vm.memory().is_zero(old.pfn);
        let Ok(new) = self.vm.memory().alloc_anon(zero, vma.anon_root(), vma.pgoff_of(address.get())) else {
            return FaultOutcome::OUT_OF_MEMORY;
        };
        if !zero {
            self.platform().copy_frame(new, old.pfn);
        }
        let step = self.exchange(
            table,
            address,
            old,
            Pte::page(new, vma_pte_flags(vma.flags()) | written(vma.flags())),
        );
        if !matches!(step, FaultOutcome::Done) {
            self.vm.memory().discard_anon(new);
        }
        step
    }

    /// Puts `new` in place of the entry for `old`, if that is still there; only then the answer is `Done`.
    fn exchange(
        &self,
        table: PteTable<'_, P::Format, P>,
        address: VirtAddr,
        old: ReadOnly,
        new: Pte<P::Format>,
    ) -> FaultOutcome<P> {
        // Nobody else's gather can see the entry empty: the lock is let go of only after the flush and the new entry.
        let mut gather = self.vm.exclusive_gather::<1>();
        let mut guard = table.lock();
        // The reference keeps the frame from becoming another page, so the same number is the same page. Anything else than
        // the old entry, writable or not, is somebody else's work, to be looked at again.
        if !read_only::<P>(&guard, address).is_ok_and(|now| now.pfn == old.pfn && now.special == old.special)
        {
            drop(guard);
            gather.finish();
            return FaultOutcome::Retry;
        }
        guard.take(address, &mut gather);
        gather.flush();
        guard.set(address, new);
        if !old.special {
            let frame = self.platform().frame(old.pfn);
            self.vm.count_page(frame.kind(), -1);
            frame.sub_map();
            gather.frame(old.pfn, Level::Pte);
        }
        drop(guard);
        self.vm.count_page(RssKind::Anon, 1);
        gather.finish();
        FaultOutcome::Done
    }
}
