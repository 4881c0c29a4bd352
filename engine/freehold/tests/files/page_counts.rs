//! The count of pages in the cache of a file (`Mapping::present_pages`), which the engine keeps up to date
//! without visiting the pages. After each store, hole, truncation and drop, the tests compare the count with
//! the expected count, and `Mapping::check` recounts the pages. A new operation that adds or removes pages of
//! a file belongs in one of the two tests.

use crate::support::*;
use freehold::{PageIndex, PageRange, file::Zeroes, hugetlb::HugePageSize};

#[test]
fn page_count_follows_stores_and_holes() {
    everywhere(|world, process, cpu| {
        let mapping = Mapping::new(world.engine(), Zeroes, 1 << 40, true).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/dev/shm/it").unwrap();
        let present = |pages: u64| {
            assert_eq!(mapping.present_pages(), pages);
            mapping.check();
        };
        present(0);
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        process.mmap(BASE, 16 * PAGE, RW, flags, Some(&file), 0).unwrap();
        for page in [0, 1, 1, 9] {
            process.store(cpu, BASE + page * PAGE, 1u64).unwrap();
        }
        present(3);
        assert_eq!(mapping.write_at(9 * PAGE + 8, &[1; PAGE as usize]), Ok(PAGE as usize));
        present(4);
        mapping.fill(PageIndex::new(1 << 20)).unwrap();
        mapping.fill(PageIndex::new(1 << 20)).unwrap();
        assert!(mapping.fill(PageIndex::new(1 << 40)).is_err(), "beyond the end");
        present(5);
        mapping.punch(0..PAGE + 5).unwrap();
        present(4);
        process.munmap(BASE, 16 * PAGE).unwrap();
        present(4);
        mapping.truncate(10 * PAGE).unwrap();
        present(2);
        mapping.truncate(0).unwrap();
        present(0);
    });
}

#[test]
fn reserved_pages_count_and_stay_hidden_until_the_file_grows() {
    everywhere(|world, process, cpu| {
        let mapping = Mapping::new(world.engine(), Zeroes, PAGE + 5, true).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/dev/shm/it").unwrap();
        let present = |pages: u64| {
            assert_eq!(mapping.present_pages(), pages);
            mapping.check();
        };
        let reserve = |pages: core::ops::Range<u64>| {
            pages.for_each(|page| mapping.reserve(PageIndex::new(page)).unwrap());
        };
        process.mmap(BASE, 16 * PAGE, RW, MapFlags::SHARED | MapFlags::FIXED, Some(&file), 0).unwrap();
        reserve(1..6);
        present(5);
        assert!(process.store(cpu, BASE + 2 * PAGE, 1u64).is_err(), "beyond the end");
        // A truncation to the same size removes them, and so does a hole.
        mapping.truncate(PAGE + 5).unwrap();
        present(1);
        reserve(3..8);
        mapping.punch(3 * PAGE + 7..5 * PAGE + 9).unwrap();
        present(5);
        assert_eq!(mapping.size(), PAGE + 5);
        // They are part of the file once it grows.
        mapping.truncate(6 * PAGE).unwrap();
        present(5);
        process.store(cpu, BASE + 5 * PAGE, 7u64).unwrap();
        assert_eq!(process.load::<u64>(cpu, BASE + 3 * PAGE).unwrap(), 0);
        present(5);
        assert_eq!(mapping.write_at(7 * PAGE, &[1]), Ok(1));
        present(5);
        mapping.truncate(PAGE).unwrap();
        present(0);
        reserve(9..12);
        process.munmap(BASE, 16 * PAGE).unwrap();
        present(3);
    });
}

/// Walks a range by runs. Returns the pages that are in the cache, and the number of calls.
fn cached_pages(mapping: &Mapping<Machine>, range: PageRange) -> (Vec<u64>, usize) {
    let (mut pages, mut at, mut calls) = (Vec::new(), range.start, 0);
    while at < range.end {
        let (run, is_cached) = mapping.page_run(PageRange::new(at, range.end));
        assert!(run.start == at && run.end > at && run.end <= range.end, "each call advances");
        if is_cached {
            pages.extend(run.numbers());
        }
        (at, calls) = (run.end, calls + 1);
    }
    (pages, calls)
}

#[test]
fn runs_of_pages_skip_holes_and_are_bounded() {
    let world = World::new();
    let mapping = Mapping::new(world.engine(), Zeroes, 1 << 60, true).unwrap();
    let all = PageRange::ALL;
    assert_eq!(cached_pages(&mapping, all), (vec![], 1));
    let pages: Vec<u64> = [0, 1, 2, 5, 63, 64, 1 << 20, (1 << 20) + 1, (1 << 48) - 1].to_vec();
    pages.iter().for_each(|page| mapping.fill(PageIndex::new(*page)).unwrap());
    let (found, calls) = cached_pages(&mapping, all);
    assert_eq!((found, calls), (pages, 10), "one call for each run, as no run is long");
    let part = PageRange::new(PageIndex::new(1), PageIndex::new(64));
    assert_eq!(cached_pages(&mapping, part).0, [1, 2, 5, 63]);
    mapping.truncate(2 * PAGE).unwrap();
    assert_eq!(cached_pages(&mapping, all).0, [0, 1]);
    mapping.truncate(1 << 40).unwrap();
    (0..3000).for_each(|page| mapping.fill(PageIndex::new(page)).unwrap());
    let (found, calls) = cached_pages(&mapping, all);
    assert_eq!((found.len(), calls), (3000, 4), "a run ends after 1024 pages");
}

#[test]
fn page_count_follows_reads_and_huge_pages() {
    let world = World::new();
    let file = world.file(8);
    let mapping = file.mapping();
    for page in 0..8 {
        mapping.fill(PageIndex::new(page)).unwrap();
    }
    assert_eq!(mapping.present_pages(), 8);
    assert_eq!(mapping.drop_clean(PageRange::ALL), 8);
    assert_eq!(mapping.present_pages(), 0);
    mapping.check();
    assert_eq!(world.engine().resize_huge_pool(HugePageSize::Mib2, 1, None), 1);
    let huge = Mapping::of_huge_pages(world.engine(), HugePageSize::Mib2, 2 * HUGE, false).unwrap();
    huge.fill(PageIndex::new(1)).unwrap();
    assert_eq!((huge.present_pages(), huge.page_bytes()), (1, HUGE));
    assert!(huge.fill(PageIndex::new(0)).is_err(), "the pool is empty");
    huge.check();
    huge.truncate(0).unwrap();
    assert_eq!(huge.present_pages(), 0);
}
