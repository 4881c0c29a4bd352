//! One page of another address space: found, faulted in, referenced.
//!
//! What may be done with a page is decided by the entry that is found, under its table's lock, each time anew. A write
//! that found no page it may write to makes a fault and looks again; it never makes do with less than it asked for
//! (hazard C-2). A forced write to what the VMA does not let anybody write goes to a private copy, which its own entry
//! still does not allow to be written: what tells that it is a copy is that the frame is anonymous and exclusive, and
//! not that the entry is dirty (hazard C-52).

use super::{How, Manner};
use crate::{
    PAGE_SIZE, Pfn, VirtAddr,
    error::AccessError,
    fault::{Access, FaultError, Held, SegvCode, Step},
    platform::Platform,
    space::{AddressSpace, FaultLock},
    vma::{Vma, flags::VmFlags},
};
use freehold_pagetable::{Kind, Level, MarkerKind, PteFlags};

/// A page that may be used as asked for.
struct Found {
    pfn: Pfn,
    /// It has a reference of ours.
    counted: bool,
}

/// Why there is none.
enum Missing {
    /// The entry is empty.
    Absent,
    /// There is a page, but not one that may be written.
    ReadOnly,
    /// Nothing can be had there.
    Never(FaultError),
}

impl How {
    /// Whether the VMA allows it.
    fn allowed<P: Platform>(self, vma: &Vma<P>) -> bool {
        let flags = vma.flags();
        let (right, possible) = match self.write {
            true => (VmFlags::WRITE, flags.is_cow()),
            false => (VmFlags::READ, flags.contains(VmFlags::MAYREAD)),
        };
        let permitted = match self.manner {
            Manner::Plain => flags.contains(right),
            Manner::Forced => flags.contains(right) || possible,
            Manner::Report => flags.contains(right) && vma.is_anonymous(),
        };
        permitted && !flags.intersects(VmFlags::IO | VmFlags::PFNMAP)
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Calls `f` with the frame of the page at `addr` while it can be used as asked for; once, unless there is an error.
    pub(super) fn with_page(&self, addr: u64, how: How, mut f: impl FnMut(Pfn)) -> Result<(), AccessError> {
        self.with_found(addr, how, |found| f(found.pfn))
    }

    /// The frame of the page at `addr` as it can be read, with a reference; `None` if it is none that is counted.
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
        self.with_found(addr, How { write: false, manner: Manner::Plain }, |found| {
            if found.counted {
                self.platform().frame(found.pfn).get();
                held = Some(found.pfn);
            }
        })?;
        Ok(held)
    }

    fn with_found(&self, addr: u64, how: How, mut f: impl FnMut(&Found)) -> Result<(), AccessError> {
        let page = addr & !(PAGE_SIZE - 1);
        let mut climbed = self.locking.fault == FaultLock::MmapLock;
        loop {
            let step = match climbed {
                false => match self.lock_vma(page) {
                    Ok(vma) => self.try_page(&vma, page, how, Held::Vma, &mut f),
                    Err(_) => Step::Climb,
                },
                true => self.under_mmap_lock(page, how, &mut f),
            };
            match step {
                Step::Done => return Ok(()),
                Step::Retry => {}
                Step::Climb => climbed = true,
                Step::Fill(file, index) => self.fill(&file, index, page)?,
                Step::Wait(pfn) => self.engine.wait_for_frame(pfn),
                Step::Userfault(fault) => self.wait_for_pager(&fault, addr)?,
                Step::Failed(error) => return Err(error.into()),
            }
        }
    }

    fn under_mmap_lock(&self, page: u64, how: How, f: &mut impl FnMut(&Found)) -> Step<P> {
        let guard = match self.read_killable() {
            Ok(guard) => guard,
            Err(killed) => return Step::Failed(killed.into()),
        };
        if let Some(vma) = guard.find(page) {
            return self.try_page(vma, page, how, Held::Mmap(&guard), f);
        }
        drop(guard);
        match how.manner {
            Manner::Forced | Manner::Report => {
                self.grow_stack(page).map_or_else(Step::Failed, |()| Step::Retry)
            }
            Manner::Plain => Step::Failed(FaultError::Segv { addr: page, code: SegvCode::Maperr }),
        }
    }

    /// One attempt, while `held` keeps the VMA still.
    fn try_page(
        &self,
        vma: &Vma<P>,
        page: u64,
        how: How,
        held: Held<'_, '_, P>,
        f: &mut impl FnMut(&Found),
    ) -> Step<P> {
        if !how.allowed(vma) {
            return Step::Failed(FaultError::Segv { addr: page, code: SegvCode::Accerr });
        }
        let write = match self.find_page(page, how) {
            Ok(found) => {
                f(&found);
                let frame = self.platform().frame(found.pfn);
                if how.write && !frame.is_anon() {
                    // Only now: who writes the page back meanwhile must not find it clean afterwards.
                    frame.set_dirty();
                }
                if found.counted {
                    self.engine.put_frame(found.pfn);
                }
                return Step::Done;
            }
            // Into an empty slot of a VMA that does not allow writing comes a page to read, which is then copied.
            Err(Missing::Absent) => how.write && vma.flags().contains(VmFlags::WRITE),
            Err(Missing::ReadOnly) => true,
            Err(Missing::Never(error)) => return Step::Failed(error),
        };
        let access = Access { write, exec: false, user: false, pkru: 0 };
        match self.resolve(vma, page, access, held) {
            // Look again: what came may be gone already.
            Step::Done => Step::Retry,
            other => other,
        }
    }

    /// As [`find_page`](Self::find_page), where no table of small pages hangs.
    fn find_in_huge(&self, page: u64, how: How) -> Result<Found, Missing> {
        let address = VirtAddr::new(page);
        let Some(table) = self.table.pmd_table(self.platform(), address) else { return Err(Missing::Absent) };
        let mut guard = table.lock();
        let Kind::Leaf { pfn, flags } = guard.get(address).kind(Level::Pmd) else {
            return Err(Missing::Absent);
        };
        let pfn = pfn.add(address.frame_in_leaf(Level::Pmd));
        if how.write && !flags.contains(PteFlags::WRITE) {
            return Err(Missing::ReadOnly);
        }
        if flags.contains(PteFlags::SPECIAL) {
            return Ok(Found { pfn, counted: false });
        }
        if how.write {
            guard.grant(address, PteFlags::ACCESSED | PteFlags::DIRTY);
        }
        self.platform().frame(pfn).get();
        Ok(Found { pfn, counted: true })
    }

    /// The page as it is mapped now, with a reference if it is a counted one.
    fn find_page(&self, page: u64, how: How) -> Result<Found, Missing> {
        let address = VirtAddr::new(page);
        let Some(table) = self.table.pte_table(self.platform(), address) else {
            return self.find_in_huge(page, how);
        };
        let mut guard = table.lock();
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
            return if how.write { Err(Missing::ReadOnly) } else { Ok(Found { pfn, counted: false }) };
        }
        let frame = self.platform().frame(pfn);
        let own_copy = how.manner == Manner::Forced
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
        Ok(Found { pfn, counted: true })
    }
}
