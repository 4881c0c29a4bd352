//! Blocks of anonymous memory (`src/fault/mthp.rs`). The tests check which pages one store allocates,
//! depending on the setting, the VMA and the present pages, and when a store allocates only one page. A
//! setting is a sum of block sizes in KiB, for example `16 + 64`.
//!
//! The expected numbers are those of the pagemap of Linux 6.18 with the same block sizes allowed;
//! `recordings/causes/blocks` records such a program there. `shared.rs` has the blocks of shared memory. A
//! new setting or advice is one more row of `blocks_follow_settings_and_advice`.
#![expect(clippy::single_range_in_vec_init, reason = "lists of runs of pages; some have one run")]

use super::*;
use freehold::engine::Blocks;
use std::ops::Range;

const KIB: u64 = 1 << 10;

/// Returns a world that allows blocks of the given sizes, and no huge pages. `always` and `advised` are sums
/// of block sizes in KiB.
fn with(always: u64, advised: u64) -> (World, Process, Vcpu) {
    with_memory(24 << 20, always, advised)
}

/// Returns a world with `bytes` of memory and the block sizes of [`with`], and one process and one CPU of the
/// world.
fn with_memory(bytes: u64, always: u64, advised: u64) -> (World, Process, Vcpu) {
    let blocks = Blocks::new().always(always * KIB).advised(advised * KIB);
    let world = World::with(bytes, Config::new().blocks(blocks));
    let (process, cpu) = (world.process(Locking::default()), world.machine.cpu(0));
    (world, process, cpu)
}

/// Returns the runs of pages that have frames of their own. The numbers of the pages count from `at`.
fn pages(process: &Process, at: u64, count: u64) -> Vec<Range<u64>> {
    // The capacity is reserved for all runs, because the closure runs under page table locks and must not
    // allocate.
    let mut found: Vec<Range<u64>> = Vec::with_capacity(64);
    process.pagemap(at..at + count * PAGE, |present| {
        let pages = (present.range.start() - at) / PAGE..(present.range.end() - at) / PAGE;
        match found.last_mut().filter(|last| last.end == pages.start) {
            _ if present.kind != PageKind::Anon => {}
            Some(last) => last.end = pages.end,
            None => found.push(pages),
        }
    });
    found
}

#[track_caller]
fn store(process: &Process, cpu: &mut Vcpu, at: u64, page: u64) {
    process.store(cpu, at + page * PAGE, page + 1).unwrap();
}

#[test]
fn store_allocates_the_surrounding_block() {
    for locking in Locking::ALL {
        let blocks = Blocks::new().always(64 * KIB);
        let world = World::with(24 << 20, Config::new().blocks(blocks));
        let (process, mut cpu) = (world.process(locking), world.machine.cpu(0));
        anon(&process, BASE, 128);
        store(&process, &mut cpu, BASE, 37);
        assert_eq!(pages(&process, BASE, 128), [32..48]);
        assert_eq!((process.rss().anon, huge_bytes(&process)), (16, 0));
        // No page of the block faults again. Pages of the block without a store contain zeroes.
        let faults = world.machine.stats().faults;
        for page in 32..48 {
            let expected = if page == 37 { 38 } else { 0 };
            assert_eq!(process.load::<u64>(&mut cpu, BASE + page * PAGE), Ok(expected));
            store(&process, &mut cpu, BASE, page);
        }
        assert_eq!(world.machine.stats().faults, faults);
        process.munmap(BASE + 40 * PAGE, PAGE).unwrap();
        assert_eq!(pages(&process, BASE, 128), [32..40, 41..48]);
        process.check();
        drop((process, cpu));
        world.end();
    }
}

