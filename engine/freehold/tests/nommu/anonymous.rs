//! Anonymous memory without an MMU (`src/nommu/area.rs`, `src/nommu/munmap.rs`): runs of frames that are
//! freed as a whole or in parts, and the errors of mmap and munmap. One test makes random calls and compares
//! them with a list of pages.

use super::*;
use freehold::error::{Errno, MunmapError};

#[test]
fn memory_is_a_run_of_zeroed_pages() {
    let flat = Flat::new();
    let space = flat.space();
    // Old contents of the frames must not be visible.
    let at = map(&space, 8, RW, PRIVATE);
    (0..8).for_each(|n| flat.store(at + n * PAGE + 8 * n, 77));
    space.munmap(at, 8 * PAGE).unwrap();
    for bytes in [1, PAGE - 1, PAGE, PAGE + 1, 7 * PAGE + 5, 100 * PAGE] {
        let at = space.mmap(0, bytes, RW, ANON, None, 0).unwrap();
        let pages = bytes.div_ceil(PAGE);
        assert_eq!(at % PAGE, 0);
        assert_eq!((flat.frames() as u64, space.pages(), space.map_count()), (pages, pages, 1));
        (0..pages * PAGE / 8).for_each(|n| assert_eq!(flat.load(at + n * 8), 0));
        flat.assert_regions(1, pages);
        let line = space.find(at + bytes - 1).unwrap();
        assert_eq!((line.range, line.prot, line.shared), (at..at + pages * PAGE, RW, false));
        assert!(line.file.is_none());
        space.munmap(at, bytes).unwrap();
        assert_eq!(flat.frames(), 0);
    }
    drop(space);
    flat.end();
}

#[test]
fn addresses_are_unique_and_rights_are_only_recorded() {
    let flat = Flat::new();
    let (one, other) = (flat.space(), flat.space());
    let a = map(&one, 3, R, PRIVATE);
    // Shared anonymous memory is treated as private, because no other space can map it.
    let b = map(&other, 3, RW, SHARED);
    assert!(a + 3 * PAGE <= b || b + 3 * PAGE <= a);
    assert!(!other.find(b).unwrap().shared);
    assert_eq!((one.find(b), other.find(a)), (None, None));
    assert_eq!(one.find(a).unwrap().prot, R);
    flat.store(a, 5);
    assert_eq!(flat.load(a), 5);
    flat.assert_regions(2, 6);
    drop((one, other));
    flat.end();
}

#[test]
fn mmap_refuses_invalid_arguments() {
    let flat = Flat::new();
    let space = flat.space();
    let file = flat.file(1);
    let anon = |len, flags, offset| space.mmap(0, len, RW, flags, None, offset);
    for (result, errno) in [
        (anon(0, ANON, 0), Errno::EINVAL),
        (anon(PAGE, ANON, 1), Errno::EINVAL),
        (anon(PAGE, MapFlags::ANONYMOUS, 0), Errno::EINVAL),
        (anon(PAGE, MapFlags::ANONYMOUS | MapFlags::SHARED_VALIDATE, 0), Errno::EINVAL),
        (anon(PAGE, ANON | MapFlags::FIXED, 0), Errno::EINVAL),
        (anon(PAGE, ANON | MapFlags::HUGETLB, 0), Errno::EINVAL),
        (anon(PAGE, PRIVATE, 0), Errno::EBADF),
        (anon(u64::MAX, ANON, 0), Errno::ENOMEM),
        (anon(1 << 62, ANON, 0), Errno::ENOMEM),
        (anon(17 << 20, ANON, 0), Errno::ENOMEM),
        (space.mmap(PAGE, PAGE, R, PRIVATE | MapFlags::FIXED, Some(&file), 0), Errno::EINVAL),
        (space.mmap(0, PAGE, R, PRIVATE, Some(&file), 1 << 63), Errno::EOVERFLOW),
        (space.mmap(0, u64::MAX / 2, R, PRIVATE, Some(&file), 0), Errno::EOVERFLOW),
        (space.mmap(0, 1 << 60, R, PRIVATE, Some(&file), 0), Errno::ENOMEM),
    ] {
        assert_eq!(result.map_err(|error| error.errno()), Err(errno));
    }
    assert_eq!((space.map_count(), flat.frames()), (0, 0));
    // Hints and the flag FIXED_NOREPLACE are ignored.
    let at = space.mmap(0x5000, PAGE, RW, ANON | MapFlags::FIXED_NOREPLACE, None, 0).unwrap();
    assert_ne!(at, 0x5000);
    drop((space, file));
    flat.end();
}

