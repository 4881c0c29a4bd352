//! One page of another address space: found, faulted in, referenced.
//!
//! What may be done with a page is decided by the entry that is found, under its table's lock, each time
//! anew. A write that found no page it may write to makes a fault and looks again; it never makes do with
//! less than it asked for (hazard C-2). A forced write to what the VMA does not let anybody write goes to a
//! private copy, which its own entry still does not allow to be written: what tells that it is a copy is that
//! the frame is anonymous and exclusive, and not that the entry is dirty (hazard C-52).

use super::{AccessMode, How};
use crate::{
    PAGE_SIZE, Pfn, VirtAddr,
    error::AccessError,
    fault::{Access, FaultError, FaultOutcome, SegvCode},
    file::Object,
    platform::{PkeyRights, Platform},
    space::{AddressSpace, held_lock::HeldLock},
    vma::{Vma, flags::VmFlags},
    wait::Rounds,
};
use freehold_pagetable::{Kind, Level, MarkerKind, PteFlags};

/// A page that may be used as asked for.
struct Found {
    pfn: Pfn,
    /// Whose record counts for it: the first frame of a huge page of a pool, else the frame itself.
    record: Pfn,
    /// It has a reference of ours.
    counted: bool,
}

/// Why there is none.
pub(super) enum Missing {
    /// The entry is empty.
    Absent,
    /// There is a page, but not one that may be written.
    ReadOnly,
    /// Nothing can be had there.
    Never(FaultError),
}

