//! A file that two processes map: truncation and hole punching concurrent with faults and munmap (C-26).
//!
//! The code under test is `file/change/truncate.rs`, and `file/cache/radix.rs` for the page index. An access
//! finds data or raises a bus error. No page leaks, and no page is mapped after it left the file. [`file`]
//! creates the files of most other scenarios, and [`map_file`] maps them; these files are shared memory,
//! without a backing store. Four spaces share a file in `files_shared.rs`; files with a backing store are in
//! `drop_clean.rs`.

use crate::{
    explore::{explore, thread},
    scene::{OLD, PAGE, RW, Scene, beyond, page, unmap, unmapped},
};
use freehold::{
    PageIndex,
    counted::Counted,
    file::{File, FileAccess, Mapping, Zeroes},
    space::MapFlags,
};
use freehold_machine::{Machine, Process};
use freehold_sync::atomic::{AtomicBool, Ordering::SeqCst};

/// An open file.
pub type Opened = Counted<File<Machine>>;

/// Creates a file of two pages in shared memory.
pub fn file(scene: &Scene) -> Opened {
    let mapping = Mapping::new(&scene.engine, Zeroes, 2 * PAGE, true).unwrap();
    File::new(&mapping, FileAccess::READ_WRITE, "memory").unwrap()
}

/// Maps the file shared at page 0.
pub fn map_file(process: &Process, file: &Opened) {
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    assert_eq!(process.mmap(page(0), 2 * PAGE, RW, flags, Some(file), 0), Ok(page(0)));
}

/// Reads a word of the file.
fn contents(file: &Opened, offset: u64) -> u64 {
    let mut bytes = [0; 8];
    assert_eq!(file.mapping().read_at(offset, &mut bytes), Ok(8));
    u64::from_le_bytes(bytes)
}

#[test]
fn c26_truncation_concurrent_with_faults_and_munmap() {
    explore("truncation concurrent with stores and munmap in two processes", 150, |locking| {
        let scene = Scene::new(locking);
        let (file, other) = (file(&scene), scene.another());
        map_file(&scene.process, &file);
        map_file(&other, &file);
        other.store(&mut scene.machine.cpu(2), page(1), 3u64).unwrap();
        let short = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                file.mapping().truncate(PAGE).unwrap();
                let mut cpu = scene.machine.cpu(0);
                assert_eq!(scene.process.load::<u64>(&mut cpu, page(1)), beyond(page(1)));
                short.store(true, SeqCst);
            });
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(1);
                for number in 1..3u64 {
                    scene.process.store(&mut cpu, page(0), number).unwrap();
                    let late = short.load(SeqCst);
                    let stored = scene.process.store(&mut cpu, page(1), number);
                    assert!(stored == beyond(page(1)) || (stored == Ok(()) && !late), "{stored:?}");
                    assert_eq!(scene.process.load(&mut cpu, page(0)), Ok(number));
                }
            });
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(2);
                other.store(&mut cpu, page(0) + 8, 6u64).unwrap();
                unmap(&other, 0..2);
                assert_eq!(other.load::<u64>(&mut cpu, page(0)), unmapped(page(0)));
            });
        });
        assert_eq!((contents(&file, 0), contents(&file, 8)), (2, 6));
        file.mapping().truncate(2 * PAGE).unwrap();
        assert_eq!(
            scene.process.load(&mut scene.machine.cpu(1), page(1)),
            Ok(0u64),
            "old contents reappeared"
        );
        unmap(&scene.process, 0..2);
        drop((file, other));
        scene.assert_empty();
        scene.end();
    });
}

/// A truncation runs concurrently with a munmap of the range, or with an mmap over it. When the truncation
/// returns, no CPU reaches the page, even if the other call has not yet zapped or flushed the entry.
#[test]
fn c26_truncation_concurrent_with_unmapping_of_the_range() {
    explore("truncation concurrent with munmap and mmap over the range", 60, |locking| {
        for over in [false, true] {
            let scene = Scene::new(locking);
            let file = file(&scene);
            map_file(&scene.process, &file);
            let mut old = scene.machine.cpu(OLD);
            scene.process.store(&mut old, page(1), 3u64).unwrap();
            thread::scope(|scope| {
                scope.spawn(|| match over {
                    false => unmap(&scene.process, 0..2),
                    true => map_file(&scene.process, &file),
                });
                scope.spawn(|| {
                    file.mapping().truncate(PAGE).unwrap();
                    let found = scene.process.load::<u64>(&mut old, page(1));
                    assert!(found.is_err(), "a truncated page is still reachable");
                });
            });
            scene.process.clear();
            drop(file);
            scene.assert_empty();
            scene.end();
        }
    });
}

#[test]
fn c26_two_processes_see_one_page_during_a_hole() {
    explore("first faults on one page in two processes concurrent with a hole", 60, |locking| {
        let scene = Scene::new(locking);
        let (file, other) = (file(&scene), scene.another());
        map_file(&scene.process, &file);
        map_file(&other, &file);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                scene.process.store(&mut cpu, page(0), 5u64).unwrap();
                let found: u64 = scene.process.load(&mut cpu, page(0) + 8).unwrap();
                assert!(found == 0 || found == 6, "{found}");
            });
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(1);
                other.store(&mut cpu, page(0) + 8, 6u64).unwrap();
                unmap(&other, 0..1);
            });
            scope.spawn(|| file.mapping().punch(PAGE..2 * PAGE).unwrap());
        });
        assert_eq!((contents(&file, 0), contents(&file, 8)), (5, 6));
        unmap(&scene.process, 0..2);
        drop((file, other));
        scene.assert_empty();
        scene.end();
    });
}

/// Nodes of the page index are freed and allocated again, concurrently with lookups and writes that need
/// them.
#[test]
fn page_index_shrinks_and_grows_during_faults() {
    const FAR: u64 = 20;
    explore("holes that shrink the page index concurrent with faults and writes", 60, |locking| {
        let scene = Scene::new(locking);
        let mapping = Mapping::new(&scene.engine, Zeroes, 64 * PAGE, true).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "memory").unwrap();
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        assert_eq!(scene.process.mmap(page(0), 64 * PAGE, RW, flags, Some(&file), 0), Ok(page(0)));
        for at in [0, FAR] {
            mapping.write_at(at * PAGE, &7u64.to_le_bytes()).unwrap();
        }
        thread::scope(|scope| {
            scope.spawn(|| {
                mapping.punch(16 * PAGE..32 * PAGE).unwrap();
                mapping.punch(16 * PAGE..32 * PAGE).unwrap();
            });
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                for _ in 0..2 {
                    let found: u64 = scene.process.load(&mut cpu, page(FAR)).unwrap();
                    assert!([0, 7].contains(&found), "{found}");
                    assert_eq!(scene.process.load(&mut cpu, page(0)), Ok(7u64));
                }
            });
            scope.spawn(|| {
                assert_eq!(mapping.write_at((FAR - 3) * PAGE, &8u64.to_le_bytes()), Ok(8));
                let found = contents(&file, (FAR - 3) * PAGE);
                assert!([0, 8].contains(&found), "{found}");
            });
        });
        mapping.punch(0..64 * PAGE).unwrap();
        assert!((0..64).all(|index| !mapping.has_page(PageIndex::new(index))));
        unmap(&scene.process, 0..64);
        drop((file, mapping));
        scene.assert_empty();
        scene.end();
    });
}
