//! C-56: stores to a page while another task holds a reference to the page. The reference is not a page table
//! entry.
//!
//! A transfer (`read_memory`) holds such a reference while it copies. A store copies the page unless the page
//! is exclusive (`fault/cow.rs` in `freehold`), so a reader of one process never sees stores that the other
//! process makes after the fork. Each scenario allows the values that the process itself stored, and fails on
//! a value of the other process. Pins, which keep a page in its process, are tested in `pins.rs`.

use crate::{
    explore::{explore, thread},
    files::{file, map_file},
    scene::{PAGE, Scene, page, value},
};
use freehold::{remote::AccessMode, space::MapFlags};
use freehold_machine::Process;

/// Reads the first word of a page as another process does, with a transfer.
fn transferred(process: &Process, number: u64) -> u64 {
    let mut bytes = [0; 8];
    assert_eq!(process.read_memory(page(number), &mut bytes, AccessMode::Plain), Ok(8));
    u64::from_le_bytes(bytes)
}

#[test]
fn c56_transfer_never_sees_stores_of_the_other_process() {
    for child_is_read in [false, true] {
        explore("transfers of a shared page concurrent with stores of both processes", 80, move |locking| {
            let scene = Scene::new(locking);
            scene.fill(0..1);
            let child = Process::of(scene.process.fork().unwrap());
            let (read, other) =
                if child_is_read { (&child, &scene.process) } else { (&scene.process, &child) };
            thread::scope(|scope| {
                scope.spawn(|| {
                    let seen = transferred(read, 0);
                    assert!([value(0), 2].contains(&seen), "{seen} is a store of the other process");
                });
                // The second store is made by the last process that maps the page. The transfer may still
                // hold a reference to the page.
                scope.spawn(|| {
                    let mut cpu = scene.machine.cpu(0);
                    read.store(&mut cpu, page(0), 2u64).unwrap();
                    other.store(&mut cpu, page(0), 9u64).unwrap();
                });
            });
            assert_eq!((transferred(read, 0), transferred(other, 0)), (2, 9));
            child.check();
            drop(child);
            scene.end();
        });
    }
}

#[test]
fn c56_transfer_concurrent_with_a_child_that_exits() {
    explore("transfers of a page while a child stores and exits", 60, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..1);
        let child = Process::of(scene.process.fork().unwrap());
        thread::scope(|scope| {
            scope.spawn(|| {
                let seen = transferred(&scene.process, 0);
                assert!([value(0), 2].contains(&seen), "{seen}");
            });
            scope.spawn(|| {
                child.store(&mut scene.machine.cpu(1), page(0), 9u64).unwrap();
                drop(child);
            });
            scope.spawn(|| {
                let mut cpu = scene.acquainted(0, 0..1);
                scene.process.store(&mut cpu, page(0), 2u64).unwrap();
                assert_eq!(scene.process.load(&mut cpu, page(0)), Ok(2u64));
            });
        });
        assert_eq!(transferred(&scene.process, 0), 2);
        scene.end();
    });
}

/// C-56 for a private page of a file: a process that maps the file shared must not see the stores either.
#[test]
fn c56_private_copies_of_a_file_stay_private() {
    explore("private copies of a file's page concurrent with a transfer", 40, |locking| {
        let scene = Scene::new(locking);
        let (file, shared) = (file(&scene), scene.another());
        map_file(&shared, &file);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        let mapped = scene.process.mmap(page(0), 2 * PAGE, crate::scene::RW, flags, Some(&file), 0);
        assert_eq!(mapped, Ok(page(0)));
        let child = Process::of(scene.process.fork().unwrap());
        thread::scope(|scope| {
            scope.spawn(|| {
                let seen = transferred(&scene.process, 0);
                assert!([0, 2, 5].contains(&seen), "{seen}");
            });
            scope.spawn(|| child.store(&mut scene.machine.cpu(1), page(0), 9u64).unwrap());
            scope.spawn(|| scene.process.store(&mut scene.machine.cpu(0), page(0), 2u64).unwrap());
            scope.spawn(|| shared.store(&mut scene.machine.cpu(2), page(0), 5u64).unwrap());
        });
        let seen = [&scene.process, &child, &shared].map(|process| transferred(process, 0));
        assert_eq!(seen, [2, 9, 5]);
        child.check();
        shared.check();
        drop((child, shared, file));
        scene.end();
    });
}
