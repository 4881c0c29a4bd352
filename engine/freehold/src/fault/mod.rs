//! Page faults: the ladder, and what to do once a rung holds.
//!
//! ```text
//! handle_fault
//!   (a rung that holds no lock at all and validates under the table's lock belongs here)
//!   1  the VMA's own lock, found without any other           nearly every fault
//!   2  the mmap lock for reading; where changes run side     holes, busy VMAs, first touch beside a writer
//!      by side, a claim of the VMA
//!   3  the mmap lock for writing; where changes run side     a stack that grows
//!      by side, a claim of the hole below
//! ```
//!
//! Each rung looks everything up again; each may say "climb". What a fault does to the page tables is the
//! same on every rung and needs only that the VMA stands still, so it takes the VMA and does not ask how it
//! is held, except for the first anonymous page of a VMA, which looks at the neighbours.
//!
//! What the commonest fault, the first store to anonymous memory, does not need is kept out of line
//! (`inline(never)`): the stack frames of gathers would else be every fault's, and cost it a third of its
//! time.

mod anon;
mod collapse;
mod cow;
mod file;
pub(crate) mod huge;
mod mthp;
pub(crate) mod outcome;
mod populate;
mod present;
mod shmem_mthp;
mod special;
mod stack;
mod table;

pub use outcome::{FaultError, Resolved, SegvCode};
pub(crate) use outcome::{FaultOutcome, WaitFor, check_access, permits};

use crate::{
    PAGE_SIZE, VirtAddr,
    file::Object,
    platform::Platform,
    space::{
        AddressSpace, claim::RangeClaim, held_lock::HeldLock, range_writer::RangeWriterState,
        state::counters::FaultEnd, vma_lock::AddressState,
    },
    vma::{
        Vma,
        flags::{
            VmFlags,
            pte_flags::{WRITTEN, vma_pte_flags, written},
        },
    },
    wait::Rounds,
};
pub use freehold_pagetable::Access;
use freehold_pagetable::{Kind, Level, MarkerKind, PteFlags, PteTable, TableError};
use freehold_sync::Killed;
use freehold_vmspace::MigrationEntry;

impl<P: Platform> AddressSpace<P> {
    /// Resolves a page fault at `addr`: after `Ok`, which says what that took, the access can be tried again.
    ///
    /// Also sets accessed and dirty bits, where hardware faults for the lack of them. On hardware that may
    /// remember the entry at which it faulted (RISC-V), the caller flushes the address on this processor
    /// before the access is tried again.
    ///
    /// # Errors
    ///
    /// The signal that the access deserves, or no memory, or a fatal signal; see [`FaultError`].
    ///
    /// # Locks
    ///
    /// By the ladder of the module's documentation. Waits for the mmap lock only where it has to, killably.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, engine::{Config, Engine}, fault::{Access, FaultError}, space::*};
    /// # use freehold_machine::{Machine, MachineConfig};
    /// # let engine = Engine::new(<Machine>::new(MachineConfig::backed(1 << 20)).unwrap(), Config::default()).unwrap();
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let done = space.handle_fault(at, Access::WRITE).unwrap();
    /// assert!(!done.major && space.rss().anon == 1);
    /// let hole = space.handle_fault(at + 4 * PAGE_SIZE, Access::READ);
    /// assert!(matches!(hole, Err(FaultError::Segv { .. })));
    /// ```
    pub fn handle_fault(&self, addr: u64, access: Access) -> Result<Resolved, FaultError> {
        let page = addr & !(PAGE_SIZE - 1);
        let mut rung = match self.tries_vma_lock() {
            true => FaultEnd::VmaLock,
            false => FaultEnd::MmapLock,
        };
        let (mut rounds, mut done) = (Rounds::new(), Resolved::default());
        let end = loop {
            let step = match rung {
                FaultEnd::VmaLock => self.fault_under_vma_lock(page, access),
                _ => self.fault_under_mmap_lock(page, access),
            };
            match step {
                FaultOutcome::Done => break Ok(done),
                FaultOutcome::Retry => {}
                FaultOutcome::NeedMmapLock => rung = FaultEnd::MmapLock,
                FaultOutcome::Fill(file, wanted) => {
                    done = Resolved { major: done.major | file.mapping().has_store(), waited: true };
                    if let Err(error) = self.fill(&file, wanted, addr) {
                        break Err(error);
                    }
                }
                FaultOutcome::Wait(what) => {
                    done.waited = true;
                    if let Err(killed) = self.engine.wait_for(what) {
                        break Err(killed.into());
                    }
                }
                FaultOutcome::Userfault(fault) => {
                    done.waited = true;
                    let waited = match access.user {
                        true => self.wait_for_pager_or_signal(&fault, addr),
                        false => self.wait_for_pager(&fault, addr).map_err(FaultError::from),
                    };
                    if let Err(error) = waited {
                        break Err(error);
                    }
                }
                FaultOutcome::Failed(error) => break Err(error.at(addr)),
            }
            // A task that takes away what each round brings keeps this going, but not for ever.
            if let Err(killed) = rounds.again::<P>() {
                break Err(killed.into());
            }
        };
        self.counters.count_fault(if end.is_ok() { rung } else { FaultEnd::Failed });
        end
    }

