//! Updates one page of one address space, so that it contains exactly the breakpoints of the registry.
//!
//! All updates are made under the page table's lock and within one RCU guard. Executable memory is not
//! written while any CPU can execute it: the entry is cleared and flushed first. A page is written in place
//! only if no other address space uses the page. A concurrent process_vm_writev continues to use the same
//! frame, so that no store is lost. A copy that only this space uses is discarded only after the flush, and
//! only if no other task holds a reference to the copy. No store can then reach the copy any more.
//!
//! The walk of `mod.rs` calls `settle_probes` for each VMA that maps the page, and mprotect calls
//! `settle_text` for memory that loses write permission. No frame may be allocated or freed under the table's
//! lock or within the guard: `Outcome::NeedsFrame` returns to the caller for an allocation, and the gather
//! frees frames afterwards. `forced_stores_during_probe_changes_are_kept` (`shuttle_engine`) tests the stores
//! of a debugger.

use super::state::{Probe, are_put, may_show};
use crate::{
    PAGE_SIZE, Pfn, VirtAddr,
    file::Mapping,
    platform::{FramePurpose, PageOwner, Platform},
    space::AddressSpace,
    vma::Vma,
};
use freehold_pagetable::{Kind, Level, MarkerKind, Pte, PteFlags, PteGuard, VaRange};
use freehold_vmspace::{AnonPage, Memory, MigrationEntry, PageIndex, UserRange, VmGather, VmSpace};

/// Number of bytes that are compared at a time.
const CHUNK: usize = 256;

/// Reason why a page was not updated.
pub(super) enum Unsettled {
    /// The page is being moved out of this frame. The caller waits for the move.
    Moving(Pfn),
    /// No frame is left for a copy.
    NoMemory,
}

/// Result of one attempt.
enum Outcome {
    /// The page is correct now.
    Settled,
    /// The page is being moved out of this frame.
    Moving(Pfn),
    /// A frame for a copy is needed. The caller allocates the frame without locks.
    NeedsFrame,
    /// The page table was reclaimed before it was locked.
    Reclaimed,
}

/// A frame for a copy that is not used yet.
struct Spare<'e, P: Platform> {
    memory: &'e Memory<P>,
    frame: Option<Pfn>,
}

impl<P: Platform> Drop for Spare<'_, P> {
    fn drop(&mut self) {
        if let Some(frame) = self.frame.take() {
            self.memory.free_charged(frame);
        }
    }
}

/// Updates the page `index` of the file `mapping` at its place in `vma`, so that the page contains the
/// breakpoints of the registry. Does nothing if the page is not mapped.
///
/// # Locks
///
/// The caller keeps the VMA and its tables unchanged with the mmap lock or the i_mmap lock. Takes the page
/// table's lock.
pub(super) fn settle_probes<P: Platform>(
    vm: &VmSpace<P>,
    vma: &Vma<P>,
    mapping: &Mapping<P>,
    index: PageIndex,
) -> Result<(), Unsettled> {
    if !may_show(vma.flags()) {
        return Ok(());
    }
    let address = VirtAddr::new(vma.start() + (index - vma.pgoff()).bytes());
    let mut spare = Spare { memory: vm.memory(), frame: None };
    loop {
        // A shared gather, because another task may have cleared the entry and not flushed it yet (hazard
        // C-4). `settle` flushes before it releases the table's lock. Frames taken out of the entry are freed
        // after the guard is dropped.
        let mut gather = vm.gather(VaRange::entry(address, Level::Pte));
        let Some(table) = vm.pte_table(address) else { return Ok(()) };
        // `original` is dropped after the RCU guard, because it may be the last reference to the page.
        let original = mapping.get_page(index);
        let outcome = {
            let rcu = P::rcu_read();
            mapping.probes().read::<P>(&rcu).map_or(Outcome::Settled, |list| {
                let page = Page {
                    vm,
                    address,
                    probes: list.on_page(index),
                    put: are_put(vma.flags()),
                    original: original.as_deref().copied(),
                };
                match table.lock_linked() {
                    Some(table) => page.settle(table, &mut gather, &mut spare),
                    None => Outcome::Reclaimed,
                }
            })
        };
        gather.finish();
        match outcome {
            Outcome::Settled => return Ok(()),
            Outcome::Moving(pfn) => return Err(Unsettled::Moving(pfn)),
            Outcome::Reclaimed => continue,
            Outcome::NeedsFrame => {}
        }
        let frame =
            vm.memory().alloc_like(Level::Pte, FramePurpose::Anonymous, PageOwner::Space(vm.mmu()), None);
        spare.frame = Some(frame.map_err(|_| Unsettled::NoMemory)?);
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Inserts the breakpoints of all probes into `part` of `vma`, from which an mprotect has removed write
    /// permission. A page that was written and is shared by fork stays without breakpoints if there is no
    /// memory for a copy. The change of rights does not fail in this case.
    ///
    /// # Locks
    ///
    /// The caller holds the mmap lock for writing. Takes page tables' locks, and waits for the lock of a
    /// frame whose page is moving.
    #[inline(never)]
    pub(crate) fn settle_text(&self, vma: &Vma<P>, part: UserRange) {
        let Some(file) = vma.object().file() else { return };
        let (mut index, end) = (vma.pgoff_of(part.start()), vma.pgoff_of(part.end() - 1) + 1);
        loop {
            let next = {
                let rcu = P::rcu_read();
                file.mapping().probes().read::<P>(&rcu).and_then(|list| list.next_page(index))
            };
            index = match next {
                Some(next) if next < end => next,
                _ => return,
            };
            match settle_probes(&self.vm, vma, file.mapping(), index) {
                Err(Unsettled::Moving(pfn)) => self.vm.memory().wait_out_frame(pfn),
                Ok(()) | Err(Unsettled::NoMemory) => index += 1,
            }
        }
    }
}

/// A page, and the probes that determine its contents.
struct Page<'a, P: Platform> {
    vm: &'a VmSpace<P>,
    address: VirtAddr,
    probes: &'a [Probe],
    /// True if breakpoints are also inserted, not only removed.
    put: bool,
    /// The file's page, if it is in the cache; the caller holds a reference.
    original: Option<Pfn>,
}

