//! Measures the longest time that interrupts were off on a CPU. With option `irqoff`, the kernel reports this
//! time when the machine ends.
//!
//! Interrupts are off in the kernel. An interval begins where a CPU enters the kernel or wakes from its halt.
//! It ends where the CPU leaves the kernel, halts, or lets interrupts in during a long call (`preempt`). The
//! running thread may change within an interval. `trap.rs`, `calls/mod.rs`, `preempt.rs` and `scheduler.rs`
//! mark these places; a new way into the kernel or out of it needs a mark. `halt.rs` writes the report.
//! `cargo xtask boot --bench` measures this time for long calls.

use crate::arch::{clock, cpu::cpu, frame::Frame};
use crate::options;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The longest interval. The upper bits are its nanoseconds. The lower bits say what ended it: the number of
/// a call, `VECTOR` and a vector, [`IDLE`], or `HALF_WAY` and the number of a call.
static LONGEST: AtomicU64 = AtomicU64::new(0);
/// Flag that distinguishes the number of a vector from the number of a call.
pub const VECTOR: u64 = 0x1000;
/// The interval ended because the CPU halted.
pub const IDLE: u64 = 0x2000;
/// Flag: the interval ended at a preemption point of a call, whose number is in the lower bits.
const HALF_WAY: u64 = 0x4000;
/// Number of lower bits of `LONGEST`.
const WHAT_BITS: u32 = 16;

/// Begins an interval on the calling CPU.
#[inline(always)]
pub fn begin() {
    if options::measures_irq_off() {
        cpu().off_since.set(clock::now_ns());
    }
}

/// Ends the interval of the calling CPU. `what` says what ended it, like the lower bits of [`LONGEST`].
#[inline(always)]
pub fn end(what: u64) {
    if options::measures_irq_off() {
        // 0 means that the CPU has just started.
        let since = cpu().off_since.replace(0);
        if since != 0 {
            LONGEST.fetch_max((clock::now_ns() - since) << WHAT_BITS | what, Relaxed);
        }
    }
}

/// Ends the interval of the calling CPU at a preemption point.
#[inline(always)]
pub fn end_half_way() {
    if options::measures_irq_off() {
        // SAFETY: the frame of the thread's program is at the top of its kernel stack, and does not change
        // while the thread is in the kernel.
        let frame = unsafe { &*(cpu().kernel_stack.get() as *const Frame).sub(1) };
        end(HALF_WAY | frame.error & 0xfff);
    }
}

/// Returns true if an interval ended at a preemption point of a call.
pub fn is_half_way(what: u64) -> bool {
    what & HALF_WAY != 0
}

/// Returns the longest interval in nanoseconds and what ended it; `None` if nothing was measured.
pub fn longest() -> Option<(u64, u64)> {
    let longest = LONGEST.load(Relaxed);
    options::measures_irq_off().then_some((longest >> WHAT_BITS, longest & ((1 << WHAT_BITS) - 1)))
}
