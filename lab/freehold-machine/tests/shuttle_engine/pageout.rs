//! MADV_PAGEOUT concurrent with stores, MADV_FREE, fork, pins, moves and munmap.
//!
//! The code under test is `evict.rs` of `freehold-vmspace` and `call/madvise/pageout.rs` of `freehold`. A
//! store that begins after MADV_FREE has returned is never lost, whichever translation its CPU uses, and a
//! page that another process or a pin uses is never freed. The machine's oracles detect the use of a freed
//! frame. `drop_clean.rs` explores the removal of pages from the cache of a file.

use crate::{
    drop_clean::{map_file, open, words},
    explore::{explore, thread},
    scene::{ANON, PAGE, Scene, TABLE, map, page, unmap, value},
};
use freehold::{
    PageIndex, PageRange,
    call::Advice,
    remote::{AccessMode, PinFlags},
    space::MapFlags,
};
use freehold_machine::Process;

fn page_out(process: &Process, pages: u64) {
    process.madvise(page(0), pages * PAGE, Advice::PageOut).unwrap();
}

/// Returns a scene whose two filled pages were freed lazily.
fn freed(scene: Scene) -> Scene {
    scene.fill(0..2);
    scene.process.madvise(page(0), 2 * PAGE, Advice::Free).unwrap();
    scene
}

#[test]
fn stores_after_madv_free_survive_pageout() {
    explore("stores after MADV_FREE concurrent with PAGEOUT and drop_discardable", 150, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..2);
        // Both CPUs have translations of the pages from before MADV_FREE.
        let [first, second] = [0, 1].map(|number| scene.acquainted(number, 0..2));
        scene.process.madvise(page(0), 2 * PAGE, Advice::Free).unwrap();
        thread::scope(|scope| {
            let (scene, mut first, mut second) = (&scene, first, second);
            scope.spawn(move || {
                scene.process.store(&mut first, page(0), 7u64).unwrap();
                assert_eq!(scene.process.load(&mut first, page(0)), Ok(7u64));
                let found: u64 = scene.process.load(&mut first, page(1)).unwrap();
                assert!(found == 0 || found == value(1) || found == 8, "{found}");
            });
            scope.spawn(move || {
                let found: u64 = scene.process.load(&mut second, page(0)).unwrap();
                assert!(found == 0 || found == value(0) || found == 7, "{found}");
                scene.process.write_memory(page(1), &8u64.to_le_bytes(), AccessMode::Plain).unwrap();
            });
            scope.spawn(move || {
                page_out(&scene.process, 2);
                scene.process.drop_discardable();
            });
        });
        let mut cpu = scene.machine.cpu(2);
        assert_eq!([0, 1].map(|n| scene.process.load(&mut cpu, page(n))), [Ok(7u64), Ok(8)]);
        drop(cpu);
        unmap(&scene.process, 0..2);
        scene.assert_empty();
        scene.end();
    });
}

#[test]
fn overlapping_free_and_pageout_flush_before_they_return() {
    explore("MADV_FREE concurrent with PAGEOUT, and stores afterwards", 150, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..2);
        let [first, second] = [0, 1].map(|number| scene.acquainted(number, 0..2));
        thread::scope(|scope| {
            let (scene, mut first, mut second) = (&scene, first, second);
            scope.spawn(move || {
                scene.process.madvise(page(0), PAGE, Advice::Free).unwrap();
                scene.process.store(&mut first, page(0), 7u64).unwrap();
                page_out(&scene.process, 1);
                assert_eq!(scene.process.load(&mut first, page(0)), Ok(7u64));
            });
            scope.spawn(move || {
                page_out(&scene.process, 2);
                assert_eq!(scene.process.load(&mut second, page(1)), Ok(value(1)), "never freed");
            });
            scope.spawn(move || page_out(&scene.process, 1));
        });
        unmap(&scene.process, 0..2);
        scene.assert_empty();
        scene.end();
    });
}

