//! Anonymous pages that migrate while programs use, fork, move and unmap them.
//!
//! The code under test is `rmap/migrate.rs` and `rmap/walk.rs`. No task reads a stale copy, no store is lost,
//! and no walk misses an entry. A walk that missed an entry would report `MigrateError::NoPage`, or leave a
//! marker of the migration behind. Several scenarios therefore require that `Engine::migrate` succeeds, and
//! count the entries of the new frame with `entries_of`; the helper `migrate` also accepts errors that a
//! concurrent call explains. Pages of files are in `file_moves.rs`, failing pages in `failure.rs`.

use crate::{
    explore::{explore, thread},
    scene::{ANON, OLD, PAGE, Scene, TABLE, Vcpu, map, page, unmap, unmapped, value},
};
use freehold::{call::RemapFlags, rmap::MigrateError};
use freehold_machine::Process;
use std::ops::Range;

/// Migrates the page at `number` if it is present. Allows the migration to fail because another task uses the
/// page or has unmapped it.
fn migrate(scene: &Scene, process: &Process, number: u64) {
    if let Some(pfn) = process.frame_at(page(number)) {
        match scene.engine.migrate(pfn) {
            Ok(new) => assert_ne!(new, pfn),
            Err(MigrateError::Busy | MigrateError::NoPage) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Loads the first word of a mapped page.
fn look(process: &Process, cpu: &mut Vcpu, number: u64) -> u64 {
    process.load(cpu, page(number)).unwrap()
}

/// Ends a scenario. Checks that nothing leaked.
fn end(scene: Scene) {
    scene.process.check();
    unmap(&scene.process, 0..8);
    scene.end();
}

#[test]
fn store_concurrent_with_migration_is_kept() {
    explore("a store concurrent with migration", 40, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..1);
        thread::scope(|scope| {
            scope.spawn(|| migrate(&scene, &scene.process, 0));
            for (cpu, offset) in [(0, 8), (1, 16)] {
                let scene = &scene;
                scope.spawn(move || {
                    let mut cpu = scene.acquainted(cpu, 0..1);
                    scene.process.store(&mut cpu, page(0) + offset, offset).unwrap();
                    assert_eq!(scene.process.load(&mut cpu, page(0) + offset), Ok(offset));
                });
            }
        });
        let mut cpu = scene.machine.cpu(OLD);
        assert_eq!(look(&scene.process, &mut cpu, 0), value(0));
        for offset in [8, 16] {
            assert_eq!(scene.process.load(&mut cpu, page(0) + offset), Ok(offset));
        }
        assert_eq!(scene.process.rss().anon, 1);
        drop(cpu);
        end(scene);
    });
}

#[test]
fn fork_concurrent_with_migration_copies_the_page() {
    explore("fork and a store concurrent with migration", 30, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..2);
        let child = thread::scope(|scope| {
            scope.spawn(|| migrate(&scene, &scene.process, 0));
            scope.spawn(|| {
                let mut cpu = scene.acquainted(0, 1..2);
                scene.process.store(&mut cpu, page(1), 7u64).unwrap();
            });
            scope.spawn(|| Process::of(scene.process.fork().unwrap())).join().unwrap()
        });
        let mut cpu = scene.machine.cpu(2);
        assert_eq!(look(&child, &mut cpu, 0), value(0));
        let second = look(&child, &mut cpu, 1);
        assert!(second == value(1) || second == 7, "{second}");
        scene.process.store(&mut cpu, page(0), 8u64).unwrap();
        assert_eq!((look(&child, &mut cpu, 0), look(&scene.process, &mut cpu, 0)), (value(0), 8));
        assert_eq!((child.rss().anon, scene.process.rss().anon), (2, 2));
        child.check();
        drop((cpu, child));
        end(scene);
    });
}

#[test]
fn c39_mremap_concurrent_with_migration_loses_no_entry() {
    explore("mremap of a page concurrent with its migration, in parent and child", 30, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..2);
        let child = Process::of(scene.process.fork().unwrap());
        thread::scope(|scope| {
            scope.spawn(|| {
                let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
                scene.process.mremap(page(0), PAGE, PAGE, flags, page(4)).unwrap();
            });
            scope.spawn(|| migrate(&scene, &child, 0));
            scope.spawn(|| migrate(&scene, &scene.process, 1));
        });
        let mut cpu = scene.machine.cpu(2);
        assert_eq!([4, 1].map(|number| look(&scene.process, &mut cpu, number)), [value(0), value(1)]);
        assert_eq!([0, 1].map(|number| look(&child, &mut cpu, number)), [value(0), value(1)]);
        assert_eq!((child.rss().anon, scene.process.rss().anon), (2, 2));
        child.check();
        drop((cpu, child));
        end(scene);
    });
}

