//! A spin lock. Interrupts are off in the kernel, so holders are not interrupted; a processor that waits
//! answers the flushes of others meanwhile, so that a holder may wait for a flush.

use super::handlers::handlers;
use super::preempt;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};

/// A value behind a spin lock. The holder does not sleep.
pub struct SpinLock<T> {
    /// Whether it is held.
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by one holder at a time.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    pub const fn new(value: T) -> Self {
        SpinLock { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// The value, without the lock.
    ///
    /// # Safety
    ///
    /// Nothing else runs any more.
    pub unsafe fn at_standstill(&self) -> &T {
        // SAFETY: the caller's.
        unsafe { &*self.value.get() }
    }

    #[inline]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        preempt::hold();
        // Acquire pairs with the release of the guard's drop.
        while self.held.compare_exchange_weak(false, true, Acquire, Relaxed).is_err() {
            relax();
        }
        SpinGuard { lock: self }
    }
}

/// A turn of a loop that waits for another processor.
#[inline]
pub fn relax() {
    (handlers().answer_flushes)();
    core::hint::spin_loop();
}

/// The right to the value; given back when dropped.
pub struct SpinGuard<'a, T> {
    lock: &'a SpinLock<T>,
}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard is the only holder.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    fn drop(&mut self) {
        // Release pairs with the acquire of `lock`.
        self.lock.held.store(false, Release);
        preempt::release();
    }
}

impl<T: Default> Default for SpinLock<T> {
    fn default() -> Self {
        SpinLock::new(T::default())
    }
}
