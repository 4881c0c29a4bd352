//! Pseudorandom bytes for programs: `getrandom`, the random devices of /dev, and the bytes that a new program
//! gets for its hash tables and stack protector (`process/exec.rs`). The bytes are not good enough for
//! secrets, and the kernel keeps no secrets. No lock is taken: the state is one atomic.

use crate::arch::clock;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The state of the generator. Relaxed: the number publishes no other memory.
static STATE: AtomicU64 = AtomicU64::new(0x853c_49e6_748f_ea9b);

/// Returns the next number: SplitMix64 (Steele, Lea and Flood 2014), mixed with the clock.
fn next() -> u64 {
    let mut z = STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed) ^ clock::entropy().rotate_left(32);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Fills the buffer with random bytes.
pub fn fill(out: &mut [u8]) {
    for part in out.chunks_mut(8) {
        part.copy_from_slice(&next().to_ne_bytes()[..part.len()]);
    }
}
