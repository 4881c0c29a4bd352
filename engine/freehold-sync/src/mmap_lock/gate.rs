//! The gate of an mmap lock, which lets several tasks change an address space at the same time, and
//! [`MmapRangeWriteGuard`].
//!
//! The gate is a VMA lock, so the steps of entering and closing it belong in `vma_lock/`. This file decides
//! when a task takes these steps. `tests/loom_gate.rs` tests this file.
//!
//! # Guarantees
//!
//! - A *range writer* shares the address space with other range writers. Each changes only what it has
//!   claimed. Range writers and holders of the mmap lock, for reading or for writing, exclude each other.
//! - A range writer enters with one read-modify-write and leaves with another. It changes one word of the
//!   gate or, where range writers often contend, one word of its CPU.
//! - Neither side starves. A holder of the lock waits only for the range writers that entered before it. A
//!   range writer that arrives later waits for the mmap lock.
//!
//! # Mechanism
//!
//! The gate is a [VMA lock](crate::vma_lock) that represents the set of all VMAs. Range writers are its
//! readers, and are counted like the readers of a VMA. A range writer that has entered the gate and has not
//! left is *inside*.
//!
//! | gate | its number | a range writer enters | transition |
//! | --- | --- | --- | --- |
//! | open | even | through the gate, without the mmap lock | closed by a task that holds the mmap lock for writing: it makes the number odd and waits for the range writers inside |
//! | closed | odd | after it has taken the mmap lock for writing | opened by that range writer, with the mmap lock held for writing: it makes the number even, enters, and releases the mmap lock |
//!
//! The gate keeps its state until a task of the other kind arrives. So an address space that only one kind of
//! writer changes never pays for the other kind. Both transitions need the mmap lock held for writing, so
//! they exclude each other. A task that wants the mmap lock for *reading* and finds the gate open takes the
//! lock for writing, closes the gate, and downgrades. Concurrent readers then find the gate closed.
//!
//! While a task holds the mmap lock, the gate is closed and no range writer is inside. A range writer
//! enters through an open gate only, and a task that takes the mmap lock closes the gate and waits for the
//! range writers inside.
//!
//! # Pairing of accesses
//!
//! The pairings are those of a VMA lock. A range writer that enters acquires the changes of the last holder
//! of the mmap lock: through the number that this holder made even, or through the mmap lock if the range
//! writer opens the gate itself. A task that closes the gate acquires the changes that range writers made
//! before they left.

use super::{MmapLock, MmapWriteGuard, WriteSection};
use crate::atomic::{Ordering, const_unless_loom, fence};
use crate::host::{Host, Killed};
use crate::rank::{self, Rank};
use crate::rwsem::RwSemWriteGuard;
use crate::vma_lock::{ReaderPlace, VmaCount, VmaLock, VmaSeq};
use core::convert::Infallible;
use core::marker::PhantomData;
use crossbeam_utils::CachePadded;

/// The gate of an mmap lock: a VMA lock that represents all VMAs.
pub(super) struct Gate {
    /// Counts the range writers inside. On a cache line of its own, because each range writer writes the
    /// count unless readers are counted per CPU.
    count: CachePadded<VmaCount>,
    seq: VmaSeq,
}

impl Gate {
    const_unless_loom! {
        /// Creates a closed gate with no range writer inside.
        pub fn closed() -> Self {
            Gate { count: CachePadded::new(VmaCount::attached()), seq: VmaSeq::locked() }
        }
    }

    #[inline]
    fn lock(&self) -> VmaLock<'_> {
        VmaLock { count: &self.count, seq: &self.seq }
    }
}

/// The right of a range writer to change the parts of an address space that it has claimed. Other range
/// writers may change other parts at the same time. The right ends when the guard is dropped.
///
/// ```
/// use freehold_sync::{MmapLock, testing::StdHost};
///
/// let lock = MmapLock::<StdHost>::new();
/// let one = lock.enter_range_writer();
/// std::thread::scope(|scope| {
///     scope.spawn(|| drop(lock.enter_range_writer()));
/// });
/// assert!(lock.try_read().is_none() && lock.try_write().is_none());
/// drop(one);
/// assert!(lock.try_write().is_some());
/// ```
#[must_use = "the right ends when the guard is dropped"]
pub struct MmapRangeWriteGuard<'a, H: Host> {
    lock: &'a MmapLock<H>,
    place: ReaderPlace<'a>,
    /// Not `Send`: the rank checker keeps its record of held locks per task.
    task: PhantomData<*const ()>,
}

impl<'a, H: Host> MmapRangeWriteGuard<'a, H> {
    /// Returns the mmap lock.
    #[inline]
    pub fn lock(&self) -> &'a MmapLock<H> {
        self.lock
    }
}

impl<H: Host> Drop for MmapRangeWriteGuard<'_, H> {
    #[inline]
    fn drop(&mut self) {
        rank::released::<H>(Rank::Mmap);
        self.lock.gate.lock().leave::<H>(self.place);
    }
}