#[test]
fn block_is_aligned_and_lies_within_the_vma() {
    let (_world, process, mut cpu) = with(64, 0);
    let at = BASE + 3 * PAGE;
    anon(&process, at, 128);
    for (page, found) in [(0, vec![0..1]), (14, vec![0..1, 13..29]), (127, vec![0..1, 13..29, 127..128])] {
        store(&process, &mut cpu, at, page);
        assert_eq!(pages(&process, at, 128), found);
    }
    // A border between different rights also limits a block while the border exists.
    let at = BASE + HUGE;
    anon(&process, at, 32);
    process.mprotect(at + 8 * PAGE, 8 * PAGE, R).unwrap();
    store(&process, &mut cpu, at, 1);
    store(&process, &mut cpu, at, 17);
    assert_eq!(pages(&process, at, 32), [1..2, 16..32]);
    process.mprotect(at + 8 * PAGE, 8 * PAGE, RW).unwrap();
    store(&process, &mut cpu, at, 2);
    assert_eq!(pages(&process, at, 32), [1..3, 16..32]);
}

#[test]
fn block_is_smaller_next_to_present_pages() {
    // The present entries are zero pages that were read, pages around holes of MADV_DONTNEED, and guards.
    for (sizes, read, holes, guard) in [
        (64, vec![37..39], vec![16..19, 20..32], vec![5..6]),
        (16 + 64, vec![37..39], vec![16..19, 20..32], vec![4..8]),
    ] {
        let (_world, process, mut cpu) = with(sizes, 0);
        anon(&process, BASE, 128);
        assert_eq!(process.load::<u64>(&mut cpu, BASE + 37 * PAGE), Ok(0));
        store(&process, &mut cpu, BASE, 38);
        store(&process, &mut cpu, BASE, 37);
        assert_eq!(pages(&process, BASE, 128), read);
        store(&process, &mut cpu, BASE, 41);
        let expected = if sizes == 64 { vec![37..39, 41..42] } else { vec![37..39, 40..44] };
        assert_eq!(pages(&process, BASE, 128), expected);

        let at = BASE + HUGE;
        anon(&process, at, 32);
        store(&process, &mut cpu, at, 20);
        process.madvise(at + 18 * PAGE, 2 * PAGE, Advice::DontNeed).unwrap();
        store(&process, &mut cpu, at, 18);
        assert_eq!(pages(&process, at, 32), holes);
        process.madvise(at + 16 * PAGE, 16 * PAGE, Advice::DontNeed).unwrap();
        store(&process, &mut cpu, at, 31);
        assert_eq!(pages(&process, at, 32), [16..32]);

        let at = BASE + 2 * HUGE;
        anon(&process, at, 32);
        process.madvise(at + 3 * PAGE, PAGE, Advice::GuardInstall).unwrap();
        store(&process, &mut cpu, at, 5);
        assert_eq!(pages(&process, at, 32), guard);
        process.check();
    }
}

#[test]
fn blocks_follow_settings_and_advice() {
    let (block, alone) = (vec![0..16], vec![5..6]);
    let word = ThpDisable::Nowhere;
    for (always, advised, advice, word, found) in [
        (64, 0, None, word, &block),
        (64, 0, Some(Advice::HugePage), word, &block),
        (64, 0, Some(Advice::NoHugePage), word, &alone),
        (0, 64, None, word, &alone),
        (0, 64, Some(Advice::HugePage), word, &block),
        (64, 64, Some(Advice::HugePage), ThpDisable::Everywhere, &alone),
        (64, 64, None, ThpDisable::UnlessAdvised, &alone),
        (64, 0, Some(Advice::HugePage), ThpDisable::UnlessAdvised, &block),
        // The largest block that fits is used.
        (16 + 64 + 1024, 0, None, word, &block),
        // 4, 8 and 2048 KiB are not valid block sizes.
        (4 + 8 + 2048, 8, Some(Advice::HugePage), word, &alone),
    ] {
        let (world, process, mut cpu) = with(always, advised);
        anon(&process, BASE, 32);
        if let Some(advice) = advice {
            process.madvise(BASE, 32 * PAGE, advice).unwrap();
        }
        process.set_thp_disable(word);
        let eligible = process.smaps(BASE).next().unwrap().huge_eligible;
        assert_eq!(eligible, found == &block, "{always} {advised} {advice:?} {word:?}");
        store(&process, &mut cpu, BASE, 5);
        assert_eq!(&pages(&process, BASE, 32), found, "{always} {advised} {advice:?} {word:?}");
        world.engine().set_blocks(Blocks::default());
        store(&process, &mut cpu, BASE, 20);
        assert_eq!(pages(&process, BASE, 32).last(), Some(&(20..21)));
    }
    let (_world, process, mut cpu) = with(64, 0);
    for (flag, found) in [(MapFlags::STACK, alone), (MapFlags::GROWSDOWN, block)] {
        process.mmap(BASE, 32 * PAGE, RW, ANON | MapFlags::FIXED | flag, None, 0).unwrap();
        store(&process, &mut cpu, BASE, 5);
        assert_eq!(pages(&process, BASE, 32), found);
    }
    // A VMA is eligible if it has room for one aligned block.
    for (pages, eligible) in [(15, false), (28, false), (29, true)] {
        process.munmap(BASE, HUGE).unwrap();
        anon(&process, BASE + 3 * PAGE, pages);
        assert_eq!(process.smaps(BASE).next().unwrap().huge_eligible, eligible, "{pages}");
    }
}

