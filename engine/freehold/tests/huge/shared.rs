//! Blocks of shared memory (`src/fault/shmem_mthp.rs`, `src/file/cache/mthp.rs`): the pages that a first
//! access allocates and maps, by the setting, the file and the VMA; and the state after a file loses pages of
//! a block.
//!
//! `each_way` of this file runs a scenario with a setting. A test compares the runs of mapped pages
//! (`mapped`) and of cached pages (`cached`) with expected numbers. These are the numbers of pagemap and
//! mincore of Linux 6.18 with the same block sizes allowed; `recordings/causes/shared-blocks` records such a
//! program there. `blocks.rs` has the blocks of anonymous memory. A new setting is one more row of
//! `shared_blocks_follow_settings_and_advice`.
#![expect(clippy::single_range_in_vec_init, reason = "lists of runs of pages; some have one run")]

use super::*;
use crate::support::{Counted, File, FileAccess, Machine, Mapping};
use freehold::{
    PageIndex,
    call::ShmFlags,
    engine::{SharedBlocks, SharedHuge},
    fault::FaultError,
    file::Segment,
};
use freehold_machine::{fail_heap_once, stop_failing_heap};
use std::{ops::Range, slice, thread};

const KIB: u64 = 1 << 10;
const NONE: SharedBlocks = SharedBlocks::new();
/// Blocks of 64 KiB in all mappings.
const ALWAYS: SharedBlocks = NONE.always(64 * KIB);
const SHARED: MapFlags = MapFlags::SHARED.union(MapFlags::FIXED);
const PRIVATE: MapFlags = MapFlags::PRIVATE.union(MapFlags::FIXED);

fn world(shared_blocks: SharedBlocks) -> World {
    World::with(24 << 20, Config::new().shared_blocks(shared_blocks))
}

/// Runs `scenario` on every design.
fn each_way(blocks: SharedBlocks, scenario: impl Fn(&World, &Process, &mut Vcpu)) {
    Locking::ALL.into_iter().for_each(|locking| world(blocks).live(locking, &scenario));
}

fn memfd(world: &World, pages: u64) -> Counted<File<Machine>> {
    let mapping = Mapping::memfd(world.engine(), pages * PAGE).unwrap();
    File::new(&mapping, FileAccess::READ_WRITE, "/memfd:x (deleted)").unwrap()
}

/// Maps `pages` of the file at `at`.
fn map_file(
    process: &Process,
    file: &Counted<File<Machine>>,
    at: u64,
    flags: MapFlags,
    pages: Range<u64>,
) -> u64 {
    let len = (pages.end - pages.start) * PAGE;
    process.mmap(at, len, RW, flags, Some(file), pages.start * PAGE).unwrap()
}

/// Returns the runs of present pages from `at` on, numbered from `at`.
fn mapped(process: &Process, at: u64, count: u64) -> Vec<Range<u64>> {
    // The capacity is reserved for all runs, because the closure runs under page table locks and must not
    // allocate.
    let mut found: Vec<Range<u64>> = Vec::with_capacity(64);
    process.pagemap(at..at + count * PAGE, |present| {
        let pages = (present.range.start() - at) / PAGE..(present.range.end() - at) / PAGE;
        match found.last_mut().filter(|last| last.end == pages.start) {
            Some(last) => last.end = pages.end,
            None => found.push(pages),
        }
    });
    found
}

/// Returns the runs of pages that are in the cache of the file.
fn cached(file: &File<Machine>) -> Vec<Range<u64>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    for page in (0..file.mapping().pages()).filter(|page| file.mapping().has_page(PageIndex::new(*page))) {
        match found.last_mut().filter(|last| last.end == page) {
            Some(last) => last.end = page + 1,
            None => found.push(page..page + 1),
        }
    }
    found
}

