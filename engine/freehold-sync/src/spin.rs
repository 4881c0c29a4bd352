//! Spin locks: a lock word, and a lock word with the value that it guards.
//!
//! | word | meaning | transitions |
//! | --- | --- | --- |
//! | 0 | free | exchange to 1, by the task that becomes the holder |
//! | 1 | held by the only [`RawSpinGuard`] | store of 0, by the holder |
//!
//! The release store of 0 pairs with the acquire of the exchange that finds 0: everything that a holder did
//! happens before everything that the next holder does. Waiters read the word with plain loads, at growing
//! intervals, so that its cache line stays with the holder.
//!
//! Under a spin lock a task waits only for spin locks of a later [`Rank`], wakes no task, and does not use
//! the heap. [`Host::spin_enter`] and [`Host::spin_exit`] notify the host of the beginning and the end of
//! such a section. Guards may be dropped in any order. `tests/loom_small.rs` and `tests/threads.rs` test both
//! kinds.
#![expect(unsafe_code, reason = "a lock hands out access to its contents")]

use crate::atomic::{AtomicU32, MAX_BACKOFF, Ordering, const_unless_loom};
use crate::host::Host;
use crate::rank::{self, Rank};
use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

const FREE: u32 = 0;
const HELD: u32 = 1;

/// A spin lock. Its owner defines what it guards. Four bytes; all zero is unlocked.
#[repr(transparent)]
pub struct RawSpin {
    /// See the [module's table](self).
    word: AtomicU32,
}

/// Guard of a [`RawSpin`]. Releases the lock when dropped.
#[must_use = "the lock is released when the guard is dropped"]
pub struct RawSpinGuard<'a, H: Host> {
    lock: &'a RawSpin,
    rank: Rank,
    host: PhantomData<fn() -> H>,
    /// Not `Send`: the rank checker keeps its record of held locks per task.
    task: PhantomData<*const ()>,
}

impl RawSpin {
    const_unless_loom! {
        /// Creates an unlocked lock.
        pub fn new() -> Self {
            RawSpin { word: AtomicU32::new(FREE) }
        }
    }

    /// Takes the lock, spinning until it is free.
    ///
    /// # Panics
    /// With debug assertions, panics if the task holds a lock that does not precede `rank`.
    #[inline]
    pub fn lock<H: Host>(&self, rank: Rank) -> RawSpinGuard<'_, H> {
        rank::will_wait::<H>(rank);
        // This call comes first: a task that holds the lock must not be preempted by a task that spins for
        // it.
        H::spin_enter(rank);
        if !self.try_take() {
            self.lock_slow::<H>();
        }
        self.guard(rank)
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock<H: Host>(&self, rank: Rank) -> Option<RawSpinGuard<'_, H>> {
        H::spin_enter(rank);
        if self.try_take() {
            return Some(self.guard(rank));
        }
        H::spin_exit(rank);
        None
    }

    /// Returns true if the lock is held. For assertions.
    pub fn is_locked(&self) -> bool {
        // Relaxed: pairs with nothing. The result is exact only for the holder.
        self.word.load(Ordering::Relaxed) == HELD
    }

    #[inline]
    fn try_take(&self) -> bool {
        // Acquire: pairs with the release in the guard's drop. Relaxed on failure: nothing was acquired.
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes the lock after a failed attempt. Only reads the word until the lock looks free, with growing
    /// pauses, so that the cache line is not taken from the holder.
    #[cold]
    fn lock_slow<H: Host>(&self) {
        let mut pause = 1;
        loop {
            // Relaxed: only decides when to try again; `try_take` acquires.
            while self.word.load(Ordering::Relaxed) == HELD {
                for _ in 0..pause {
                    H::relax();
                }
                pause = (pause * 2).min(MAX_BACKOFF);
            }
            if self.try_take() {
                return;
            }
        }
    }

    #[inline]
    fn guard<H: Host>(&self, rank: Rank) -> RawSpinGuard<'_, H> {
        rank::acquired::<H>(rank);
        RawSpinGuard { lock: self, rank, host: PhantomData, task: PhantomData }
    }
}

impl Default for RawSpin {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for RawSpin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_locked() { "RawSpin(held)" } else { "RawSpin(free)" })
    }
}

impl<H: Host> Drop for RawSpinGuard<'_, H> {
    #[inline]
    fn drop(&mut self) {
        rank::released::<H>(self.rank);
        // Release: pairs with the acquire in `try_take` of the next holder.
        self.lock.word.store(FREE, Ordering::Release);
        H::spin_exit(self.rank);
    }
}

/// A value guarded by a spin lock.
///
/// # Invariants
/// The value is accessed only through the guard, and at most one guard exists.
pub struct SpinLock<T> {
    lock: RawSpin,
    rank: Rank,
    /// Guarded by `lock`.
    value: UnsafeCell<T>,
}

// SAFETY: the type's invariant lets one thread at a time access the value, so sharing the lock only moves the
// value between threads.
unsafe impl<T: Send> Sync for SpinLock<T> {}
// SAFETY: sending the lock sends the value, which is `Send`.
unsafe impl<T: Send> Send for SpinLock<T> {}

/// Guard of a [`SpinLock`], which gives access to the value. Releases the lock when dropped.
#[must_use = "the lock is released when the guard is dropped"]
pub struct SpinGuard<'a, T, H: Host> {
    lock: &'a SpinLock<T>,
    _raw: RawSpinGuard<'a, H>,
}

impl<T> SpinLock<T> {
    const_unless_loom! {
        /// Creates a free lock around `value`, with `rank` in the lock order.
        pub fn new(value: T, rank: Rank) -> Self {
            SpinLock { lock: RawSpin::new(), rank, value: UnsafeCell::new(value) }
        }
    }

    /// Takes the lock, spinning until it is free.
    ///
    /// # Panics
    /// With debug assertions, panics if the task holds a lock that does not precede the rank of this lock.
    #[inline]
    pub fn lock<H: Host>(&self) -> SpinGuard<'_, T, H> {
        SpinGuard { _raw: self.lock.lock(self.rank), lock: self }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock<H: Host>(&self) -> Option<SpinGuard<'_, T, H>> {
        Some(SpinGuard { _raw: self.lock.try_lock(self.rank)?, lock: self })
    }

    /// Returns the value without locking: a mutable borrow has exclusive access.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Consumes the lock and returns the value.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T> fmt::Debug for SpinLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpinLock").field("lock", &self.lock).field("rank", &self.rank).finish_non_exhaustive()
    }
}

impl<T, H: Host> Deref for SpinGuard<'_, T, H> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock, so other references to the value are only made through this
        // guard.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T, H: Host> DerefMut for SpinGuard<'_, T, H> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`. The mutable borrow of the guard excludes other references through it.
        unsafe { &mut *self.lock.value.get() }
    }
}
