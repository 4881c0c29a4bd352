//! Sets of processors that many change at a time.

use freehold_sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
    const_unless_loom,
};

/// Processors that a set has room for.
pub const MAX_CPUS: usize = 4 * WORD;
/// Processors of one word.
const WORD: usize = u64::BITS as usize;

/// A set of processors, by number. Each word is changed by read-modify-writes alone, so that an acquire of a
/// word is behind all releases of its bits.
#[derive(Debug)]
pub struct CpuMask([AtomicU64; 4]);

impl CpuMask {
    const_unless_loom! {
        /// Nobody.
        pub fn new() -> Self {
            CpuMask([AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)])
        }
    }

    fn word(&self, cpu: usize) -> (&AtomicU64, u64) {
        (&self.0[cpu / WORD], 1 << (cpu % WORD))
    }

    /// Adds a processor; returns whether its word was empty. A caller that [takes](Self::take) it sees what
    /// came before.
    pub(crate) fn add(&self, cpu: usize) -> bool {
        let (word, bit) = self.word(cpu);
        // Release pairs with the acquires of `take` and `numbers`.
        word.fetch_or(bit, Release) == 0
    }

    /// Takes a processor out. A caller that finds it absent sees what it did before.
    pub(crate) fn remove(&self, cpu: usize) {
        let (word, bit) = self.word(cpu);
        // Release pairs with the acquire of `numbers`.
        word.fetch_and(!bit, Release);
    }

    /// Whether a processor is in it; exact for the processor itself.
    ///
    /// # Panics
    ///
    /// If the number is not below [`MAX_CPUS`].
    pub fn contains(&self, cpu: usize) -> bool {
        let (word, bit) = self.word(cpu);
        // Acquire pairs with the release of `remove`.
        word.load(Acquire) & bit != 0
    }

    /// Those below `cpus` that are in it now, each word looked at once.
    ///
    /// # Panics
    ///
    /// If `cpus` is above [`MAX_CPUS`].
    pub fn numbers(&self, cpus: usize) -> impl Iterator<Item = usize> {
        // Acquire pairs with the releases of `remove` and `add`.
        let words = self.words(cpus).flat_map(|(first, word)| bits(first, word.load(Acquire)));
        words.take_while(move |cpu| *cpu < cpus)
    }

    /// Takes all out that are in it. All are below `cpus`.
    pub(crate) fn take(&self, cpus: usize) -> impl Iterator<Item = usize> {
        self.words(cpus).flat_map(|(first, word)| {
            // Relaxed: a word without bits carries no message; the swap decides. AcqRel: acquire pairs with
            // the release of `add`.
            let taken = if word.load(Relaxed) == 0 { 0 } else { word.swap(0, AcqRel) };
            bits(first, taken)
        })
    }

    fn words(&self, cpus: usize) -> impl Iterator<Item = (usize, &AtomicU64)> {
        (0..).step_by(WORD).zip(&self.0[..cpus.div_ceil(WORD)])
    }
}

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
