//! Reverse map walks (`src/rmap/walk.rs`), and migration of mapped pages (`src/rmap/migrate.rs`). Most
//! scenarios run on every design, including those of the locks of files ([`everywhere`]). The TLBs of the
//! machine keep stale translations until they are flushed.
//!
//! `migrate` moves a page to another frame; `entries` counts the page-table entries that map it. The tests
//! compare contents, counts and rights in all processes afterwards. One test makes random calls and compares
//! them with a model. Pages that cannot move must be refused.

use crate::support::*;
use freehold::{
    PageRange,
    call::{Advice, RemapFlags},
    engine::HugePages,
    rmap::MigrateError,
};
use std::collections::BTreeMap;

/// Runs `scenario` on every design, including those of the locks of files, with huge pages on advice.
fn everywhere(scenario: impl Fn(&World, &Process, &mut Vcpu)) {
    everywhere_with(24 << 20, &Config::new().huge_pages(HugePages::Madvise), scenario);
}

/// Migrates the page at an address, and checks that its frame has changed.
#[track_caller]
fn migrate(world: &World, process: &Process, at: u64) {
    let old = process.frame_at(at).expect("no page at the address");
    let new = world.engine().migrate(old).expect("moved");
    assert_ne!(old, new);
}

/// Returns the number of entries that map the page at the address.
fn entries(world: &World, process: &Process, at: u64) -> u64 {
    world.engine().entries_of(process.frame_at(at).expect("no page at the address"))
}

#[test]
fn anonymous_page_migrates_in_all_processes() {
    everywhere(|world, process, cpu| {
        let at = anon(process, BASE, 4);
        for page in 0..4 {
            process.store(cpu, at + page * PAGE, page + 1).unwrap();
        }
        let children: Vec<_> = (0..3).map(|_| Process::of(process.fork().unwrap())).collect();
        children[0].store(cpu, at, 100u64).unwrap();
        assert_eq!((entries(world, process, at), entries(world, &children[0], at)), (3, 1));
        assert_eq!(entries(world, process, at + PAGE), 4);
        migrate(world, process, at);
        migrate(world, &children[1], at + PAGE);
        migrate(world, &children[0], at);
        for (number, child) in children.iter().enumerate() {
            let first: u64 = if number == 0 { 100 } else { 1 };
            assert_eq!((child.load(cpu, at), child.load(cpu, at + PAGE)), (Ok(first), Ok(2u64)));
            child.check();
        }
        assert_eq!(process.load(cpu, at), Ok(1u64));
        // A shared page is still shared after the migration, and a store copies the page.
        process.store(cpu, at + PAGE, 7u64).unwrap();
        assert_eq!(children[1].load(cpu, at + PAGE), Ok(2u64));
        assert_eq!(entries(world, &children[1], at + PAGE), 3);
    });
}

#[test]
fn rmap_finds_pages_after_vma_changes() {
    everywhere(|world, process, cpu| {
        let at = anon(process, BASE, 8);
        (0..8).for_each(|page| process.store(cpu, at + page * PAGE, page).unwrap());
        // The pages are found after a split and after a merge.
        process.mprotect(at + 2 * PAGE, 2 * PAGE, R).unwrap();
        migrate(world, process, at + 2 * PAGE);
        process.mprotect(at + 2 * PAGE, 2 * PAGE, RW).unwrap();
        process.check();
        migrate(world, process, at + 3 * PAGE);
        // The pages are found after moves of single entries and of whole page tables.
        let far = at + (1 << 30);
        process
            .mremap(at + 4 * PAGE, 2 * PAGE, 2 * PAGE, RemapFlags::MAYMOVE | RemapFlags::FIXED, far)
            .unwrap();
        process.check();
        migrate(world, process, far + PAGE);
        let child = Process::of(process.fork().unwrap());
        assert_eq!(entries(world, &child, far), 2);
        migrate(world, &child, far);
        process.munmap(at, 2 * PAGE).unwrap();
        assert_eq!(entries(world, &child, at + PAGE), 1);
        for page in [2, 3, 6, 7] {
            assert_eq!(process.load(cpu, at + page * PAGE), Ok(page));
        }
        assert_eq!((process.load(cpu, far), child.load(cpu, far + PAGE)), (Ok(4u64), Ok(5u64)));
        child.check();
    });
}

