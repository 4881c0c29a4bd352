//! Option `jitter=N`: processors are held up at random where another may come in between, so that what takes a
//! few instructions takes as long as it likes, as on a processor that a hypervisor has put aside.

use crate::arch::cpu::cpu;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The seed; 0: off. Written once, at the start.
static SEED: AtomicU64 = AtomicU64::new(0);

pub fn start(seed: u64) {
    SEED.store(seed.max(1), Relaxed);
}

/// A place where the calling processor may be held up.
#[inline(always)]
pub fn stall() {
    let seed = SEED.load(Relaxed);
    if seed != 0 {
        stall_now(seed);
    }
}

/// Of 16 times 11 not at all, else up to 100 or 3,000 turns of the loop, or 300,000 once in 4,096.
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
