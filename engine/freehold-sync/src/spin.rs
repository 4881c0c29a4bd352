//! Spin locks: a word, and a word with the value it guards.
//!
//! | word | meaning | leaves it by |
//! | --- | --- | --- |
//! | 0 | free | exchange to 1, by the task that becomes the holder |
//! | 1 | held, by the one [`RawSpinGuard`] there is | store of 0, by the holder |
//!
//! The release store of 0 pairs with the acquire of the exchange that finds 0: what a holder did happens
//! before what the next one does. Waiters look with plain loads, at growing intervals, so that the holder's
//! cache line stays with it.
//!
//! Under a spin lock nobody waits for anything but a spin lock of a later [`Rank`], wakes anybody, or uses
//! the heap. The host is told where such a section begins and ends: [`Host::spin_enter`]. Guards need not end
//! in the reverse order of their locks.
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

/// A spin lock that guards what its owner says it guards. Four bytes; all zero is unlocked.
#[repr(transparent)]
pub struct RawSpin {
    /// See the [module's table](self).
    word: AtomicU32,
}

/// The right that a [`RawSpin`] gives. Dropping it releases the lock.
#[must_use = "the lock is released when the guard is dropped"]
pub struct RawSpinGuard<'a, H: Host> {
    lock: &'a RawSpin,
    rank: Rank,
    host: PhantomData<fn() -> H>,
    /// Not `Send`: the task's record of held locks is its own.
    task: PhantomData<*const ()>,
}

impl RawSpin {
    const_unless_loom! {
        /// An unlocked lock.
        pub fn new() -> Self {
            RawSpin { word: AtomicU32::new(FREE) }
        }
    }

    /// Takes the lock, spinning until it is free.
    ///
    /// # Panics
    /// With debug assertions, when `rank` is out of order.
    #[inline]
    pub fn lock<H: Host>(&self, rank: Rank) -> RawSpinGuard<'_, H> {
        rank::will_wait::<H>(rank);
        // First: a task with the lock must not be preempted by one that spins for it.
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

    /// Whether somebody holds the lock; for assertions.
    pub fn is_locked(&self) -> bool {
        // Relaxed: pairs with nothing; exact only for the holder.
        self.word.load(Ordering::Relaxed) == HELD
    }

    #[inline]
    fn try_take(&self) -> bool {
        // Acquire: pairs with the release in the guard's drop. Relaxed on failure: nothing was got.
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn lock_slow<H: Host>(&self) {
        let mut pause = 1;
        loop {
            // Relaxed: only tells when to try again; `take` orders.
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
        // Release: pairs with the acquire in `take` of the next holder.
        self.lock.word.store(FREE, Ordering::Release);
        H::spin_exit(self.rank);
    }
}

/// A value guarded by a spin lock.
///
/// # Invariants
/// The value is reached through the guard only, of which there is at most one.
pub struct SpinLock<T> {
    lock: RawSpin,
    rank: Rank,
    /// Guarded by `lock`.
    value: UnsafeCell<T>,
}

// SAFETY: the lock lets one thread at a time reach the value, so sharing the lock sends the value at most.
unsafe impl<T: Send> Sync for SpinLock<T> {}
// SAFETY: the value goes along.
unsafe impl<T: Send> Send for SpinLock<T> {}

/// Access to the value of a [`SpinLock`]. Dropping it releases the lock.
#[must_use = "the lock is released when the guard is dropped"]
pub struct SpinGuard<'a, T, H: Host> {
    lock: &'a SpinLock<T>,
    _raw: RawSpinGuard<'a, H>,
}

impl<T> SpinLock<T> {
    const_unless_loom! {
        /// A free lock around `value`, at `rank` in the order.
        pub fn new(value: T, rank: Rank) -> Self {
            SpinLock { lock: RawSpin::new(), rank, value: UnsafeCell::new(value) }
        }
    }

    /// Takes the lock, spinning until it is free.
    ///
    /// # Panics
    /// With debug assertions, when the lock's rank is out of order.
    #[inline]
    pub fn lock<H: Host>(&self) -> SpinGuard<'_, T, H> {
        SpinGuard { _raw: self.lock.lock(self.rank), lock: self }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock<H: Host>(&self) -> Option<SpinGuard<'_, T, H>> {
        Some(SpinGuard { _raw: self.lock.try_lock(self.rank)?, lock: self })
    }

    /// The value, without locking: a mutable borrow has it alone.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// The value.
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
        // SAFETY: this guard holds the lock, so no other reference to the value exists but through it.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T, H: Host> DerefMut for SpinGuard<'_, T, H> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; and the guard is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}
