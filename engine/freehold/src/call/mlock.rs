//! mlock, munlock, mlockall and related calls: memory whose pages stay mapped.
//!
//! The engine never reclaims pages of programs. Locking therefore sets a flag on the VMA, counts the pages,
//! and faults them in (`fault/populate.rs`). Pages that are locked on first access are not faulted in. Locks
//! do not nest, and a forked child does not inherit them.
//!
//! The flag `LOCKED` marks a locked VMA, and `LOCKONFAULT` a VMA that is locked on first access.
//! `default_flags` of the address space holds the flags that mlockall(MCL_FUTURE) gives to new mappings.
//! `default_flags` also holds the flag of `ksm.rs`, which a change of the lock flags must keep. The count of
//! locked pages must change with the flag of each VMA: RLIMIT_MEMLOCK limits this count.
//!
//! The right to change VMAs (`WriteGuard`) is released before pages are faulted in, so a failed fault leaves
//! the range locked. The model's `mlock.rs` and `lab/freehold-model/cases/mlock.txt` have the rules, and
//! `tests/mmap/merging.rs` tests that both kinds of `default_flags` are kept.

use crate::{
    PAGE_SIZE,
    error::{MlockError, PopulateError},
    platform::Platform,
    space::{
        AddressSpace,
        change::{
            split_merge::{SplitMergeError, VmaChange},
            vma_ranges::{HolePolicy, VmaRanges},
        },
        locking::WriteGuard,
        range_writer::RangeWriterState,
        state::counters::LimitDemand,
    },
    vma::{Vma, flags::VmFlags},
};
use bitflags::bitflags;
use core::cell::Cell;
use freehold_sync::{Killed, atomic::Ordering::Relaxed};
use freehold_vmspace::{PageCount, UserRange};

bitflags! {
    /// Flags of mlock2, with Linux's numbers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct LockFlags: u32 {
        /// MLOCK_ONFAULT: does not fault pages in; each page is locked on its first access.
        const ONFAULT = 1;
    }

    /// Flags of mlockall, with Linux's numbers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct LockAllFlags: u32 {
        /// MCL_CURRENT: locks all current mappings.
        const CURRENT = 1;
        /// MCL_FUTURE: locks all future mappings.
        const FUTURE = 2;
        /// MCL_ONFAULT: with one or both of the other flags, locks each page on its first access.
        const ONFAULT = 4;
    }
}

/// Flags of VMAs whose pages cannot be locked or are always present. Locking skips these VMAs.
const NOT_LOCKABLE: VmFlags = VmFlags::SPECIAL.union(VmFlags::HUGETLB).union(VmFlags::DROPPABLE);

impl From<SplitMergeError> for MlockError {
    fn from(error: SplitMergeError) -> Self {
        match error {
            SplitMergeError::TooManyVmas => MlockError::TooManyVmas,
            SplitMergeError::NoMemory => MlockError::OutOfMemory,
            SplitMergeError::NotSplittable => MlockError::Invalid,
        }
    }
}

impl From<PopulateError> for MlockError {
    fn from(error: PopulateError) -> Self {
        match error {
            PopulateError::OutOfMemory => MlockError::OutOfFrames,
            PopulateError::Killed => MlockError::Killed,
            PopulateError::NotMapped
            | PopulateError::NotPermitted
            | PopulateError::BadAccess
            | PopulateError::MemoryFailed => MlockError::NotAccessible,
        }
    }
}

/// Rounds the start down and the length up to whole pages. As on Linux, the length wraps around if it
/// overflows.
fn whole_pages(addr: u64, len: u64) -> (u64, u64) {
    let offset = addr % PAGE_SIZE;
    let len = len.wrapping_add(offset).wrapping_add(PAGE_SIZE - 1) & !(PAGE_SIZE - 1);
    (addr - offset, len)
}

/// Returns the VMA flags for a kind of locking.
fn lock_flags(on_fault: bool) -> VmFlags {
    if on_fault { VmFlags::LOCK_MASK } else { VmFlags::LOCKED }
}

impl<P: Platform> AddressSpace<P> {
    /// Locks `len` bytes at `addr` into memory and faults their pages in.
    ///
    /// # Errors
    ///
    /// See [`MlockError`]. If the range has a hole, the part below the hole is locked. If pages cannot be
    /// faulted in, the whole range is locked nevertheless.
    ///
    /// # Locks
    ///
    /// The locks of a [range writer](crate::space::locking#writers), killably. Afterwards the locks of
    /// faults.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.mlock(at, 2 * PAGE_SIZE).unwrap();
    /// assert_eq!((space.counts().locked_vm, space.rss().anon), (2, 2));
    /// ```
    pub fn mlock(&self, addr: u64, len: u64) -> Result<(), MlockError> {
        self.mlock2(addr, len, LockFlags::empty())
    }

