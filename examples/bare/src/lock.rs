//! A spin lock. Its holders run only a few instructions: they flush nothing and take no second lock.
#![expect(unsafe_code, reason = "gives one CPU access to a value")]

use core::cell::UnsafeCell;
use freehold::platform::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};

/// A value that one CPU accesses at a time.
pub struct Lock<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `with` lets one CPU access the value at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub const fn new(value: T) -> Self {
        Lock { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Runs `f` with the value. The kernel is never interrupted, so the holder always releases the lock soon.
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        // Acquire: pairs with the release below.
        while self.held.compare_exchange_weak(false, true, Acquire, Relaxed).is_err() {
            core::hint::spin_loop();
        }
        // SAFETY: this CPU holds the lock.
        let result = f(unsafe { &mut *self.value.get() });
        // Release: pairs with the acquire above.
        self.held.store(false, Release);
        result
    }
}