#[track_caller]
fn touch(process: &Process, cpu: &mut Vcpu, at: u64, page: u64, write: bool) {
    match write {
        true => process.store(cpu, at + page * PAGE, page + 1).unwrap(),
        false => drop(process.load::<u64>(cpu, at + page * PAGE).unwrap()),
    }
}

/// Address of a second mapping of the same file.
const OTHER: u64 = BASE + 8 * HUGE;

#[test]
fn first_access_allocates_and_maps_a_block() {
    for write in [false, true] {
        each_way(ALWAYS, |world, process, cpu| {
            let file = memfd(world, 64);
            map_file(process, &file, BASE, SHARED, 0..64);
            touch(process, cpu, BASE, 20, write);
            assert_eq!((mapped(process, BASE, 64), cached(&file)), (vec![16..32], vec![16..32]));
            assert_eq!(process.rss().shmem, 16);
            // The other pages of the block read as zeroes, and none of them faults again.
            let faults = world.machine.stats().faults;
            for page in (16..32).filter(|page| *page != 20) {
                assert_eq!(process.load::<u64>(cpu, BASE + page * PAGE), Ok(0));
                if write {
                    touch(process, cpu, BASE, page, true);
                }
            }
            assert_eq!(world.machine.stats().faults, faults);
            process.munmap(BASE, 64 * PAGE).unwrap();
            assert_eq!((process.rss().shmem, cached(&file)), (0, vec![16..32]));
        });
    }
}

#[test]
fn block_needs_matching_alignment_of_file_and_memory() {
    for write in [false, true] {
        each_way(ALWAYS, |world, process, cpu| {
            let file = memfd(world, 64);
            let at = map_file(process, &file, BASE + 18 * PAGE, SHARED, 18..60);
            for page in [2, 22, 32] {
                touch(process, cpu, at, page, write);
            }
            assert_eq!(mapped(process, at, 42), [2..3, 14..30, 32..33]);
            assert_eq!(cached(&file), [20..21, 32..48, 50..51]);
            // If address and offset differ in alignment, a fault maps a cached block as a whole but allocates
            // none.
            let file = memfd(world, 64);
            map_file(process, &file, OTHER, SHARED, 0..64);
            touch(process, cpu, OTHER, 20, write);
            let at = map_file(process, &file, OTHER + HUGE + PAGE, SHARED, 0..64);
            touch(process, cpu, at, 25, write);
            touch(process, cpu, at, 40, write);
            assert_eq!(mapped(process, at, 64), [16..32, 40..41]);
        });
    }
}

/// Maps a block that another mapping has allocated. A read maps the 16 pages around the accessed page, or the
/// whole block if the block lies in the VMA. A write maps the whole block or one page.
#[test]
fn cached_block_is_mapped_whole_if_it_lies_in_the_vma() {
    let blocks = NONE.always(64 * KIB + 256 * KIB);
    for (start, pages, page, read, written) in [
        (OTHER, 0..128, 70, vec![64..128], vec![64..128]),
        // The window of a read overlaps both blocks.
        (OTHER + 8 * PAGE, 0..128, 56, vec![0..128], vec![0..64]),
        (OTHER + 18 * PAGE, 18..60, 7, vec![0..16], vec![7..8]),
        // A page table ends at page 72 of the file.
        (OTHER + 440 * PAGE, 0..128, 70, vec![0..72], vec![70..71]),
    ] {
        for (write, found) in [(false, read), (true, written)] {
            each_way(blocks, |world, process, cpu| {
                let file = memfd(world, 128);
                map_file(process, &file, BASE, SHARED, 0..128);
                touch(process, cpu, BASE, 0, true);
                touch(process, cpu, BASE, 100, true);
                let child = Process::of(process.fork().unwrap());
                assert_eq!(child.rss().shmem, 0, "fork does not copy entries of shared pages");
                map_file(&child, &file, start, SHARED, pages.clone());
                touch(&child, cpu, start, page, write);
                assert_eq!(mapped(&child, start, 128), found, "{start:#x} {write}");
                child.check();
            });
        }
    }
}

