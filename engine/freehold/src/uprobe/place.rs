//! Making one page of one address space show what the registry says, whatever is there now.
//!
//! All happens under the table's lock and within one RCU guard. A page that others execute is never written
//! while they can: its entry is taken and flushed first. It is written in place only if it is this address
//! space's alone; a borrower meanwhile (process_vm_writev) goes on with the same frame, so that no store is
//! lost. And a copy is thrown away only if nobody has borrowed it, after the flush, so that no store can come
//! to it any more.

use super::state::{Probe, are_put, may_show};
use crate::{
    PAGE_SIZE, Pfn, VirtAddr,
    file::Mapping,
    platform::{FramePurpose, Platform},
    space::AddressSpace,
    vma::Vma,
};
use freehold_pagetable::{Kind, Level, MarkerKind, Pte, PteFlags, PteGuard};
use freehold_vmspace::{AnonPage, Memory, MigrationEntry, PageIndex, UserRange, VmGather, VmSpace};

/// Bytes that are compared at a time.
const CHUNK: usize = 256;

/// Why a page does not show what it is to show.
pub(super) enum Unsettled {
    /// It is being moved out of this frame, which is to be waited for.
    Moving(Pfn),
    /// No frame for a copy.
    NoMemory,
}

/// How an attempt ended.
enum Outcome {
    Settled,
    Moving(Pfn),
    /// A frame for a copy is needed, and allocated without locks.
    NeedsFrame,
    /// The table was reclaimed before it was locked.
    Reclaimed,
}

/// A frame for a copy, not used yet.
struct Spare<'e, P: Platform> {
    memory: &'e Memory<P>,
    frame: Option<Pfn>,
}

impl<P: Platform> Drop for Spare<'_, P> {
    fn drop(&mut self) {
        if let Some(frame) = self.frame.take() {
            self.memory.free_frame(frame);
        }
    }
}

/// Makes the page `index` of `mapping` show in `vma`, which maps it, what the registry says, if it shows
/// anything now.
///
/// # Locks
///
/// The caller keeps the VMA as it is, and its tables: by the mmap lock or the i_mmap lock. The table's lock.
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
        // Not exclusive: the task that has emptied the entry before us may owe its flush (hazard C-4). Ours
        // comes before the table's lock is let go of; what has left the entry goes back after the guard.
        let mut gather = vm.gather();
        let Some(table) = vm.pte_table(address) else { return Ok(()) };
        // Given back after the guard, as it may be the last reference.
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
        let frame = vm.memory().alloc_like(Level::Pte, FramePurpose::Anonymous);
        spare.frame = Some(frame.map_err(|_| Unsettled::NoMemory)?);
    }
}

impl<P: Platform> AddressSpace<P> {
    /// As text from now on, `part` of `vma` is to show breakpoints. Without memory for a copy of a page that
    /// was written and is shared by fork, it does not there; the change of rights does not fail for that.
    ///
    /// # Locks
    ///
    /// The caller holds the mmap lock for writing. Tables' locks; the lock of a frame whose page is moving is
    /// waited for.
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

/// The page, and what it is to show.
struct Page<'a, P: Platform> {
    vm: &'a VmSpace<P>,
    address: VirtAddr,
    probes: &'a [Probe],
    /// Breakpoints are put here, not only taken away.
    put: bool,
    /// The file's page, if it is in the cache; the caller has a reference.
    original: Option<Pfn>,
}

impl<P: Platform> Page<'_, P> {
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
            // Right, or whatever a fault puts there will be.
            Kind::Leaf { .. } | Kind::None | Kind::Marker { .. } | Kind::Table { .. } => Outcome::Settled,
        }
    }

    /// The entry maps `pfn`, which shows something else than it is to show.
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
        // One reference is this entry's: nobody can come to have another but through this table.
        let (alone, own) = (frame.refs() == 1, frame.is_exclusive());
        if !frame.is_anon() || self.is_made_anew(pfn) && (alone || !own) {
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
            // The copy is at home where the page is: where this VMA's pages are.
            let (home, index) = frame.rmap();
            platform.frame(new).init_anon(AnonPage { rmap: home, index });
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

    /// Whether the page shows something else than it is to show.
    fn is_wrong(&self, pfn: Pfn) -> bool {
        let anon = self.vm.platform().frame(pfn).is_anon();
        self.probes.iter().any(|probe| match anon {
            true => self.correction(probe, pfn).is_some(),
            // As the fault sees it: a copy, whatever the file has there by now.
            false => self.put && !probe.is_leaving(),
        })
    }

    /// What is to be written at the place of a probe in a private copy.
    fn correction<'p>(&self, probe: &'p Probe, pfn: Pfn) -> Option<&'p [u8]> {
        let (from, to) = match probe.is_leaving() {
            true => (probe.breakpoint(), probe.replaced()),
            false if self.put => (probe.replaced(), probe.breakpoint()),
            false => return None,
        };
        probe.shows(self.vm.platform(), pfn, from).then_some(to)
    }

    fn write(&self, pfn: Pfn) {
        for probe in self.probes {
            if let Some(bytes) = self.correction(probe, pfn) {
                self.vm.platform().write_frame(pfn, probe.start(), bytes);
            }
        }
    }

    /// Whether a fault would make this private copy as it is, or is to be: it differs from the file's page by
    /// breakpoints, and by nothing else. A copy that does not differ at all was perhaps made by a store,
    /// and stays.
    fn is_made_anew(&self, copy: Pfn) -> bool {
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
