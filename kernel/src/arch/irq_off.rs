//! The longest time that interrupts were off on a processor: with option `irqoff`, the machine says it when
//! it ends. Interrupts are off in the kernel, so a stretch begins where a processor comes into the kernel, or
//! is woken from its halt, and ends where it leaves it, or halts, or lets interrupts in half-way through a
//! call (`preempt`); threads may have changed meanwhile.

use crate::arch::{clock, cpu::cpu};
use crate::options;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Nanoseconds of the longest, above, and by what it ended: a call's number, or a vector and this.
static LONGEST: AtomicU64 = AtomicU64::new(0);
/// What a vector's number is told from a call's by.
pub const VECTOR: u64 = 0x1000;
/// The processor halts.
pub const IDLE: u64 = 0x2000;
/// A call goes on.
pub const HALF_WAY: u64 = 0x4000;
const WHAT_BITS: u32 = 16;

#[inline(always)]
pub fn begin() {
    if options::measures_irq_off() {
        cpu().off_since.set(clock::now_ns());
    }
}

#[inline(always)]
pub fn end(what: u64) {
    if options::measures_irq_off() {
        // 0: the processor has just started.
        let since = cpu().off_since.replace(0);
        if since != 0 {
            LONGEST.fetch_max((clock::now_ns() - since) << WHAT_BITS | what, Relaxed);
        }
    }
}

/// The longest in nanoseconds, and by what it ended; none where it was not measured.
pub fn longest() -> Option<(u64, u64)> {
    let longest = LONGEST.load(Relaxed);
    options::measures_irq_off().then_some((longest >> WHAT_BITS, longest & ((1 << WHAT_BITS) - 1)))
}