impl<P: Platform> Page<'_, P> {
    /// Updates the page whose table is locked by `guard`.
    fn settle(
        &self,
        mut guard: PteGuard<'_, P::Format, P>,
        gather: &mut VmGather<'_, P, 1>,
        spare: &mut Spare<'_, P>,
    ) -> Outcome {
        match guard.get(self.address).kind(Level::Pte) {
            Kind::Leaf { pfn, flags } if !flags.contains(PteFlags::SPECIAL) && self.is_wrong(pfn) => {
                self.change(pfn, &mut guard, gather, spare)
            }
            Kind::Marker { kind: MarkerKind::Migration, payload } => {
                Outcome::Moving(MigrationEntry::of(payload).pfn)
            }
            // The page is correct, or a later fault installs a correct page.
            Kind::Leaf { .. } | Kind::None | Kind::Marker { .. } | Kind::Table { .. } => Outcome::Settled,
        }
    }

    /// Replaces or patches the page in `pfn`. The entry maps this page, and a breakpoint is missing or
    /// obsolete in the page.
    fn change(
        &self,
        pfn: Pfn,
        guard: &mut PteGuard<'_, P::Format, P>,
        gather: &mut VmGather<'_, P, 1>,
        spare: &mut Spare<'_, P>,
    ) -> Outcome {
        let platform = self.vm.platform();
        let frame = platform.frame(pfn);
        let old = guard.take(self.address, gather);
        gather.flush();
        // One reference belongs to this entry. Another reference can be obtained only through this table,
        // which is locked.
        let (alone, own) = (frame.refs() == 1, frame.is_exclusive());
        if !frame.is_anon() || self.can_be_recreated(pfn) && (alone || !own) {
            self.vm.count_page(frame.kind(), -1);
            frame.sub_map();
            gather.add_frame(pfn, Level::Pte);
        } else if alone || own {
            if !own {
                frame.set_exclusive();
            }
            self.write(pfn);
            guard.set(self.address, old.with_flags(Level::Pte, old.flags() | PteFlags::DIRTY));
        } else if let Some(new) = spare.frame.take() {
            // The copy has the home of the original page, which is the home of this VMA's pages.
            let (home, index) = frame.rmap();
            platform.frame(new).init_anon(AnonPage { rmap: home, index, policy: 0 });
            platform.copy_frame(new, pfn);
            self.write(new);
            guard.set(self.address, Pte::page(new, old.flags() | PteFlags::DIRTY));
            frame.sub_map();
            gather.add_frame(pfn, Level::Pte);
        } else {
            guard.set(self.address, old);
            return Outcome::NeedsFrame;
        }
        Outcome::Settled
    }

    /// Returns true if the contents of the page differ from the contents that the probes require.
    fn is_wrong(&self, pfn: Pfn) -> bool {
        let anon = self.vm.platform().frame(pfn).is_anon();
        self.probes.iter().any(|probe| match anon {
            true => self.correction(probe, pfn).is_some(),
            // Like a fault, replaces the file's page by a copy regardless of the current bytes of the file.
            false => self.put && !probe.is_leaving(),
        })
    }

    /// Returns the bytes to write at the place of a probe in a private copy, if they must change.
    fn correction<'p>(&self, probe: &'p Probe, pfn: Pfn) -> Option<&'p [u8]> {
        let (from, to) = match probe.is_leaving() {
            true => (probe.breakpoint(), probe.replaced()),
            false if self.put => (probe.replaced(), probe.breakpoint()),
            false => return None,
        };
        probe.shows(self.vm.platform(), pfn, from).then_some(to)
    }

    /// Writes all missing corrections into a private copy that no CPU can execute now.
    fn write(&self, pfn: Pfn) {
        for probe in self.probes {
            if let Some(bytes) = self.correction(probe, pfn) {
                self.vm.platform().write_frame(pfn, probe.start(), bytes);
            }
        }
    }

    /// Returns true if a fault would create an equal copy, because the copy differs from the file's page only
    /// by breakpoints. A copy without any difference may result from a store, and is kept.
    fn can_be_recreated(&self, copy: Pfn) -> bool {
        let Some(original) = self.original.filter(|_| self.put) else { return false };
        let platform = self.vm.platform();
        let (mut ours, mut theirs) = ([0; CHUNK], [0; CHUNK]);
        let mut any = false;
        for start in (0..PAGE_SIZE as usize).step_by(CHUNK) {
            platform.read_frame(copy, start, &mut ours);
            platform.read_frame(original, start, &mut theirs);
            let differing = (start..).zip(ours.iter().zip(&theirs)).filter(|(_, (a, b))| a != b);
            for (at, _) in differing {
                let of_probe = self.probes.iter().any(|probe| {
                    probe.covers(at)
                        && probe.shows(platform, copy, probe.breakpoint())
                        && probe.shows(platform, original, probe.replaced())
                });
                if !of_probe {
                    return false;
                }
                any = true;
            }
        }
        any
    }
}