    /// Locks memory like [`mlock`](Self::mlock), with flags.
    ///
    /// # Errors
    ///
    /// The errors of [`mlock`](Self::mlock).
    ///
    /// # Locks
    ///
    /// The locks of [`mlock`](Self::mlock).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, call::LockFlags, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.mlock2(at, 4 * PAGE_SIZE, LockFlags::ONFAULT).unwrap();
    /// assert_eq!((space.counts().locked_vm, space.rss().anon), (4, 0));
    /// ```
    pub fn mlock2(&self, addr: u64, len: u64, flags: LockFlags) -> Result<(), MlockError> {
        if !LockFlags::all().contains(flags) {
            return Err(MlockError::Invalid);
        }
        if !self.may_mlock() {
            return Err(MlockError::NotPermitted);
        }
        let (start, len) = whole_pages(addr, len);
        self.change_lock(start, len, lock_flags(flags.contains(LockFlags::ONFAULT)))?;
        Ok(self.populate(UserRange::clipped(start, len))?)
    }

    /// Sets the lock flags of all VMAs in the range, up to the first hole.
    fn change_lock(&self, start: u64, len: u64, lock: VmFlags) -> Result<(), MlockError> {
        let is_locking = lock.contains(VmFlags::LOCKED);
        // The start of the part that is not changed yet.
        let from = Cell::new(start);
        self.retry_when_short(|| {
            let (state, start, len) = (RangeWriterState::default(), from.get(), len - (from.get() - start));
            let locked = if is_locking { PageCount::of_bytes(len) } else { PageCount::ZERO };
            let needs = LimitDemand { locked, ..LimitDemand::CUTS };
            let guard = self.write_range_or_all(&state, start, len, needs)?;
            if is_locking {
                guard.check_lock_limit(start, len)?;
            }
            guard.set_lock(start, len, lock, &from)
        })
    }

    /// Acquires the right to change a range, or the whole space if the arguments do not form a range.
    fn write_range_or_all<'s>(
        &'s self,
        state: &'s RangeWriterState,
        start: u64,
        len: u64,
        needs: LimitDemand,
    ) -> Result<WriteGuard<'s, P>, Killed> {
        match UserRange::decode(start, len).filter(|range| !range.is_empty()) {
            Some(range) => self.write_range(state, range, needs),
            None => self.write_killable(),
        }
    }

    /// Unlocks memory. Memory that is not locked does not change.
    ///
    /// # Errors
    ///
    /// See [`MlockError`]. If the range has a hole, the part below the hole is unlocked.
    ///
    /// # Locks
    ///
    /// The locks of a [range writer](crate::space::locking#writers), killably.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.mlock(at, 4 * PAGE_SIZE).unwrap();
    /// space.munlock(at + PAGE_SIZE, PAGE_SIZE).unwrap();
    /// assert_eq!((space.counts().locked_vm, space.rss().anon), (3, 4), "the page stays in memory");
    /// ```
    pub fn munlock(&self, addr: u64, len: u64) -> Result<(), MlockError> {
        let (start, len) = whole_pages(addr, len);
        self.change_lock(start, len, VmFlags::empty())
    }

    /// Locks all current mappings, all future mappings, or both. Each call replaces the setting for future
    /// mappings.
    ///
    /// # Errors
    ///
    /// See [`MlockError`]. Failures on single VMAs are not reported.
    ///
    /// # Locks
    ///
    /// The mmap lock for writing, killably. Afterwards the locks of faults.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, call::LockAllFlags, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.mlockall(LockAllFlags::FUTURE).unwrap();
    /// space.mmap(0, 2 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// assert_eq!(space.counts().locked_vm, 2, "only the new mapping is locked");
    /// ```
    pub fn mlockall(&self, flags: LockAllFlags) -> Result<(), MlockError> {
        if !LockAllFlags::all().contains(flags) || (flags - LockAllFlags::ONFAULT).is_empty() {
            return Err(MlockError::Invalid);
        }
        if !self.may_mlock() {
            return Err(MlockError::NotPermitted);
        }
        let current = flags.contains(LockAllFlags::CURRENT);
        let guard = self.write_killable()?;
        if current && !self.may_lock_total(PageCount::new(self.counters.counts().total_vm)) {
            return Err(MlockError::LockLimit);
        }
        let lock = lock_flags(flags.contains(LockAllFlags::ONFAULT));
        let future = if flags.contains(LockAllFlags::FUTURE) { lock } else { VmFlags::empty() };
        guard.lock_future(future);
        if current {
            guard.set_lock_everywhere(lock);
        }
        drop(guard);
        if current {
            self.populate_leniently(UserRange::new(0, Self::TASK_SIZE));
        }
        Ok(())
    }

    /// Unlocks all mappings and clears the setting for future mappings.
    ///
    /// # Errors
    ///
    /// Fails only if a fatal signal arrives.
    ///
    /// # Locks
    ///
    /// The mmap lock for writing, killably.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, call::LockAllFlags, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.mlockall(LockAllFlags::CURRENT | LockAllFlags::FUTURE).unwrap();
    /// space.munlockall().unwrap();
    /// space.mmap(0, PAGE_SIZE, rw, private, None, 0).unwrap();
    /// assert_eq!(space.counts().locked_vm, 0);
    /// ```
    pub fn munlockall(&self) -> Result<(), MlockError> {
        let guard = self.write_killable()?;
        guard.lock_future(VmFlags::empty());
        guard.set_lock_everywhere(VmFlags::empty());
        Ok(())
    }
}

