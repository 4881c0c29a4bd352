//! Sets of CPUs that several CPUs change concurrently. `shootdown.rs` keeps two kinds of sets: the CPUs that
//! may have translations of a space, and the inbox of each CPU, which names the CPUs whose requests it must
//! answer.
//!
//! A set also orders memory accesses: a CPU that reads a bit also sees what another CPU did before changing
//! the bit. A CPU that takes a bit out of an inbox must see the request that the bit announces. When a flush
//! finds the bit of a CPU cleared, that CPU must have stopped using translations of the space. Adding and
//! removing are therefore releases, and reading is an acquire. A kernel only reads sets; only this crate
//! changes them. `tests/loom_kit/shootdown.rs` tests the orders.

use freehold_sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
    const_unless_loom,
};

/// Number of CPUs that a set has room for.
pub const MAX_CPUS: usize = 4 * WORD;
/// Number of CPUs in one word.
const WORD: usize = u64::BITS as usize;

/// A set of CPUs, by number. Each word is changed by read-modify-writes only, so an acquire of a word pairs
/// with all earlier releases of its bits.
#[derive(Debug)]
pub struct CpuMask([AtomicU64; 4]);

impl CpuMask {
    const_unless_loom! {
        /// Creates an empty set.
        pub fn new() -> Self {
            CpuMask([AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)])
        }
    }

    /// Returns the word of a CPU and its bit in that word.
    fn word(&self, cpu: usize) -> (&AtomicU64, u64) {
        (&self.0[cpu / WORD], 1 << (cpu % WORD))
    }

    /// Adds a CPU. Returns true if its word was empty. A CPU that [takes](Self::take) the bit sees everything
    /// that the caller did before this call.
    pub(crate) fn add(&self, cpu: usize) -> bool {
        let (word, bit) = self.word(cpu);
        // Release: pairs with the acquires in `take` and `numbers`.
        word.fetch_or(bit, Release) == 0
    }

    /// Removes a CPU. A CPU that finds the bit clear sees everything that the caller did before this call.
    pub(crate) fn remove(&self, cpu: usize) {
        let (word, bit) = self.word(cpu);
        // Release: pairs with the acquire in `numbers`.
        word.fetch_and(!bit, Release);
    }

    /// Returns true if a CPU is in the set. The result is exact for the calling CPU's own bit.
    ///
    /// # Panics
    ///
    /// Panics if the number is not below [`MAX_CPUS`].
    pub fn contains(&self, cpu: usize) -> bool {
        let (word, bit) = self.word(cpu);
        // Acquire: pairs with the release in `remove`.
        word.load(Acquire) & bit != 0
    }

    /// Returns the CPUs below `cpus` that are in the set now. Reads each word once.
    ///
    /// # Panics
    ///
    /// Panics if `cpus` is above [`MAX_CPUS`].
    pub fn numbers(&self, cpus: usize) -> impl Iterator<Item = usize> {
        // Acquire: pairs with the releases in `remove` and `add`.
        let words = self.words(cpus).flat_map(|(first, word)| bits(first, word.load(Acquire)));
        words.take_while(move |cpu| *cpu < cpus)
    }

    /// Removes all CPUs from the set and returns them. All CPUs of the set must be below `cpus`.
    pub(crate) fn take(&self, cpus: usize) -> impl Iterator<Item = usize> {
        self.words(cpus).flat_map(|(first, word)| {
            // Relaxed: the load only avoids a swap of an empty word, and the swap orders. AcqRel: the acquire
            // pairs with the release in `add`.
            let taken = if word.load(Relaxed) == 0 { 0 } else { word.swap(0, AcqRel) };
            bits(first, taken)
        })
    }

    /// Returns the words that contain CPUs below `cpus`, each with its first CPU.
    fn words(&self, cpus: usize) -> impl Iterator<Item = (usize, &AtomicU64)> {
        (0..).step_by(WORD).zip(&self.0[..cpus.div_ceil(WORD)])
    }
}

/// Returns the CPUs of one word, ascending. `first` is the CPU of bit 0.
fn bits(first: usize, mut word: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros() as usize)?;
        word &= word - 1;
        Some(first + bit)
    })
}

impl Default for CpuMask {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_stops_below_its_limit() {
        let mask = CpuMask::new();
        [0, 5, 63, 64, 200, MAX_CPUS - 1].into_iter().for_each(|cpu| _ = mask.add(cpu));
        assert!(mask.numbers(0).eq([]));
        assert!(mask.numbers(5).eq([0]));
        assert!(mask.numbers(6).eq([0, 5]));
        assert!(mask.numbers(65).eq([0, 5, 63, 64]));
        assert!(mask.numbers(MAX_CPUS).eq([0, 5, 63, 64, 200, MAX_CPUS - 1]));
    }
}
