//! Tests the TLB of one simulated CPU (`tlb.rs`) without tables or a machine: tags, flushes by range, cached
//! page tables, and eviction. A flush that drops too many entries would hide errors of the engine, so the
//! tests check both what is dropped and what stays. `tests/tlb.rs` tests TLBs together with CPUs and tables.

use super::*;
use freehold_pagetable::{Aarch64, PteFlags, X86_5};

const RIGHTS: Rights = Rights { write: true, user: true, exec: true };

/// Returns the place of an entry in the TLB.
fn place(space: usize, address: u64, level: Level) -> Place {
    Place { space: SpaceTag::new(space), address: VirtAddr::new(address), level, stamp: 0 }
}

/// Inserts an entry for a writable, dirty page at `at`.
fn fill(tlb: &mut Tlb, at: Place) {
    let raw = X86_5::leaf(at.level, Pfn::new(0), PteFlags::USER | PteFlags::WRITE | PteFlags::DIRTY);
    tlb.insert::<X86_5>(at, raw, RIGHTS);
}

/// Returns a flush of the range `start..end`.
fn flush((start, end): (u64, u64), levels: Levels, tables_freed: bool) -> Flush {
    Flush { start: VirtAddr::new(start), end: VirtAddr::new(end), all: false, levels, tables_freed }
}

#[test]
fn tag_holds_the_start_of_its_span() {
    for address in [0, 0x1234_5678_9abc, 0x00ff_ffff_ffff_f000, 0xff00_0000_0000_0000, !0xfff] {
        for level in [Level::Pte, Level::Pmd, Level::Pud, Level::P4d, Level::Pgd] {
            let address = VirtAddr::new(address);
            let tag = Tag::new(SpaceTag::new(65_534), address, level);
            assert_eq!(tag.start(), address.span_down(level).get(), "{address:?} {level:?}");
            assert_eq!(tag.level(), level);
            assert!(tag.is(SpaceTag::new(65_534)) && !tag.is(SpaceTag::new(65_533)));
        }
    }
}

/// A flush of any range, small or large, drops exactly the entries of its space that overlap the range.
#[test]
fn flush_drops_exactly_the_entries_that_overlap_the_range() {
    let entries: Vec<Place> = (0..40)
        .map(|page| place(1, page << 12, Level::Pte))
        .chain([place(1, 1 << 21, Level::Pmd), place(1, 1 << 30, Level::Pud), place(2, 5 << 12, Level::Pte)])
        .collect();
    let edges =
        [0, 1, 0x5000, 0x5001, 0x27fff, 0x28000, 1 << 21, (1 << 21) + 0x1000, 1 << 22, 1 << 30, 1 << 40];
    for start in edges {
        for end in edges {
            let mut tlb = Tlb::new(0);
            entries.iter().for_each(|at| fill(&mut tlb, *at));
            let what = flush((start, end), Levels::ALL, true);
            let dropped = tlb.flush_range::<X86_5>(SpaceTag::new(1), &what);
            let mut expected = 0;
            for at in &entries {
                let first = at.address.get();
                let overlaps = start < end && first < end && start < first + at.level.span();
                let goes = overlaps && at.space == SpaceTag::new(1);
                expected += usize::from(goes);
                assert_eq!(
                    tlb.find(at.space, at.address).is_none(),
                    goes,
                    "{at:?} after {start:#x}..{end:#x}"
                );
            }
            assert_eq!((dropped, tlb.leaves().count()), (expected, entries.len() - expected));
        }
    }
}

/// The levels of the entries that stay after a flush of 1 GiB with these levels.
fn kept<F: Format>(levels: &[Level], tables_freed: bool) -> (Vec<Level>, Vec<Level>) {
    let mut tlb = Tlb::new(0);
    for level in [Level::Pte, Level::Pmd, Level::Pud] {
        fill(&mut tlb, place(1, 0, level));
        tlb.insert_walk(place(1, 0, level.above()), Pfn::new(1), RIGHTS);
    }
    let levels = levels.iter().fold(Levels::NONE, |all, level| all.union(Levels::of(*level)));
    tlb.flush_range::<F>(SpaceTag::new(1), &flush((0, 1 << 30), levels, tables_freed));
    let (leaves, walks) =
        (tlb.leaves().map(|leaf| leaf.tag.level()), tlb.walks().map(|walk| walk.tag.level()));
    (leaves.collect(), walks.collect())
}

/// A flush that names a level keeps entries of other levels: on Arm all of them, on x86-64 the smaller ones.
#[test]
fn flush_drops_only_the_entries_of_its_levels() {
    use Level::{P4d, Pmd, Pte, Pud};
    let walks = || vec![Pmd, Pud, P4d];
    assert_eq!(kept::<Aarch64>(&[Pmd], false), (vec![Pte, Pud], walks()));
    assert_eq!(kept::<X86_5>(&[Pmd], false), (vec![Pte], walks()));
    assert_eq!(kept::<Aarch64>(&[Pte, Pud], false), (vec![Pmd], walks()));
    assert_eq!(kept::<X86_5>(&[Pte], false), (vec![], walks()));
    assert_eq!(kept::<X86_5>(&[Pud], true), (vec![Pte, Pmd], vec![Pmd]));
}

#[test]
fn walk_lookup_finds_the_lowest_cached_table() {
    let mut tlb = Tlb::new(0);
    let at = |level| place(1, 0x7000, level);
    for level in [Level::Pgd, Level::P4d, Level::Pud, Level::Pmd] {
        tlb.insert_walk(at(level), Pfn::new(level as u64), RIGHTS);
        let found = tlb.find_walk(SpaceTag::new(1), VirtAddr::new(0x8000)).unwrap();
        assert_eq!((found.table, found.level()), (Pfn::new(level as u64), level.below()));
    }
    assert!(tlb.find_walk(SpaceTag::new(2), VirtAddr::new(0x8000)).is_none());
    let leaves = flush((0, 0x1000), Levels::ALL, false);
    assert_eq!(tlb.flush_range::<X86_5>(SpaceTag::new(1), &leaves), 0);
    assert_eq!(tlb.walks().count(), 4);
    tlb.drop_address(SpaceTag::new(1), VirtAddr::new(0x9000));
    assert_eq!(tlb.walks().count(), 0);
}

#[test]
fn address_has_one_entry_per_page_size() {
    let mut tlb = Tlb::new(0);
    for level in [Level::Pte, Level::Pmd] {
        (0..10).for_each(|_| fill(&mut tlb, place(3, 0, level)));
    }
    assert_eq!(tlb.leaves().count(), 2);
}

#[test]
fn full_cache_evicts_the_oldest_entry() {
    let mut tlb = Tlb::new(0);
    let pages = (SETS * WAYS + 1) as u64;
    (0..pages).for_each(|page| fill(&mut tlb, place(0, page << 12, Level::Pte)));
    assert_eq!(tlb.leaves().count(), SETS * WAYS);
    assert!(tlb.find(SpaceTag::new(0), VirtAddr::new(0)).is_none());
    assert_eq!(tlb.flush_space(SpaceTag::new(0), false), SETS * WAYS);
    assert_eq!(tlb.leaves().count(), 0);
}