    #[inline]
    fn fault_under_vma_lock(&self, page: u64, access: Access) -> FaultOutcome<P> {
        match self.lock_vma(page) {
            Ok(vma) => self.fault_in(&vma, page, access, HeldLock::Vma),
            Err(_) => FaultOutcome::NeedMmapLock,
        }
    }

    #[inline(never)]
    fn fault_under_mmap_lock(&self, page: u64, access: Access) -> FaultOutcome<P> {
        if self.has_range_writers()
            && self.tries_vma_lock()
            && let Some(step) = self.fault_under_claim(page, access)
        {
            return step;
        }
        let guard = match self.read_killable() {
            Ok(guard) => guard,
            Err(Killed) => return FaultOutcome::Failed(FaultError::Killed),
        };
        if let Some(vma) = guard.find(page) {
            if !self.tries_vma_lock() || !permits(vma.flags(), access) {
                return self.fault_in(vma, page, access, HeldLock::Mmap(&guard));
            }
            // The mmap lock is needed for the look-up, and to choose an anon_vma; what remains does with the
            // VMA's own.
            if self.wants_anon_vma(vma, page, access) {
                let _ = self.prepare_anon(vma, HeldLock::Mmap(&guard));
            }
            return match guard.lock_vma(vma) {
                Err(_) => self.fault_in(vma, page, access, HeldLock::Mmap(&guard)),
                Ok(vma) => {
                    drop(guard);
                    self.fault_in(&vma, page, access, HeldLock::Vma)
                }
            };
        }
        drop(guard);
        // Growing needs the write lock, and everything is looked up again under it.
        match page < Self::TASK_SIZE {
            true => self.grow_stack(page).map_or_else(FaultOutcome::Failed, |()| FaultOutcome::Retry),
            false => FaultOutcome::Failed(FaultError::Segv { addr: page, code: SegvCode::Maperr }),
        }
    }

    /// The second rung beside range writers: a claim of the VMA, which waits for the task that changes it,
    /// in place of the mmap lock. `None`: it takes that all the same.
    fn fault_under_claim(&self, page: u64, access: Access) -> Option<FaultOutcome<P>> {
        let state = RangeWriterState::default();
        let claimed = match self.claim_vma(&state, page) {
            RangeClaim::Granted(guard, ()) => Some(guard),
            RangeClaim::NeedsExclusive => None,
            RangeClaim::Killed => return Some(FaultOutcome::Failed(FaultError::Killed)),
        };
        let Some((guard, vma)) = claimed.as_ref().and_then(|guard| Some((guard, guard.find(page)?))) else {
            drop(claimed);
            return match self.address_state(page) {
                AddressState::Mapped => None,
                _ => Some(self.grow_stack(page).map_or_else(FaultOutcome::Failed, |()| FaultOutcome::Retry)),
            };
        };
        if let Err(code) = check_access(vma.flags(), access) {
            return Some(FaultOutcome::Failed(FaultError::Segv { addr: page, code }));
        }
        if self.wants_anon_vma(vma, page, access) {
            // Without memory the attempt says so.
            let _ = self.prepare_anon_exclusive(guard, vma);
        }
        let vma = guard.read_lock_claimed(vma).ok()?;
        drop(claimed);
        Some(self.fault_in(&vma, page, access, HeldLock::Vma))
    }

    /// Whether the fault will make an anonymous page, a probed one too, or huge zeroes, whose first write is
    /// to find an anon_vma.
    fn wants_anon_vma(&self, vma: &Vma<P>, page: u64, access: Access) -> bool {
        let huge = || self.wants_huge(vma, page) && self.vm.pte_table(VirtAddr::new(page)).is_none();
        let hugetlb = vma.flags().contains(VmFlags::HUGETLB);
        !vma.flags().contains(VmFlags::SHARED)
            && (access.write || hugetlb || huge() || self.is_probed(vma, page))
    }

    /// One attempt at a fault on `page`, which lies in `vma`, while `held` keeps the VMA still.
    pub(crate) fn fault_in(
        &self,
        vma: &Vma<P>,
        page: u64,
        access: Access,
        held: HeldLock<'_, '_, P>,
    ) -> FaultOutcome<P> {
        if let Err(code) = check_access(vma.flags(), access) {
            return FaultOutcome::Failed(FaultError::Segv { addr: page, code });
        }
        self.resolve(vma, page, access, held)
    }

