//! Random bytes for programs: `getrandom`, the random devices of /dev, and the bytes that a new program gets
//! for its hash tables and stack protector (`process/exec.rs`).
//!
//! The bytes are the stream of ChaCha20. Its key comes from RDRAND, if the processor has it, and from the
//! varying time that accesses to a device take. With option `seed=N` the key is N, so that every boot gives
//! the same bytes. A spin lock guards the generator. The test `random-seed` compares the stream of a fixed
//! seed, and the program `corners.c` checks the calls.

use crate::arch::{clock, lock::SpinLock};
use crate::options;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use x86_64::instructions::{port::Port, random::RdRand};

/// Number of measured accesses to a device. The time of each contributes to the key.
const SAMPLES: usize = 512;

/// The generator; `None` until [`init`].
static GENERATOR: SpinLock<Option<ChaCha20Rng>> = SpinLock::new(None);

/// Chooses the key, once. The clock must run.
pub fn init() {
    let words = match options::seed() {
        0 => gathered(),
        seed => [seed, 0, 0, 0],
    };
    let mut key = [0; 32];
    key.as_chunks_mut().0.iter_mut().zip(words).for_each(|(part, word)| *part = word.to_le_bytes());
    *GENERATOR.lock() = Some(ChaCha20Rng::from_seed(key));
}

/// Returns unpredictable words. Each bit of a sample reaches many bits of the result, because the product of
/// each step is rotated and multiplied again.
fn gathered() -> [u64; 4] {
    let mut words = [clock::epoch_ns(), clock::entropy(), 0, 0];
    for n in 0..SAMPLES {
        // SAFETY: reading the control port of the PIT has no effect.
        unsafe { Port::<u8>::new(0x61).read() };
        let word = &mut words[n % 4];
        *word = (*word ^ clock::entropy()).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    if let Some(hardware) = RdRand::new() {
        words.iter_mut().for_each(|word| *word ^= hardware.get_u64().unwrap_or(0));
    }
    words
}

/// Fills the buffer with random bytes. The buffer is short, because no interrupt arrives during the call.
pub fn fill(out: &mut [u8]) {
    GENERATOR.lock().as_mut().expect("a key").fill_bytes(out);
}
