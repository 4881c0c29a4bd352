//! Page tables that DONTNEED frees, concurrent with faults, other discards, reverse map walks, pins, pagers,
//! and changes of the VMA.
//!
//! DONTNEED of a whole table's range frees the table at once (`discard_with_tables` in `freehold-vmspace`),
//! while other tasks may still find it. No entry is installed in a freed table, and a store after the last
//! discard is kept. Each scenario discards the first table (`discard`) in one thread. A page then holds 0 or
//! the last value stored to it; `assert_page` checks that. The machine's oracles detect uses of a freed
//! table.

use crate::{
    explore::{explore, thread},
    huge::{end, look, put},
    scene::{ANON, OLD, PAGE, R, RW, Scene, TABLE, Vcpu, map, page, unmap},
};
use freehold::{
    call::Advice,
    error::UffdError,
    file::File,
    remote::{AccessMode, PinFlags},
    space::{Locking, MapFlags},
    uffd::{Features, FillMode, RegisterMode, UffdConfig, Userfaultfd},
};
use freehold_machine::Process;
use freehold_sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Discards the pages of the first table, and so the table itself.
fn discard(process: &Process) {
    process.madvise(page(0), TABLE * PAGE, Advice::DontNeed).unwrap();
}

/// Returns a scene with anonymous memory under two tables. Two pages of the first table contain 1000 plus
/// their number.
fn filled(locking: Locking) -> Scene {
    filled_as(Scene::new(locking), ANON)
}

/// Maps memory under two tables, and stores 1000 plus the page number to each of two pages of the first
/// table.
fn filled_as(scene: Scene, flags: MapFlags) -> Scene {
    map(&scene.process, 0..2 * TABLE, flags);
    let mut cpu = scene.machine.cpu(OLD);
    [1, 300].into_iter().for_each(|number| put(&scene.process, &mut cpu, number, 1000 + number));
    scene
}

/// Checks that a page of the first table holds the given stored value, or 0.
#[track_caller]
fn assert_page(scene: &Scene, cpu: &mut Vcpu, number: u64, stored: u64) {
    let found = look(&scene.process, cpu, number);
    assert!(found == 0 || found == stored, "{found} in page {number}");
}

#[test]
fn table_reclaim_concurrent_with_stores() {
    explore("stores concurrent with DONTNEED of their whole table", 100, |locking| {
        let scene = filled(locking);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                for _ in 0..2 {
                    discard(&scene.process);
                    assert_page(&scene, &mut cpu, 1, 7);
                }
                over.store(true, SeqCst);
            });
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(1);
                for number in [1, 2] {
                    let last = over.load(SeqCst);
                    put(&scene.process, &mut cpu, number, 7);
                    let found = look(&scene.process, &mut cpu, number);
                    assert!(found == 7 || found == 0 && !last, "{found}");
                }
            });
            scope.spawn(|| assert_page(&scene, &mut scene.machine.cpu(2), 300, 1300));
        });
        end(scene);
    });
}

#[test]
fn concurrent_reclaims_of_one_table() {
    explore("two DONTNEEDs of one table concurrent with a store", 100, |locking| {
        let scene = filled(locking);
        thread::scope(|scope| {
            for number in 0..2 {
                let scene = &scene;
                scope.spawn(move || {
                    let mut cpu = scene.machine.cpu(number);
                    discard(&scene.process);
                    assert_eq!(look(&scene.process, &mut cpu, 300), 0);
                });
            }
            scope.spawn(|| put(&scene.process, &mut scene.machine.cpu(2), 1, 7));
        });
        assert_page(&scene, &mut scene.machine.cpu(OLD), 1, 7);
        end(scene);
    });
}

/// A huge page is installed in place of the freed table. A store that was about to use the table finds the
/// huge page.
#[test]
fn huge_page_replaces_a_reclaimed_table() {
    explore("DONTNEED of a split huge page concurrent with stores", 15, |locking| {
        let scene = filled_as(Scene::huge(locking), ANON);
        scene.process.madvise(page(5), PAGE, Advice::DontNeed).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                discard(&scene.process);
                put(&scene.process, &mut scene.machine.cpu(0), 3, 3);
            });
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(1);
                put(&scene.process, &mut cpu, 300, 7);
                assert_page(&scene, &mut cpu, 300, 7);
            });
        });
        let mut cpu = scene.machine.cpu(OLD);
        assert_eq!(look(&scene.process, &mut cpu, 3), 3);
        assert_eq!(look(&scene.process, &mut cpu, 1), 0);
        assert_page(&scene, &mut cpu, 300, 7);
        drop(cpu);
        end(scene);
    });
}