#[test]
fn mmap_needs_a_contiguous_run_of_frames() {
    let flat = Flat::new();
    let space = flat.space();
    let mut singles = Vec::new();
    while let Ok(at) = space.mmap(0, PAGE, RW, ANON, None, 0) {
        singles.push(at);
    }
    // Every second page is free: there is enough free memory, but no two adjacent pages are free.
    singles.sort_unstable();
    singles.iter().step_by(2).for_each(|at| space.munmap(*at, PAGE).unwrap());
    assert_eq!(space.mmap(0, 2 * PAGE, RW, ANON, None, 0), Err(MmapError::OutOfMemory));
    space.munmap(singles[1], PAGE).unwrap();
    assert_eq!(space.mmap(0, 3 * PAGE, RW, ANON, None, 0), Ok(singles[0]));
    drop(space);
    flat.end();
}

#[test]
fn munmap_frees_parts_and_keeps_the_rest() {
    //            |0  1  2  3  4  5  6  7  8  9|
    // front 0..2 |-- --|
    // end   8..10                        |-- --|
    // middle 4..5            |--|
    let flat = Flat::new();
    let space = flat.space();
    let at = map(&space, 10, RW, PRIVATE);
    let page = |n: u64| at + n * PAGE;
    (0..10).for_each(|n| flat.store(page(n), 100 + n));
    space.munmap(page(0), 2 * PAGE).unwrap();
    assert_eq!((layout(&space), flat.frames()), (vec![(page(2), 8)], 8));
    space.munmap(page(8), PAGE + 1).unwrap();
    assert_eq!((layout(&space), flat.frames()), (vec![(page(2), 6)], 6));
    space.munmap(page(4), 1).unwrap();
    assert_eq!((layout(&space), flat.frames()), (vec![(page(2), 2), (page(5), 3)], 5));
    flat.assert_regions(2, 5);
    [2, 3, 5, 6, 7].into_iter().for_each(|n| assert_eq!(flat.load(page(n)), 100 + n));
    assert_eq!((space.find(page(4)), space.pages(), space.map_count()), (None, 5, 2));
    // The freed parts can be mapped again.
    let other = flat.space();
    let taken: Vec<u64> = (0..4087).map_while(|_| other.mmap(0, PAGE, RW, ANON, None, 0).ok()).collect();
    for n in [0, 1, 4, 8, 9] {
        assert!(taken.contains(&page(n)), "page {n} was not freed");
    }
    space.munmap(page(2), 2 * PAGE).unwrap();
    space.munmap(page(5), 3 * PAGE).unwrap();
    flat.assert_regions(taken.len() as u64, taken.len() as u64);
    drop((space, other));
    flat.end();
}

#[test]
fn munmap_refuses_ranges_that_are_not_a_part_of_one_mapping() {
    let flat = Flat::new();
    let (space, other) = (flat.space(), flat.space());
    // Two adjacent mappings: runs are allocated downwards.
    let (b, a) = (map(&space, 4, RW, PRIVATE), map(&space, 4, RW, PRIVATE));
    assert_eq!(a + 4 * PAGE, b);
    let before = layout(&space);
    let frames = flat.frames();
    for (start, len) in [
        (a, 0),
        (a + 1, PAGE),
        (a + 8, 4 * PAGE),
        (a, 5 * PAGE),
        (a - PAGE, 5 * PAGE),
        (a, 8 * PAGE),
        (a + 2 * PAGE, 4 * PAGE),
        (b + 4 * PAGE, PAGE),
        (0, PAGE),
        (a, u64::MAX),
        (u64::MAX - PAGE + 1, PAGE),
        (u64::MAX - 5, 3),
    ] {
        assert_eq!(space.munmap(start, len), Err(MunmapError::Invalid), "{len:#x} bytes at {start:#x}");
    }
    assert_eq!(other.munmap(a, 4 * PAGE), Err(MunmapError::Invalid), "a mapping of another space");
    assert_eq!((layout(&space), flat.frames()), (before, frames));
    space.munmap(a, 4 * PAGE).unwrap();
    assert_eq!(space.munmap(a, 4 * PAGE), Err(MunmapError::Invalid), "a mapping that was already unmapped");
    drop((space, other));
    flat.end();
}

