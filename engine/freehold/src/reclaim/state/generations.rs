//! Generations of pages (Linux: the multi-generational LRU).
//!
//! A generation is a number that grows. There are at most four generations at a time, from the oldest to the
//! youngest. Only pages of the oldest generation are tested. The age of a page has the last two bits of its
//! generation, and its tier.
//!
//! | page | generation |
//! | --- | --- |
//! | new, without a file | the youngest |
//! | new, of a file | the second oldest: a page that is read once goes soon |
//! | cold (MADV_COLD, MADV_FREE), or being written | none: tested in the next visit |
//! | refaulted | the youngest if it would have stayed in twice as much memory, otherwise as new |
//! | tested, and accessed by an entry | the youngest |
//! | tested, of a file, accessed only by calls | the youngest if its tier is protected, otherwise evicted |
//! | tested, and not accessed | evicted |
//!
//! A walk of page tables moves pages that were accessed into the youngest generation before their test. A
//! page that the walk finds for the first time joins the generation of new pages instead: the walk finds the
//! access for which the page was made.
//!
//! When a whole visit of memory finds no page of the oldest generation, the next generation is the oldest. If
//! fewer than three are left, a new generation begins.
//!
//! # Tiers
//!
//! A program that reads a file in small pieces accesses each page several times, and may not need the page
//! again. An access by a call is therefore less evidence than an access by an entry. The *tier* of a page of
//! a file is the number of tests, at most two, that found accesses by calls. Tiers are protected until
//! refaults show that a tier is not worth it: its evicted pages were needed again less often than those of
//! all tiers together. Old evictions and refaults count less and less.
//!
//! Linux protects a tier only after refaults, and for one generation. In the small memory of
//! `tests/reclaim/quality.rs`, up to 15 % of the accesses to hot pages miss by Linux's rules. By the rules
//! above, at most 0.2 % more miss than without tiers.

use super::policy::{Accessed, Age, PageKind, Policy, Population, Step, Tested, Verdict};
use freehold_sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Maximum number of generations at a time.
const GENERATIONS: u64 = 4;
/// Number of tiers of a generation.
const TIERS: usize = 3;
/// The age of cold pages, in no generation. They are tested like pages of the oldest generation, which may
/// end before a visit finds them.
const COLD: Age = Age::new((GENERATIONS * TIERS as u64) as u8 + 1);
/// Number of evicted pages of a tier without which the controller does not change its decision.
const EVIDENCE: u64 = 64;

/// Policy with up to four generations of pages.
#[derive(Debug)]
pub(super) struct Generations {
    // All words are hints that are read and written on their own, so every access is relaxed.
    oldest: AtomicU64,
    youngest: AtomicU64,
    /// Number of pages in the last visit of memory.
    pages: AtomicU64,
    /// Recent evictions and refaults of pages of files, by tier.
    evicted: [AtomicU64; TIERS],
    refaulted: [AtomicU64; TIERS],
    /// Bit `t` is set if tier `t` is protected.
    protected: AtomicU64,
}

impl Default for Generations {
    fn default() -> Self {
        let [oldest, youngest, pages, protected] = [0, GENERATIONS - 2, 0, u64::MAX].map(AtomicU64::new);
        let [evicted, refaulted] = [(); 2].map(|()| [(); TIERS].map(|()| AtomicU64::new(0)));
        Generations { oldest, youngest, pages, evicted, refaulted, protected }
    }
}

/// Returns the age of the pages of a generation and tier.
fn age_of(generation: u64, tier: usize) -> Age {
    Age::new((tier as u64 * GENERATIONS + generation % GENERATIONS) as u8 + 1)
}

/// Returns the tier of pages with this age.
fn tier_of(age: Age) -> usize {
    match age {
        Age::NEW | COLD => 0,
        age => ((age.number() as usize - 1) / GENERATIONS as usize).min(TIERS - 1),
    }
}

/// Returns the sums of numbers of pages by age, for each tier.
fn by_tier(ages: &[u64; Age::COUNT]) -> [u64; TIERS] {
    let mut sums = [0; TIERS];
    for (age, pages) in ages.iter().enumerate() {
        sums[tier_of(Age::new(age as u8))] += pages;
    }
    sums
}

