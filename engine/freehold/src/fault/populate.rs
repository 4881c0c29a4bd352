//! Populating memory before its first access: for MAP_POPULATE, locked memory and MADV_POPULATE.
//!
//! Pages are populated in batches, under the lock of their VMA or under the mmap lock held for reading.
//! Between batches the lock is released so that other tasks can take it. Each batch therefore looks
//! everything up again, and skips ranges that were unmapped in between.
//!
//! mmap, mlock, brk, mprotect and mremap call `populate` or a variant of it after they have released their
//! locks. madvise calls `populate_with`. The caller must hold no lock of the address space. [`Policy`] has
//! the rules in which the variants differ; a caller that needs other rules adds a variant of `Policy`. Each
//! loop must check for a fatal signal or be bounded, because a program chooses the length of the range:
//! `calls_of_any_length_end_with_a_fatal_signal` in `tests/every_call/hostile.rs` tests that.

use super::{Access, FaultError, FaultOutcome, WaitFor, present::bits_of};
use crate::uffd::state::Userfault;
use crate::{
    PAGE_SIZE, VirtAddr,
    counted::Counted,
    error::PopulateError,
    file::{File, Wanted},
    platform::Platform,
    space::{
        AddressSpace, change::vma_ranges::VmaRanges, held_lock::HeldLock, locking::ReadGuard,
        shortage::ShortageRounds,
    },
    swap::SwapEntry,
    vma::{Vma, flags::VmFlags},
    wait::Rounds,
};
use freehold_pagetable::{Kind, PteFlags};
use freehold_vmspace::{HugePageSize, UserRange};

/// Number of pages that are checked in one hold of the lock.
const BATCH: u64 = 128;

/// Flags of mappings of frames that the engine does not own. Such mappings are never populated.
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

/// Rule for populating a range: the VMAs that are populated, the access, and the failures that end the call.
#[derive(Clone, Copy)]
enum Policy {
    /// All VMAs except those that are locked on fault; holes are skipped. The first failure ends the call; a
    /// VMA that allows no access also counts as a failure.
    All,
    /// Like `All`, but after a failure the call skips the rest of the VMA and continues with the next VMA.
    Leniently,
    /// Like `Leniently`, for locked VMAs only.
    Locked,
    /// All VMAs, with this access. A hole or a VMA that does not allow the access is an error.
    Exactly(Access),
}

impl Policy {
    /// Returns the access by which `vma` is populated, or `None` if the VMA is skipped.
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
        // Private writable memory gets its own copies now. Shared pages are not dirtied before a program
        // writes to them.
        let write = flags & (VmFlags::WRITE | VmFlags::SHARED) == VmFlags::WRITE;
        Ok(Some(if write { Access::WRITE } else { Access::READ }))
    }
}

/// Result of a batch.
enum Batch<P: Platform> {
    /// All pages up to this address are present.
    To(u64),
    /// The page must first be brought into its file's cache, without the lock.
    Fill { page: u64, part_end: u64, file: Counted<File<P>>, wanted: Wanted },
    /// The page is being moved, or a huge page is returning to its pool. The caller waits without the lock.
    Wait { page: u64, what: WaitFor },
    /// The page is on a swap device, and must first be brought into the swap cache, without the lock.
    SwapIn { page: u64, part_end: u64, entry: SwapEntry },
    /// A userfaultfd's pager must supply the page. The caller waits without the lock.
    Userfault { page: u64, fault: Userfault<P> },
    /// The part from `page` up to `part_end` cannot be populated.
    Refused { page: u64, part_end: u64, error: PopulateError },
}

impl<P: Platform> AddressSpace<P> {
    /// Populates every page of `range` that is mapped and accessible. Private writable memory is populated
    /// for writing. The first failure ends the call. Memory that is locked on fault is skipped.
    ///
    /// # Locks
    ///
    /// The VMA's own lock, or the mmap lock for reading, killably, once per batch. The caller holds no lock.
    pub(crate) fn populate(&self, range: UserRange) -> Result<(), PopulateError> {
        self.populate_by(range, Policy::All)
    }

    /// Like [`populate`](Self::populate), but continues with the next VMA after a failure.
    pub(crate) fn populate_leniently(&self, range: UserRange) {
        // Only a fatal signal ends the call early, and then the result is not needed.
        let _ = self.populate_by(range, Policy::Leniently);
    }

    /// Like [`populate_leniently`](Self::populate_leniently), for locked memory only.
    pub(crate) fn populate_locked(&self, range: UserRange) {
        let _ = self.populate_by(range, Policy::Locked);
    }

    /// Makes every page of `range` readable, or writable, without a further fault: MADV_POPULATE_READ and
    /// MADV_POPULATE_WRITE.
    pub(crate) fn populate_with(&self, range: UserRange, write: bool) -> Result<(), PopulateError> {
        self.populate_by(range, Policy::Exactly(if write { Access::WRITE } else { Access::READ }))
    }