#[test]
fn block_is_smaller_next_to_cached_pages() {
    let blocks = NONE.always((16 + 64 + 256) * KIB);
    each_way(blocks, |world, process, cpu| {
        let file = memfd(world, 128);
        map_file(process, &file, BASE, SHARED, 0..128);
        file.mapping().write_at(20 * PAGE, &[1]).unwrap();
        assert_eq!(cached(&file), [20..21], "a write call allocates one page");
        touch(process, cpu, BASE, 17, true);
        touch(process, cpu, BASE, 28, true);
        touch(process, cpu, BASE, 90, true);
        assert_eq!(mapped(process, BASE, 128), [16..20, 28..32, 64..128]);
        // A guard or a present page keeps a store from mapping the rest of a block.
        process.madvise(BASE + 66 * PAGE, 2 * PAGE, Advice::DontNeed).unwrap();
        touch(process, cpu, BASE, 66, true);
        assert_eq!(mapped(process, BASE, 128).last(), Some(&(68..128)));
        assert_eq!(process.load::<u64>(cpu, BASE + 67 * PAGE), Ok(0));
        assert_eq!(mapped(process, BASE, 128).last(), Some(&(64..128)));
        map_file(process, &file, OTHER, SHARED, 0..128);
        process.madvise(OTHER + 70 * PAGE, PAGE, Advice::GuardInstall).unwrap();
        touch(process, cpu, OTHER, 90, true);
        assert_eq!(mapped(process, OTHER, 128), [90..91]);
    });
}

#[test]
fn shared_blocks_follow_settings_and_advice() {
    let (block, alone) = (0..16, 5..6);
    let size = 64 * KIB;
    let nowhere = ThpDisable::Nowhere;
    let inherit = |all| NONE.all(all).inherit(size);
    // Each case maps a memfd of 64 pages.
    for (blocks, advice, word, found) in [
        (ALWAYS, None, nowhere, &block),
        (NONE.within_size(size), None, nowhere, &block),
        (NONE.advised(size), None, nowhere, &alone),
        (NONE.advised(size), Some(Advice::HugePage), nowhere, &block),
        (ALWAYS, Some(Advice::NoHugePage), nowhere, &alone),
        (ALWAYS, None, ThpDisable::Everywhere, &alone),
        (ALWAYS, None, ThpDisable::UnlessAdvised, &alone),
        (ALWAYS, Some(Advice::HugePage), ThpDisable::UnlessAdvised, &block),
        (ALWAYS.all(SharedHuge::Deny), None, nowhere, &alone),
        (ALWAYS.all(SharedHuge::Force), None, nowhere, &alone),
        (inherit(SharedHuge::Never), Some(Advice::HugePage), nowhere, &alone),
        (inherit(SharedHuge::Always), None, nowhere, &block),
        (inherit(SharedHuge::Force), None, nowhere, &block),
        // The surrounding 2 MiB are not all within the file.
        (inherit(SharedHuge::WithinSize), None, nowhere, &alone),
        (inherit(SharedHuge::WithinSize), Some(Advice::HugePage), nowhere, &block),
        (inherit(SharedHuge::Advise), None, nowhere, &alone),
        (inherit(SharedHuge::Advise), Some(Advice::HugePage), nowhere, &block),
        // 4 KiB is not a valid block size, 8 KiB is.
        (NONE.always(4 * KIB), None, nowhere, &alone),
        (NONE.always(8 * KIB), None, nowhere, &(4..6)),
    ] {
        let world = world(blocks);
        let (process, mut cpu) = (world.process(Locking::default()), world.machine.cpu(0));
        let file = memfd(&world, 64);
        map_file(&process, &file, BASE, SHARED, 0..64);
        process.set_thp_disable(word);
        if let Some(advice) = advice {
            process.madvise(BASE, 64 * PAGE, advice).unwrap();
        }
        let eligible = process.smaps(BASE).next().unwrap().huge_eligible;
        assert_eq!(eligible, found != &alone, "{blocks:?} {advice:?} {word:?}");
        touch(&process, &mut cpu, BASE, 5, true);
        assert_eq!(mapped(&process, BASE, 64), slice::from_ref(found), "{blocks:?} {advice:?} {word:?}");
        assert_eq!(world.engine().shared_blocks().all, blocks.all);
        world.engine().set_shared_blocks(NONE);
        touch(&process, &mut cpu, BASE, 40, false);
        assert_eq!(mapped(&process, BASE, 64).last(), Some(&(40..41)));
    }
}

