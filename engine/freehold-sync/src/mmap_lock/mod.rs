//! The lock of an address space: [`MmapLock`], a reader/writer lock and a sequence number.
//!
//! # The sequence number
//!
//! | value | meaning | leaves it by |
//! | --- | --- | --- |
//! | even | nobody holds the lock for writing | +1 by the next writer, after it was admitted |
//! | odd | one writer holds it | +1 by that writer, before it releases or downgrades |
//!
//! Only the writer writes it. A reader that finds it even, and the same again afterwards, knows that nothing
//! guarded by the lock changed in between ([`MmapLock::speculate`]).
//!
//! # Which access pairs with which
//!
//! - Leaving: the writer stores the even number with release, after all its changes and before the step on
//!   the lock; `speculate` loads with acquire. A load that sees the even number sees the changes.
//! - Entering: the writer stores the odd number, then a release fence, then changes things by relaxed stores
//!   at least. A speculating reader loads those, then has an acquire fence, then loads the number
//!   ([`Speculation::valid`]). If it saw a change, it sees the odd number or a later one.
//!
//! The number has 32 bits and wraps: a speculation over 2^31 write sections could be taken for valid.

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
    /// Away from the line of `sem`, because every fault reads it.
    read: CachePadded<ReadByFaults<H>>,
    gate: Gate,
}

struct ReadByFaults<H: Host> {
    /// Written by the holder of the write lock.
    seq: AtomicU32,
    /// The design of the locks of its VMAs; fixed.
    vmas: VmaLocking<H>,
}

impl<H: Host> ReadByFaults<H> {
    const_unless_loom! {
        fn new(seq: u32) -> CachePadded<Self> {
            CachePadded::new(ReadByFaults { seq: AtomicU32::new(seq), vmas: VmaLocking::new() })
        }
    }
}

/// The address space held for reading: no VMA comes, goes or changes. Dropping it releases the lock.
///
/// It cannot outlive its lock:
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

/// The address space held for writing: the right to change the set of VMAs, and to lock VMAs for writing.
/// Dropping it releases the lock; those VMAs are unlocked before.
///
/// What needs this right takes the guard, so a reader cannot do it, not even one that was a writer before:
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
    /// Dropped, like all fields, in the order of declaration: first the number, then the lock.
    section: WriteSection<'a, H>,
    sem: RwSemWriteGuard<'a, H>,
}

/// The time during which the sequence number is odd.
struct WriteSection<'a, H: Host> {
    lock: &'a MmapLock<H>,
}

impl<'a, H: Host> WriteSection<'a, H> {
    #[inline]
    fn begin(lock: &'a MmapLock<H>) -> Self {
        let seq = &lock.read.seq;
        // Relaxed: the write lock is held, and its last holder wrote the number.
        let even = seq.load(Ordering::Relaxed);
        debug_assert!(even.is_multiple_of(2), "the write lock is held twice");
        // Relaxed: a load that sees this number believes nothing.
        seq.store(even.wrapping_add(1), Ordering::Relaxed);
        // Pairs with the fence in `Speculation::valid`: see "entering".
        fence(Ordering::Release);
        WriteSection { lock }
    }
}

impl<H: Host> Drop for WriteSection<'_, H> {
    #[inline]
    fn drop(&mut self) {
        // Relaxed: only the holder writes it.
        let seq = &self.lock.read.seq;
        let odd = seq.load(Ordering::Relaxed);
        debug_assert!(!odd.is_multiple_of(2));
        // Release: pairs with the acquire in `speculate`: see "leaving".
        seq.store(odd.wrapping_add(1), Ordering::Release);
    }
}