/// A proof for [`VmaLock`] that the caller has the right to change VMAs: all VMAs, or those that it has
/// claimed.
pub trait MmapWriteProof<H: Host> {
    /// Returns the mmap lock of the address space of these VMAs.
    fn lock(&self) -> &MmapLock<H>;
}

impl<H: Host> MmapWriteProof<H> for MmapWriteGuard<'_, H> {
    #[inline]
    fn lock(&self) -> &MmapLock<H> {
        self.section.lock
    }
}

impl<H: Host> MmapWriteProof<H> for MmapRangeWriteGuard<'_, H> {
    #[inline]
    fn lock(&self) -> &MmapLock<H> {
        self.lock
    }
}

impl<H: Host> MmapLock<H> {
    /// Enters as a range writer, and waits if necessary.
    ///
    /// # Panics
    /// Panics like [`read`](Self::read).
    #[inline]
    pub fn enter_range_writer(&self) -> MmapRangeWriteGuard<'_, H> {
        let Ok(guard) = self.enter_range_writer_by(|| Ok::<_, Infallible>(self.sem.write()));
        guard
    }

    /// Like [`enter_range_writer`](Self::enter_range_writer), but the wait ends if a fatal signal is pending.
    ///
    /// # Errors
    /// Fails with [`Killed`] if a fatal signal is pending; nothing is acquired.
    ///
    /// # Panics
    /// Panics like [`read`](Self::read).
    #[inline]
    pub fn enter_range_writer_killable(&self) -> Result<MmapRangeWriteGuard<'_, H>, Killed> {
        self.enter_range_writer_by(|| self.sem.write_killable())
    }

    /// Takes the lock for writing if the gate is closed and the lock is free. The caller's change then needs
    /// neither claims nor the gate, because no other change runs concurrently. A later change that finds the
    /// lock held opens the gate.
    ///
    /// # Panics
    /// Panics like [`read`](Self::read).
    #[inline(always)]
    pub fn try_write_exclusive(&self) -> Option<MmapWriteGuard<'_, H>> {
        rank::will_wait::<H>(Rank::Mmap);
        if !self.gate_is_closed() {
            return None;
        }
        let sem = self.sem.try_write()?;
        // Only a holder of the lock changes the gate, so the result is now stable.
        self.gate_is_closed().then(|| self.writer(sem))
    }

    /// Returns true if range writers may be inside. The result is a hint.
    #[inline]
    pub fn admits_range_writers(&self) -> bool {
        !self.gate_is_closed()
    }

    /// Enters through the gate, or through the mmap lock, which `lock` takes for writing.
    #[inline(always)]
    fn enter_range_writer_by<'a, E>(
        &'a self,
        lock: impl Fn() -> Result<RwSemWriteGuard<'a, H>, E>,
    ) -> Result<MmapRangeWriteGuard<'a, H>, E> {
        rank::will_wait::<H>(Rank::Mmap);
        loop {
            if let Some(guard) = self.try_enter() {
                return Ok(guard);
            }
            if let Some(guard) = self.open_and_enter(&lock()?) {
                return Ok(guard);
            }
            H::relax();
        }
    }

    /// Enters through the gate. Returns `None` if the gate is closed, or if the count of range writers is at
    /// its limit.
    #[inline]
    fn try_enter(&self) -> Option<MmapRangeWriteGuard<'_, H>> {
        let place = self.gate.lock().enter_unranked(self.vma_locking()).ok()?;
        rank::acquired::<H>(Rank::Mmap);
        // Pairs with the fence in `Speculation::valid`: a speculating reader that sees a change by this range
        // writer also sees the sequence number of the section that opened the gate, or a later number.
        fence(Ordering::Release);
        Some(MmapRangeWriteGuard { lock: self, place, task: PhantomData })
    }

    /// Opens the gate if it is closed, and enters.
    #[cold]
    fn open_and_enter(&self, _: &RwSemWriteGuard<'_, H>) -> Option<MmapRangeWriteGuard<'_, H>> {
        if self.gate_is_closed() {
            // A speculation that begins after this section finds the gate open.
            let _section = WriteSection::begin(self);
            self.gate.lock().unlock_write();
        }
        self.try_enter()
    }

    /// Returns true if the gate is closed. The result is stable while the caller holds the mmap lock, and a
    /// hint otherwise.
    #[inline]
    pub(super) fn gate_is_closed(&self) -> bool {
        self.gate.lock().is_locked()
    }
}

impl<H: Host> MmapWriteGuard<'_, H> {
    /// Closes the gate, and waits for the range writers inside.
    #[cold]
    pub(super) fn close_gate(&self) {
        self.lock().gate.lock().write_with(self.lock().vma_locking());
    }

    /// Like [`close_gate`](Self::close_gate), but the wait ends if a fatal signal is pending.
    #[cold]
    pub(super) fn close_gate_killable(&self) -> Result<(), Killed> {
        self.lock().gate.lock().write_killable_with(self.lock().vma_locking()).map(drop)
    }

    /// Closes the gate if no range writer is inside. Returns true if the gate is closed.
    #[cold]
    pub(super) fn try_close_gate(&self) -> bool {
        self.lock().gate.lock().try_write_with(self.lock().vma_locking())
    }
}
