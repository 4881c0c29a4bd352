//! How changes of an address space run beside each other: the gate of an mmap lock, and
//! [`MmapRangeWriteGuard`].
//!
//! # What it promises
//!
//! - A *range writer* shares the address space with other range writers: what it may change, it has claimed.
//!   It keeps out the holders of the mmap lock, for reading and for writing, as they keep it out.
//! - It enters and leaves by one read-modify-write each, of one word, or of its CPU's, where range writers
//!   meet often.
//! - It starves nobody, and is not starved: a holder of the lock waits for those who have entered before it,
//!   and for nobody who comes later. A range writer that comes later takes its turn at the lock.
//!
//! # How
//!
//! The gate is a [lock of a VMA](crate::vma_lock) that stands for the set of them all. Range writers are its
//! readers, and are counted as those are.
//!
//! | gate | its number | who decides | leaves it by |
//! | --- | --- | --- | --- |
//! | open | even | the gate: range writers enter by it alone | closed by a task that has got the mmap lock for writing: makes the number odd, waits for the range writers inside |
//! | closed | odd | the mmap lock alone, as if there were no range writers | opened by a range writer that has got the mmap lock for writing: makes the number even, enters, lets go of the lock |
//!
//! The gate stays as it was left: a space that is changed by one kind of writer alone never pays for the
//! other. Both steps are made with the mmap lock held for writing, so nobody makes the other one meanwhile.
//! A task that wants the lock for *reading* and finds the gate open takes it for writing, closes the gate,
//! and downgrades: then readers beside it find the gate closed.
//!
//! So a holder of the mmap lock always has a closed gate and nobody inside. A range writer inside came by an
//! open gate, and a holder of the lock who closes it waits for it.
//!
//! # Which access pairs with which
//!
//! As for a VMA. Entering acquires what the last holder did, by the number that it left even, or by the mmap
//! lock where the range writer opens the gate itself. Closing acquires what range writers did before they
//! left.

use super::{MmapLock, MmapWriteGuard, WriteSection};
use crate::atomic::{Ordering, const_unless_loom, fence};
use crate::host::{Host, Killed};
use crate::rank::{self, Rank};
use crate::rwsem::RwSemWriteGuard;
use crate::vma_lock::{ReaderPlace, VmaCount, VmaLock, VmaSeq};
use core::convert::Infallible;
use core::marker::PhantomData;
use crossbeam_utils::CachePadded;

/// A lock of a VMA, for all of them.
pub(super) struct Gate {
    /// Range writers inside. On a line of its own: each of them writes it, where they do not meet often.
    count: CachePadded<VmaCount>,
    seq: VmaSeq,
}

impl Gate {
    const_unless_loom! {
        /// Closed, nobody inside.
        pub fn closed() -> Self {
            Gate { count: CachePadded::new(VmaCount::attached()), seq: VmaSeq::locked() }
        }
    }

    #[inline]
    fn lock(&self) -> VmaLock<'_> {
        VmaLock { count: &self.count, seq: &self.seq }
    }
}

/// The right to change what one has claimed of an address space, beside others who have claimed other things.
/// Dropping it gives it up.
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
#[must_use = "the right is given up when the guard is dropped"]
pub struct MmapRangeWriteGuard<'a, H: Host> {
    lock: &'a MmapLock<H>,
    place: ReaderPlace<'a>,
    /// Not `Send`: the task's record of held locks is its own.
    task: PhantomData<*const ()>,
}

impl<'a, H: Host> MmapRangeWriteGuard<'a, H> {
    /// The lock.
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

/// A proof for [`VmaLock`] that its caller has the right to change VMAs: all of them, or those that it has
/// claimed.
pub trait MmapWriteProof<H: Host> {
    /// The lock of their address space.
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
    /// Becomes a range writer.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    #[inline]
    pub fn enter_range_writer(&self) -> MmapRangeWriteGuard<'_, H> {
        let Ok(guard) = self.enter_range_writer_by(|| Ok::<_, Infallible>(self.sem.write()));
        guard
    }

    /// As [`enter_range_writer`](Self::enter_range_writer), unless a fatal signal ends the wait.
    ///
    /// # Errors
    /// [`Killed`]; nothing was acquired.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    #[inline]
    pub fn enter_range_writer_killable(&self) -> Result<MmapRangeWriteGuard<'_, H>, Killed> {
        self.enter_range_writer_by(|| self.sem.write_killable())
    }

    /// Becomes the writer, if the gate is closed and nobody has the lock: where changes do not meet, they
    /// need neither claims nor a gate. A later change that finds the lock taken opens the gate.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    #[inline(always)]
    pub fn try_write_exclusive(&self) -> Option<MmapWriteGuard<'_, H>> {
        rank::will_wait::<H>(Rank::Mmap);
        if !self.gate_is_closed() {
            return None;
        }
        let sem = self.sem.try_write()?;
        // Now it stays as it is.
        self.gate_is_closed().then(|| self.writer(sem))
    }

    /// Whether range writers may be inside: a hint.
    #[inline]
    pub fn admits_range_writers(&self) -> bool {
        !self.gate_is_closed()
    }

    /// Enters by the gate, or with its turn at the lock, which `lock` waits for.
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

    /// Enters by the gate. None: it is closed, or as many are inside as can be counted.
    #[inline]
    fn try_enter(&self) -> Option<MmapRangeWriteGuard<'_, H>> {
        let place = self.gate.lock().enter_unranked(self.vma_locking()).ok()?;
        rank::acquired::<H>(Rank::Mmap);
        // Pairs with the fence in `Speculation::valid`: a reader that sees a change sees the number that the
        // gate was opened with, or a later one.
        fence(Ordering::Release);
        Some(MmapRangeWriteGuard { lock: self, place, task: PhantomData })
    }

    /// Opens the gate, if it is closed, and enters.
    #[cold]
    fn open_and_enter(&self, _: &RwSemWriteGuard<'_, H>) -> Option<MmapRangeWriteGuard<'_, H>> {
        if self.gate_is_closed() {
            // A reader that begins to speculate after this section finds the gate open.
            let _section = WriteSection::begin(self);
            self.gate.lock().unlock_write();
        }
        self.try_enter()
    }

    /// Whether it is closed, and stays so as long as the caller holds the mmap lock; without that a hint.
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

    /// As [`close_gate`](Self::close_gate), unless a fatal signal ends the wait.
    #[cold]
    pub(super) fn close_gate_killable(&self) -> Result<(), Killed> {
        self.lock().gate.lock().write_killable_with(self.lock().vma_locking()).map(drop)
    }

    /// Closes the gate if nobody is inside. Returns whether it is closed.
    #[cold]
    pub(super) fn try_close_gate(&self) -> bool {
        self.lock().gate.lock().try_write_with(self.lock().vma_locking())
    }
}
