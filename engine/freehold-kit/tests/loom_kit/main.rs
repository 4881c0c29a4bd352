//! The kit under loom: every schedule, and every order of accesses that the memory model allows.
//! What is freed after a grace period or a flush is a cell that loom watches: a use that is not over by then
//! is a race, which it reports.
#![cfg(loom)]

mod qsbr;
mod shootdown;

use loom::cell::UnsafeCell;

/// Memory that somebody uses until somebody else frees it.
struct Memory(UnsafeCell<bool>);

// SAFETY: that the uses of it exclude each other is what the tests are about; loom looks.
unsafe impl Sync for Memory {}
// SAFETY: a truth value.
unsafe impl Send for Memory {}

impl Memory {
    fn new() -> Self {
        Memory(UnsafeCell::new(true))
    }

    fn read(&self) {
        // SAFETY: loom checks that nobody writes meanwhile.
        let there = self.0.with(|value| unsafe { *value });
        assert!(there, "used after it was freed");
    }

    fn free(&self) {
        // SAFETY: loom checks that nobody else uses it meanwhile.
        self.0.with_mut(|value| unsafe {
            assert!(*value, "freed twice");
            *value = false;
        });
    }
}
