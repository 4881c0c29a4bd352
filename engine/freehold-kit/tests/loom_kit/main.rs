//! Tests of the kit under loom, which runs every schedule and every order of accesses that the memory model
//! allows. `mask.rs` has no module here, because the tests of flushes use its sets.
//!
//! In these tests, memory that is freed after a grace period or a flush is a cell that loom checks. loom
//! reports a race if a use of the memory is not over before the memory is freed.
#![cfg(loom)]

mod account;
mod asid;
mod qsbr;
mod shootdown;
mod walkers;

use loom::cell::UnsafeCell;

/// Memory that a thread uses until another thread frees it.
struct Memory(UnsafeCell<bool>);

// SAFETY: the tests check that the uses of the memory exclude each other; loom reports two uses that overlap.
unsafe impl Sync for Memory {}
// SAFETY: the value is a bool.
unsafe impl Send for Memory {}

impl Memory {
    fn new() -> Self {
        Memory(UnsafeCell::new(true))
    }

    fn read(&self) {
        // SAFETY: loom checks that no thread writes at the same time.
        let there = self.0.with(|value| unsafe { *value });
        assert!(there, "used after it was freed");
    }

    fn free(&self) {
        // SAFETY: loom checks that no other thread uses the memory at the same time.
        self.0.with_mut(|value| unsafe {
            assert!(*value, "freed twice");
            *value = false;
        });
    }
}
