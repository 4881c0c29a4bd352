//! The lock of an address space: [`MmapLock`], a reader/writer lock and a sequence number.
//!
//! The lock guards the set of VMAs. A task takes the lock for reading ([`MmapReadGuard`]), takes it for
//! writing as the exclusive writer ([`MmapWriteGuard`]), or enters its gate as a range writer
//! ([`MmapRangeWriteGuard`], `gate.rs`). Functions of [`VmaLock`](crate::VmaLock) and of the engine take
//! these guards as a proof. The tests `loom_small`, `loom_gate` and `loom_vma` check this module.
//!
//! `gate.rs` has the gate and the range writers. No function returns a guard for reading or for writing while
//! the gate is open: each function that takes the lock calls `reader` or `exclusive_writer`, or calls
//! `writer` and checks `gate_is_closed`.
//!
//! # The sequence number
//!
//! | value | meaning | transition |
//! | --- | --- | --- |
//! | even | no task holds the lock for writing | +1 by the next writer, after it has acquired the lock |
//! | odd | one writer holds the lock | +1 by that writer, before it releases or downgrades |
//!
//! Only the writer changes the number. A reader that finds the number even, and finds the same number later,
//! knows that nothing guarded by the lock changed in between ([`MmapLock::speculate`]).
//!
//! # Pairing of accesses
//!
//! - Leaving: the writer stores the even number with release, after all its changes and before it releases or
//!   downgrades the lock. `speculate` loads the number with acquire. A load that sees the even number sees
//!   the changes.
//! - Entering: the writer stores the odd number, then executes a release fence, then makes its changes with
//!   stores that are at least relaxed. A speculating reader loads the data, then executes an acquire fence,
//!   then loads the number ([`Speculation::valid`]). If it saw a change, it sees the odd number or a later
//!   one.
//!
//! The number has 32 bits and wraps: a speculation that lasts for exactly 2^31 write sections is wrongly
//! found valid.

mod gate;

pub use crate::vma_lock::FaultLock;
pub use gate::{MmapRangeWriteGuard, MmapWriteProof};

use crate::atomic::{AtomicU32, Ordering, const_unless_loom, fence};
use crate::counted::Counted;
use crate::host::{Host, Killed};
use crate::rank::Rank;
use crate::reader_slots::ReaderSlots;
use crate::rwsem::{RwSem, RwSemReadGuard, RwSemWriteGuard};
use crate::stats::LockStats;
use crate::vma_lock::VmaLocking;
use core::fmt;
use crossbeam_utils::CachePadded;
use gate::Gate;

/// The lock of an address space; see the [module](self).
pub struct MmapLock<H: Host> {
    sem: RwSem<H>,
    /// This part is on another cache line than `sem`, because every fault reads this part.
    read: CachePadded<ReadByFaults<H>>,
    gate: Gate,
}

/// The part of an mmap lock that every fault reads.
struct ReadByFaults<H: Host> {
    /// The sequence number. Written by the holder of the write lock.
    seq: AtomicU32,
    /// The locking design of the VMAs of this address space. Fixed after construction.
    vmas: VmaLocking<H>,
}

impl<H: Host> ReadByFaults<H> {
    const_unless_loom! {
        fn new(seq: u32) -> CachePadded<Self> {
            CachePadded::new(ReadByFaults { seq: AtomicU32::new(seq), vmas: VmaLocking::new() })
        }
    }
}

/// Guard of an mmap lock held for reading. No VMA is mapped, unmapped or changed while the guard exists.
/// Releases the lock when dropped.
///
/// The compiler rejects a guard that outlives its lock:
///
/// ```compile_fail,E0505
/// # use freehold_sync::{Host, MmapLock};
/// fn f<H: Host>(lock: MmapLock<H>) {
///     let guard = lock.read();
///     drop(lock);
///     drop(guard);
/// }
/// ```
#[must_use = "the lock is released when the guard is dropped"]
pub struct MmapReadGuard<'a, H: Host> {
    lock: &'a MmapLock<H>,
    _sem: RwSemReadGuard<'a, H>,
}