impl Generations {
    fn oldest(&self) -> u64 {
        self.oldest.load(Relaxed)
    }

    fn youngest(&self) -> u64 {
        self.youngest.load(Relaxed)
    }

    /// Returns the age of a page that the policy has not seen before.
    fn first(&self, kind: PageKind, tier: usize) -> Age {
        match kind {
            PageKind::File => age_of(self.oldest() + 1, tier),
            PageKind::Anonymous | PageKind::Shared => age_of(self.youngest(), tier),
        }
    }

    /// Returns true if pages of the oldest generation and this tier stay when calls have accessed them.
    fn protects(&self, tier: usize) -> bool {
        self.protected.load(Relaxed) >> tier & 1 != 0
    }

    /// Adds evictions and refaults of pages of files, and decides which tiers are protected.
    fn control(&self, evicted: [u64; TIERS], refaulted: [u64; TIERS]) {
        let recent = |word: &AtomicU64, new: u64| {
            word.store(word.load(Relaxed) / 2 + new, Relaxed);
            u128::from(word.load(Relaxed))
        };
        let mut shares = [(0, 0); TIERS];
        for tier in 0..TIERS {
            let evicted = recent(&self.evicted[tier], evicted[tier]);
            shares[tier] = (recent(&self.refaulted[tier], refaulted[tier]), evicted);
        }
        let base = shares.iter().fold((0, 0), |sum, share| (sum.0 + share.0, sum.1 + share.1));
        let mut protected = self.protected.load(Relaxed);
        for (tier, share) in shares.iter().enumerate().skip(1) {
            if share.1 >= u128::from(EVIDENCE) {
                let is_needed = share.0 * base.1 > base.0 * share.1;
                protected = protected & !(1 << tier) | u64::from(is_needed) << tier;
            }
        }
        self.protected.store(protected, Relaxed);
    }
}

impl Policy for Generations {
    fn step(&self, kind: PageKind, age: Age, _: &Tested) -> Step {
        match age {
            Age::NEW => Step::Keep(self.first(kind, 0)),
            age if age == age_of(self.oldest(), tier_of(age)) || age == COLD => Step::Test,
            _ => Step::Skip,
        }
    }

    fn tested(&self, kind: PageKind, age: Age, accessed: Accessed) -> Verdict {
        let tier = (tier_of(age) + 1).min(TIERS - 1);
        match (kind, accessed) {
            (_, Accessed::No) => Verdict::Evict(age),
            (PageKind::File, Accessed::ByCall) if self.protects(tier) => {
                Verdict::Keep(age_of(self.youngest(), tier))
            }
            (PageKind::File, Accessed::ByCall) => Verdict::Evict(age_of(self.oldest(), tier)),
            _ => Verdict::Keep(age_of(self.youngest(), 0)),
        }
    }

    fn old(&self, _: PageKind) -> Age {
        COLD
    }

    fn refaulted(&self, kind: PageKind, age: Age, distance: u64) -> Age {
        if distance <= self.pages.load(Relaxed) {
            age_of(self.youngest(), tier_of(age))
        } else {
            self.first(kind, tier_of(age))
        }
    }

    fn walks(&self) -> bool {
        true
    }

    fn walked(&self, kind: PageKind, age: Age) -> Age {
        if age == Age::NEW { self.first(kind, 0) } else { age_of(self.youngest(), 0) }
    }

    fn swept(&self, population: &Population) {
        let kinds = [PageKind::Anonymous, PageKind::Shared, PageKind::File];
        let file = PageKind::File as usize;
        self.control(by_tier(&population.evicted[file]), by_tier(&population.refaulted[file]));
        self.pages.store(kinds.map(|kind| population.of(kind)).iter().sum(), Relaxed);
        let (oldest, youngest) = (self.oldest(), self.youngest());
        let is_old = |kind| (0..TIERS).any(|tier| population.with(kind, age_of(oldest, tier)) > 0);
        if kinds.into_iter().any(is_old) {
            return;
        }
        self.oldest.store(oldest + 1, Relaxed);
        if youngest - (oldest + 1) < 2 {
            self.youngest.store(youngest + 1, Relaxed);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle, sim))))]
#[path = "generations_tests.rs"]
mod tests;