#[test]
fn munmap_concurrent_with_migration_frees_the_page() {
    explore("munmap concurrent with migration of a shared page", 30, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..2);
        let child = Process::of(scene.process.fork().unwrap());
        thread::scope(|scope| {
            scope.spawn(|| {
                unmap(&scene.process, 0..1);
                scene.assert_unmapped(0..1);
            });
            scope.spawn(|| migrate(&scene, &child, 0));
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                let found = scene.process.load(&mut cpu, page(0));
                assert!(found == Ok(value(0)) || found == unmapped(page(0)), "{found:?}");
            });
        });
        let mut cpu = scene.machine.cpu(2);
        assert_eq!(look(&child, &mut cpu, 0), value(0));
        assert_eq!((child.rss().anon, scene.process.rss().anon), (2, 1));
        child.check();
        drop((cpu, child));
        end(scene);
    });
}

#[test]
fn splits_and_merges_hide_no_page_from_a_walk() {
    explore("splits and merges by mprotect concurrent with migrations", 30, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..3);
        thread::scope(|scope| {
            scope.spawn(|| {
                for prot in [crate::scene::R, crate::scene::RW] {
                    scene.process.mprotect(page(1), PAGE, prot).unwrap();
                }
            });
            scope.spawn(|| {
                let old = scene.process.frame_at(page(1)).unwrap();
                // No other task holds a reference, so the migration succeeds whatever happens to the VMAs.
                let new = scene.engine.migrate(old).unwrap();
                assert_eq!(scene.process.frame_at(page(1)), Some(new));
            });
        });
        let mut cpu = scene.machine.cpu(2);
        scene.process.store(&mut cpu, page(1) + 8, 5u64).unwrap();
        assert_eq!(look(&scene.process, &mut cpu, 1), value(1));
        drop(cpu);
        end(scene);
    });
}

/// Moves the pages `from` to each page number in `to` by mremap, while another task migrates page `fill`.
/// That page has only one reference, its entry, so a walk that missed this entry would find no page.
fn move_beside_migration(name: &str, share: usize, fill: u64, from: Range<u64>, to: &'static [u64]) {
    explore(name, share, move |locking| {
        let scene = Scene::new(locking);
        let len = (from.end - from.start) * PAGE;
        map(&scene.process, from.clone(), ANON);
        let mut cpu = scene.machine.cpu(OLD);
        for number in [from.start, fill] {
            scene.process.store(&mut cpu, page(number), value(number)).unwrap();
        }
        drop(cpu);
        let old = scene.process.frame_at(page(fill)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut at = from.start;
                for &to in to {
                    let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
                    scene.process.mremap(page(at), len, len, flags, page(to)).unwrap();
                    at = to;
                }
            });
            scope.spawn(|| {
                let new = scene.engine.migrate(old).unwrap();
                // If an entry moves concurrently, a walk may find the entry at both addresses, and must find
                // the entry at one address at least.
                assert_ne!(scene.engine.entries_of(new), 0);
            });
            // Stores through translations that become stale. The machine detects a store to a frame that has
            // a new owner.
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(1);
                let offset = fill - from.start;
                let mut meanwhile =
                    |number| _ = scene.process.store(&mut cpu, page(number + offset) + 8, 1u64);
                to.iter().for_each(|&to| (0..2).for_each(|_| meanwhile(to)));
            });
        });
        let at = *to.last().unwrap();
        let mut cpu = scene.machine.cpu(2);
        assert_eq!(look(&scene.process, &mut cpu, at + fill - from.start), value(fill));
        drop(cpu);
        scene.process.check();
        unmap(&scene.process, 0..8 * TABLE);
        scene.end();
    });
}

#[test]
fn c39_walk_finds_entries_that_move_back_and_forth() {
    move_beside_migration(
        "a page moved back and forth concurrent with its migration",
        50,
        5,
        4..6,
        &[8, 2, 6],
    );
}

#[test]
fn c40_walk_finds_entries_in_moving_tables() {
    const TO: [u64; 2] = [2 * TABLE, 4 * TABLE];
    move_beside_migration("whole tables moved concurrent with a migration", 30, 3, 0..TABLE, &TO);
}

#[test]
fn c39_walk_finds_a_page_that_moves_into_the_preceding_vma() {
    explore("mremap that merges with the preceding VMA, concurrent with a migration", 50, |locking| {
        let scene = Scene::new(locking);
        // The middle page of a VMA of three pages moves away. When the page moves back, its VMA merges with
        // both neighbours.
        scene.fill(0..3);
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        let go = |from: u64, to: u64| scene.process.mremap(page(from), PAGE, PAGE, flags, page(to)).unwrap();
        go(1, 6);
        let old = scene.process.frame_at(page(6)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| go(6, 1));
            scope.spawn(|| {
                let new = scene.engine.migrate(old).unwrap();
                assert_eq!(scene.engine.entries_of(new), 1);
            });
        });
        let mut cpu = scene.machine.cpu(2);
        assert_eq!(look(&scene.process, &mut cpu, 1), value(1));
        drop(cpu);
        end(scene);
    });
}
