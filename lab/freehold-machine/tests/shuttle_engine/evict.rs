//! Reclaim (`src/reclaim/`) concurrent with the use of pages, truncation, munmap, moves and other reclaim.
//!
//! No store is lost, and no task keeps a page that its file has dropped. The machine's oracles detect the use
//! of a freed frame. Reclaim visits the few frames of the scene several times, so that it meets pages in each
//! state. `pageout.rs` and `drop_clean.rs` explore the steps that reclaim shares with calls of programs.

use crate::{
    drop_clean::{Store, map_file, open, open_on, words},
    explore::{explore, thread},
    scene::{PAGE, Scene, page, unmap, value},
};
use freehold::{PageIndex, PageRange, call::Advice, reclaim::ReclaimRequest};

/// Reclaims what can go in some visits of memory.
fn reclaim(scene: &Scene) -> u64 {
    scene.engine.reclaim(&ReclaimRequest::pages(u64::MAX)).freed
}

#[test]
fn stores_to_a_file_concurrent_with_reclaim_are_kept() {
    explore("stores of two processes to a file concurrent with reclaim", 100, |locking| {
        let scene = Scene::new(locking);
        let store = Store::default();
        let (file, other) = (open_on(&scene, store.clone()), scene.another());
        map_file(&scene.process, &file);
        map_file(&other, &file);
        file.mapping().fill(PageIndex::new(0)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                scene.process.store(&mut cpu, page(0), 5u64).unwrap();
                assert_eq!(scene.process.load(&mut cpu, page(0)), Ok(5u64));
            });
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(1);
                other.store(&mut cpu, page(0) + 8, 6u64).unwrap();
                file.mapping().write_at(PAGE, &7u64.to_le_bytes()).unwrap();
            });
            scope.spawn(|| reclaim(&scene));
        });
        assert_eq!((words(&file, 0), words(&file, 1)), ([5, 6], [7, 0]));
        // What reclaim leaves and what it takes is on the disk.
        reclaim(&scene);
        file.mapping().write_back(PageRange::ALL).unwrap();
        assert_eq!((store.first(0), store.first(1)), (Some(5), Some(7)));
        unmap(&scene.process, 0..2);
        drop((file, other));
        scene.assert_empty();
        scene.end();
    });
}

#[test]
fn stores_after_madv_free_survive_reclaim() {
    explore("stores after MADV_FREE concurrent with reclaim", 100, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..2);
        let [first, second] = [0, 1].map(|number| scene.acquainted(number, 0..2));
        scene.process.madvise(page(0), 2 * PAGE, Advice::Free).unwrap();
        thread::scope(|scope| {
            let (scene, mut first, mut second) = (&scene, first, second);
            scope.spawn(move || {
                scene.process.store(&mut first, page(0), 7u64).unwrap();
                assert_eq!(scene.process.load(&mut first, page(0)), Ok(7u64));
            });
            scope.spawn(move || {
                let found: u64 = scene.process.load(&mut second, page(1)).unwrap();
                assert!(found == 0 || found == value(1), "{found}");
            });
            scope.spawn(move || reclaim(scene));
        });
        let mut cpu = scene.machine.cpu(2);
        assert_eq!(scene.process.load(&mut cpu, page(0)), Ok(7u64));
        drop(cpu);
        unmap(&scene.process, 0..2);
        scene.assert_empty();
        scene.end();
    });
}

#[test]
fn reclaim_concurrent_with_truncation_munmap_and_reclaim() {
    explore("truncation, munmap and two tasks that reclaim", 100, |locking| {
        let scene = Scene::new(locking);
        let (file, other) = (open(&scene), scene.another());
        map_file(&scene.process, &file);
        map_file(&other, &file);
        (0..2).for_each(|index| file.mapping().fill(PageIndex::new(index)).unwrap());
        let mut cpu = scene.machine.cpu(2);
        assert_eq!(other.load(&mut cpu, page(1)), Ok(0u64));
        scene.process.store(&mut cpu, page(0), 5u64).unwrap();
        drop(cpu);
        thread::scope(|scope| {
            scope.spawn(|| file.mapping().truncate(PAGE).unwrap());
            scope.spawn(|| unmap(&other, 0..2));
            (0..2).for_each(|_| {
                scope.spawn(|| reclaim(&scene));
            });
        });
        assert_eq!(words(&file, 0), [5, 0]);
        unmap(&scene.process, 0..2);
        drop((file, other));
        scene.assert_empty();
        scene.end();
    });
}

#[test]
fn reclaim_concurrent_with_a_move_and_a_fork() {
    explore("a move of a page and a fork concurrent with reclaim", 100, |locking| {
        let scene = Scene::new(locking);
        let file = open(&scene);
        map_file(&scene.process, &file);
        let mut cpu = scene.machine.cpu(2);
        scene.process.store(&mut cpu, page(0), 5u64).unwrap();
        let frame = scene.process.frame_at(page(0)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                let child = freehold_machine::Process::of(scene.process.fork().unwrap());
                assert_eq!(child.load(&mut cpu, page(0)), Ok(5u64));
            });
            scope.spawn(|| scene.engine.migrate(frame).is_ok());
            scope.spawn(|| reclaim(&scene));
        });
        assert_eq!(scene.process.load(&mut cpu, page(0)), Ok(5u64));
        drop(cpu);
        unmap(&scene.process, 0..2);
        drop(file);
        scene.assert_empty();
        scene.end();
    });
}
