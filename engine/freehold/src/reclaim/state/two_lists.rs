//! An active and an inactive list for each kind of pages (Linux: the classic LRU lists).
//!
//! The lists are ages: reclaim visits the pages of a list in the order of their frames, so each page has one
//! whole cycle of visits to be accessed again.
//!
//! | age | tested, and accessed | tested, and not accessed |
//! | --- | --- | --- |
//! | new, inactive | becomes referenced: the access may be the fault that made the page | evicted |
//! | referenced | becomes active | evicted |
//! | active, tested only while its list is too long | becomes inactive | becomes inactive |
//!
//! The list of active pages is too long if it has more than `ratio` times as many pages as the inactive list
//! of the same kind. The ratio grows with the square root of memory, as on Linux: 1 below 1 GiB, 3 at 1 GiB,
//! 10 at 10 GiB.
//!
//! A page that is read again after its eviction becomes active at once if the distance is at most the number
//! of active pages: with so many more frames, the page would have stayed. Each such refault also makes its
//! kind more expensive, and reclaim then tests more pages of the other kinds.

use super::policy::{Accessed, Age, PageKind, Policy, Population, Step, Tested, Verdict};
use freehold_sync::atomic::{AtomicU64, Ordering::Relaxed};

const INACTIVE: Age = Age::new(1);
const REFERENCED: Age = Age::new(2);
const ACTIVE: Age = Age::new(3);

/// Number of tested pages after which the proportion of the kinds is observed.
const SLACK: u64 = 64;

/// Policy with an active and an inactive list for each kind.
#[derive(Debug)]
pub(super) struct TwoLists {
    // All words are hints that are read and written on their own, so every access is relaxed.
    /// Number of active pages of each kind.
    active: [AtomicU64; PageKind::COUNT],
    /// 1 if the list of active pages of the kind is too long.
    too_long: [AtomicU64; PageKind::COUNT],
    /// Recent refaults of pages without a file, and of pages of files.
    costs: [AtomicU64; 2],
    /// Numbers of pages that may be tested, without a file and of files.
    testable: [AtomicU64; 2],
}

impl Default for TwoLists {
    fn default() -> Self {
        let zeroes = || [(); PageKind::COUNT].map(|()| AtomicU64::new(0));
        let both = || [(); 2].map(|()| AtomicU64::new(0));
        TwoLists { active: zeroes(), too_long: zeroes(), costs: both(), testable: both() }
    }
}

/// Returns the place of a kind in `costs` and `testable`.
fn cost_of(kind: PageKind) -> usize {
    usize::from(kind == PageKind::File)
}

impl TwoLists {
    /// Returns true if the kinds with the costs of `kind` have their share of the tests, and others do not.
    fn has_share(&self, kind: PageKind, tested: &Tested) -> bool {
        let [anon, shared, file] = tested.pages;
        let done = [anon + shared, file];
        let (own, other) = (cost_of(kind), 1 - cost_of(kind));
        let pages = self.testable.each_ref().map(|pages| pages.load(Relaxed));
        if done[own] <= SLACK || done[other] >= pages[other] {
            return false;
        }
        // Of two kinds with the same number of pages, the one that is twice as expensive gets half as many
        // tests.
        let costs = self.costs.each_ref().map(|cost| cost.load(Relaxed) + 1);
        let weight = |a: usize, b: usize| {
            u128::from(done[a]).saturating_mul(u128::from(costs[a])).saturating_mul(u128::from(pages[b]))
        };
        weight(own, other) > weight(other, own)
    }
}

impl Policy for TwoLists {
    fn step(&self, kind: PageKind, age: Age, tested: &Tested) -> Step {
        if age == ACTIVE && self.too_long[kind as usize].load(Relaxed) == 0 || self.has_share(kind, tested) {
            return Step::Skip;
        }
        Step::Test
    }

    fn tested(&self, _: PageKind, age: Age, accessed: Accessed) -> Verdict {
        match (age, accessed.is_any()) {
            (ACTIVE, _) => Verdict::Keep(INACTIVE),
            (_, false) => Verdict::Evict(age),
            (REFERENCED, true) => Verdict::Keep(ACTIVE),
            (_, true) => Verdict::Keep(REFERENCED),
        }
    }

    fn old(&self, _: PageKind) -> Age {
        INACTIVE
    }

    fn refaulted(&self, _: PageKind, _: Age, distance: u64) -> Age {
        let active: u64 = self.active.iter().map(|pages| pages.load(Relaxed)).sum();
        if distance <= active { ACTIVE } else { INACTIVE }
    }

    fn swept(&self, population: &Population) {
        let kinds = [PageKind::Anonymous, PageKind::Shared, PageKind::File];
        let pages: u64 = kinds.map(|kind| population.of(kind)).iter().sum();
        let ratio = (10 * (pages >> 18)).isqrt().max(1);
        let mut testable = [0; 2];
        for kind in kinds {
            let active = population.with(kind, ACTIVE);
            let inactive = population.of(kind).saturating_sub(active);
            self.active[kind as usize].store(active, Relaxed);
            let too_long = active > inactive.saturating_mul(ratio);
            self.too_long[kind as usize].store(u64::from(too_long), Relaxed);
            testable[cost_of(kind)] += inactive + if too_long { active } else { 0 };
        }
        self.testable.iter().zip(testable).for_each(|(word, pages)| word.store(pages, Relaxed));
        let [anon, shared, file] = kinds.map(|kind| population.refaults_of(kind));
        for (cost, refaulted) in self.costs.iter().zip([anon + shared, file]) {
            // Old refaults count less and less.
            cost.store(cost.load(Relaxed) / 2 + refaulted, Relaxed);
        }
    }
}
