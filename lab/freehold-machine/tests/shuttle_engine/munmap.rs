//! munmap concurrent with faults, other munmaps and new mappings (C-3).
//!
//! The code under test is `call/munmap.rs` and `space/change/unmap.rs`. After a munmap has returned, no entry
//! may appear in its range, and every frame and table is freed. The ranges share page tables with neighbours
//! that other threads use, and closing ranges overlap new mappings. `Scene::assert_unmapped` checks the range
//! through a CPU with old translations, and `Scene::assert_empty` the tables.

use crate::{
    explore::{explore, thread},
    scene::{ANON, FIXED, PAGE, RW, Scene, TABLE, map, page, unmap, unmapped, value},
};
use freehold_sync::atomic::{AtomicBool, Ordering::SeqCst};

#[test]
fn c03_faults_concurrent_with_two_munmaps() {
    explore("faults concurrent with two overlapping munmaps", 100, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..3);
        let gone = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                unmap(&scene.process, 0..2);
                gone.store(true, SeqCst);
                scene.assert_unmapped(0..2);
            });
            scope.spawn(|| unmap(&scene.process, 1..3));
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                for number in [0, 1, 2, 1] {
                    let late = gone.load(SeqCst) && number < 2;
                    let stored = scene.process.store(&mut cpu, page(number), 7u64);
                    assert!(stored == unmapped(page(number)) || (stored == Ok(()) && !late), "{stored:?}");
                }
            });
        });
        scene.assert_unmapped(0..3);
        scene.assert_empty();
        scene.end();
    });
}

#[test]
fn c03_munmap_concurrent_with_mappings_in_its_edge_tables() {
    explore("munmap concurrent with mappings in its edge page tables", 100, |locking| {
        let scene = Scene::new(locking);
        scene.fill(TABLE - 1..TABLE + 1);
        thread::scope(|scope| {
            scope.spawn(|| unmap(&scene.process, TABLE - 1..TABLE + 1));
            // One adjacent page is mapped and unmapped, the other adjacent page is mapped and stays mapped.
            for (cpu, neighbour) in [(0, TABLE - 2), (1, TABLE + 1)] {
                let scene = &scene;
                scope.spawn(move || {
                    let mut cpu = scene.machine.cpu(cpu);
                    map(&scene.process, neighbour..neighbour + 1, ANON);
                    scene.process.store(&mut cpu, page(neighbour), neighbour).unwrap();
                    assert_eq!(scene.process.load(&mut cpu, page(neighbour)), Ok(neighbour));
                    if neighbour < TABLE {
                        unmap(&scene.process, neighbour..neighbour + 1);
                    }
                });
            }
        });
        scene.assert_unmapped(TABLE - 2..TABLE + 1);
        let stays = TABLE + 1;
        assert_eq!(scene.process.load(&mut scene.machine.cpu(2), page(stays)), Ok(stays));
        // The root, two middle-level tables, and the table of the page that stays.
        assert_eq!(scene.machine.accounting().tables, 4);
        unmap(&scene.process, stays..stays + 1);
        scene.assert_empty();
        scene.end();
    });
}

#[test]
fn c03_fixed_mapping_over_a_closing_range() {
    explore("a fixed mapping over a range that is closing", 100, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..3);
        let old = scene.acquainted(0, 1..2);
        thread::scope(|scope| {
            scope.spawn(|| unmap(&scene.process, 0..3));
            let (scene, mut cpu) = (&scene, old);
            scope.spawn(move || {
                // When this loop ends, the VMA has left the tree, but the munmap need not be complete.
                while scene.process.find_vma(page(1)).is_some() {
                    thread::yield_now();
                }
                map(&scene.process, 1..2, ANON);
                assert_eq!(scene.process.load(&mut cpu, page(1)), Ok(0u64));
                scene.process.store(&mut cpu, page(1), 8u64).unwrap();
                assert_eq!(scene.process.load(&mut cpu, page(1)), Ok(8u64));
            });
            scope.spawn(move || {
                // An mmap of another range need not wait for the closing range. A fault in the closing range
                // must not install an entry.
                let mut cpu = scene.machine.cpu(1);
                map(&scene.process, 5..6, ANON);
                scene.process.store(&mut cpu, page(5), 5u64).unwrap();
                let _ = scene.process.store(&mut cpu, page(2), 2u64);
            });
        });
        let mut cpu = scene.machine.cpu(2);
        assert_eq!(scene.process.load(&mut cpu, page(1)), Ok(8u64));
        assert_eq!(scene.process.load(&mut cpu, page(5)), Ok(5u64));
        scene.assert_unmapped(2..3);
        scene.assert_unmapped(0..1);
        drop(cpu);
        unmap(&scene.process, 0..6);
        scene.assert_empty();
        scene.end();
    });
}

#[test]
fn c03_concurrent_munmaps_of_adjacent_ranges() {
    explore("concurrent munmaps of adjacent ranges", 100, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..4);
        thread::scope(|scope| {
            scope.spawn(|| unmap(&scene.process, 0..2));
            scope.spawn(|| unmap(&scene.process, 2..4));
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                map(&scene.process, 4..5, ANON);
                scene.process.store(&mut cpu, page(4), 4u64).unwrap();
                assert_eq!(scene.process.load(&mut cpu, page(4)), Ok(4u64));
                unmap(&scene.process, 4..5);
            });
        });
        scene.assert_unmapped(0..5);
        scene.assert_empty();
        scene.end();
    });
}

#[test]
fn two_threads_map_and_unmap_without_sharing_memory() {
    explore("two threads map and unmap", 100, |locking| {
        let scene = Scene::new(locking);
        thread::scope(|scope| {
            for number in 0..2 {
                let scene = &scene;
                scope.spawn(move || {
                    let mut cpu = scene.machine.cpu(number);
                    for round in 0..2 {
                        let at = scene.process.mmap(0, 2 * PAGE, RW, ANON, None, 0).unwrap();
                        let mark = (number * 10 + round) as u64 + 1;
                        for at in [at, at + PAGE] {
                            assert_eq!(
                                scene.process.load(&mut cpu, at),
                                Ok(0u64),
                                "memory of another thread"
                            );
                            scene.process.store(&mut cpu, at, mark).unwrap();
                        }
                        assert_eq!(scene.process.load(&mut cpu, at), Ok(mark));
                        scene.process.munmap(at, 2 * PAGE).unwrap();
                    }
                });
            }
        });
        scene.assert_empty_but_fences();
        scene.end();
    });
}

#[test]
fn replaced_mapping_is_never_missing_for_faults() {
    explore("a mapping replaced concurrent with faults", 100, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..3);
        let replaced = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                // No lookup finds a moment at which neither the old mapping nor the new mapping is present.
                assert_eq!(scene.process.mmap(page(1), PAGE, RW, FIXED, None, 0), Ok(page(1)));
                replaced.store(true, SeqCst);
            });
            for cpu in 0..2 {
                let (scene, replaced) = (&scene, &replaced);
                scope.spawn(move || {
                    let mut cpu = scene.machine.cpu(cpu);
                    for _ in 0..3 {
                        let late = replaced.load(SeqCst);
                        let found: u64 = scene.process.load(&mut cpu, page(1)).unwrap();
                        assert!(found == 0 || (found == value(1) && !late), "{found}");
                        scene.process.load::<u64>(&mut cpu, page(2)).unwrap();
                    }
                });
            }
        });
        unmap(&scene.process, 0..3);
        scene.assert_empty();
        scene.end();
    });
}