/// Guard of an mmap lock held for writing: the right to change the set of VMAs, and to lock VMAs for writing.
/// Releases the lock when dropped. The holder unlocks its VMAs before this release.
///
/// Functions that need this right take the guard as an argument. So a reader cannot call such functions, not
/// even a reader that was the writer before:
///
/// ```compile_fail,E0308
/// # use freehold_sync::{Host, MmapLock, VmaLock};
/// fn f<H: Host>(lock: &MmapLock<H>, vma: VmaLock<'_>) {
///     let guard = lock.write();
///     vma.write(&guard);
///     let guard = guard.downgrade();
///     vma.detach(&guard);
/// }
/// ```
#[must_use = "the lock is released when the guard is dropped"]
pub struct MmapWriteGuard<'a, H: Host> {
    /// Fields are dropped in the order of declaration: first the section ends, then the lock is released.
    section: WriteSection<'a, H>,
    sem: RwSemWriteGuard<'a, H>,
}

/// The period during which the sequence number is odd.
struct WriteSection<'a, H: Host> {
    lock: &'a MmapLock<H>,
}

impl<'a, H: Host> WriteSection<'a, H> {
    /// Makes the number odd. The caller holds the lock for writing.
    #[inline]
    fn begin(lock: &'a MmapLock<H>) -> Self {
        let seq = &lock.read.seq;
        // Relaxed: this task holds the write lock, and the previous holder wrote the number.
        let even = seq.load(Ordering::Relaxed);
        debug_assert!(even.is_multiple_of(2), "the write lock is held twice");
        // Relaxed: a speculating reader that loads an odd number fails.
        seq.store(even.wrapping_add(1), Ordering::Relaxed);
        // Pairs with the fence in `Speculation::valid`; see "Entering" in the module head.
        fence(Ordering::Release);
        WriteSection { lock }
    }
}

impl<H: Host> Drop for WriteSection<'_, H> {
    #[inline]
    fn drop(&mut self) {
        // Relaxed: only the holder writes the number.
        let seq = &self.lock.read.seq;
        let odd = seq.load(Ordering::Relaxed);
        debug_assert!(!odd.is_multiple_of(2));
        // Release: pairs with the acquire in `seq`; see "Leaving" in the module head.
        seq.store(odd.wrapping_add(1), Ordering::Release);
    }
}

impl<H: Host> MmapLock<H> {
    const_unless_loom! {
        /// Creates a free lock.
        pub fn new() -> Self {
            MmapLock { sem: RwSem::new(Rank::Mmap), read: ReadByFaults::new(0), gate: Gate::closed() }
        }

        /// Creates a free lock that keeps statistics of its use.
        pub fn with_stats(stats: Counted<LockStats<H>>) -> Self {
            MmapLock { sem: RwSem::with_stats(Rank::Mmap, stats), read: ReadByFaults::new(0), gate: Gate::closed() }
        }

        /// Creates a free lock whose sequence number starts at `seq`, for tests of wrapping.
        ///
        /// An odd number is rounded down.
        pub fn with_seq(seq: u32) -> Self {
            MmapLock { sem: RwSem::new(Rank::Mmap), read: ReadByFaults::new(seq & !1), gate: Gate::closed() }
        }
    }

    /// Returns the lock with `slots`. The slots can record readers of its VMAs that would contend on a reader
    /// count. All mmap locks under which a VMA may be attached share the same slots.
    #[must_use]
    pub fn with_slots(mut self, slots: Counted<ReaderSlots<H>>) -> Self {
        self.read.vmas.set_slots(slots);
        self
    }

    /// Returns the lock with `fault` as the locking design of its VMAs.
    ///
    /// [`FaultLock::VmaCount`] also needs the slots, although readers of this space do not enter them. A late
    /// reader of another space may be in a slot with a VMA whose memory now belongs to this space, and a
    /// writer of that VMA must find the reader. With [`FaultLock::VmaRwsem`], the rwsem of a VMA is created
    /// by [`VmaCount::make_external_rwsem`](crate::VmaCount::make_external_rwsem) before the VMA is attached.
    #[must_use]
    pub fn with_fault_lock(mut self, fault: FaultLock) -> Self {
        self.read.vmas.set_fault_lock(fault);
        self
    }

