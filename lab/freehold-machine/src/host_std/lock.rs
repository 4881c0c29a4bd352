//! The short lock of the machine's own data (TLBs, free lists). This lock is not one of the engine's locks
//! and has no rank.
//!
//! A holder must not wait, and must not call the engine. Every function of [`Lock`] is also in
//! `host_shuttle/lock.rs`. Simulations use this implementation too, and do not charge for it. Under the
//! checker of schedules the lock is a mutex of the checker (`host_shuttle/lock.rs`), because a thread that
//! spins would never let the checker run the holder.
#![expect(unsafe_code, reason = "a lock hands out access to its contents")]

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

/// A spin lock that yields to the host's scheduler when the wait is long. Acquiring is one exchange and
/// releasing is one store. A standard mutex would double the cost of a TLB hit.
///
/// | `held` | meaning |
/// | --- | --- |
/// | false | free |
/// | true | one [`LockGuard`] exists |
#[derive(Debug)]
pub(crate) struct Lock<T> {
    /// True while a thread holds the lock.
    held: AtomicBool,
    /// The guarded value.
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through the guard, and only one guard exists at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

/// The right to use the value. Releases the lock when dropped, also during a panic.
pub(crate) struct LockGuard<'a, T>(&'a Lock<T>);

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Lock { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Acquires the lock. Spins, and yields to the host if the wait is long.
    #[inline]
    pub(crate) fn lock(&self) -> LockGuard<'_, T> {
        // Acquire: pairs with the release in the guard's drop, so this thread sees the writes of the last
        // holder.
        while self.held.swap(true, Ordering::Acquire) {
            self.wait();
        }
        LockGuard(self)
    }

    /// Spins until the lock looks free, and then yields to the host's scheduler.
    #[cold]
    fn wait(&self) {
        // Relaxed: the load only decides when to try again. The swap has the ordering.
        while self.held.load(Ordering::Relaxed) {
            super::relax();
        }
    }
}

impl<T> Deref for LockGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `held` is true, so this guard is the only one.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for LockGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: `held` is true, so this guard is the only one, and the guard is borrowed mutably.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for LockGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Release: pairs with the acquire of the next holder's swap.
        self.0.held.store(false, Ordering::Release);
    }
}
