//! A spin lock. Interrupts are off in the kernel, so the holder is not interrupted. The holder is not
//! preempted either ([`preempt::hold`]). A waiting CPU answers TLB flushes, so a holder may wait for a flush.
//!
//! The holder must not sleep, touch a program's memory or take the same lock again. The scheduler stops the
//! machine if a thread sleeps with a spin lock held. A lock that is held over a sleep is a
//! `sched::mutex::Mutex`.
//!
//! No test checks the order of locks. If a file takes a lock while it holds its own, the head of that file
//! states the order.

use super::handlers::handlers;
use super::preempt;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};

/// A value that only the holder of the spin lock accesses.
pub struct SpinLock<T> {
    /// True while the lock is held.
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: only the holder of the lock accesses the value.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    pub const fn new(value: T) -> Self {
        SpinLock { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Returns the value without taking the lock.
    ///
    /// # Safety
    ///
    /// No other code runs any more, on any CPU.
    pub unsafe fn at_standstill(&self) -> &T {
        // SAFETY: by the caller's promise, no other CPU uses the value.
        unsafe { &*self.value.get() }
    }

    /// Spins until the lock is free, then takes it.
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

/// Does one iteration of a loop that waits for another CPU: answers flushes and pauses.
#[inline]
pub fn relax() {
    (handlers().answer_flushes)();
    core::hint::spin_loop();
}

/// The right to use the value. Releases the lock when dropped.
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
