//! Generations of pages (Linux: the multi-generational LRU).
//!
//! A generation is a number that grows. Its last two bits are the age of its pages. There are at most four
//! generations at a time, from the oldest to the youngest. Only pages of the oldest generation are tested. A
//! page that was accessed joins the youngest generation, and any other page is evicted.
//!
//! | page | generation |
//! | --- | --- |
//! | new, without a file | the youngest |
//! | new, of a file | the second oldest: a page that is read once goes soon |
//! | cold (MADV_COLD, MADV_FREE) | none: tested in the next visit |
//! | refaulted | the youngest if it would have stayed in twice as much memory, otherwise as new |
//!
//! A walk of page tables moves pages that were accessed into the youngest generation before their test. A
//! page that the walk finds for the first time joins the generation of new pages instead: the walk finds the
//! access for which the page was made.
//!
//! When a whole visit of memory finds no page of the oldest generation, the next generation is the oldest. If
//! fewer than three are left, a new generation begins.

use super::policy::{Age, PageKind, Policy, Population, Step, Tested, Verdict};
use freehold_sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Maximum number of generations at a time.
const GENERATIONS: u64 = 4;
/// The age of cold pages, in no generation. They are tested like pages of the oldest generation, which may
/// end before a visit finds them.
const COLD: Age = Age::new(GENERATIONS as u8 + 1);

/// Policy with up to four generations of pages.
#[derive(Debug)]
pub(super) struct Generations {
    // All words are hints that are read and written on their own, so every access is relaxed.
    oldest: AtomicU64,
    youngest: AtomicU64,
    /// Number of pages in the last visit of memory.
    pages: AtomicU64,
}

impl Default for Generations {
    fn default() -> Self {
        let [oldest, youngest, pages] = [0, GENERATIONS - 2, 0].map(AtomicU64::new);
        Generations { oldest, youngest, pages }
    }
}

/// Returns the age of the pages of a generation.
fn age_of(generation: u64) -> Age {
    Age::new((generation % GENERATIONS) as u8 + 1)
}

impl Generations {
    fn oldest(&self) -> Age {
        age_of(self.oldest.load(Relaxed))
    }

    fn youngest(&self) -> Age {
        age_of(self.youngest.load(Relaxed))
    }

    /// Returns the age of a page that the policy has not seen before.
    fn first(&self, kind: PageKind) -> Age {
        match kind {
            PageKind::File => age_of(self.oldest.load(Relaxed) + 1),
            PageKind::Anonymous | PageKind::Shared => self.youngest(),
        }
    }
}

impl Policy for Generations {
    fn step(&self, kind: PageKind, age: Age, _: &Tested) -> Step {
        match age {
            Age::NEW => Step::Keep(self.first(kind)),
            age if age == self.oldest() || age == COLD => Step::Test,
            _ => Step::Skip,
        }
    }

    fn tested(&self, _: PageKind, _: Age, accessed: bool) -> Verdict {
        if accessed { Verdict::Keep(self.youngest()) } else { Verdict::Evict }
    }

    fn old(&self, _: PageKind) -> Age {
        COLD
    }

    fn refaulted(&self, kind: PageKind, distance: u64) -> Age {
        if distance <= self.pages.load(Relaxed) { self.youngest() } else { self.first(kind) }
    }

    fn walks(&self) -> bool {
        true
    }

    fn walked(&self, kind: PageKind, age: Age) -> Age {
        if age == Age::NEW { self.first(kind) } else { self.youngest() }
    }

    fn swept(&self, population: &Population) {
        let kinds = [PageKind::Anonymous, PageKind::Shared, PageKind::File];
        let (oldest, youngest) = (self.oldest.load(Relaxed), self.youngest.load(Relaxed));
        let old: u64 = kinds.map(|kind| population.with(kind, age_of(oldest))).iter().sum();
        self.pages.store(kinds.map(|kind| population.of(kind)).iter().sum(), Relaxed);
        if old > 0 {
            return;
        }
        self.oldest.store(oldest + 1, Relaxed);
        if youngest - (oldest + 1) < 2 {
            self.youngest.store(youngest + 1, Relaxed);
        }
    }
}
