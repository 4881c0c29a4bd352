//! Blocks: which pages one store brings, by the setting, the VMA, and what is there; and where a page comes
//! alone. The numbers are what the pagemap of Linux 6.18 shows with the same sizes allowed.
#![expect(clippy::single_range_in_vec_init, reason = "runs of pages, often one alone")]

use super::*;
use freehold::engine::Blocks;
use std::ops::Range;

const KIB: u64 = 1 << 10;

/// A machine with blocks of these sizes, in KiB, added up, and no huge pages by themselves.
fn with(always: u64, advised: u64) -> (World, Process, Vcpu) {
    with_memory(24 << 20, always, advised)
}

fn with_memory(bytes: u64, always: u64, advised: u64) -> (World, Process, Vcpu) {
    let blocks = Blocks { always: always * KIB, advised: advised * KIB };
    let world = World::with(bytes, Config { blocks, ..Config::default() });
    let (process, cpu) = (world.process(Locking::default()), world.machine.cpu(0));
    (world, process, cpu)
}

/// The pages from `at` on that hold something of their own, by their numbers from there.
fn pages(process: &Process, at: u64, count: u64) -> Vec<Range<u64>> {
    // Room for all: it is filled under the locks of page tables.
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
fn a_store_brings_the_block_around_it() {
    for locking in Locking::ALL {
        let blocks = Blocks { always: 64 * KIB, advised: 0 };
        let world = World::with(24 << 20, Config { blocks, ..Config::default() });
        let (process, mut cpu) = (world.process(locking), world.machine.cpu(0));
        anon(&process, BASE, 128);
        store(&process, &mut cpu, BASE, 37);
        assert_eq!(pages(&process, BASE, 128), [32..48]);
        assert_eq!((process.rss().anon, huge_bytes(&process)), (16, 0));
        // Nothing in it faults again, and the rest is zeroes.
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
fn it_lies_within_the_vma_at_a_multiple_of_its_size() {
    let (_world, process, mut cpu) = with(64, 0);
    let at = BASE + 3 * PAGE;
    anon(&process, at, 128);
    for (page, found) in [(0, vec![0..1]), (14, vec![0..1, 13..29]), (127, vec![0..1, 13..29, 127..128])] {
        store(&process, &mut cpu, at, page);
        assert_eq!(pages(&process, at, 128), found);
    }
    // A change of rights is an edge as well, as long as it lasts.
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
fn where_something_is_a_smaller_one_comes() {
    // Zeroes that were read, holes after MADV_DONTNEED, guards.
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
        let beside = if sizes == 64 { vec![37..39, 41..42] } else { vec![37..39, 40..44] };
        assert_eq!(pages(&process, BASE, 128), beside);

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
fn only_where_blocks_are_wanted() {
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
        // The largest that fits.
        (16 + 64 + 1024, 0, None, word, &block),
        // No sizes of blocks.
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
    // Eligible is what has room for one.
    for (pages, eligible) in [(15, false), (28, false), (29, true)] {
        process.munmap(BASE, HUGE).unwrap();
        anon(&process, BASE + 3 * PAGE, pages);
        assert_eq!(process.smaps(BASE).next().unwrap().huge_eligible, eligible, "{pages}");
    }
}

#[test]
fn what_is_brought_in_without_a_store() {
    let (_world, process, mut cpu) = with(64, 0);
    anon(&process, BASE, 128);
    process.madvise(BASE + 3 * PAGE, PAGE, Advice::PopulateRead).unwrap();
    assert_eq!(pages(&process, BASE, 128), []);
    process.madvise(BASE + 19 * PAGE, PAGE, Advice::PopulateWrite).unwrap();
    process.madvise(BASE + 3 * PAGE, PAGE, Advice::PopulateWrite).unwrap();
    assert_eq!(pages(&process, BASE, 128), [3..4, 16..32]);
    process.mlock(BASE + 64 * PAGE, PAGE).unwrap();
    assert_eq!(pages(&process, BASE, 128), [3..4, 16..32, 64..65]);
    // What a child copies is one page; what it has not touched before comes as a block.
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
fn huge_pages_come_first_where_they_may() {
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
fn without_memory_for_a_block_a_page_comes() {
    // With what tables and the rest take, there is never room for a second MiB.
    let (world, process, mut cpu) = with_memory(2 << 20, 1024, 0);
    anon(&process, BASE, 2 * PAGES);
    let before = world.machine.accounting().frames;
    store(&process, &mut cpu, BASE, 5);
    store(&process, &mut cpu, BASE, 300);
    assert_eq!(pages(&process, BASE, 2 * PAGES), [0..256, 300..301]);
    // Those that were had for the second went back, or lie in the engine's caches.
    assert_eq!(process.rss().anon, 257);
    assert!(world.machine.accounting().frames > before);
    process.check();
    drop((process, cpu));
    world.end();
}
