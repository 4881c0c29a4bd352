//! Option `jitter=N`: delays CPUs at random points where another CPU may interleave. A few instructions can
//! then take very long, as when a hypervisor deschedules a virtual CPU.
//!
//! The scheduler, the sleep lists and the TLB flushes call [`stall`] between steps whose order other CPUs can
//! observe. The call neither sleeps nor takes a lock, so any code of the kernel may call it. New code that
//! synchronizes without a lock should call it between its steps. `cargo xtask kernel-tests --times N` runs
//! tests with the seeds 1 to N.

use crate::arch::cpu::cpu;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The seed; 0 if the option is off. Written once, at the start.
static SEED: AtomicU64 = AtomicU64::new(0);

/// Turns the delays on. Called at boot, before the other CPUs start.
pub fn start(seed: u64) {
    SEED.store(seed.max(1), Relaxed);
}

/// Marks a point where the calling CPU may be delayed.
#[inline(always)]
pub fn stall() {
    let seed = SEED.load(Relaxed);
    if seed != 0 {
        stall_now(seed);
    }
}

/// Delays the CPU by a random number of loop iterations. In 11 of 16 cases there is no delay. In the other
/// cases the number of iterations is below 100 or below 3,000; once in 4,096 calls it is below 300,000.
#[cold]
fn stall_now(seed: u64) {
    let own = cpu();
    let mut random = own.jitter.get();
    if random == 0 {
        random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (own.number.get() as u64 + 1) << 32;
    }
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    own.jitter.set(random);
    let most = match random >> 52 {
        0 => 300_000,
        1..0x100 => 3_000,
        0x100..0x500 => 100,
        _ => return,
    };
    (0..(random & 0xffff_ffff) % most).for_each(|turn| {
        core::hint::black_box(turn);
    });
}