#[test]
fn limit_on_mappings_is_enforced() {
    let flat = Flat::with(Config::new().max_map_count(2));
    let space = flat.space();
    let at = map(&space, 3, RW, PRIVATE);
    let other = map(&space, 3, RW, PRIVATE);
    assert_eq!(space.mmap(0, PAGE, RW, ANON, None, 0), Err(MmapError::TooManyVmas));
    assert_eq!(space.munmap(at + PAGE, PAGE), Err(MunmapError::TooManyVmas));
    assert_eq!((layout(&space).len(), flat.frames()), (2, 6));
    space.munmap(other + PAGE, 2 * PAGE).unwrap();
    space.munmap(other, PAGE).unwrap();
    space.munmap(at + PAGE, PAGE).unwrap();
    assert_eq!(layout(&space), [(at, 1), (at + 2 * PAGE, 1)]);
    space.clear();
    assert_eq!((space.map_count(), space.pages(), flat.frames()), (0, 0, 0));
    map(&space, 1, RW, PRIVATE);
    drop(space);
    flat.end();
}

#[test]
fn random_calls_match_a_list_of_pages() {
    let flat = Flat::new();
    let space = flat.space();
    let mut dice = Dice::new(42);
    let mut random = |below| dice.roll(below);
    // Address, number of pages, and the value in the first page. The value in each further page is greater by
    // one.
    let mut model: Vec<(u64, u64, u64)> = Vec::new();
    for step in 0..4000 {
        if model.is_empty() || random(3) == 0 && model.len() < 60 {
            let pages = 1 + random(30);
            let at = map(&space, pages, RW, PRIVATE);
            (0..pages).for_each(|n| flat.store(at + n * PAGE, step * 100 + n));
            model.push((at, pages, step * 100));
        } else {
            let (at, pages, value) = model.swap_remove(random(model.len() as u64) as usize);
            (0..pages).for_each(|n| assert_eq!(flat.load(at + n * PAGE), value + n));
            let first = random(pages);
            let end = first + 1 + random(pages - first);
            space.munmap(at + first * PAGE, (end - first) * PAGE).unwrap();
            if first > 0 {
                model.push((at, first, value));
            }
            if end < pages {
                model.push((at + end * PAGE, pages - end, value + end));
            }
        }
        let mut expected: Vec<(u64, u64)> = model.iter().map(|(at, pages, _)| (*at, *pages)).collect();
        expected.sort_unstable();
        assert_eq!(layout(&space), expected, "step {step}");
        let pages = model.iter().map(|(_, pages, _)| pages).sum::<u64>();
        assert_eq!(flat.frames() as u64, pages);
        flat.assert_regions(model.len() as u64, pages);
    }
    drop(space);
    flat.end();
}

#[test]
fn frames_in_a_cpu_cache_are_used_for_runs() {
    let flat = Flat::new();
    let space = flat.space();
    let file = flat.file(200);
    (0..200).for_each(|n| assert_eq!(read_number(&file, n * PAGE), Disk::number(n)));
    drop(file);
    let kept = flat.frames() as u64;
    assert!(kept >= 200, "the CPU keeps the frames of the file");
    // All memory except one page, which the engine keeps permanently.
    let at = space.mmap(0, (4096 - 64) * PAGE, RW, ANON, None, 0).unwrap();
    assert_eq!(flat.load(at), 0);
    drop(space);
    flat.end();
}
