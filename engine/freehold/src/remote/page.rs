//! Lookup of one page of another address space: finds the page, faults it in if necessary, and takes a
//! reference.
//!
//! Every lookup checks under the lock of the page table that the entry permits the access. If the entry is
//! not writable, a write triggers a fault and repeats the lookup. A write never uses a read-only page (hazard
//! C-2).
//!
//! A forced write to a VMA that is not writable uses a private copy. The entry of that copy does not become
//! writable. The copy is recognized by its frame, which is anonymous and exclusive, and not by a dirty entry
//! (hazard C-52). If the entry of the copy is not soft-dirty, the write first triggers a fault, which sets
//! the soft-dirty bit. `find_page` and `allowed` have these rules.
//!
//! `mod.rs`, `process_vm.rs` and `pin.rs` call `with_page` and `with_vma`, which retry like a fault: first
//! under the VMA's lock, then under the mmap lock. `secret::secret_memory_is_only_accessible_to_its_program`
//! and `pkeys::keys_apply_to_the_local_side_of_transfers` (`engine/freehold/tests`) fail if a check of rights
//! is missing.

use super::{AccessMode, PageAccess};
use crate::{
    PAGE_SIZE, Pfn, VirtAddr,
    error::AccessError,
    fault::{Access, FaultError, FaultOutcome, SegvCode},
    file::Object,
    platform::{PkeyRights, Platform},
    space::{AddressSpace, held_lock::HeldLock, shortage::ShortageRounds},
    vma::{Vma, flags::VmFlags},
    wait::Rounds,
};
use freehold_pagetable::{Kind, Level, MarkerKind, PteFlags};

/// A page with the requested access.
struct Found {
    pfn: Pfn,
    /// Frame whose record holds the reference count: the first frame of a huge page of a pool, otherwise
    /// `pfn`.
    record: Pfn,
    /// True if this lookup holds a reference to the page.
    counted: bool,
}

/// Reason why no page was found.
pub(super) enum Missing {
    /// The entry is empty.
    Absent,
    /// The page is present but not writable.
    ReadOnly,
    /// No page can be mapped there.
    Never(FaultError),
}

impl PageAccess {
    /// Returns true if the VMA allows the access. If the process itself makes the access, the protection key
    /// of the VMA must also allow it.
    pub(super) fn allowed<P: Platform>(self, platform: &P, vma: &Vma<P>) -> bool {
        let flags = vma.flags();
        let (right, possible) = match self.write {
            // A debugger gets no private copies of huge pages of a pool, as on Linux, because the pool may
            // have no other page.
            true => (VmFlags::WRITE, flags.is_cow() && !flags.contains(VmFlags::HUGETLB)),
            false => (VmFlags::READ, flags.contains(VmFlags::MAYREAD)),
        };
        let permitted = match self.manner {
            AccessMode::Plain => flags.contains(right),
            AccessMode::Forced => flags.contains(right) || possible,
            AccessMode::Report => flags.contains(right) && vma.is_anonymous(),
        };
        // A frame that the embedder may revoke cannot be used without a reference.
        let revocable = matches!(vma.object(), Object::Special(special) if special.mapping().is_some());
        let open = self.key_allows(platform, flags.pkey());
        let secret = !self.own && vma.object().is_secret();
        permitted && open && !secret && !revocable && !flags.intersects(VmFlags::IO | VmFlags::PFNMAP)
    }