#[test]
fn populating_allocates_blocks_only_for_writing() {
    let (_world, process, mut cpu) = with(64, 0);
    anon(&process, BASE, 128);
    process.madvise(BASE + 3 * PAGE, PAGE, Advice::PopulateRead).unwrap();
    assert_eq!(pages(&process, BASE, 128), []);
    process.madvise(BASE + 19 * PAGE, PAGE, Advice::PopulateWrite).unwrap();
    process.madvise(BASE + 3 * PAGE, PAGE, Advice::PopulateWrite).unwrap();
    assert_eq!(pages(&process, BASE, 128), [3..4, 16..32]);
    process.mlock(BASE + 64 * PAGE, PAGE).unwrap();
    assert_eq!(pages(&process, BASE, 128), [3..4, 16..32, 64..65]);
    // A store to a shared page copies one page. A store to unpopulated memory of the child allocates a block.
    let child = Process::of(process.fork().unwrap());
    store(&child, &mut cpu, BASE, 20);
    store(&child, &mut cpu, BASE, 33);
    assert_eq!(pages(&child, BASE, 128), [3..4, 16..48, 64..65]);
    assert_eq!(pages(&process, BASE, 128), [3..4, 16..32, 64..65]);
    assert_eq!(process.load::<u64>(&mut cpu, BASE + 20 * PAGE), Ok(0));
    process.check();
    child.check();
}

#[test]
fn huge_page_is_preferred_to_a_block() {
    let (world, process, mut cpu) = with(64, 0);
    world.engine().set_huge_pages(HugePages::Always);
    map(&process, BASE, 1);
    anon(&process, BASE + 2 * HUGE, 32);
    store(&process, &mut cpu, BASE, 100);
    store(&process, &mut cpu, BASE + 2 * HUGE, 5);
    assert_eq!(present(&process, BASE, 1), ONE);
    assert_eq!(pages(&process, BASE + 2 * HUGE, 32), [0..16]);
}

#[test]
fn failed_block_allocation_falls_back_to_a_page() {
    // The tables and the first block of 1 MiB leave less than 1 MiB free.
    let (world, process, mut cpu) = with_memory(2 << 20, 1024, 0);
    anon(&process, BASE, 2 * PAGES);
    let before = world.machine.accounting().frames;
    store(&process, &mut cpu, BASE, 5);
    store(&process, &mut cpu, BASE, 300);
    assert_eq!(pages(&process, BASE, 2 * PAGES), [0..256, 300..301]);
    // The frames allocated for the second block were freed, or are in the caches of the engine.
    assert_eq!(process.rss().anon, 257);
    assert!(world.machine.accounting().frames > before);
    process.check();
    drop((process, cpu));
    world.end();
}