impl How {
    /// Whether the VMA allows it, and of one's own memory its protection key.
    pub(super) fn allowed<P: Platform>(self, platform: &P, vma: &Vma<P>) -> bool {
        let flags = vma.flags();
        let (right, possible) = match self.write {
            // A debugger gets no copies of huge pages of a pool, as on Linux: each might be the last.
            true => (VmFlags::WRITE, flags.is_cow() && !flags.contains(VmFlags::HUGETLB)),
            false => (VmFlags::READ, flags.contains(VmFlags::MAYREAD)),
        };
        let permitted = match self.manner {
            AccessMode::Plain => flags.contains(right),
            AccessMode::Forced => flags.contains(right) || possible,
            AccessMode::Report => flags.contains(right) && vma.is_anonymous(),
        };
        // A frame that may be taken back is nothing to hand out without a reference.
        let revocable = matches!(vma.object(), Object::Special(special) if special.mapping().is_some());
        let denied = match self.own {
            true => platform.pkey_rights(flags.pkey()),
            false => PkeyRights::empty(),
        };
        let locked = denied.contains(PkeyRights::DISABLE_ACCESS)
            || self.write && denied.contains(PkeyRights::DISABLE_WRITE);
        let secret = !self.own && vma.object().is_secret();
        permitted && !locked && !secret && !revocable && !flags.intersects(VmFlags::IO | VmFlags::PFNMAP)
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Calls `f` with the frame of the page at `addr` while it can be used as asked for; once, unless there
    /// is an error.
    pub(super) fn with_page(&self, addr: u64, how: How, mut f: impl FnMut(Pfn)) -> Result<(), AccessError> {
        self.with_found(addr, how, |found| f(found.pfn))
    }

    /// The frame of the page at `addr` as it can be read, with a reference; `None` if it is none that is
    /// counted.
    ///
    /// # Errors
    ///
    /// As [`read_memory`](Self::read_memory).
    ///
    /// # Locks
    ///
    /// Those of a fault; none on entry.
    pub(crate) fn hold_page(&self, addr: u64) -> Result<Option<Pfn>, AccessError> {
        let mut held = None;
        self.with_found(addr, How { write: false, manner: AccessMode::Plain, own: false }, |found| {
            if found.counted {
                self.platform().frame(found.record).get();
                held = Some(found.pfn);
            }
        })?;
        Ok(held)
    }

    fn with_found(&self, addr: u64, how: How, mut f: impl FnMut(&Found)) -> Result<(), AccessError> {
        let page = addr & !(PAGE_SIZE - 1);
        self.with_vma(page, how.manner, |vma, held| self.try_page(vma, page, how, held, &mut f))
    }

    /// Calls `attempt` with the VMA of `page`, which is held still meanwhile, and does what it asks for,
    /// until it is done.
    pub(super) fn with_vma(
        &self,
        page: u64,
        manner: AccessMode,
        mut attempt: impl FnMut(&Vma<P>, HeldLock<'_, '_, P>) -> FaultOutcome<P>,
    ) -> Result<(), AccessError> {
        let mut climbed = !self.tries_vma_lock();
        let mut rounds = Rounds::new();
        loop {
            let step = match climbed {
                false => match self.lock_vma(page) {
                    Ok(vma) => attempt(&vma, HeldLock::Vma),
                    Err(_) => FaultOutcome::NeedMmapLock,
                },
                true => self.under_mmap_lock(page, manner, &mut attempt),
            };
            match step {
                FaultOutcome::Done => return Ok(()),
                FaultOutcome::Retry => {}
                FaultOutcome::NeedMmapLock => climbed = true,
                FaultOutcome::Fill(file, wanted) => self.fill(&file, wanted, page)?,
                FaultOutcome::Wait(what) => self.engine.wait_for(what).map_err(FaultError::from)?,
                FaultOutcome::Userfault(fault) => self.wait_for_pager(&fault, page)?,
                FaultOutcome::Failed(error) => return Err(error.into()),
            }
            // The page may go again whenever it has come: MADV_DONTNEED beside a forced write.
            rounds.again::<P>()?;
        }
    }

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

    /// One attempt, while `held` keeps the VMA still.
    fn try_page(
        &self,
        vma: &Vma<P>,
        page: u64,
        how: How,
        held: HeldLock<'_, '_, P>,
        f: &mut impl FnMut(&Found),
    ) -> FaultOutcome<P> {
        if !how.allowed(self.platform(), vma) {
            return FaultOutcome::Failed(FaultError::Segv { addr: page, code: SegvCode::Accerr });
        }
        // Tables of huge pages are held only while the entry is looked at: the page has a reference.
        let kept = self.keep_tables(vma);
        let found = self.find_page(page, how);
        drop(kept);
        let missing = match found {
            Ok(found) => {
                f(&found);
                let frame = self.platform().frame(found.record);
                if how.write && !frame.is_anon() {
                    // Only now: a write-back during the store must not leave the page clean.
                    frame.set_dirty();
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

    /// Has a fault bring what was missing, for a caller that wants to `write` or only to read.
    pub(super) fn make_up(
        &self,
        vma: &Vma<P>,
        page: u64,
        write: bool,
        missing: &Missing,
        held: HeldLock<'_, '_, P>,
    ) -> FaultOutcome<P> {
        let write = match missing {
            // Into an empty slot of a VMA that does not allow writing comes a page to read, which is then
            // copied.
            Missing::Absent => write && vma.flags().contains(VmFlags::WRITE),
            Missing::ReadOnly => true,
            Missing::Never(error) => return FaultOutcome::Failed(*error),
        };
        let access = Access { write, exec: false, user: false, pkru: 0 };
        match self.resolve(vma, page, access, held) {
            // Look again: what came may be gone already.
            FaultOutcome::Done => FaultOutcome::Retry,
            other => other,
        }
    }

    /// As [`find_page`](Self::find_page), where no table of small pages hangs.
    fn find_in_huge(&self, page: u64, how: How) -> Result<Found, Missing> {
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

    /// The page as it is mapped now, with a reference if it is a counted one.
    fn find_page(&self, page: u64, how: How) -> Result<Found, Missing> {
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
            // Its fault waits until the page is where it goes, or is known to be lost.
            // That of a write-protected page brings the page, or tells the pager.
            Kind::Marker {
                kind: MarkerKind::Migration | MarkerKind::Poison | MarkerKind::UffdWp, ..
            } => {
                return Err(Missing::Absent);
            }
            Kind::Marker { .. } | Kind::Table { .. } => {
                return Err(Missing::Never(FaultError::Bus { addr: page }));
            }
        };
        if flags.contains(PteFlags::SPECIAL) {
            // The zero page, or a frame that outlives the VMA.
            return match how.write {
                false => Ok(Found { pfn, record: pfn, counted: false }),
                // Stores go to a frame that has no record.
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
            && !flags.contains(PteFlags::UFFD_WP);
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