    /// Returns true if the access to pages with this protection key is allowed.
    pub(super) fn key_allows<P: Platform>(self, platform: &P, pkey: u8) -> bool {
        let denied = match self.own {
            true => platform.pkey_rights(pkey),
            false => PkeyRights::empty(),
        };
        let locked = denied.contains(PkeyRights::DISABLE_ACCESS)
            || self.write && denied.contains(PkeyRights::DISABLE_WRITE);
        !locked
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Calls `f` once with the frame of the page at `addr`, while a lock keeps the requested access possible.
    /// Does not call `f` if this function fails.
    pub(super) fn with_page(
        &self,
        addr: u64,
        how: PageAccess,
        mut f: impl FnMut(Pfn),
    ) -> Result<(), AccessError> {
        self.with_found(addr, how, |found| f(found.pfn))
    }

    /// Returns the frame of the page at `addr` for reading, with a reference. Returns `None` if the frame has
    /// no reference count.
    ///
    /// # Errors
    ///
    /// The errors of [`read_memory`](Self::read_memory).
    ///
    /// # Locks
    ///
    /// The locks of a fault. The caller holds no lock.
    pub(crate) fn hold_page(&self, addr: u64) -> Result<Option<Pfn>, AccessError> {
        let mut held = None;
        self.with_found(addr, PageAccess { write: false, manner: AccessMode::Plain, own: false }, |found| {
            if found.counted {
                self.platform().frame(found.record).get();
                held = Some(found.pfn);
            }
        })?;
        Ok(held)
    }

    /// Calls `f` once with the page at `addr`, like [`with_page`](Self::with_page).
    fn with_found(&self, addr: u64, how: PageAccess, mut f: impl FnMut(&Found)) -> Result<(), AccessError> {
        let page = addr & !(PAGE_SIZE - 1);
        self.with_vma(page, how.manner, |vma, held| self.try_page(vma, page, how, held, &mut f))
    }

    /// Calls `attempt` with the VMA of `page` while a lock keeps the VMA stable, and performs the step that
    /// `attempt` returns. Repeats the attempt and the step until `attempt` is done.
    pub(crate) fn with_vma(
        &self,
        page: u64,
        manner: AccessMode,
        mut attempt: impl FnMut(&Vma<P>, HeldLock<'_, '_, P>) -> FaultOutcome<P>,
    ) -> Result<(), AccessError> {
        let mut climbed = !self.tries_vma_lock();
        let (mut rounds, mut shortage) = (Rounds::new(), ShortageRounds::new());
        loop {
            let step = match climbed {
                false => match self.lock_vma(page) {
                    Ok(vma) => attempt(&vma, HeldLock::Vma),
                    Err(_) => FaultOutcome::NeedMmapLock,
                },
                true => self.under_mmap_lock(page, manner, &mut attempt),
            };
            let ended = match step {
                FaultOutcome::Done => return Ok(()),
                FaultOutcome::Retry => Ok(()),
                FaultOutcome::NeedMmapLock => {
                    climbed = true;
                    Ok(())
                }
                FaultOutcome::Fill(file, wanted) => self.fill(&file, wanted, page),
                FaultOutcome::Wait(what) => self.engine.wait_for(what).map_err(FaultError::from),
                FaultOutcome::SwapIn(entry) => self.swap_in(entry, page),
                FaultOutcome::Userfault(fault) => self.wait_for_pager(&fault, page).map_err(FaultError::from),
                FaultOutcome::Failed(error) => Err(error),
            };
            if let Err(error) = ended {
                shortage.again(self, error)?;
            }
            // The page may disappear again after each fault, for example if MADV_DONTNEED runs concurrently
            // with a forced write.
            rounds.again::<P>()?;
        }
    }

    /// Calls `attempt` under the mmap lock. If nothing is mapped at `page`, grows a stack if `manner` allows
    /// it.
    fn under_mmap_lock(
        &self,
        page: u64,
        manner: AccessMode,
        attempt: &mut impl FnMut(&Vma<P>, HeldLock<'_, '_, P>) -> FaultOutcome<P>,
    ) -> FaultOutcome<P> {
        let guard = match self.read_killable() {
            Ok(guard) => guard,
            Err(killed) => return FaultOutcome::Failed(killed.into()),
        };
        if let Some(vma) = guard.find(page) {
            return attempt(vma, HeldLock::Mmap(&guard));
        }
        drop(guard);
        match manner {
            AccessMode::Forced | AccessMode::Report => {
                self.grow_stack(page).map_or_else(FaultOutcome::Failed, |()| FaultOutcome::Retry)
            }
            AccessMode::Plain => {
                FaultOutcome::Failed(FaultError::Segv { addr: page, code: SegvCode::Maperr })
            }
        }
    }

    /// Makes one attempt while `held` keeps the VMA stable.
    fn try_page(
        &self,
        vma: &Vma<P>,
        page: u64,
        how: PageAccess,
        held: HeldLock<'_, '_, P>,
        f: &mut impl FnMut(&Found),
    ) -> FaultOutcome<P> {
        if !how.allowed(self.platform(), vma) {
            return FaultOutcome::Failed(FaultError::Segv { addr: page, code: SegvCode::Accerr });
        }
        // The tables of huge pages are kept in place only during the lookup. Afterwards the reference keeps
        // the page.
        let kept = self.keep_tables(vma);
        let found = self.find_page(page, how);
        drop(kept);
        let missing = match found {
            Ok(found) => {
                f(&found);
                let frame = self.platform().frame(found.record);
                if how.write && !frame.is_anon() {
                    // The page is marked dirty after the store. In the reverse order, a write-back during the
                    // store could leave the page clean.
                    self.vm.memory().set_dirty_late(frame);
                }
                if found.counted {
                    self.vm.memory().put_frame(found.record);
                }
                return FaultOutcome::Done;
            }
            Err(missing) => missing,
        };
        self.make_up(vma, page, how.write, &missing, held)
    }

    /// Resolves a fault for the missing page. `write` is true if the caller wants to write to the page.
    pub(super) fn make_up(
        &self,
        vma: &Vma<P>,
        page: u64,
        write: bool,
        missing: &Missing,
        held: HeldLock<'_, '_, P>,
    ) -> FaultOutcome<P> {
        let write = match missing {
            // An empty entry of a VMA that is not writable is filled for reading first. The page is copied in
            // a second step.
            Missing::Absent => write && vma.flags().contains(VmFlags::WRITE),
            Missing::ReadOnly => true,
            Missing::Never(error) => return FaultOutcome::Failed(*error),
        };
        let access = Access { write, exec: false, user: false, pkru: 0 };
        match self.resolve(vma, page, access, held) {
            // The caller looks the page up again, because the page may already have been unmapped.
            FaultOutcome::Done => FaultOutcome::Retry,
            other => other,
        }
    }

    /// Implements [`find_page`](Self::find_page) for addresses without a table of small pages.
    fn find_in_huge(&self, page: u64, how: PageAccess) -> Result<Found, Missing> {
        let address = VirtAddr::new(page);
        let (_, level) = self.vm.peek(address);
        if level > Level::Pud {
            return Err(Missing::Absent);
        }
        let leaf = self.vm.lock_leaf(address, level);
        let Some(mut leaf) = leaf else { return Err(Missing::Absent) };
        let Kind::Leaf { pfn: first, flags } = leaf.kind() else {
            return Err(Missing::Absent);
        };
        let pfn = first.add(address.frame_in_leaf(level));
        let record = if self.platform().frame(first).hugetlb().is_some() { first } else { pfn };
        if how.write && !flags.contains(PteFlags::WRITE) {
            return Err(Missing::ReadOnly);
        }
        if flags.contains(PteFlags::SPECIAL) {
            return Ok(Found { pfn, record, counted: false });
        }
        if how.write {
            leaf.grant(PteFlags::ACCESSED | PteFlags::DIRTY);
        }
        self.platform().frame(record).get();
        Ok(Found { pfn, record, counted: true })
    }

    /// Returns the page that is mapped now, with a reference if its frame is counted.
    fn find_page(&self, page: u64, how: PageAccess) -> Result<Found, Missing> {
        let address = VirtAddr::new(page);
        let Some(mut guard) = self.vm.lock_pte_table(address) else {
            return self.find_in_huge(page, how);
        };
        let (pfn, flags) = match guard.get(address).kind(Level::Pte) {
            Kind::Leaf { pfn, flags } => (pfn, flags),
            Kind::None => return Err(Missing::Absent),
            Kind::Marker { kind: MarkerKind::Guard, .. } => {
                return Err(Missing::Never(FaultError::Segv { addr: page, code: SegvCode::Maperr }));
            }
            // A fault handles these markers. If the page is moving, the fault waits until the move has ended.
            // If the page was swapped out, the fault brings it back. If the page is lost, the fault reports
            // the loss. If the page is write-protected, the fault installs the page or notifies the pager.
            Kind::Marker {
                kind: MarkerKind::Migration | MarkerKind::Poison | MarkerKind::UffdWp | MarkerKind::Swap,
                ..
            } => {
                return Err(Missing::Absent);
            }
            Kind::Table { .. } => {
                return Err(Missing::Never(FaultError::Bus { addr: page }));
            }
        };
        if flags.contains(PteFlags::SPECIAL) {
            // The entry maps the zero page, or a frame that outlives the VMA.
            return match how.write {
                false => Ok(Found { pfn, record: pfn, counted: false }),
                // A writable special frame has no record in which the store could be noted.
                true if flags.contains(PteFlags::WRITE) => {
                    Err(Missing::Never(FaultError::Bus { addr: page }))
                }
                true => Err(Missing::ReadOnly),
            };
        }
        let frame = self.platform().frame(pfn);
        let own_copy = how.manner == AccessMode::Forced
            && frame.is_anon()
            && frame.is_exclusive()
            && flags & (PteFlags::UFFD_WP | PteFlags::SOFT_DIRTY) == PteFlags::SOFT_DIRTY;
        if how.write && !flags.contains(PteFlags::WRITE) && !own_copy {
            return Err(Missing::ReadOnly);
        }
        if how.write {
            guard.grant(address, PteFlags::ACCESSED | PteFlags::DIRTY);
        }
        frame.get();
        Ok(Found { pfn, record: pfn, counted: true })
    }
}