#[test]
fn migrated_page_has_the_rights_of_its_vma() {
    everywhere(|world, process, cpu| {
        let at = anon(process, BASE, 1);
        process.store(cpu, at, 5u64).unwrap();
        process.mprotect(at, PAGE, R).unwrap();
        migrate(world, process, at);
        assert!(process.store(cpu, at, 6u64).is_err());
        process.mprotect(at, PAGE, Prot::empty()).unwrap();
        migrate(world, process, at);
        assert!(process.load::<u64>(cpu, at).is_err());
        process.mprotect(at, PAGE, RW).unwrap();
        process.store(cpu, at, 6u64).unwrap();
        assert_eq!(process.load(cpu, at), Ok(6u64));
    });
}

#[test]
fn part_of_a_huge_page_migrates() {
    everywhere(|world, process, cpu| {
        let at = anon(process, BASE, 512);
        process.madvise(at, 512 * PAGE, Advice::HugePage).unwrap();
        process.store(cpu, at + 100 * PAGE, 1u64).unwrap();
        let child = Process::of(process.fork().unwrap());
        migrate(world, process, at + 100 * PAGE);
        assert_eq!(
            (process.load(cpu, at + 100 * PAGE), child.load(cpu, at + 100 * PAGE)),
            (Ok(1u64), Ok(1u64))
        );
        assert_eq!(entries(world, process, at), 2);
        child.check();
    });
}

#[test]
fn page_of_a_file_migrates_with_its_contents() {
    everywhere(|world, process, cpu| {
        let file = world.file(8);
        let map = |flags| process.mmap(0, 8 * PAGE, RW, flags, Some(&file), 0).unwrap();
        let (shared, private) = (map(MapFlags::SHARED), map(MapFlags::PRIVATE));
        process.store(cpu, shared + 8, 99u64).unwrap();
        assert_eq!(process.load(cpu, private + 8), Ok(99u64));
        assert_eq!(entries(world, process, shared), 2);
        migrate(world, process, shared);
        assert_eq!(
            (process.load(cpu, shared), process.load(cpu, private + 8)),
            (Ok(Disk::number(0)), Ok(99u64))
        );
        // A private copy is not a page of the file.
        process.store(cpu, private + PAGE, 1u64).unwrap();
        migrate(world, process, private + PAGE);
        assert_eq!(process.load(cpu, shared + PAGE), Ok(Disk::number(1)));
        assert_eq!(process.load(cpu, private + PAGE), Ok(1u64));
        file.mapping().truncate(0).unwrap();
        assert!(process.load::<u64>(cpu, shared).is_err());
    });
}

#[test]
fn long_rmap_walk_releases_the_lock_in_between() {
    let world = World::with(24 << 20, Config::new().lock_stats(true));
    let process = world.process(Locking::default());
    let file = world.file(1 << 20);
    let mut cpu = world.machine.cpu(0);
    let at = process.mmap(0, PAGE << 20, RW, MapFlags::SHARED, Some(&file), 0).unwrap();
    let touched = [0u64, 511, 512, 70_000, (1 << 20) - 1];
    let holds = || world.engine().file_lock_stats().unwrap().read.held.count();
    touched.iter().for_each(|n| process.store(&mut cpu, at + n * PAGE, 7u64).unwrap());
    let before = holds();
    file.mapping().write_back((0..1 << 20).into()).unwrap();
    // The lock is taken once for each group of pages in the cache, however many pages are mapped.
    assert!((3..20).contains(&(holds() - before)), "{} holds", holds() - before);
    assert!(touched.iter().all(|n| process.load(&mut cpu, at + n * PAGE) == Ok(7u64)));
    let before = holds();
    file.mapping().truncate(PAGE).unwrap();
    assert!(holds() - before > 100, "{} holds", holds() - before);
    assert_eq!(process.load(&mut cpu, at), Ok(7u64));
    assert!(touched[1..].iter().all(|n| process.load::<u64>(&mut cpu, at + n * PAGE).is_err()));
    assert_eq!(process.rss().file, 1);
    process.check();
    drop((process, cpu, file));
    world.end();
}

#[test]
fn unmovable_pages_are_refused() {
    everywhere(|world, process, cpu| {
        let at = anon(process, BASE, 1);
        assert_eq!(process.load(cpu, at), Ok(0u64));
        assert_eq!(process.frame_at(at), None, "the zero page has no frame of the engine");
        process.store(cpu, at, 3u64).unwrap();
        let gone = process.frame_at(at).unwrap();
        process.munmap(at, PAGE).unwrap();
        assert_eq!(world.engine().migrate(gone), Err(MigrateError::NoPage));
        assert_eq!(world.engine().entries_of(gone), 0);
    });
}

