//! The lock of the machine's own parts (TLBs, free lists): short, never held across a wait.
#![expect(unsafe_code, reason = "a lock hands out access to its contents")]

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

/// A spin lock that lets the host run somebody else when it takes long. One exchange to take, one store
/// to release: a standard mutex would double the price of a TLB hit.
///
/// | `held` | meaning |
/// | --- | --- |
/// | false | free |
/// | true | one [`LockGuard`] exists |
#[derive(Debug)]
pub(crate) struct Lock<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through the guard, of which there is one at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

/// The right to use the value. Dropping it, in a panic too, releases the lock.
pub(crate) struct LockGuard<'a, T>(&'a Lock<T>);

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Lock { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    #[inline]
    pub(crate) fn lock(&self) -> LockGuard<'_, T> {
        // Acquire: pairs with the release in the guard's drop; what the last holder did is seen.
        while self.held.swap(true, Ordering::Acquire) {
            self.wait();
        }
        LockGuard(self)
    }

    #[cold]
    fn wait(&self) {
        // Relaxed: only a hint when to try again; the swap orders.
        while self.held.load(Ordering::Relaxed) {
            super::relax();
        }
    }
}

impl<T> Deref for LockGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one while `held` is true.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for LockGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; and the guard itself is borrowed mutably.
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
