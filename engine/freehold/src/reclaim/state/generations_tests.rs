//! Tests of the controller of [`Generations`].

use super::{
    Accessed, COLD, EVIDENCE, GENERATIONS, Generations, PageKind, Population, TIERS, age_of, tier_of,
};
use super::{Age, Policy, Tested, Verdict};
use alloc::vec::Vec;

const FILE: PageKind = PageKind::File;

/// Reports a visit of memory in which pages of files were evicted, and others refaulted.
fn report(policy: &Generations, evicted: [u64; TIERS], refaulted: [u64; TIERS]) {
    let mut population = Population::default();
    for tier in 0..TIERS {
        let age = usize::from(age_of(policy.oldest(), tier).number());
        population.evicted[FILE as usize][age] = evicted[tier];
        population.refaulted[FILE as usize][age] = refaulted[tier];
    }
    policy.swept(&population);
}

#[test]
fn ages_of_generations_and_tiers_differ() {
    let mut ages: Vec<_> = (0..GENERATIONS).flat_map(|g| (0..TIERS).map(move |t| age_of(g, t))).collect();
    ages.extend([COLD, Age::NEW]);
    ages.sort_unstable();
    ages.dedup();
    assert_eq!(ages.len(), GENERATIONS as usize * TIERS + 2);
    assert!((0..TIERS).all(|tier| tier_of(age_of(7, tier)) == tier));
}

#[test]
fn tier_is_protected_if_its_pages_are_needed_again_more_often() {
    let policy = Generations::default();
    report(&policy, [1000, 100, 100], [100, 9, 11]);
    assert_eq!([1, 2].map(|tier| policy.protects(tier)), [false, true]);
    // Each visit counts twice as much as the one before it.
    report(&policy, [1000, 1000, 1000], [100, 110, 90]);
    assert_eq!([1, 2].map(|tier| policy.protects(tier)), [true, false]);
}

#[test]
fn tier_keeps_its_protection_without_evidence() {
    let policy = Generations::default();
    assert!(policy.protects(1));
    report(&policy, [1000, EVIDENCE - 1, 0], [500, 0, 0]);
    assert!(policy.protects(1));
    report(&policy, [1000, EVIDENCE, 0], [500, 0, 0]);
    assert!(!policy.protects(1));
    (0..100).for_each(|_| report(&policy, [1000, 0, 0], [0, 0, 0]));
    assert!(!policy.protects(1));
    report(&policy, [1000, EVIDENCE, 0], [0, 1, 0]);
    assert!(policy.protects(1));
}

#[test]
fn access_by_calls_keeps_only_pages_of_protected_tiers() {
    let policy = Generations::default();
    let age = |generation, tier| age_of(generation, tier);
    let tested = |kind, tier, accessed| policy.tested(kind, age(policy.oldest(), tier), accessed);
    assert_eq!(tested(FILE, 0, Accessed::ByCall), Verdict::Keep(age(policy.youngest(), 1)));
    assert_eq!(tested(FILE, 1, Accessed::No), Verdict::Evict(age(policy.oldest(), 1)));
    report(&policy, [1000, EVIDENCE, 0], [500, 0, 0]);
    assert_eq!(tested(FILE, 0, Accessed::ByCall), Verdict::Evict(age(policy.oldest(), 1)));
    assert_eq!(tested(FILE, 2, Accessed::ByCall), Verdict::Keep(age(policy.youngest(), 2)));
    assert_eq!(tested(FILE, 0, Accessed::ByEntry), Verdict::Keep(age(policy.youngest(), 0)));
    // Memory without a file has no tiers.
    assert_eq!(tested(PageKind::Shared, 0, Accessed::ByCall), Verdict::Keep(age(policy.youngest(), 0)));
}

#[test]
fn only_pages_of_the_oldest_generation_and_cold_pages_are_tested() {
    let policy = Generations::default();
    let tested: Vec<_> = (0..Age::COUNT as u8)
        .map(Age::new)
        .filter(|age| policy.step(FILE, *age, &Tested::default()) == super::Step::Test)
        .collect();
    let mut wanted: Vec<_> = (0..TIERS).map(|tier| age_of(policy.oldest(), tier)).collect();
    wanted.push(COLD);
    wanted.sort_unstable();
    assert_eq!(tested, wanted);
}
