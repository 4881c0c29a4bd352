//! The number of bytes of the kernel's memory that a process, or all files together, have caused.
//! `sched/charge.rs` charges the bytes, and `process/shortage.rs` compares processes by them.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use freehold::PAGE_SIZE;

/// A count of bytes.
#[derive(Default)]
pub struct Account(AtomicU64);

impl Account {
    pub const fn new() -> Self {
        Account(AtomicU64::new(0))
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Returns the number of bytes, in pages.
    pub fn pages(&self) -> u64 {
        self.bytes() / PAGE_SIZE
    }

    /// Replaces a charge of `before` bytes by a charge of `after` bytes.
    pub fn recharge(&self, before: u64, after: u64) {
        // Relaxed: the number orders no other access. The sum wraps to the right value.
        self.0.fetch_add(after.wrapping_sub(before), Relaxed);
    }
}