    /// Returns true if a lookup of one VMA tries the lock of that VMA before this lock.
    #[inline]
    pub fn tries_vma_locks(&self) -> bool {
        self.read.vmas.tries_vma_locks()
    }

    /// Returns true if VMAs are locked with external rwsems.
    #[inline]
    pub fn uses_rwsems(&self) -> bool {
        self.read.vmas.uses_rwsems()
    }

    /// Returns the locking design of the VMAs.
    #[inline]
    pub(crate) fn vma_locking(&self) -> &VmaLocking<H> {
        &self.read.vmas
    }

    /// Returns the statistics, if the lock keeps any.
    pub fn stats(&self) -> Option<&LockStats<H>> {
        self.sem.stats()
    }

    /// Takes the lock for reading.
    ///
    /// # Panics
    /// With debug assertions, panics if the task holds a lock of [`Rank::Mmap`] or of an inner rank, for
    /// example a VMA's read lock.
    #[inline]
    pub fn read(&self) -> MmapReadGuard<'_, H> {
        self.reader(self.sem.read()).unwrap_or_else(|| self.write().downgrade())
    }

    /// Takes the lock for reading, unless a fatal signal ends the wait.
    ///
    /// # Errors
    /// Fails with [`Killed`] if a fatal signal is pending; nothing is acquired.
    ///
    /// # Panics
    /// Panics like [`read`](Self::read).
    #[inline]
    pub fn read_killable(&self) -> Result<MmapReadGuard<'_, H>, Killed> {
        match self.reader(self.sem.read_killable()?) {
            Some(guard) => Ok(guard),
            None => Ok(self.write_killable()?.downgrade()),
        }
    }

    /// Takes the lock for reading if that is possible without waiting. A task that holds a VMA's read lock
    /// may call this function.
    #[inline]
    pub fn try_read(&self) -> Option<MmapReadGuard<'_, H>> {
        match self.reader(self.sem.try_read()?) {
            Some(guard) => Some(guard),
            None => Some(self.try_write()?.downgrade()),
        }
    }

    /// Takes the lock for writing.
    ///
    /// # Panics
    /// Panics like [`read`](Self::read).
    #[inline]
    pub fn write(&self) -> MmapWriteGuard<'_, H> {
        self.exclusive_writer(self.sem.write())
    }

    /// Takes the mmap lock of fork's child for writing, while the mmap lock of the parent is held for
    /// writing. No other task can reach the child yet, so the lock is free.
    ///
    /// # Panics
    /// With debug assertions, panics if the task holds a lock of a rank inside [`Rank::Mmap`].
    #[inline]
    pub fn write_nested(&self) -> MmapWriteGuard<'_, H> {
        self.exclusive_writer(self.sem.write_at(Rank::MmapNested))
    }

    /// Takes the lock for writing, unless a fatal signal ends the wait.
    ///
    /// # Errors
    /// Fails with [`Killed`] if a fatal signal is pending; nothing is acquired. The sequence number is
    /// unchanged, unless the call had to wait for range writers.
    ///
    /// # Panics
    /// Panics like [`read`](Self::read).
    #[inline(always)]
    pub fn write_killable(&self) -> Result<MmapWriteGuard<'_, H>, Killed> {
        let guard = self.writer(self.sem.write_killable()?);
        if !self.gate_is_closed() {
            guard.close_gate_killable()?;
        }
        Ok(guard)
    }

    /// Takes the lock for writing if no task holds it and no range writer is inside the gate.
    #[inline]
    pub fn try_write(&self) -> Option<MmapWriteGuard<'_, H>> {
        let guard = self.writer(self.sem.try_write()?);
        (self.gate_is_closed() || guard.try_close_gate()).then_some(guard)
    }

    /// Returns true if a task waits for the lock. The result is a hint.
    pub fn is_contended(&self) -> bool {
        self.sem.is_contended()
    }

    /// Returns the sequence number, which is odd while the lock is held for writing.
    #[inline]
    pub fn seq(&self) -> u32 {
        // Acquire: pairs with the release at the end of a write section.
        self.read.seq.load(Ordering::Acquire)
    }

    /// Returns the sequence number without ordering later reads after it, for a caller that orders its later
    /// reads itself.
    #[inline]
    pub(crate) fn seq_hint(&self) -> u32 {
        // Relaxed: orders nothing by itself.
        self.read.seq.load(Ordering::Relaxed)
    }

    /// Begins to read data that the lock guards, without taking the lock. Returns `None` if a writer holds
    /// the lock, or if the gate is open to range writers.
    ///
    /// Data may have been read in the middle of a change, unless [`Speculation::valid`] returns true
    /// afterwards. Such data must be in atomics, and the memory that it points to must stay readable (through
    /// a grace period or type-stable memory).
    #[inline]
    pub fn speculate(&self) -> Option<Speculation> {
        let seq = self.seq();
        // The gate is checked after the number is loaded. If the section that ended with this number opened
        // the gate, the acquire of the number makes the open gate visible.
        (seq.is_multiple_of(2) && self.gate_is_closed()).then_some(Speculation { seq })
    }

    /// Returns the guard of a reader, if the gate is closed. Otherwise releases the lock and returns `None`,
    /// because only a writer can close the gate.
    #[inline]
    fn reader<'a>(&'a self, sem: RwSemReadGuard<'a, H>) -> Option<MmapReadGuard<'a, H>> {
        self.gate_is_closed().then_some(MmapReadGuard { lock: self, _sem: sem })
    }

    /// Returns the guard of a writer, after it has closed the gate. Signals do not end the wait.
    #[inline]
    fn exclusive_writer<'a>(&'a self, sem: RwSemWriteGuard<'a, H>) -> MmapWriteGuard<'a, H> {
        let guard = self.writer(sem);
        if !self.gate_is_closed() {
            guard.close_gate();
        }
        guard
    }

    /// Returns the guard of a task that has the rwsem for writing. The gate may still be open.
    #[inline]
    fn writer<'a>(&'a self, sem: RwSemWriteGuard<'a, H>) -> MmapWriteGuard<'a, H> {
        MmapWriteGuard { section: WriteSection::begin(self), sem }
    }
}