#[test]
fn within_size_limits_blocks_to_the_file() {
    let within = NONE.within_size(64 * KIB);
    for (blocks, found) in [(ALWAYS, vec![0..16, 32..40]), (within, vec![0..16, 35..36])] {
        each_way(blocks, |world, process, cpu| {
            let file = memfd(world, 40);
            map_file(process, &file, BASE, SHARED, 0..64);
            touch(process, cpu, BASE, 35, true);
            touch(process, cpu, BASE, 10, false);
            // With `always`, Linux also maps the part of a block that is beyond the end of the file.
            assert_eq!(mapped(process, BASE, 64), found);
            assert!(process.load::<u64>(cpu, BASE + 40 * PAGE).is_err());
            file.mapping().truncate(64 * PAGE).unwrap();
            assert_eq!(process.load::<u64>(cpu, BASE + 45 * PAGE), Ok(0));
            file.mapping().truncate(36 * PAGE).unwrap();
            assert!(process.load::<u64>(cpu, BASE + 36 * PAGE).is_err());
            assert_eq!(process.load::<u64>(cpu, BASE + 35 * PAGE), Ok(36));
        });
    }
    let inherit = NONE.all(SharedHuge::WithinSize).inherit(64 * KIB);
    each_way(inherit, |world, process, cpu| {
        let file = memfd(world, 600);
        map_file(process, &file, BASE, SHARED, 0..600);
        touch(process, cpu, BASE, 5, true);
        touch(process, cpu, BASE, 560, true);
        assert_eq!(mapped(process, BASE, 600), [0..16, 560..561]);
    });
}

#[test]
fn blocks_of_2_mib_are_mapped_by_small_pages() {
    let huge = NONE.all(SharedHuge::Always).inherit(HUGE).always(64 * KIB);
    each_way(huge, |world, process, cpu| {
        let file = memfd(world, 1200);
        map_file(process, &file, BASE, SHARED, 0..1200);
        touch(process, cpu, BASE, 5, true);
        touch(process, cpu, BASE, 600, false);
        touch(process, cpu, BASE, 1100, true);
        assert_eq!(mapped(process, BASE, 1200), [0..1024, 1088..1104]);
        assert_eq!(process.rss().shmem, 1040);
        let at = map_file(process, &file, OTHER, SHARED, 100..1100);
        touch(process, cpu, at, 7, false);
        assert_eq!(mapped(process, at, 1000).first(), Some(&(0..16)), "the window of a read");
    });
}

/// A System V segment, and shared memory of a mount without its own setting, follow only the global setting.
#[test]
fn segments_follow_global_and_mount_settings() {
    let size = 64 * KIB;
    for (blocks, mount, found) in [
        (ALWAYS, None, 20..21),
        (NONE.all(SharedHuge::Always), None, 0..512),
        (NONE.all(SharedHuge::WithinSize), None, 0..512),
        (ALWAYS.all(SharedHuge::Advise), None, 20..21),
        (NONE.all(SharedHuge::Always).always(size), Some(SharedHuge::Never), 20..21),
        (NONE.all(SharedHuge::Force), Some(SharedHuge::Never), 0..512),
        (NONE.all(SharedHuge::Deny), Some(SharedHuge::Always), 20..21),
        (NONE, Some(SharedHuge::Always), 0..512),
    ] {
        each_way(blocks, |world, process, cpu| {
            let segment = Segment::new(world.engine(), 1, 600 * PAGE).unwrap();
            segment.mapping().set_mount_huge(mount);
            assert_eq!(segment.mapping().mount_huge(), mount);
            process.shmat(&segment, BASE, ShmFlags::empty()).unwrap();
            touch(process, cpu, BASE, 20, true);
            assert_eq!(mapped(process, BASE, 600), slice::from_ref(&found), "{blocks:?} {mount:?}");
        });
    }
}