    /// As [`fault_in`](Self::fault_in), whatever the VMA permits: for a caller that was found to be entitled
    /// in another way. It may ask to write where the VMA does not permit it only if a page is there, and gets
    /// a private copy that stays read-only.
    pub(crate) fn resolve(
        &self,
        vma: &Vma<P>,
        page: u64,
        access: Access,
        held: HeldLock<'_, '_, P>,
    ) -> FaultOutcome<P> {
        if vma.flags().contains(VmFlags::HUGETLB) {
            return self.hugetlb_fault(vma, page, access, held);
        }
        let address = VirtAddr::new(page);
        let table = match self.vm.pte_table(address) {
            Some(table) => table,
            None => match self.make_table(vma, page, access, held) {
                Ok(table) => table,
                Err(step) => return step,
            },
        };
        if vma.flags().intersects(VmFlags::UFFD)
            && let Some(step) = self.ask_pager(vma, page, access)
        {
            return step;
        }
        // Read without the table's lock: a hint, to be checked under the lock.
        let found = table.peek(address);
        match found.kind(Level::Pte) {
            Kind::None => match vma.object() {
                Object::Anonymous | Object::Zeroes(_) => self.anon_fault(vma, page, access, held, table),
                Object::File(_) => match self.file_fault(vma, page, access, held, table) {
                    // Gone from the cache since the pager was thought of, but for what is lost.
                    FaultOutcome::Fill(file, wanted)
                        if vma.flags().contains(VmFlags::UFFD_MISSING)
                            && !file.mapping().is_lost(wanted.index) =>
                    {
                        FaultOutcome::Retry
                    }
                    step => step,
                },
                Object::Special(special) => self.special_fault(vma, page, access.write, special, table),
            },
            Kind::Leaf { flags, .. } if access.write && !flags.contains(PteFlags::WRITE) => {
                self.write_protect_fault(vma, page, held)
            }
            Kind::Leaf { flags, .. } => {
                let closed = flags.contains(PteFlags::NO_ACCESS) && permits(vma.flags(), access);
                debug_assert!(
                    !closed || table.lock_linked().is_none_or(|table| table.get(address) != found),
                    "a page that its VMA allows is closed"
                );
                self.present_fault(address, Level::Pte, flags, access)
            }
            Kind::Marker { .. } | Kind::Table { .. } => self.marker_fault(vma, page, table),
        }
    }
}

impl<P: Platform> AddressSpace<P> {
    /// The table for `page`, where there was none: nearly every fault installs something, so it is made
    /// before anything else is known, unless a huge page serves the fault, or something else stands
    /// there.
    #[inline(never)]
    fn make_table(
        &self,
        vma: &Vma<P>,
        page: u64,
        access: Access,
        held: HeldLock<'_, '_, P>,
    ) -> Result<PteTable<'_, P::Format, P>, FaultOutcome<P>> {
        if let Some(step) = self.huge_fault(vma, page, access, held) {
            return Err(step);
        }
        self.vm.pte_table_alloc(VirtAddr::new(page)).map_err(|error| match error {
            TableError::Huge(_) => self.huge_entry_fault(vma, page, access),
            TableError::OutOfTables => FaultOutcome::OUT_OF_MEMORY,
            TableError::Marker(_) => FaultOutcome::Failed(FaultError::Bus { addr: page }),
        })
    }

    /// A fault where a marker was found without the table's lock.
    #[inline(never)]
    fn marker_fault(&self, vma: &Vma<P>, page: u64, table: PteTable<'_, P::Format, P>) -> FaultOutcome<P> {
        let address = VirtAddr::new(page);
        let Some(found) = table.lock_linked().map(|table| table.get(address)) else {
            return FaultOutcome::Retry;
        };
        match found.kind(Level::Pte) {
            Kind::None | Kind::Leaf { .. } => FaultOutcome::Retry,
            Kind::Marker { kind: MarkerKind::Guard, .. } => {
                FaultOutcome::Failed(FaultError::Segv { addr: page, code: SegvCode::Maperr })
            }
            Kind::Marker { kind: MarkerKind::Migration, payload } => {
                FaultOutcome::Wait(WaitFor::Frame(MigrationEntry::of(payload).pfn))
            }
            Kind::Marker { kind: MarkerKind::Poison, payload } => self.poison_fault(table, address, payload),
            Kind::Marker { kind: MarkerKind::UffdWp, .. } => self.marked_fault(vma, page, table),
            Kind::Marker { kind: MarkerKind::Swap, .. } | Kind::Table { .. } => {
                FaultOutcome::Failed(FaultError::Bus { addr: page })
            }
        }
    }
}