/// Random calls of a tree of processes with migrations, compared with a model.
#[test]
fn random_calls_with_migrations_match_the_model() {
    for seed in 0..24 {
        let locking = Locking::ALL[seed as usize % Locking::ALL.len()];
        let world = World::with(24 << 20, Config::new().huge_pages(HugePages::Never));
        let mut cpu = world.machine.cpu(0);
        let mut dice = Dice::new(seed);
        let mut pick = |n| dice.roll(n);
        let mut processes = vec![(world.process(locking), BTreeMap::<u64, u64>::new())];
        const PAGES: u64 = 24;
        anon(&processes[0].0, BASE, PAGES);
        for step in 0..400u64 {
            let members = processes.len();
            let who = pick(members as u64) as usize;
            let at = BASE + pick(2 * PAGES) * PAGE;
            let (process, known) = &mut processes[who];
            match pick(10) {
                0..=3 => {
                    if process.store(&mut cpu, at, step).is_ok() {
                        known.insert(at, step);
                    }
                }
                4 | 5 => {
                    if let Some(pfn) = process.frame_at(at) {
                        world
                            .engine()
                            .migrate(pfn)
                            .unwrap_or_else(|error| panic!("seed {seed}, step {step}: {error}"));
                    }
                }
                6 => {
                    let len = (1 + pick(4)) * PAGE;
                    let prot = if pick(2) == 0 { R } else { RW };
                    let _ = process.mprotect(at, len, prot);
                }
                7 => {
                    let (len, to) = ((1 + pick(3)) * PAGE, BASE + pick(2 * PAGES) * PAGE);
                    let moved = process.mremap(at, len, len, RemapFlags::MAYMOVE | RemapFlags::FIXED, to);
                    if moved.is_ok() {
                        pages_moved(known, at, len, to);
                    } else {
                        // The failed call may have unmapped the target.
                        known.retain(|page, _| process.frame_at(*page).is_some());
                    }
                }
                8 if members < 5 => {
                    let child = (Process::of(process.fork().unwrap()), known.clone());
                    processes.push(child);
                }
                _ if members > 1 && pick(4) == 0 => drop(processes.swap_remove(who)),
                _ => {
                    for (page, value) in known.iter() {
                        assert_eq!(
                            process.load(&mut cpu, *page),
                            Ok(*value),
                            "seed {seed}, step {step}, {page:#x}"
                        );
                    }
                }
            }
            processes.iter().for_each(|(process, _)| process.check());
        }
        drop((processes, cpu));
        world.end();
    }
}

/// Truncation and write-back cover far more pages than are mapped. The walks do not iterate over all of them.
#[test]
fn largest_file_is_truncated_and_written_back() {
    everywhere(|world, process, cpu| {
        const LARGEST: u64 = i64::MAX as u64;
        let mapping = Mapping::new(world.engine(), Disk, LARGEST, false).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/a/file").unwrap();
        let last = LARGEST / PAGE;
        // Pages at the start, in the middle and at the end. Two VMAs begin where other VMAs end, and one VMA
        // overlaps three others.
        let places = [0, 1, 5, 1 << 20, (1 << 20) + 1, last - 1];
        for (n, index) in (0..).zip(places) {
            process
                .mmap(
                    BASE + n * PAGE,
                    PAGE,
                    RW,
                    MapFlags::SHARED | MapFlags::FIXED,
                    Some(&file),
                    index * PAGE,
                )
                .unwrap();
            process.store(cpu, BASE + n * PAGE, n + 1).unwrap();
        }
        let over = process.mmap(0, 16 * PAGE, RW, MapFlags::SHARED, Some(&file), 0).unwrap();
        assert_eq!((process.load(cpu, over), process.load(cpu, over + 5 * PAGE)), (Ok(1u64), Ok(3u64)));
        mapping.write_back(PageRange::ALL).unwrap();
        for n in 0..places.len() as u64 {
            let frame = process.frame_at(BASE + n * PAGE).unwrap();
            assert_eq!(world.engine().mkclean(frame), Ok(0), "the page is still writable");
        }
        mapping.punch(PAGE..LARGEST).unwrap();
        assert_eq!(process.rss().file, 2, "only the two mappings of the first page are left");
        for (n, index) in (0..).zip(places).skip(1) {
            assert_eq!(process.load(cpu, BASE + n * PAGE), Ok(Disk::number(index)));
        }
        mapping.truncate(0).unwrap();
        assert_eq!(process.rss().file, 0);
    });
}
