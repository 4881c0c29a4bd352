//! Page faults: the ladder of locks, and the work of a fault under a lock.
//!
//! ```text
//! handle_fault
//!   1  the VMA's own lock, found without any other lock      nearly every fault
//!   2  the mmap lock for reading; or, if range writers are   holes, busy VMAs, first anonymous page
//!      active, a claim of the VMA                            during a change
//!   3  the mmap lock for writing; or, if range writers are   a stack that grows
//!      active, a claim of the hole below
//! ```
//!
//! A rung is one way to keep a VMA unchanged during a fault. Each rung looks everything up again, and each
//! may report that the fault needs the next rung. The work on the page tables is the same on every rung: it
//! only needs an unchanged VMA and does not depend on the lock. The one exception is the first anonymous page
//! of a VMA, because the choice of an anon_vma reads the neighbouring VMAs.
//!
//! The most common fault is the first store to anonymous memory. Code that this fault does not need is kept
//! out of line (`inline(never)`). Otherwise every fault would pay for the stack frames of gathers, which cost
//! the most common fault a third of its time.
//!
//! `outcome.rs` defines the result of an attempt. `present.rs` and `table.rs` have steps that several kinds
//! of faults share. The other files serve one kind of fault each: anonymous memory in `anon.rs`, `mthp.rs`
//! and `huge.rs`; files in `file.rs` and `shmem_mthp.rs`; stores to pages that are mapped read-only in
//! `cow.rs`; swap entries in `swap.rs`; mappings with hooks in `special.rs`; growing stacks in `stack.rs`.
//! `populate.rs` makes faults in advance, and `collapse.rs` belongs to MADV_COLLAPSE. Huge pages of pools
//! have their own files in `hugetlb/fault/`. `uffd/fault.rs` has the faults that a userfaultfd's pager
//! serves. A new kind of object that a VMA can map gets a file here and an arm in `resolve`; a new kind of
//! marker gets an arm in `marker_fault`. `hugetlb/fault/mod.rs`, `remote/page.rs` and `remote/pin.rs` treat a
//! marker that they do not name as memory that cannot be accessed.
//!
//! An attempt must not wait for a page, a frame or a pager while it holds a lock: it returns a
//! `FaultOutcome`, and `handle_fault` waits without locks. An entry that was read without the table's lock is
//! a hint and must be checked again under the lock. `docs/guide/faults.md` describes faults as a whole;
//! `tests/fault` runs concurrent faults.

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
mod swap;
mod swap_ahead;
mod table;

pub use outcome::{FaultError, Resolved, SegvCode, Signal};
pub(crate) use outcome::{FaultOutcome, WaitFor, check_access, permits};