/// Pages that a child also maps are migrated while the parent's table is freed.
#[test]
fn table_reclaim_concurrent_with_migration() {
    explore("migrations concurrent with DONTNEED of a whole table", 40, |locking| {
        let scene = filled(locking);
        let child = Process::of(scene.process.fork().unwrap());
        let frames = [1, 300].map(|number| scene.process.frame_at(page(number)).unwrap());
        thread::scope(|scope| {
            scope.spawn(|| discard(&scene.process));
            scope.spawn(|| frames.map(|pfn| scene.engine.migrate(pfn)));
            scope.spawn(|| put(&scene.process, &mut scene.machine.cpu(1), 2, 7));
        });
        let mut cpu = scene.machine.cpu(OLD);
        assert_page(&scene, &mut cpu, 2, 7);
        assert_eq!([1, 300].map(|number| look(&child, &mut cpu, number)), [1001, 1300]);
        drop((child, cpu));
        end(scene);
    });
}

/// A file is truncated while its pages are faulted in and their table is freed.
#[test]
fn table_reclaim_concurrent_with_truncation() {
    explore("truncation concurrent with DONTNEED of a whole table and accesses", 40, |locking| {
        let scene = Scene::new(locking);
        let file = File::shared_memory(&scene.engine, TABLE * PAGE, false).unwrap();
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        scene.process.mmap(page(0), TABLE * PAGE, RW, flags, Some(&file), 0).unwrap();
        put(&scene.process, &mut scene.machine.cpu(OLD), 300, 1300);
        thread::scope(|scope| {
            scope.spawn(|| discard(&scene.process));
            scope.spawn(|| file.mapping().truncate(4 * PAGE).unwrap());
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(1);
                put(&scene.process, &mut cpu, 1, 7);
                assert_eq!(look(&scene.process, &mut cpu, 1), 7);
                let _ = scene.process.load::<u64>(&mut cpu, page(300));
            });
        });
        assert_eq!(look(&scene.process, &mut scene.machine.cpu(2), 1), 7);
        drop(file);
        end(scene);
    });
}

/// The VMA is split while its table is freed. After the split, the table also belongs to the neighbouring
/// VMA.
#[test]
fn table_reclaim_concurrent_with_a_vma_split() {
    explore("mprotect and munmap of parts concurrent with DONTNEED of a whole table", 60, |locking| {
        let scene = filled(locking);
        thread::scope(|scope| {
            scope.spawn(|| {
                discard(&scene.process);
                put(&scene.process, &mut scene.machine.cpu(0), 3, 3);
            });
            scope.spawn(|| {
                scene.process.mprotect(page(256), 256 * PAGE, R).unwrap();
                assert_page(&scene, &mut scene.machine.cpu(1), 300, 1300);
            });
            scope.spawn(|| {
                // This page is under the other table.
                put(&scene.process, &mut scene.machine.cpu(2), TABLE, 7);
                unmap(&scene.process, TABLE..2 * TABLE);
            });
        });
        assert_eq!(look(&scene.process, &mut scene.machine.cpu(OLD), 3), 3);
        end(scene);
    });
}

#[test]
fn table_reclaim_concurrent_with_pins_and_transfers() {
    explore("a fast pin and a transfer concurrent with DONTNEED of a whole table", 60, |locking| {
        let scene = filled(locking);
        let pins = thread::scope(|scope| {
            scope.spawn(|| discard(&scene.process));
            scope.spawn(|| {
                let mut bytes = [0; 8];
                assert_eq!(scene.process.read_memory(page(300), &mut bytes, AccessMode::Plain), Ok(8));
                assert!([0, 1300].contains(&u64::from_le_bytes(bytes)));
                assert_eq!(scene.process.write_memory(page(2), &[9], AccessMode::Plain), Ok(1));
            });
            let pin = scope.spawn(|| {
                let mut cpu = scene.machine.cpu(1);
                cpu.run(scene.process.mmu());
                cpu.call(|| scene.process.pin_user_pages_fast(page(1), 1, PinFlags::WRITE)).unwrap()
            });
            pin.join().unwrap()
        });
        assert_page(&scene, &mut scene.machine.cpu(OLD), 2, 9);
        drop(pins);
        end(scene);
    });
}

/// A pager fills pages of a table that is being freed.
#[test]
fn table_reclaim_concurrent_with_uffd_fills() {
    const CONTENTS: [u8; PAGE as usize] = [1; PAGE as usize];
    explore("UFFDIO_COPY and ZEROPAGE concurrent with DONTNEED of a whole table", 60, |locking| {
        let scene = filled(locking);
        let config = UffdConfig::new().features(Features::empty());
        let uffd = Userfaultfd::new(scene.process.space(), config).unwrap();
        uffd.register(page(0), TABLE * PAGE, RegisterMode::MISSING).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| discard(&scene.process));
            scope.spawn(|| assert_eq!(uffd.copy(page(7), &CONTENTS, FillMode::empty()), Ok(PAGE)));
            scope.spawn(|| {
                let filled = uffd.zeropage(page(300), PAGE, FillMode::empty());
                assert!(matches!(filled, Ok(PAGE) | Err(UffdError::Present)), "{filled:?}");
            });
        });
        drop(uffd);
        let mut cpu = scene.machine.cpu(OLD);
        assert_page(&scene, &mut cpu, 7, 0x0101_0101_0101_0101);
        assert_page(&scene, &mut cpu, 300, 1300);
        drop(cpu);
        end(scene);
    });
}
