//! Faulting pages in before anybody touches them: for MAP_POPULATE, locked memory and MADV_POPULATE.
//!
//! A batch of pages at a time is done under the lock of their VMA, or the mmap lock held for reading; between
//! batches others get their turn, so everything is looked up again, and what was unmapped meanwhile is passed
//! over.

use super::{Access, FaultError, FaultOutcome, WaitFor, present::bits_of};
use crate::uffd::state::Userfault;
use crate::{
    PAGE_SIZE, VirtAddr,
    counted::Counted,
    error::PopulateError,
    file::{File, Wanted},
    platform::Platform,
    space::{AddressSpace, change::vma_ranges::VmaRanges, held_lock::HeldLock, locking::ReadGuard},
    vma::{Vma, flags::VmFlags},
    wait::Rounds,
};
use freehold_pagetable::{Kind, PteFlags};
use freehold_vmspace::{HugePageSize, UserRange};

/// Pages that are looked at under one hold of the lock.
const BATCH: u64 = 128;

/// Mappings of frames that the engine does not own: all there from the start, or never.
const NOT_OURS: VmFlags = VmFlags::IO.union(VmFlags::PFNMAP);

impl From<FaultError> for PopulateError {
    fn from(error: FaultError) -> Self {
        match error {
            FaultError::OutOfMemory => PopulateError::OutOfMemory,
            FaultError::Killed | FaultError::Interrupted => PopulateError::Killed,
            FaultError::MemoryFailed { .. } => PopulateError::MemoryFailed,
            FaultError::Segv { .. } | FaultError::Bus { .. } => PopulateError::BadAccess,
        }
    }
}

/// Which VMAs of a range are populated, with which access, and what stops it.
#[derive(Clone, Copy)]
enum Policy {
    /// All that allow anything, as far as they want it; holes are passed over. The first failure ends it.
    All,
    /// As `All`, but a VMA that fails is left behind and the next one tried.
    Leniently,
    /// As `All`, of locked VMAs only.
    Locked,
    /// All, with this access; a hole or a VMA that does not allow it is an error.
    Exactly(Access),
}

impl Policy {
    /// How `vma` is to be touched; `None`: not at all.
    fn access<P: Platform>(self, vma: &Vma<P>) -> Result<Option<Access>, PopulateError> {
        let flags = vma.flags();
        if let Policy::Exactly(access) = self {
            let right = if access.write { VmFlags::WRITE } else { VmFlags::READ };
            let fits = flags.contains(right) && !flags.intersects(NOT_OURS);
            let fits = fits && !vma.object().is_secret();
            return if fits { Ok(Some(access)) } else { Err(PopulateError::NotPermitted) };
        }
        let unlocked = matches!(self, Policy::Locked) && !flags.contains(VmFlags::LOCKED);
        if unlocked || flags.intersects(NOT_OURS | VmFlags::LOCKONFAULT) {
            return Ok(None);
        }
        if !flags.intersects(VmFlags::ACCESS) || vma.object().is_secret() {
            return Err(PopulateError::BadAccess);
        }
        // Private writable memory gets its own copies now; a shared page is not dirtied before somebody
        // writes.
        let write = flags & (VmFlags::WRITE | VmFlags::SHARED) == VmFlags::WRITE;
        Ok(Some(if write { Access::WRITE } else { Access::READ }))
    }
}

/// How a batch ended.
enum Batch<P: Platform> {
    /// Up to this address everything is there.
    To(u64),
    /// The page is to be brought into its file's cache first, without the lock.
    Fill { page: u64, part_end: u64, file: Counted<File<P>>, wanted: Wanted },
    /// The page is being moved out of this frame: to be waited for without the lock.
    Wait { page: u64, what: WaitFor },
    /// The page is for a userfaultfd's pager to supply: to be waited for without the lock.
    Userfault { page: u64, fault: Userfault<P> },
    /// The part up to this address cannot be populated.
    Refused { part_end: u64, error: PopulateError },
}

impl<P: Platform> AddressSpace<P> {
    /// Brings in every page of `range` that is mapped and accessible: for writing where the memory is private
    /// and writable. The first failure ends it. Memory that is locked only as it comes is left alone.
    ///
    /// # Locks
    ///
    /// The VMA's own, or the mmap lock for reading, killably, again and again; none on entry.
    pub(crate) fn populate(&self, range: UserRange) -> Result<(), PopulateError> {
        self.populate_by(range, Policy::All)
    }

    /// As [`populate`](Self::populate), but a VMA that fails does not keep the next ones from their turn.
    pub(crate) fn populate_leniently(&self, range: UserRange) {
        // Only a fatal signal ends it early, and then nobody asks.
        let _ = self.populate_by(range, Policy::Leniently);
    }

    /// As [`populate_leniently`](Self::populate_leniently), of locked memory only.
    pub(crate) fn populate_locked(&self, range: UserRange) {
        let _ = self.populate_by(range, Policy::Locked);
    }

    /// MADV_POPULATE_READ and MADV_POPULATE_WRITE: makes every page of `range` readable, or writable, without
    /// a fault.
    pub(crate) fn populate_with(&self, range: UserRange, write: bool) -> Result<(), PopulateError> {
        self.populate_by(range, Policy::Exactly(if write { Access::WRITE } else { Access::READ }))
    }