impl<H: Host> Default for MmapLock<H> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H: Host> fmt::Debug for MmapLock<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MmapLock").field("seq", &self.seq_hint()).field("sem", &self.sem).finish()
    }
}

/// A read of guarded data without a lock, begun by [`MmapLock::speculate`].
#[derive(Clone, Copy, Debug)]
#[must_use = "the data read is meaningful only if `valid` returns true"]
pub struct Speculation {
    seq: u32,
}

impl Speculation {
    /// Returns true if no task has held `lock` for writing since the speculation began. In this case, all
    /// data that the caller has read since the beginning is consistent. `lock` must be the lock on which the
    /// speculation began.
    #[inline]
    pub fn valid<H: Host>(self, lock: &MmapLock<H>) -> bool {
        // Pairs with the fence in `WriteSection::begin`; see "Entering" in the module head.
        fence(Ordering::Acquire);
        lock.seq_hint() == self.seq
    }
}

impl<'a, H: Host> MmapReadGuard<'a, H> {
    /// Returns the lock.
    #[inline]
    pub fn lock(&self) -> &'a MmapLock<H> {
        self.lock
    }
}

impl<'a, H: Host> MmapWriteGuard<'a, H> {
    /// Returns the lock.
    #[inline]
    pub fn lock(&self) -> &'a MmapLock<H> {
        self.section.lock
    }

    /// Turns the writer into a reader, without releasing the lock in between. No VMA is write-locked
    /// afterwards. The next writer waits for this reader, so two downgraded holders never exist at the same
    /// time.
    #[inline]
    pub fn downgrade(self) -> MmapReadGuard<'a, H> {
        let MmapWriteGuard { section, sem } = self;
        let lock = section.lock;
        drop(section);
        MmapReadGuard { lock, _sem: sem.downgrade() }
    }
}
