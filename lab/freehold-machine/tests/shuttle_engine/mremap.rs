//! mremap concurrent with faults and truncation (C-39, C-40).
//!
//! The code under test is `call/mremap/`. A page is at its old address or at its new address, with every
//! store to the page; `find` and `put` access the page at either address. The moves differ in size, because
//! entries move one by one within and between tables, and whole tables move at once. Moves concurrent with
//! reverse map walks are in `rmap.rs`.

use crate::{
    explore::{explore, thread},
    files,
    scene::{ANON, PAGE, R, RW, Scene, TABLE, Vcpu, beyond, map, page, unmap, unmapped, value},
};
use freehold::{
    call::RemapFlags,
    space::{Locking, MapFlags, Placement, SpaceConfig},
};
use freehold_machine::Process;
use freehold_sync::atomic::{AtomicBool, Ordering::SeqCst};

const MOVE: RemapFlags = RemapFlags::MAYMOVE.union(RemapFlags::FIXED);

/// Returns the first word of a page that may move from page `from` to page `to` at any time. Panics if the
/// page is at neither address.
fn find(scene: &Scene, cpu: &mut Vcpu, from: u64, to: u64) -> u64 {
    scene.process.load(cpu, page(from)).unwrap_or_else(|error| {
        assert_eq!(Err::<u64, _>(error), unmapped(page(from)));
        scene.process.load(cpu, page(to)).expect("the page is at neither address")
    })
}

/// Stores `what` to a page that may move from page `from` to page `to` at any time.
fn put(scene: &Scene, cpu: &mut Vcpu, from: u64, to: u64, what: u64) {
    if scene.process.store(cpu, page(from), what).is_err() {
        scene.process.store(cpu, page(to), what).expect("the page is at neither address");
    }
}

/// Moves `len` pages, the first two of which are present, while one thread stores and another loads.
fn move_beside_faults(locking: Locking, from: u64, to: u64, len: u64) {
    let scene = Scene::new(locking);
    map(&scene.process, from..from + len, ANON);
    scene.fill(from..from + 2);
    let moved = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let at = scene.process.mremap(page(from), len * PAGE, len * PAGE, MOVE, page(to));
            assert_eq!(at, Ok(page(to)));
            moved.store(true, SeqCst);
            scene.assert_unmapped(from..from + 2);
        });
        scope.spawn(|| {
            let mut cpu = scene.machine.cpu(0);
            for number in 1..4 {
                put(&scene, &mut cpu, from, to, number);
                assert_eq!(find(&scene, &mut cpu, from, to), number, "a store was lost");
            }
        });
        scope.spawn(|| {
            let mut cpu = scene.machine.cpu(1);
            for _ in 0..2 {
                let late = moved.load(SeqCst);
                assert_eq!(find(&scene, &mut cpu, from + 1, to + 1), value(from + 1));
                assert!(!late || scene.process.load::<u64>(&mut cpu, page(from + 1)).is_err());
            }
        });
    });
    let mut cpu = scene.machine.cpu(2);
    assert_eq!(scene.process.load(&mut cpu, page(to)), Ok(3u64));
    assert_eq!(scene.process.rss().anon, 2);
    drop(cpu);
    unmap(&scene.process, to..to + len);
    scene.assert_empty();
    scene.end();
}

#[test]
fn c39_move_within_a_table_concurrent_with_faults() {
    explore("mremap within a table during faults", 60, |locking| move_beside_faults(locking, 0, 8, 2));
}

#[test]
fn c39_move_to_another_table_concurrent_with_faults() {
    explore("mremap to another table, concurrent with faults", 60, |locking| {
        // The source lies in two tables.
        move_beside_faults(locking, TABLE - 1, 3 * TABLE, 2);
    });
}

#[test]
fn c40_move_of_whole_tables_concurrent_with_faults() {
    explore("mremap of a whole table, concurrent with faults", 60, |locking| {
        move_beside_faults(locking, 0, 4 * TABLE, TABLE);
    });
}

