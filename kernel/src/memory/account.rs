//! The number of bytes of the kernel's memory that a process, or all files together, have caused.
//! `sched/charge.rs` charges the bytes, and `process/shortage.rs` compares processes by them.
//!
//! Files may outlive the process that opened them, because other processes have descriptors of them. The bytes
//! then stay in the account of the process that has ended, and count for each process that has such a file
//! ([`Account::left`]).

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// A count of bytes. Relaxed everywhere: the values order no other access.
#[derive(Default)]
pub struct Account {
    bytes: AtomicU64,
    /// True once the process has ended.
    has_ended: AtomicBool,
    /// The number of the last survey that has counted the bytes.
    counted: AtomicU64,
}

impl Account {
    pub const fn new() -> Self {
        Account { bytes: AtomicU64::new(0), has_ended: AtomicBool::new(false), counted: AtomicU64::new(0) }
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Replaces a charge of `before` bytes by a charge of `after` bytes.
    pub fn recharge(&self, before: u64, after: u64) {
        // The sum wraps to the right value.
        self.bytes.fetch_add(after.wrapping_sub(before), Relaxed);
    }

    /// Records that the process has ended.
    pub fn end(&self) {
        self.has_ended.store(true, Relaxed);
    }

    /// Returns the bytes that a process which has ended has left, the first time that the survey with this number
    /// asks. Returns 0 the next times, and if the process lives. Concurrent surveys may count the bytes twice.
    pub fn left(&self, survey: u64) -> u64 {
        if self.has_ended.load(Relaxed) && self.counted.swap(survey, Relaxed) != survey {
            self.bytes()
        } else {
            0
        }
    }
}