impl<H: Host> MmapLock<H> {
    const_unless_loom! {
        /// A free lock.
        pub fn new() -> Self {
            MmapLock { sem: RwSem::new(Rank::Mmap), read: ReadByFaults::new(0), gate: Gate::closed() }
        }

        /// A free lock that keeps statistics of its use.
        pub fn with_stats(stats: Counted<LockStats<H>>) -> Self {
            MmapLock { sem: RwSem::with_stats(Rank::Mmap, stats), read: ReadByFaults::new(0), gate: Gate::closed() }
        }

        /// A free lock whose sequence number starts at `seq`, for tests of what happens when it wraps.
        ///
        /// An odd number is rounded down.
        pub fn with_seq(seq: u32) -> Self {
            MmapLock { sem: RwSem::new(Rank::Mmap), read: ReadByFaults::new(seq & !1), gate: Gate::closed() }
        }
    }

    /// The same lock, whose VMAs' readers may stand in `slots` where they would get into each other's way.
    /// All locks under which a VMA may live share one.
    #[must_use]
    pub fn with_slots(mut self, slots: Counted<ReaderSlots<H>>) -> Self {
        self.read.vmas.set_slots(slots);
        self
    }

    /// The same lock, over VMAs with such locks of their own. [`FaultLock::VmaCount`] needs the slots all the
    /// same: a late reader of another space may stand in one with a VMA of this. With
    /// [`FaultLock::VmaRwsem`], [`VmaCount::make_external_rwsem`](crate::VmaCount::make_external_rwsem) makes
    /// a VMA's before it is attached.
    #[must_use]
    pub fn with_fault_lock(mut self, fault: FaultLock) -> Self {
        self.read.vmas.set_fault_lock(fault);
        self
    }

    /// Whether a look at one VMA tries that VMA's lock before this one.
    #[inline]
    pub fn tries_vma_locks(&self) -> bool {
        self.read.vmas.tries_vma_locks()
    }

    /// Whether VMAs are locked by external rwsems.
    #[inline]
    pub fn uses_rwsems(&self) -> bool {
        self.read.vmas.uses_rwsems()
    }

    /// The design of the locks of its VMAs.
    #[inline]
    pub(crate) fn vma_locking(&self) -> &VmaLocking<H> {
        &self.read.vmas
    }

    /// The statistics, if the lock keeps any.
    pub fn stats(&self) -> Option<&LockStats<H>> {
        self.sem.stats()
    }

