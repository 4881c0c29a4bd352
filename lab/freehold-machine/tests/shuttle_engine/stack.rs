//! Growing and moving stacks concurrent with munmap, lookups, migrations and new mappings (C-1, C-3, C-40,
//! C-67).
//!
//! A fault below a stack grows its VMA, and so changes the tree without a system call (`fault/stack.rs` in
//! `freehold`). The scenarios run growth concurrently with a munmap of the range below or of the stack
//! itself, with lookups, and with a mapping below. One scenario moves a stack as exec does
//! (`call/stack_move.rs`). Afterwards the stack must have all its pages, and no other page may have been
//! removed or replaced. `stack` maps a stack of one page; a scenario about the stack gap begins with
//! `Scene::gaps`.

use crate::{
    explore::{explore, thread},
    scene::{ANON, PAGE, RW, Scene, map, page, unmap, unmapped, value},
};
use freehold::space::MapFlags;

const STACK: MapFlags = ANON.union(MapFlags::GROWSDOWN);

/// Maps a stack of one page, and stores the [`value`] of the page to it.
fn stack(scene: &Scene, number: u64) {
    map(&scene.process, number..number + 1, STACK);
    scene.process.store(&mut scene.machine.cpu(4), page(number), value(number)).unwrap();
}

#[test]
fn c03_growth_into_a_range_being_unmapped() {
    explore("stack growth into a range that is being unmapped", 100, |locking| {
        let scene = Scene::new(locking);
        scene.fill(5..7);
        stack(&scene, 8);
        let old = scene.acquainted(0, 6..7);
        thread::scope(|scope| {
            scope.spawn(|| unmap(&scene.process, 5..7));
            let (scene, mut old) = (&scene, old);
            scope.spawn(move || {
                let mut cpu = scene.machine.cpu(3);
                // The old page may be visible until the munmap is complete. A page of zeroes belongs to the
                // grown stack, and must stay mapped.
                loop {
                    match scene.process.load(&mut cpu, page(6)) {
                        Ok(0u64) => break,
                        found => assert_eq!(found, Ok(value(6))),
                    }
                    thread::yield_now();
                }
                scene.process.store(&mut cpu, page(6), 6u64).unwrap();
                for cpu in [&mut cpu, &mut old] {
                    assert_eq!(
                        scene.process.load(cpu, page(6)),
                        Ok(6u64),
                        "the munmap removed a page of the stack"
                    );
                }
            });
            scope.spawn(move || {
                let mut cpu = scene.machine.cpu(1);
                assert_eq!(scene.process.load(&mut cpu, page(8)), Ok(value(8)));
                scene.process.store(&mut cpu, page(8), 8u64).unwrap();
                assert_eq!(scene.process.load(&mut cpu, page(8)), Ok(8u64));
            });
        });
        let mut cpu = scene.machine.cpu(2);
        assert_eq!(scene.process.load(&mut cpu, page(6)), Ok(6u64));
        assert_eq!(scene.process.load(&mut cpu, page(7)), Ok(0u64));
        assert_eq!(scene.process.load(&mut cpu, page(8)), Ok(8u64));
        drop(cpu);
        unmap(&scene.process, 5..9);
        scene.assert_empty();
        scene.end();
    });
}

#[test]
fn c01_growth_concurrent_with_lookups() {
    explore("stack growth concurrent with lookups", 100, |locking| {
        let scene = Scene::new(locking);
        stack(&scene, 8);
        thread::scope(|scope| {
            for (cpu, number) in [(0, 6), (1, 3)] {
                let scene = &scene;
                scope.spawn(move || {
                    let mut cpu = scene.machine.cpu(cpu);
                    scene.process.store(&mut cpu, page(number), number).unwrap();
                    assert_eq!(scene.process.load(&mut cpu, page(8)), Ok(value(8)));
                    assert_eq!(scene.process.load(&mut cpu, page(number)), Ok(number));
                });
            }
            scope.spawn(|| {
                for _ in 0..2 {
                    let stack = scene.process.find_vma(page(8)).expect("the stack is always mapped");
                    // The start does not change while the VMA lock is held.
                    let start = stack.start();
                    assert!([8, 6, 3].map(page).contains(&start), "{start:#x}");
                    assert_eq!((stack.start(), stack.end()), (start, page(9)));
                }
            });
        });
        assert_eq!(scene.process.counts().map_count, 1);
        assert_eq!(scene.process.find_vma(page(8)).expect("the stack").start(), page(3));
        unmap(&scene.process, 3..9);
        scene.assert_empty();
        scene.end();
    });
}