impl<P: Platform> WriteGuard<'_, P> {
    /// Checks RLIMIT_MEMLOCK. Memory that is already locked does not count again.
    fn check_lock_limit(&self, start: u64, len: u64) -> Result<(), MlockError> {
        let pages = PageCount::of_bytes(len);
        if self.may_lock_pages(pages) {
            return Ok(());
        }
        let range = UserRange::clipped(start, len);
        let mut again = PageCount::ZERO;
        for vma in self.vmas(range).filter(|vma| vma.flags().contains(VmFlags::LOCKED)) {
            again += PageCount::of_bytes(range.end().min(vma.end()) - range.start().max(vma.start()));
        }
        if self.may_lock_pages(pages - again) { Ok(()) } else { Err(MlockError::LockLimit) }
    }

    /// Sets the lock flags of future mappings.
    fn lock_future(&self, lock: VmFlags) {
        // Relaxed: the mmap lock orders all accesses.
        let others = VmFlags::from_bits_retain(self.space.default_flags.load(Relaxed)) - VmFlags::LOCK_MASK;
        self.space.default_flags.store((others | lock).bits(), Relaxed);
    }

    /// Sets the lock flags of all VMAs in the range, up to the first hole. `from` becomes the end of the part
    /// that is done.
    fn set_lock(&self, start: u64, len: u64, lock: VmFlags, from: &Cell<u64>) -> Result<(), MlockError> {
        let range = UserRange::decode(start, len).ok_or(MlockError::Invalid)?;
        let whole = self.for_each_vma_range(range, HolePolicy::Stop, |vma, part| {
            self.lock_part(vma, part, lock)?;
            from.set(part.end());
            Ok::<(), MlockError>(())
        })?;
        if whole { Ok(()) } else { Err(MlockError::NotMapped) }
    }

    /// Sets the lock flags of every VMA whose flags can change.
    fn set_lock_everywhere(&self, lock: VmFlags) {
        let _ = self.for_each_vma_range(
            UserRange::new(0, AddressSpace::<P>::TASK_SIZE),
            HolePolicy::Skip,
            |vma, part| {
                // A VMA keeps its flags if they cannot be changed, for example because there is no memory.
                // The failure is not reported.
                let _ = self.lock_part(vma, part, lock);
                Ok::<(), MlockError>(())
            },
        );
    }

    /// Sets the lock flags of `part` of `vma` and counts its pages. Does nothing if the VMA cannot be locked.
    fn lock_part(&self, vma: &Vma<P>, part: UserRange, lock: VmFlags) -> Result<(), MlockError> {
        let old = vma.flags();
        let new = (old - VmFlags::LOCK_MASK) | lock;
        if new == old || old.intersects(NOT_LOCKABLE) || !vma.object().may_lock() {
            return Ok(());
        }
        let pages = part.pages();
        let _ = self.modify(vma, part, VmaChange { flags: new, policy: vma.policy() })?;
        match (old.contains(VmFlags::LOCKED), new.contains(VmFlags::LOCKED)) {
            (false, true) => self.space.counters.count_locked(self, pages),
            (true, false) => self.space.counters.count_unlocked(self, pages),
            _ => {}
        }
        Ok(())
    }
}
