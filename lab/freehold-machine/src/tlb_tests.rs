//! Tests the TLB of one simulated CPU (`tlb.rs`) without tables or a machine: tags, flushes by range, cached
//! page tables, and eviction. A flush that drops too many entries would hide errors of the engine, so the
//! tests check both what is dropped and what stays. `tests/tlb.rs` tests TLBs together with CPUs and tables.

use super::*;
use freehold_pagetable::{PteFlags, X86_5};

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
            let dropped = tlb.flush_range(SpaceTag::new(1), start, end, true);
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
    assert_eq!(tlb.flush_range(SpaceTag::new(1), 0, 0x1000, false), 0);
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