#[test]
fn private_store_copies_one_page_of_a_block() {
    each_way(ALWAYS, |world, process, cpu| {
        let file = memfd(world, 64);
        map_file(process, &file, BASE, PRIVATE, 0..64);
        touch(process, cpu, BASE, 20, true);
        assert_eq!((mapped(process, BASE, 64), cached(&file)), (vec![20..21], vec![16..32]));
        touch(process, cpu, BASE, 21, false);
        assert_eq!(mapped(process, BASE, 64), [16..32]);
        assert_eq!((process.rss().anon, process.rss().shmem), (1, 15));
    });
}

/// A block that loses pages by a hole or a truncation is unmapped everywhere. The remaining pages are mapped
/// again as smaller blocks.
#[test]
fn hole_or_truncation_splits_a_block() {
    /// A change of the file that removes pages, or zeroes a part of a page.
    type Change = fn(&Mapping<Machine>);
    let punch: Change = |mapping| mapping.punch(22 * PAGE..25 * PAGE).unwrap();
    let part: Change = |mapping| mapping.punch(22 * PAGE..22 * PAGE + 100).unwrap();
    let end: Change = |mapping| {
        mapping.truncate(21 * PAGE).unwrap();
        mapping.truncate(64 * PAGE).unwrap();
    };
    for (change, left, page, found) in [
        (punch, vec![0..22, 25..32], 28, vec![28..32]),
        (punch, vec![0..22, 25..32], 20, vec![20..22]),
        (punch, vec![0..22, 25..32], 25, vec![25..26]),
        (part, vec![0..32], 22, vec![22..23]),
        (part, vec![0..32], 30, vec![24..32]),
        (end, vec![0..21], 18, vec![16..20]),
        (end, vec![0..21], 20, vec![20..21]),
    ] {
        each_way(ALWAYS, |world, process, cpu| {
            let file = memfd(world, 64);
            map_file(process, &file, BASE, SHARED, 0..64);
            touch(process, cpu, BASE, 3, true);
            touch(process, cpu, BASE, 20, true);
            // Another process has a private copy of one page of the block.
            let child = Process::of(process.fork().unwrap());
            map_file(&child, &file, OTHER, PRIVATE, 0..64);
            touch(&child, cpu, OTHER, 17, true);
            touch(&child, cpu, OTHER, 18, false);
            change(file.mapping());
            assert_eq!(mapped(process, BASE, 64), [0..16], "the other block stays mapped");
            assert_eq!(cached(&file), left);
            assert_eq!(mapped(&child, OTHER + 16 * PAGE, 16), [1..2], "the private copy stays mapped");
            touch(process, cpu, BASE, page, true);
            assert_eq!(mapped(process, BASE + 16 * PAGE, 48), [found[0].start - 16..found[0].end - 16]);
            assert_eq!(process.load::<u64>(cpu, BASE + 20 * PAGE), Ok(21));
            child.check();
        });
    }
    // One hole covers exactly a block, and one covers pages that are not present.
    each_way(ALWAYS, |world, process, cpu| {
        let file = memfd(world, 64);
        map_file(process, &file, BASE, SHARED, 0..64);
        touch(process, cpu, BASE, 3, true);
        touch(process, cpu, BASE, 20, true);
        file.mapping().punch(16 * PAGE..48 * PAGE).unwrap();
        assert_eq!((mapped(process, BASE, 64), cached(&file)), (vec![0..16], vec![0..16]));
        touch(process, cpu, BASE, 20, false);
        assert_eq!(mapped(process, BASE, 64), [0..32]);
    });
}