    fn populate_by(&self, range: UserRange, policy: Policy) -> Result<(), PopulateError> {
        let (mut at, mut rounds) = (range.start(), Rounds::new());
        while at < range.end() {
            rounds.again::<P>()?;
            let batch = match self.populate_in_vma(range.rest(at), policy) {
                Some(batch) => batch,
                None => self.populate_batch(&self.read_killable()?, range.rest(at), policy),
            };
            let (part_end, error) = match batch {
                Batch::To(next) => {
                    at = next;
                    continue;
                }
                Batch::Fill { page, part_end, file, wanted } => match self.fill(&file, wanted, page) {
                    Ok(()) => {
                        at = page;
                        continue;
                    }
                    Err(error) => (part_end, error.into()),
                },
                Batch::Wait { page, what } => {
                    self.engine.wait_for(what)?;
                    at = page;
                    continue;
                }
                Batch::Userfault { page, fault } => {
                    self.wait_for_pager(&fault, page)?;
                    at = page;
                    continue;
                }
                Batch::Refused { part_end, error } => (part_end, error),
            };
            if !matches!(policy, Policy::Leniently | Policy::Locked) || error == PopulateError::Killed {
                return Err(error);
            }
            at = part_end;
        }
        Ok(())
    }

    /// The same as [`populate_batch`](Self::populate_batch) under the VMA's own lock. `None`: it takes the
    /// mmap lock.
    fn populate_in_vma(&self, range: UserRange, policy: Policy) -> Option<Batch<P>> {
        let vma = self.tries_vma_lock().then(|| self.lock_vma(range.start()).ok())??;
        self.populate_part(&vma, range.with_end(range.end().min(vma.end())), policy, HeldLock::Vma)
    }

    /// The start of `range`: at most a batch of pages, of at most one VMA.
    fn populate_batch(&self, guard: &ReadGuard<'_, P>, range: UserRange, policy: Policy) -> Batch<P> {
        let exact = matches!(policy, Policy::Exactly(_));
        let (vma, part) = match guard.first_range(range) {
            Some((_, part)) if exact && part.start() > range.start() => {
                return Batch::Refused { part_end: part.start(), error: PopulateError::NotMapped };
            }
            None if exact => {
                return Batch::Refused { part_end: range.end(), error: PopulateError::NotMapped };
            }
            None => return Batch::To(range.end()),
            Some(found) => found,
        };
        let batch = self.populate_part(vma, part, policy, HeldLock::Mmap(guard));
        batch.expect("with the mmap lock nothing more is needed")
    }

    /// The pages of `part`, which lies in `vma`. `None`: the first of them takes the mmap lock.
    fn populate_part(
        &self,
        vma: &Vma<P>,
        part: UserRange,
        policy: Policy,
        held: HeldLock<'_, '_, P>,
    ) -> Option<Batch<P>> {
        let access = match policy.access(vma) {
            Ok(Some(access)) => access,
            Ok(None) => return Some(Batch::To(part.end())),
            Err(error) => return Some(Batch::Refused { part_end: part.end(), error }),
        };
        let unit = vma.huge_page_size().map_or(PAGE_SIZE, HugePageSize::bytes);
        let end = part.end().min(part.start() + BATCH * unit);
        let (mut page, mut faults) = (part.start(), 0);
        while page < end {
            if self.is_there(page, access) {
                page = (page & !(unit - 1)) + unit;
                continue;
            }
            faults += 1;
            if faults > 2 * BATCH {
                // Somebody takes away what comes.
                return Some(Batch::To(page));
            }
            match self.fault_in(vma, page, access, held) {
                // Somebody else may have been faster, with less than we need.
                FaultOutcome::Done => {}
                FaultOutcome::NeedMmapLock if page == part.start() => return None,
                FaultOutcome::Retry | FaultOutcome::NeedMmapLock => return Some(Batch::To(page)),
                FaultOutcome::Fill(file, wanted) => {
                    return Some(Batch::Fill { page, part_end: part.end(), file, wanted });
                }
                FaultOutcome::Wait(what) => return Some(Batch::Wait { page, what }),
                FaultOutcome::Userfault(fault) => return Some(Batch::Userfault { page, fault }),
                FaultOutcome::Failed(error) => {
                    return Some(Batch::Refused { part_end: part.end(), error: error.into() });
                }
            }
        }
        Some(Batch::To(page.max(end).min(part.end())))
    }

    /// Returns true if the hardware lets the access pass, also where it leaves bits to software. Reads the
    /// entry without its table's lock: a page that is discarded while this runs may count as there.
    fn is_there(&self, page: u64, access: Access) -> bool {
        let (pte, level) = self.vm.peek(VirtAddr::new(page));
        let Kind::Leaf { flags, .. } = pte.kind(level) else { return false };
        let permitted = !access.write || flags.contains(PteFlags::WRITE);
        permitted && !flags.contains(PteFlags::NO_ACCESS) && flags.contains(bits_of(access))
    }
}
