//! The short lock of the machine's own data (TLBs, free lists). No thread holds it across a wait.
//!
//! The lock is not one of the engine's: checkers of schedules and the simulation do not see it, and it has
//! no rank. All three hosts use this implementation. A holder must not call the engine or wait.
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
        // Relaxed: the load only tells when to try again. The swap orders.
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