#[test]
fn failed_block_allocation_falls_back_to_smaller_pages() {
    let all = NONE.always(HUGE + 64 * KIB);
    each_way(all, |world, process, cpu| {
        let file = memfd(world, 1024);
        map_file(process, &file, BASE, SHARED, 0..1024);
        // Each heap allocation of the cache index fails once.
        let mut came = Vec::new();
        for nth in 1.. {
            fail_heap_once(nth);
            let stored = process.store(cpu, BASE + 5 * PAGE, 1u64);
            if stop_failing_heap() == 0 {
                break;
            }
            assert!(matches!(stored, Ok(()) | Err(FaultError::OutOfMemory)));
            came.extend(mapped(process, BASE, 512));
            file.mapping().punch(0..HUGE).unwrap();
        }
        assert!(came.contains(&(0..16)), "{came:?}");
        assert_eq!(mapped(process, BASE, 512), [0..512]);
    });
    // The machine never has enough contiguous memory for a block.
    let world = World::with(1 << 20, Config::new().shared_blocks(all));
    let (process, mut cpu) = (world.process(Locking::default()), world.machine.cpu(0));
    let file = memfd(&world, 512);
    map_file(&process, &file, BASE, SHARED, 0..512);
    touch(&process, &mut cpu, BASE, 20, true);
    assert_eq!(mapped(&process, BASE, 512), [16..32]);
    let mut page = 0;
    while process.store(&mut cpu, BASE + page * PAGE, page + 1).is_ok() {
        page += 1;
    }
    assert!(page > 128, "{page}");
    for n in 0..page {
        assert_eq!(process.load(&mut cpu, BASE + n * PAGE), Ok(n + 1));
    }
    process.check();
    drop((process, cpu, file));
    world.end();
}

/// Faults of two processes, holes and truncations run concurrently. A stored word stays until its page is
/// removed, and no frame leaks.
#[test]
fn concurrent_faults_and_holes_keep_contents_and_leak_nothing() {
    let blocks = NONE.always((16 + 64) * KIB).within_size(256 * KIB);
    for locking in Locking::ALL {
        let world = world(blocks);
        let file = memfd(&world, 256);
        let (first, second) = (world.process(locking), world.process(locking));
        for process in [&first, &second] {
            map_file(process, &file, BASE, SHARED, 0..256);
        }
        thread::scope(|scope| {
            for (number, process) in [&first, &second].into_iter().enumerate() {
                let world = &world;
                scope.spawn(move || {
                    let (mut cpu, mut dice) = (world.machine.cpu(number), Dice::new(number as u64));
                    for turn in 0..400u64 {
                        // Each process stores to pages of its own that no other task removes.
                        let page = dice.roll(64) * 2 + number as u64;
                        process.store(&mut cpu, BASE + page * PAGE, turn).unwrap();
                        assert_eq!(process.load(&mut cpu, BASE + page * PAGE), Ok(turn));
                        let _ = process.load::<u64>(&mut cpu, BASE + (128 + dice.roll(128)) * PAGE);
                    }
                });
            }
            scope.spawn(|| {
                let mut dice = Dice::new(7);
                for _ in 0..100 {
                    let start = (128 + dice.roll(120)) * PAGE;
                    file.mapping().punch(start..start + dice.roll(8) * PAGE + dice.roll(2) * 100).unwrap();
                    file.mapping().truncate((130 + dice.roll(126)) * PAGE + dice.roll(2)).unwrap();
                }
            });
        });
        for process in [first, second] {
            process.check();
        }
        drop(file);
        world.end();
    }
}