    /// Takes the lock for reading.
    ///
    /// # Panics
    /// With debug assertions, when the task holds a lock of [`Rank::Mmap`] or an inner one, a VMA's read lock
    /// say.
    #[inline]
    pub fn read(&self) -> MmapReadGuard<'_, H> {
        self.reader(self.sem.read()).unwrap_or_else(|| self.write().downgrade())
    }

    /// Takes the lock for reading, unless a fatal signal ends the wait.
    ///
    /// # Errors
    /// [`Killed`]; nothing was acquired.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    #[inline]
    pub fn read_killable(&self) -> Result<MmapReadGuard<'_, H>, Killed> {
        match self.reader(self.sem.read_killable()?) {
            Some(guard) => Ok(guard),
            None => Ok(self.write_killable()?.downgrade()),
        }
    }

    /// Takes the lock for reading if that is possible at once. Allowed with a VMA's read lock held.
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
    /// As [`read`](Self::read).
    #[inline]
    pub fn write(&self) -> MmapWriteGuard<'_, H> {
        self.exclusive_writer(self.sem.write())
    }

    /// Takes the lock of a child's space in fork, with the parent's lock held for writing. Nobody else can
    /// reach the child yet, so this never waits long.
    ///
    /// # Panics
    /// With debug assertions, when the task holds a lock of an inner rank than [`Rank::Mmap`].
    #[inline]
    pub fn write_nested(&self) -> MmapWriteGuard<'_, H> {
        self.exclusive_writer(self.sem.write_at(Rank::MmapNested))
    }

    /// Takes the lock for writing, unless a fatal signal ends the wait.
    ///
    /// # Errors
    /// [`Killed`]; nothing was acquired. The sequence number is as before, unless range writers were waited
    /// for.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    #[inline(always)]
    pub fn write_killable(&self) -> Result<MmapWriteGuard<'_, H>, Killed> {
        let guard = self.writer(self.sem.write_killable()?);
        if !self.gate_is_closed() {
            guard.close_gate_killable()?;
        }
        Ok(guard)
    }

    /// Takes the lock for writing if nobody has it.
    #[inline]
    pub fn try_write(&self) -> Option<MmapWriteGuard<'_, H>> {
        let guard = self.writer(self.sem.try_write()?);
        (self.gate_is_closed() || guard.try_close_gate()).then_some(guard)
    }

    /// Whether somebody waits for the lock; a hint.
    pub fn is_contended(&self) -> bool {
        self.sem.is_contended()
    }

    /// The sequence number: odd while the lock is held for writing.
    #[inline]
    pub fn seq(&self) -> u32 {
        // Acquire: pairs with the release in the end of a write section.
        self.read.seq.load(Ordering::Acquire)
    }

    /// The sequence number as a hint.
    #[inline]
    pub(crate) fn seq_hint(&self) -> u32 {
        // Relaxed: pairs with nothing.
        self.read.seq.load(Ordering::Relaxed)
    }

    /// Begins to read what the lock guards without taking it. `None`: somebody is changing it, or range
    /// writers may do so at any time.
    ///
    /// What is read before [`Speculation::valid`] confirms it may be from halfway through a change. It must
    /// be in atomics, and what it points to must stay readable (a grace period, type-stable memory).
    #[inline]
    pub fn speculate(&self) -> Option<Speculation> {
        let seq = self.seq();
        // After the number: a section of the same number in which the gate was opened is seen.
        (seq.is_multiple_of(2) && self.gate_is_closed()).then_some(Speculation { seq })
    }

    /// The guard of a reader, if the gate is closed. Else the lock is let go of: it takes a writer to close
    /// it.
    #[inline]
    fn reader<'a>(&'a self, sem: RwSemReadGuard<'a, H>) -> Option<MmapReadGuard<'a, H>> {
        self.gate_is_closed().then_some(MmapReadGuard { lock: self, _sem: sem })
    }

    /// The guard of a writer that has closed the gate, whatever signals arrive.
    #[inline]
    fn exclusive_writer<'a>(&'a self, sem: RwSemWriteGuard<'a, H>) -> MmapWriteGuard<'a, H> {
        let guard = self.writer(sem);
        if !self.gate_is_closed() {
            guard.close_gate();
        }
        guard
    }

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

/// Reading under no lock, begun by [`MmapLock::speculate`].
#[derive(Clone, Copy, Debug)]
#[must_use = "what was read counts only if it is found valid"]
pub struct Speculation {
    seq: u32,
}

impl Speculation {
    /// Whether nobody held `lock` for writing since the speculation began, so that everything read since then
    /// belongs together. `lock` is the one it began on.
    #[inline]
    pub fn valid<H: Host>(self, lock: &MmapLock<H>) -> bool {
        // Pairs with the fence in `WriteSection::begin`: see "entering".
        fence(Ordering::Acquire);
        lock.seq_hint() == self.seq
    }
}

impl<'a, H: Host> MmapReadGuard<'a, H> {
    /// The lock.
    #[inline]
    pub fn lock(&self) -> &'a MmapLock<H> {
        self.lock
    }
}

impl<'a, H: Host> MmapWriteGuard<'a, H> {
    /// The lock.
    #[inline]
    pub fn lock(&self) -> &'a MmapLock<H> {
        self.section.lock
    }

    /// Goes on as a reader, without letting go in between. No VMA is write-locked any more. The next writer
    /// waits for it, so two downgraded holders never meet.
    #[inline]
    pub fn downgrade(self) -> MmapReadGuard<'a, H> {
        let MmapWriteGuard { section, sem } = self;
        let lock = section.lock;
        drop(section);
        MmapReadGuard { lock, _sem: sem.downgrade() }
    }
}
