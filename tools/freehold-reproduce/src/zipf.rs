//! The accesses of the load with a hot set: which page each access uses, and whether the access stores.
//!
//! A quarter of the pages is hot: 90 % of the accesses go to these pages, by a zipf distribution. The other
//! accesses go to the other pages, which are all equally likely. The sequence is the same in each run.

/// Number of accesses for each page, after all pages were written once.
pub(crate) const ROUNDS: u64 = 8;
/// Number of samples of the hot pages, in the second half of the accesses.
pub(crate) const SAMPLES: u64 = 16;
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
pub(crate) struct Draws {
    random: Random,
    pages: u64,
    hot: u64,
    /// The sums of the weights of the hot pages with smaller ranks.
    sums: Vec<u64>,
}

impl Draws {
    /// Returns the accesses to `pages` pages, which must be three times a power of two.
    pub fn new(pages: u64) -> Draws {
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
    pub fn hot_pages(&self) -> impl ExactSizeIterator<Item = u64> {
        (0..self.hot as usize).map(|rank| self.page_of(rank as u64))
    }

    /// Returns the page with this rank. The ranks below `hot` are hot.
    fn page_of(&self, rank: u64) -> u64 {
        // A prime number that does not divide the number of pages.
        rank * 7919 % self.pages
    }

    /// Returns the next access.
    pub fn next(&mut self) -> Draw {
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