/// Grows a mapping, which must move to an address that mremap chooses. A range writer claims the target in
/// addition to the source. If `apart` is true, another mapping lies between source and target.
fn grow_elsewhere(locking: Locking, apart: bool) {
    let scene = Scene::new(locking);
    // With first fit, the target does not depend on the CPU of the thread.
    let config = SpaceConfig::new().locking(locking).placement(Placement::FirstFit);
    let process = &Process::new(&scene.engine, &config).unwrap();
    let top = process.mmap(0, PAGE, RW, ANON, None, 0).unwrap();
    let from = process.mmap(0, 2 * PAGE, RW, ANON, None, 0).unwrap();
    let wall = process.mmap(from + 2 * PAGE, PAGE, R, ANON | MapFlags::FIXED, None, 0).unwrap();
    assert_eq!((from, wall), (top - 2 * PAGE, top));
    let between = if apart { process.mmap(0, PAGE, R, ANON, None, 0).unwrap() } else { from };
    let to = between - 3 * PAGE;
    let mut cpu = scene.machine.cpu(2);
    for number in 0..2 {
        process.store(&mut cpu, from + number * PAGE, value(number)).unwrap();
    }
    thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(process.mremap(from, 2 * PAGE, 3 * PAGE, RemapFlags::MAYMOVE, 0), Ok(to));
            assert!(process.find_vma(from).is_none());
        });
        scope.spawn(|| {
            let mut cpu = scene.machine.cpu(0);
            for number in [1, 0, 1] {
                let found = process.load::<u64>(&mut cpu, from + number * PAGE);
                let found = found.or_else(|_| process.load(&mut cpu, to + number * PAGE));
                assert_eq!(found, Ok(value(number)), "the page is at neither address");
            }
        });
    });
    process.check();
}

#[test]
fn c39_move_to_a_chosen_target_concurrent_with_faults() {
    for apart in [false, true] {
        explore("mremap to a chosen target, concurrent with faults", 100, move |locking| {
            grow_elsewhere(locking, apart)
        });
    }
}

#[test]
fn c39_move_of_a_file_concurrent_with_truncation() {
    explore("mremap of a mapped file concurrent with truncation", 100, |locking| {
        let scene = Scene::new(locking);
        let file = files::file(&scene);
        files::map_file(&scene.process, &file);
        let mut cpu = scene.machine.cpu(1);
        for number in 0..2 {
            scene.process.store(&mut cpu, page(number), value(number)).unwrap();
        }
        thread::scope(|scope| {
            let (scene, mut old) = (&scene, cpu);
            scope.spawn(|| {
                assert_eq!(scene.process.mremap(page(0), 2 * PAGE, 2 * PAGE, MOVE, page(8)), Ok(page(8)));
            });
            scope.spawn(move || {
                file.mapping().truncate(PAGE).unwrap();
                // No CPU reaches the truncated page any more, at its old or its new address.
                for at in [page(1), page(9), page(1)] {
                    let found = scene.process.load::<u64>(&mut old, at);
                    assert!(found == unmapped(at) || found == beyond(at), "{found:?}");
                }
            });
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                assert_eq!(find(scene, &mut cpu, 0, 8), value(0));
            });
        });
        assert_eq!(scene.process.load(&mut scene.machine.cpu(2), page(8)), Ok(value(0)));
        unmap(&scene.process, 8..10);
        scene.assert_empty();
        scene.end();
    });
}

#[test]
fn resizing_mremap_concurrent_with_faults() {
    explore("shrinking and growing mremap concurrent with faults", 60, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..2);
        thread::scope(|scope| {
            scope.spawn(|| {
                let resize = |old: u64, new: u64| {
                    scene.process.mremap(page(0), old * PAGE, new * PAGE, RemapFlags::empty(), 0)
                };
                assert_eq!(resize(2, 1), Ok(page(0)));
                scene.assert_unmapped(1..2);
                assert_eq!(resize(1, 2), Ok(page(0)));
            });
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                for number in 1..4u64 {
                    scene.process.store(&mut cpu, page(0), number).unwrap();
                    assert_eq!(scene.process.load(&mut cpu, page(0)), Ok(number));
                    let tail = scene.process.load::<u64>(&mut cpu, page(1));
                    assert!(tail == Ok(value(1)) || tail == Ok(0) || tail == unmapped(page(1)), "{tail:?}");
                }
            });
        });
        assert_eq!(scene.process.load(&mut scene.machine.cpu(1), page(1)), Ok(0u64));
        unmap(&scene.process, 0..2);
        scene.assert_empty();
        scene.end();
    });
}