#[test]
fn c01_growth_concurrent_with_munmap_of_the_stack() {
    explore("stack growth concurrent with its munmap", 60, |locking| {
        let scene = Scene::new(locking);
        stack(&scene, 8);
        thread::scope(|scope| {
            scope.spawn(|| unmap(&scene.process, 7..9));
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                for number in [7, 5, 7] {
                    // The store fails if the stack is unmapped. If the stack has grown below the range of the
                    // munmap, the part below stays mapped.
                    let stored = scene.process.store(&mut cpu, page(number), number);
                    assert!(stored.is_ok() || stored == unmapped(page(number)), "{stored:?}");
                }
            });
        });
        scene.process.check();
        unmap(&scene.process, 0..9);
        scene.assert_empty();
        scene.end();
    });
}

/// exec moves a stack over a part of itself while its pages are migrated. The migrations and the loads find
/// each page at every moment.
#[test]
fn c40_stack_move_concurrent_with_migration() {
    explore("a stack move concurrent with migrations of its pages", 120, |locking| {
        let scene = Scene::new(locking);
        let (process, first, shift) = (&scene.process, 4u64, 2);
        map(process, first..first + 3, STACK);
        for number in first..first + 3 {
            process.store(&mut scene.machine.cpu(4), page(number), value(number)).unwrap();
        }
        thread::scope(|scope| {
            scope.spawn(|| process.move_stack(page(first), page(shift) - page(0)).unwrap());
            scope.spawn(|| {
                for number in [first, first + 2] {
                    if let Some(pfn) = process.frame_at(page(number)) {
                        // The page may have left that address, but not the stack.
                        scene.engine.migrate(pfn).unwrap();
                    }
                }
            });
            scope.spawn(|| {
                let seen = process.load::<u64>(&mut scene.machine.cpu(0), page(first));
                assert!([value(first), value(first + 2)].map(Ok).contains(&seen), "{seen:?}");
            });
        });
        let mut cpu = scene.machine.cpu(0);
        for number in first..first + 3 {
            assert_eq!(process.load(&mut cpu, page(number - shift)), Ok(value(number)));
        }
        assert_eq!(process.load::<u64>(&mut cpu, page(first + 2)), unmapped(page(first + 2)));
        drop(cpu);
        assert_eq!(process.rss().anon, 3);
        unmap(process, 0..8);
        scene.assert_empty();
        scene.end();
    });
}

#[test]
fn c67_growth_concurrent_with_a_mapping_below() {
    explore("stack growth concurrent with a mapping below", 100, |locking| {
        let (at, gap) = (20, 6);
        let scene = Scene::gaps(locking, gap);
        stack(&scene, at);
        // A mapping at the hint leaves the stack gap free below the current start of the stack, but not below
        // its start after the growth.
        let (to, hint) = (at - 4, at - gap - 2);
        let (grown, mapped) = thread::scope(|scope| {
            let grown = scope.spawn(|| scene.process.store(&mut scene.machine.cpu(0), page(to), 1u64));
            let mapped = scope.spawn(|| scene.process.mmap(page(hint), PAGE, RW, ANON, None, 0).unwrap());
            (grown.join().unwrap(), mapped.join().unwrap())
        });
        match grown {
            Ok(()) => assert!(mapped + PAGE <= page(to - gap) || mapped > page(at), "{mapped:#x}"),
            refused => assert_eq!((refused, mapped), (unmapped(page(to)), page(hint))),
        }
        scene.process.check();
        scene.process.clear();
        scene.assert_empty();
        scene.end();
    });
}