    /// Populates `range` batch by batch, and waits between batches without a lock.
    fn populate_by(&self, range: UserRange, policy: Policy) -> Result<(), PopulateError> {
        let (mut at, mut rounds) = (range.start(), Rounds::new());
        let (mut shortage, mut short_at) = (ShortageRounds::new(), range.start());
        while at < range.end() {
            rounds.again::<P>()?;
            let batch = match self.populate_in_vma(range.rest(at), policy) {
                Some(batch) => batch,
                None => self.populate_batch(&self.read_killable()?, range.rest(at), policy),
            };
            let (page, part_end, error) = match batch {
                Batch::To(next) => {
                    at = next;
                    continue;
                }
                Batch::Fill { page, part_end, file, wanted } => match self.fill(&file, wanted, page) {
                    Ok(()) => {
                        at = page;
                        continue;
                    }
                    Err(error) => (page, part_end, error.into()),
                },
                Batch::SwapIn { page, part_end, entry } => match self.swap_in(entry, page) {
                    Ok(()) => {
                        at = page;
                        continue;
                    }
                    Err(error) => (page, part_end, error.into()),
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
                Batch::Refused { page, part_end, error } => (page, part_end, error),
            };
            if page > short_at {
                shortage.progressed();
            }
            short_at = page;
            let Err(error) = shortage.again(self, error) else {
                at = page;
                continue;
            };
            if !matches!(policy, Policy::Leniently | Policy::Locked) || error == PopulateError::Killed {
                return Err(error);
            }
            at = part_end;
        }
        Ok(())
    }

    /// Like [`populate_batch`](Self::populate_batch), but under the VMA's own lock. Returns `None` if the
    /// batch needs the mmap lock.
    fn populate_in_vma(&self, range: UserRange, policy: Policy) -> Option<Batch<P>> {
        let vma = self.tries_vma_lock().then(|| self.lock_vma(range.start()).ok())??;
        self.populate_part(&vma, range.with_end(range.end().min(vma.end())), policy, HeldLock::Vma)
    }

    /// Populates the start of `range`: at most one batch of pages, of at most one VMA.
    fn populate_batch(&self, guard: &ReadGuard<'_, P>, range: UserRange, policy: Policy) -> Batch<P> {
        let exact = matches!(policy, Policy::Exactly(_));
        let (vma, part) = match guard.first_range(range) {
            Some((_, part)) if exact && part.start() > range.start() => {
                let (page, part_end) = (range.start(), part.start());
                return Batch::Refused { page, part_end, error: PopulateError::NotMapped };
            }
            None if exact => {
                let (page, part_end) = (range.start(), range.end());
                return Batch::Refused { page, part_end, error: PopulateError::NotMapped };
            }
            None => return Batch::To(range.end()),
            Some(found) => found,
        };
        let batch = self.populate_part(vma, part, policy, HeldLock::Mmap(guard));
        batch.expect("a batch under the mmap lock needs no other lock")
    }

    /// Populates the pages of `part`, which lies in `vma`. Returns `None` if the first page needs the mmap
    /// lock.
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
            Err(error) => {
                return Some(Batch::Refused { page: part.start(), part_end: part.end(), error });
            }
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
                // Another task removes pages as soon as they are populated.
                return Some(Batch::To(page));
            }
            match self.fault_in(vma, page, access, held) {
                // The loop checks again: another task may have installed an entry first, with fewer rights.
                FaultOutcome::Done => {}
                FaultOutcome::NeedMmapLock if page == part.start() => return None,
                FaultOutcome::Retry | FaultOutcome::NeedMmapLock => return Some(Batch::To(page)),
                FaultOutcome::Fill(file, wanted) => {
                    return Some(Batch::Fill { page, part_end: part.end(), file, wanted });
                }
                FaultOutcome::Wait(what) => return Some(Batch::Wait { page, what }),
                FaultOutcome::SwapIn(entry) => {
                    return Some(Batch::SwapIn { page, part_end: part.end(), entry });
                }
                FaultOutcome::Userfault(fault) => return Some(Batch::Userfault { page, fault }),
                FaultOutcome::Failed(error) => {
                    return Some(Batch::Refused { page, part_end: part.end(), error: error.into() });
                }
            }
        }
        Some(Batch::To(page.max(end).min(part.end())))
    }

    /// Returns true if the hardware permits the access without a fault, also where software manages the
    /// accessed and dirty bits. Reads the entry without its table's lock, so a page that is being discarded
    /// may count as present.
    fn is_there(&self, page: u64, access: Access) -> bool {
        let (pte, level) = self.vm.peek(VirtAddr::new(page));
        let Kind::Leaf { flags, .. } = pte.kind(level) else { return false };
        let permitted = !access.write || flags.contains(PteFlags::WRITE);
        permitted && !flags.contains(PteFlags::NO_ACCESS) && flags.contains(bits_of(access))
    }
}