#[test]
fn pageout_concurrent_with_fork_frees_no_shared_page() {
    explore("PAGEOUT of lazily freed pages concurrent with fork", 60, |locking| {
        let scene = freed(Scene::new(locking));
        thread::scope(|scope| {
            let scene = &scene;
            scope.spawn(move || {
                let mut cpu = scene.machine.cpu(0);
                let child = Process::of(scene.process.fork().unwrap());
                let found: u64 = child.load(&mut cpu, page(0)).unwrap();
                assert!(found == 0 || found == value(0) || found == 7, "{found}");
                child.store(&mut cpu, page(1), 9u64).unwrap();
                page_out(&child, 2);
                assert_eq!(child.load(&mut cpu, page(1)), Ok(9u64));
            });
            scope.spawn(move || page_out(&scene.process, 2));
            scope.spawn(move || {
                let mut cpu = scene.machine.cpu(1);
                scene.process.store(&mut cpu, page(0), 7u64).unwrap();
                assert_eq!(scene.process.load(&mut cpu, page(0)), Ok(7u64));
            });
        });
        unmap(&scene.process, 0..2);
        scene.assert_empty();
        scene.end();
    });
}

#[test]
fn pageout_concurrent_with_pins_and_moves() {
    explore("PAGEOUT concurrent with a pin of droppable memory and a move", 100, |locking| {
        let scene = Scene::new(locking);
        map(&scene.process, 0..2, MapFlags::DROPPABLE | MapFlags::ANONYMOUS);
        let mut cpu = scene.machine.cpu(0);
        (0..2).for_each(|number| scene.process.store(&mut cpu, page(number), value(number)).unwrap());
        thread::scope(|scope| {
            let scene = &scene;
            scope.spawn(move || {
                let pins = scene.process.pin_user_pages(page(0), 1, PinFlags::WRITE).unwrap();
                pins.write(0, &7u64.to_le_bytes()).unwrap();
                // A pinned page stays the page of the program.
                let mut cpu = scene.machine.cpu(1);
                assert_eq!(scene.process.load(&mut cpu, page(0)), Ok(7u64));
                let mut found = [0; 8];
                pins.read(0, &mut found).unwrap();
                assert_eq!(u64::from_le_bytes(found), 7);
                pins.unpin_dirty();
            });
            scope.spawn(move || {
                page_out(&scene.process, 2);
                page_out(&scene.process, 2);
            });
            scope.spawn(move || {
                if let Some(pfn) = scene.process.frame_at(page(1)) {
                    let _ = scene.engine.migrate(pfn);
                }
            });
        });
        drop(cpu);
        unmap(&scene.process, 0..2);
        scene.assert_empty();
        scene.end();
    });
}

#[test]
fn pageout_of_a_file_loses_no_store() {
    explore("PAGEOUT of a file concurrent with stores and write-back", 100, |locking| {
        let scene = Scene::new(locking);
        let (file, other) = (open(&scene), scene.another());
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
                page_out(&other, 2);
                assert_eq!(other.load(&mut cpu, page(0) + 8), Ok(6u64));
            });
            scope.spawn(|| {
                page_out(&scene.process, 2);
                file.mapping().write_back(PageRange::ALL).unwrap();
                page_out(&scene.process, 2);
            });
        });
        assert_eq!(words(&file, 0), [5, 6]);
        [&scene.process, &other].into_iter().for_each(|process| unmap(process, 0..2));
        drop((file, other));
        scene.assert_empty();
        scene.end();
    });
}

#[test]
fn store_to_a_lazily_freed_huge_page_survives_pageout() {
    explore("a store to a lazily freed huge page concurrent with PAGEOUT", 60, |locking| {
        let scene = Scene::huge(locking);
        map(&scene.process, 0..TABLE, ANON);
        let mut cpu = scene.machine.cpu(0);
        scene.process.store(&mut cpu, page(5), 1u64).unwrap();
        scene.process.madvise(page(0), TABLE * PAGE, Advice::Free).unwrap();
        assert_eq!(scene.process.load(&mut cpu, page(5)), Ok(1u64));
        thread::scope(|scope| {
            let scene = &scene;
            scope.spawn(move || {
                scene.process.store(&mut cpu, page(5), 7u64).unwrap();
                assert_eq!(scene.process.load(&mut cpu, page(5)), Ok(7u64));
            });
            scope.spawn(move || page_out(&scene.process, TABLE));
            scope.spawn(move || {
                let mut cpu = scene.machine.cpu(1);
                let found: u64 = scene.process.load(&mut cpu, page(6)).unwrap();
                assert_eq!(found, 0);
            });
        });
        let mut cpu = scene.machine.cpu(2);
        assert_eq!(scene.process.load(&mut cpu, page(5)), Ok(7u64));
        drop(cpu);
        unmap(&scene.process, 0..TABLE);
        scene.assert_empty();
        scene.end();
    });
}
