//! The reasons for which system calls take a slower path, in one word: an entry tests all of them at once.
//! The pending work of one thread before it returns to its program is `Thread::work` (`sched/thread.rs`).
//!
//! The layers that know a reason [`set`] and [`clear`] its bit. A new reason is a constant here and a step of
//! `calls::observed`.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Traps and calls are observed. The reason is an option (`trace`, `record`, `irqoff`, `crash=stack`), or a
/// tracer that wants its tracee to stop at system calls.
pub const WATCHED: u32 = 1;
/// Half of the reserve of memory is used, so a process has to end before a call is performed.
pub const NO_MEMORY: u32 = 2;

/// The reasons. Written only when a reason appears or disappears, because every call reads the word. Relaxed:
/// the word publishes no other memory.
static REASONS: AtomicU32 = AtomicU32::new(0);

/// Returns true if there is any reason.
#[inline(always)]
pub fn any() -> bool {
    REASONS.load(Relaxed) != 0
}

/// Returns true if there is this reason.
#[inline(always)]
pub fn has(reason: u32) -> bool {
    REASONS.load(Relaxed) & reason != 0
}

/// Adds a reason.
pub fn set(reason: u32) {
    REASONS.fetch_or(reason, Relaxed);
}

/// Removes a reason.
pub fn clear(reason: u32) {
    REASONS.fetch_and(!reason, Relaxed);
}