use crate::{
    PAGE_SIZE, VirtAddr,
    file::{Need, Object},
    platform::Platform,
    space::{
        AddressSpace, claim::RangeClaim, held_lock::HeldLock, range_writer::RangeWriterState,
        reaped::loses_pages, shortage::ShortageRounds, state::counters::FaultEnd, vma_lock::AddressState,
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
    /// Resolves a page fault at `addr`. After `Ok`, the access can be retried; the result says what the fault
    /// did.
    ///
    /// Also sets accessed and dirty bits on hardware that faults if these bits are missing. Does not flush
    /// the address. On hardware that may cache the entry at which it faulted, the caller flushes the address
    /// on this CPU before the access is retried (RISC-V: after any fault; Arm: after a fault for lack of
    /// rights).
    ///
    /// # Errors
    ///
    /// Fails if the access raises a signal, if there is no memory, or if a fatal signal arrives; see
    /// [`FaultError`].
    ///
    /// # Locks
    ///
    /// The locks of the ladder in the module's documentation. Waits for the mmap lock only where necessary,
    /// killably.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, fault::{Access, FaultError}, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let done = space.handle_fault(at, Access::WRITE).unwrap();
    /// assert!(!done.major && space.rss().anon == 1);
    /// let hole = space.handle_fault(at + 4 * PAGE_SIZE, Access::READ);
    /// assert!(matches!(hole, Err(FaultError::Segv { .. })));
    /// ```
    pub fn handle_fault(&self, addr: u64, access: Access) -> Result<Resolved, FaultError> {
        if !self.tries_vma_lock() {
            return self.continue_fault(addr, access, FaultEnd::MmapLock, FaultOutcome::Retry);
        }
        match self.fault_under_vma_lock(addr & !(PAGE_SIZE - 1), access) {
            done @ FaultOutcome::Done => {
                // There is nothing to drop. The compiler would call the code that drops any outcome.
                core::mem::forget(done);
                self.counters.count_fault(FaultEnd::VmaLock);
                Ok(Resolved::default())
            }
            step => self.continue_fault(addr, access, FaultEnd::VmaLock, step),
        }
    }

    /// Continues a fault after an attempt on `rung` that ended with `step`. The caller holds no lock.
    // Not inlined, so that a fault whose first attempt succeeds does not pay for the state of the loop.
    #[inline(never)]
    fn continue_fault(
        &self,
        addr: u64,
        access: Access,
        mut rung: FaultEnd,
        mut step: FaultOutcome<P>,
    ) -> Result<Resolved, FaultError> {
        let page = addr & !(PAGE_SIZE - 1);
        let (mut rounds, mut done) = (Rounds::new(), Resolved::default());
        let mut shortage = ShortageRounds::new();
        let end = loop {
            let ended = match step {
                FaultOutcome::Done => break Ok(done),
                FaultOutcome::Retry => Ok(()),
                FaultOutcome::NeedMmapLock => {
                    rung = FaultEnd::MmapLock;
                    Ok(())
                }
                FaultOutcome::Fill(file, wanted) => {
                    // At a mark of readahead, the fault starts reads and does not wait.
                    done.major |= wanted.need == Need::Page && file.mapping().reads_device(wanted.index);
                    done.waited |= wanted.need != Need::NextWindow;
                    self.fill(&file, wanted, addr)
                }
                FaultOutcome::Wait(what) => {
                    done.waited = true;
                    self.engine.wait_for(what).map_err(FaultError::from)
                }
                FaultOutcome::SwapIn(entry) => {
                    (done.major, done.waited) = (true, true);
                    self.swap_in(entry, addr)
                }
                FaultOutcome::Userfault(fault) => {
                    done.waited = true;
                    match access.user {
                        true => self.wait_for_pager_or_signal(&fault, addr),
                        false => self.wait_for_pager(&fault, addr).map_err(FaultError::from),
                    }
                }
                FaultOutcome::Failed(error) => Err(error.at(addr)),
            };
            if let Err(error) = ended {
                if let Err(error) = shortage.again(self, error) {
                    break Err(error);
                }
                done.waited = true;
            }
            // Another task can remove each page that a round adds, and so prolong this loop. A fatal signal
            // ends the loop.
            if let Err(killed) = rounds.again::<P>() {
                break Err(killed.into());
            }
            step = match rung {
                FaultEnd::VmaLock => self.fault_under_vma_lock(page, access),
                _ => self.fault_under_mmap_lock(page, access),
            };
        };
        #[cfg(feature = "log")]
        if let Err(error) = &end {
            log::debug!("page fault at {addr:#x} ({access:?}): {error}");
        }
        self.counters.count_fault(if end.is_ok() { rung } else { FaultEnd::Failed });
        end
    }

    /// Serves the first rung: one attempt under the VMA's own lock.
    #[inline(always)]
    fn fault_under_vma_lock(&self, page: u64, access: Access) -> FaultOutcome<P> {
        match self.lock_vma(page) {
            Ok(vma) => self.fault_in(&vma, page, access, HeldLock::Vma),
            Err(_) => FaultOutcome::NeedMmapLock,
        }
    }

    /// Serves the second and third rung: one attempt under the mmap lock or a claim.
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
            // The lookup and the choice of an anon_vma need the mmap lock. All other steps need only the
            // VMA's own lock.
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
        // A growing stack needs the write lock, under which everything is looked up again.
        match page < Self::TASK_SIZE {
            true => self.grow_stack(page).map_or_else(FaultOutcome::Failed, |()| FaultOutcome::Retry),
            false => FaultOutcome::Failed(FaultError::Segv { addr: page, code: SegvCode::Maperr }),
        }
    }

    /// Serves the second rung while range writers are active. Waits for the task that changes the VMA, and
    /// then claims the VMA instead of taking the mmap lock. Returns `None` if the fault needs the mmap lock
    /// nevertheless.
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
            // A failure is reported by the attempt below.
            let _ = self.prepare_anon_exclusive(guard, vma);
        }
        let vma = guard.read_lock_claimed(vma).ok()?;
        drop(claimed);
        Some(self.fault_in(&vma, page, access, HeldLock::Vma))
    }

    /// Returns true if the fault will make an anonymous page, including a page with breakpoints. Also returns
    /// true if the fault will map the huge zero page, whose first write needs an anon_vma.
    fn wants_anon_vma(&self, vma: &Vma<P>, page: u64, access: Access) -> bool {
        let huge = || self.wants_huge(vma, page) && self.vm.pte_table(VirtAddr::new(page)).is_none();
        let hugetlb = vma.flags().contains(VmFlags::HUGETLB);
        !vma.flags().contains(VmFlags::SHARED)
            && (access.write || hugetlb || huge() || self.is_probed(vma, page))
    }

    /// Attempts once to resolve a fault on `page`, which lies in `vma`. `held` keeps the VMA unchanged.
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

    /// Like [`fault_in`](Self::fault_in), but ignores the permissions of the VMA, for a caller whose access
    /// was permitted in another way. Such a caller may request a write that the VMA does not permit only if
    /// the page is present. The page is then replaced by a private copy that stays read-only.
    pub(crate) fn resolve(
        &self,
        vma: &Vma<P>,
        page: u64,
        access: Access,
        held: HeldLock<'_, '_, P>,
    ) -> FaultOutcome<P> {
        let flags = vma.flags();
        if flags.contains(VmFlags::HUGETLB) {
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
        if flags.intersects(VmFlags::UFFD)
            && let Some(step) = self.ask_pager(vma, page, access)
        {
            return step;
        }
        // The entry is read without the table's lock: it is a hint, which is checked again under the lock.
        let found = table.peek(address);
        match found.kind(Level::Pte) {
            Kind::None if self.is_reaped() => self.reaped_fault(vma, page, access, held, table),
            Kind::None => match vma.object() {
                Object::Anonymous | Object::Zeroes(_) => self.anon_fault(vma, page, access, held, table),
                Object::File(_) => match self.file_fault(vma, page, access, held, table) {
                    // The page left the cache after `ask_pager` found it: retry, so that the pager supplies
                    // the page. A page that is lost, moving or swapped out is not retried.
                    FaultOutcome::Fill(file, wanted)
                        if vma.flags().contains(VmFlags::UFFD_MISSING)
                            && wanted.need == Need::Page
                            && !file.mapping().is_lost(wanted.index)
                            && !file.mapping().has_data(wanted.index) =>
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
                    "an entry denies an access that its VMA permits"
                );
                self.present_fault(address, Level::Pte, flags, access)
            }
            Kind::Marker { .. } | Kind::Table { .. } => self.marker_fault(vma, page, access, table),
        }
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Allocates the missing table for `page`. Nearly every fault installs an entry, so the table is
    /// allocated before anything else is checked. No table is allocated if a huge page serves the fault, or
    /// if an entry of the upper table is in the way.
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

    /// Handles a fault at an empty entry once [`reap`](Self::reap) has begun.
    #[cold]
    #[inline(never)]
    fn reaped_fault(
        &self,
        vma: &Vma<P>,
        page: u64,
        access: Access,
        held: HeldLock<'_, '_, P>,
        table: PteTable<'_, P::Format, P>,
    ) -> FaultOutcome<P> {
        match vma.object() {
            _ if loses_pages(vma) => FaultOutcome::Failed(FaultError::Bus { addr: page }),
            Object::File(_) => self.file_fault(vma, page, access, held, table),
            Object::Special(special) => self.special_fault(vma, page, access.write, special, table),
            // Such memory is private.
            Object::Anonymous | Object::Zeroes(_) => FaultOutcome::Failed(FaultError::Bus { addr: page }),
        }
    }

    /// Handles a fault at a marker that was found without the table's lock.
    #[inline(never)]
    fn marker_fault(
        &self,
        vma: &Vma<P>,
        page: u64,
        access: Access,
        table: PteTable<'_, P::Format, P>,
    ) -> FaultOutcome<P> {
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
            Kind::Marker { kind: MarkerKind::UffdWp, .. } if cfg!(feature = "uffd") => {
                self.marked_fault(vma, page, table)
            }
            Kind::Marker { kind: MarkerKind::Swap, .. } => self.swap_fault(vma, page, access, table),
            Kind::Marker { kind: MarkerKind::UffdWp, .. } | Kind::Table { .. } => {
                FaultOutcome::Failed(FaultError::Bus { addr: page })
            }
        }
    }
}
