//! The load with a hot set, for the memory of the engine (`experiments/hot_set.rs`) and for that of the host
//! (`hot_set_on_host.rs`).
//!
//! All pages are written once. Then a quarter of the pages is hot: 90 % of the accesses go to these pages, by
//! a zipf distribution. The other accesses go to the other pages, which are all equally likely. The sequence
//! is the same in each run.

use crate::executor::Instant;
use crate::load::since;

/// Number of accesses for each page, after all pages were written once.
const ROUNDS: u64 = 8;
/// Number of samples of the hot pages, in the second half of the accesses.
const SAMPLES: u64 = 16;
/// One access of this number goes to a page that is not hot.
const COLD: u64 = 10;
/// One access of this number is a store.
const STORES: u64 = 4;

/// A sequence of random numbers (splitmix64).
struct Random(u64);

impl Random {
    /// Returns a number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ mixed >> 31) % end
    }
}

/// An access.
pub(crate) struct Draw {
    /// The page.
    pub page: u64,
    /// True if the page is hot.
    pub is_hot: bool,
    /// True if the access stores.
    pub stores: bool,
}

/// A sequence of accesses.
struct Draws {
    random: Random,
    pages: u64,
    hot: u64,
    /// The sums of the weights of the hot pages with smaller ranks.
    sums: Vec<u64>,
}

impl Draws {
    /// Returns the accesses to `pages` pages, which must be three times a power of two.
    fn new(pages: u64) -> Draws {
        let hot = pages / 4;
        let weights = (1..=hot).map(|rank| (1 << 40) / rank);
        let sums = weights
            .scan(0, |sum, weight| {
                *sum += weight;
                Some(*sum)
            })
            .collect();
        Draws { random: Random(0x51), pages, hot, sums }
    }

    /// Returns the hot pages. Pages of neighbouring ranks are far apart.
    fn hot_pages(&self) -> impl ExactSizeIterator<Item = u64> {
        (0..self.hot as usize).map(|rank| self.page_of(rank as u64))
    }

    /// Returns the page with this rank. The ranks below `hot` are hot.
    fn page_of(&self, rank: u64) -> u64 {
        // A prime number that does not divide the number of pages.
        rank * 7919 % self.pages
    }

    /// Returns the next access.
    fn next(&mut self) -> Draw {
        let rank = self.next_rank();
        let stores = self.random.below(STORES) == 0;
        Draw { page: self.page_of(rank), is_hot: rank < self.hot, stores }
    }

    fn next_rank(&mut self) -> u64 {
        if self.random.below(COLD) == 0 {
            return self.hot + self.random.below(self.pages - self.hot);
        }
        let all = self.sums.last().copied().unwrap_or(1);
        let drawn = self.random.below(all);
        self.sums.partition_point(|sum| *sum <= drawn) as u64
    }
}

/// The memory of a program.
pub(crate) trait Pages {
    type Error;

    /// Loads a word of a page, or stores one.
    ///
    /// # Errors
    ///
    /// Fails if the access fails.
    fn access(&mut self, draw: &Draw) -> Result<(), Self::Error>;

    /// Returns how many of these pages are in memory.
    ///
    /// # Errors
    ///
    /// Fails if the memory cannot say so.
    fn count_present(&mut self, pages: impl Iterator<Item = u64>) -> Result<u64, Self::Error>;

    /// Returns the number of faults so far.
    fn faults(&self) -> u64;
}

/// Results of the load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HotSet {
    /// Number of accesses after the first writes.
    pub accesses: u64,
    /// Share of the hot pages that were in memory, at all samples together.
    pub hot: f64,
    /// Faults per second, in the half of the accesses in which the samples are.
    pub faults: f64,
}

/// Runs the load in `pages` pages of `memory`, three times a power of two. Calls `begins` between the first
/// writes and the other accesses.
///
/// # Errors
///
/// Fails with the first error of the memory.
pub(crate) fn run<P: Pages>(
    memory: &mut P,
    pages: u64,
    begins: impl FnOnce(&mut P),
) -> Result<HotSet, P::Error> {
    (0..pages).try_for_each(|page| memory.access(&Draw { page, is_hot: false, stores: true }))?;
    begins(memory);
    let (mut draws, accesses) = (Draws::new(pages), ROUNDS * pages);
    let (mut looked, mut kept, mut before) = (0, 0, 0);
    let (mut took, mut started) = (0.0, Instant::now());
    for n in 0..accesses {
        if n >= accesses / 2 && n % (accesses / 2 / SAMPLES) == 0 {
            if n > accesses / 2 {
                took += since(started);
            } else {
                before = memory.faults();
            }
            looked += draws.hot;
            kept += memory.count_present(draws.hot_pages())?;
            started = Instant::now();
        }
        memory.access(&draws.next())?;
    }
    took += since(started);
    let faults = (memory.faults() - before) as f64 / took * 1e9;
    Ok(HotSet { accesses, hot: kept as f64 / looked as f64, faults })
}
