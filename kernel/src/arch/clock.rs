//! Nanoseconds since the start, by the time-stamp counter, which is the same on all processors.

use super::apic;
use core::arch::x86_64::_rdtsc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use x86_64::instructions::port::Port;

/// The counter at the start. Both are written once, before there are other processors.
static START: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds in 2^32 turns of the counter.
static RATE: AtomicU64 = AtomicU64::new(1 << 32);

/// Turns of the old timer in a second, and how long it is looked at.
const PIT_HZ: u64 = 1_193_182;
const LOOK_NS: u64 = 20_000_000;

#[inline]
fn counter() -> u64 {
    // SAFETY: every processor of this kind has it.
    unsafe { _rdtsc() }
}

/// The time now. Never goes back.
#[inline]
pub fn now_ns() -> u64 {
    let turns = counter().wrapping_sub(START.load(Relaxed));
    ((u128::from(turns) * u128::from(RATE.load(Relaxed))) >> 32) as u64
}

/// A number that changes with every turn of the processor.
pub fn entropy() -> u64 {
    counter()
}

/// Measures the counter, and the APIC's timer, against the old timer, whose speed is known.
pub fn calibrate() {
    apic::calibrate(|| {
        let begin = counter();
        wait_by_old_timer();
        let turns = counter() - begin;
        RATE.store((LOOK_NS << 32) / turns.max(1), Relaxed);
        START.store(begin, Relaxed);
        LOOK_NS
    });
}

/// Waits, by channel 2 of the programmable interval timer.
fn wait_by_old_timer() {
    let count = PIT_HZ * LOOK_NS / 1_000_000_000;
    // SAFETY: ports of the timer and of its gate.
    unsafe {
        let mut gate = Port::<u8>::new(0x61);
        let before = gate.read();
        gate.write(before & 0xfc | 1);
        Port::<u8>::new(0x43).write(0xb0);
        Port::<u8>::new(0x42).write(count as u8);
        Port::<u8>::new(0x42).write((count >> 8) as u8);
        while gate.read() & 0x20 == 0 {
            core::hint::spin_loop();
        }
    }
}

/// Spins for so long.
pub fn spin_us(us: u64) {
    let end = now_ns() + us * 1000;
    while now_ns() < end {
        super::lock::relax();
    }
}
