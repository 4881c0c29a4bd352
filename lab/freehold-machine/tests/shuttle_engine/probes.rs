//! Probes (breakpoints in the pages of a file) are added and removed concurrently with calls on processes
//! that map the file as text.
//!
//! The code under test is `uprobe/`. Every process sees the breakpoint after the probe was added, and no
//! process sees it after the probe was removed; `assert_shows` checks both, and that `probe_at` finds the
//! probe. The file itself never contains the breakpoint (`end` checks that), and no store to a process's
//! private copy is lost. Forced stores are those of a debugger. A scenario maps the file with `map_text`, and
//! calls `add` and `remove` for the probe at [`PLACE`].

use crate::{
    explore::{explore, thread},
    files::{Opened, file},
    scene::{OLD, PAGE, R, RW, Scene, Vcpu, beyond, page, unmap, unmapped},
};
use freehold::{
    call::{Advice, RemapFlags},
    remote::AccessMode,
    rmap::MigrateError,
    space::{MapFlags, Prot},
};
use freehold_machine::Process;

const RX: Prot = Prot::READ.union(Prot::EXEC);
/// The breakpoint instruction of x86-64.
const TRAP: u8 = 0xcc;
/// Offset of the probe, in page 1 of the file. The file contains zeroes.
const PLACE: u64 = PAGE + 40;

/// Maps the file privately at page 0. Without the right to write, the mapping is text.
fn map_text(process: &Process, file: &Opened, prot: Prot) {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED;
    assert_eq!(process.mmap(page(0), 2 * PAGE, prot, flags, Some(file), 0), Ok(page(0)));
}

/// Adds a probe at [`PLACE`].
fn add(file: &Opened) {
    file.mapping().add_probe(PLACE, &[TRAP]).unwrap();
}

/// Removes the probe at [`PLACE`].
fn remove(file: &Opened) {
    file.mapping().remove_probe(PLACE).unwrap();
}

/// Returns the byte at the probe's place, for a mapping of the file that starts at page `start`.
fn look(process: &Process, cpu: &mut Vcpu, start: u64) -> u8 {
    process.load(cpu, page(start) + PLACE).unwrap()
}

/// Returns true if the process has a probe there, for a mapping of the file that starts at page `start`.
fn is_known(process: &Process, start: u64) -> bool {
    process.probe_at(page(start) + PLACE).is_some()
}

/// If `shown` is true, checks that the process has the breakpoint and knows the probe. Otherwise checks that
/// the process has no breakpoint and knows no probe.
#[track_caller]
fn assert_shows(process: &Process, cpu: &mut Vcpu, start: u64, shown: bool) {
    assert_eq!((look(process, cpu, start) == TRAP, is_known(process, start)), (shown, shown));
    process.check();
}

/// Ends a scenario. Checks that the file has no breakpoint and that nothing leaked.
#[track_caller]
fn end(scene: Scene, file: Opened) {
    let mut byte = [1];
    assert_eq!(file.mapping().read_at(PLACE, &mut byte), Ok(1));
    assert_eq!(byte, [0], "the file has the breakpoint");
    unmap(&scene.process, 0..8);
    scene.assert_empty();
    drop(file);
    scene.end();
}

#[test]
fn probe_added_during_faults_fork_and_munmap() {
    explore("a probe added concurrent with faults, fork and munmap in three processes", 60, |locking| {
        let scene = Scene::new(locking);
        let (file, other) = (file(&scene), scene.another());
        map_text(&scene.process, &file, RX);
        map_text(&other, &file, RX);
        // This private page makes fork copy entries, including the entry of the probed page.
        scene.process.write_memory(page(0), &[7], AccessMode::Forced).unwrap();
        look(&scene.process, &mut scene.machine.cpu(OLD), 0);
        let child = thread::scope(|scope| {
            scope.spawn(|| {
                add(&file);
                // From here on every CPU finds the breakpoint, even a CPU whose TLB had cached the page.
                assert_eq!(look(&scene.process, &mut scene.machine.cpu(OLD), 0), TRAP);
            });
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(1);
                for _ in 0..2 {
                    let seen = look(&other, &mut cpu, 0);
                    assert!(seen == 0 || seen == TRAP, "{seen}");
                }
                unmap(&other, 0..2);
                assert_eq!(other.load::<u8>(&mut cpu, page(0) + PLACE), unmapped(page(0) + PLACE));
            });
            scope.spawn(|| Process::of(scene.process.fork().unwrap())).join().unwrap()
        });
        let mut cpu = scene.machine.cpu(2);
        assert_shows(&child, &mut cpu, 0, true);
        assert_shows(&scene.process, &mut cpu, 0, true);
        assert_eq!((child.rss().anon, scene.process.rss().anon, other.rss().anon), (2, 2, 0));
        remove(&file);
        for process in [&child, &scene.process] {
            assert_shows(process, &mut cpu, 0, false);
            assert_eq!(process.load(&mut cpu, page(0)), Ok(7u8));
        }
        drop((cpu, child, other));
        end(scene, file);
    });
}

#[test]
fn fault_copies_a_page_while_probes_change() {
    explore("a fault that copies a page for one probe while others are added and removed", 60, |locking| {
        let scene = Scene::new(locking);
        let (file, other) = (file(&scene), scene.another());
        let probes = file.mapping();
        probes.add_probe(PLACE + 4, &[TRAP]).unwrap();
        probes.add_probe(PLACE + 8, &[TRAP]).unwrap();
        map_text(&scene.process, &file, RX);
        map_text(&other, &file, RX);
        thread::scope(|scope| {
            scope.spawn(|| {
                add(&file);
                probes.remove_probe(PLACE + 4).unwrap();
            });
            for (cpu, process) in [&scene.process, &other].into_iter().enumerate() {
                let mut cpu = scene.machine.cpu(cpu);
                scope.spawn(move || look(process, &mut cpu, 0));
            }
        });
        let mut cpu = scene.machine.cpu(2);
        for process in [&scene.process, &other] {
            assert_shows(process, &mut cpu, 0, true);
            let shown = [4, 8].map(|offset| process.load::<u8>(&mut cpu, page(0) + PLACE + offset).unwrap());
            assert_eq!(shown, [0, TRAP]);
            assert_eq!(process.rss().anon, 1);
        }
        drop((cpu, other));
        end(scene, file);
    });
}

#[test]
fn c4_probe_added_while_a_flush_is_pending() {
    explore("a probe added concurrent with DONTNEED of the page", 40, |locking| {
        let scene = Scene::new(locking);
        let file = file(&scene);
        map_text(&scene.process, &file, RX);
        look(&scene.process, &mut scene.machine.cpu(OLD), 0);
        thread::scope(|scope| {
            scope.spawn(|| scene.process.madvise(page(1), PAGE, Advice::DontNeed).unwrap());
            scope.spawn(|| {
                add(&file);
                // The entry may already be cleared. The cached translation of this CPU must be flushed
                // nevertheless.
                assert_eq!(look(&scene.process, &mut scene.machine.cpu(OLD), 0), TRAP);
            });
        });
        assert_shows(&scene.process, &mut scene.machine.cpu(2), 0, true);
        end(scene, file);
    });
}

#[test]
fn probe_removed_during_fork_and_faults() {
    explore("a probe removed concurrent with fork, a forced store and faults", 60, |locking| {
        let scene = Scene::new(locking);
        let file = file(&scene);
        map_text(&scene.process, &file, RX);
        add(&file);
        look(&scene.process, &mut scene.machine.cpu(OLD), 0);
        let child = thread::scope(|scope| {
            scope.spawn(|| {
                remove(&file);
                assert_eq!(look(&scene.process, &mut scene.machine.cpu(OLD), 0), 0);
            });
            scope.spawn(|| {
                // C-2, C-56: the store goes to the current private copy. The store is not lost with a copy
                // that is discarded.
                let at = page(0) + PLACE + 8;
                assert_eq!(scene.process.write_memory(at, &[5], AccessMode::Forced), Ok(1));
                assert_eq!(scene.process.load(&mut scene.machine.cpu(1), at), Ok(5u8));
            });
            scope.spawn(|| Process::of(scene.process.fork().unwrap())).join().unwrap()
        });
        let mut cpu = scene.machine.cpu(2);
        assert_shows(&child, &mut cpu, 0, false);
        assert_shows(&scene.process, &mut cpu, 0, false);
        assert_eq!(scene.process.load(&mut cpu, page(0) + PLACE + 8), Ok(5u8));
        assert_eq!(scene.process.rss().anon, 1);
        let inherited: u8 = child.load(&mut cpu, page(0) + PLACE + 8).unwrap();
        assert!(inherited == 0 || inherited == 5, "{inherited}");
        drop((cpu, child));
        end(scene, file);
    });
}

#[test]
fn forced_store_into_a_discarded_probe_copy_is_kept() {
    explore("a forced store into the copy of a probe concurrent with its removal", 60, |locking| {
        let scene = Scene::new(locking);
        let file = file(&scene);
        map_text(&scene.process, &file, RX);
        add(&file);
        look(&scene.process, &mut scene.machine.cpu(OLD), 0);
        thread::scope(|scope| {
            scope.spawn(|| remove(&file));
            scope.spawn(|| scene.process.write_memory(page(1), &[5], AccessMode::Forced).unwrap());
        });
        let mut cpu = scene.machine.cpu(2);
        assert_shows(&scene.process, &mut cpu, 0, false);
        assert_eq!(scene.process.load(&mut cpu, page(1)), Ok(5u8));
        drop(cpu);
        end(scene, file);
    });
}

#[test]
fn store_during_mprotect_into_a_probe_copy_is_kept() {
    explore("a store into a copy that is discarded, concurrent with mprotect", 60, |locking| {
        let scene = Scene::new(locking);
        let file = file(&scene);
        map_text(&scene.process, &file, RX);
        add(&file);
        look(&scene.process, &mut scene.machine.cpu(OLD), 0);
        scene.process.mprotect(page(1), PAGE, RW).unwrap();
        // The copy has the same contents as a copy without a store, and this CPU has a writable translation
        // of it.
        let mut cpu = scene.machine.cpu(1);
        scene.process.store(&mut cpu, page(1), 0u8).unwrap();
        let stored = thread::scope(|scope| {
            scope.spawn(|| scene.process.mprotect(page(1), PAGE, R).unwrap());
            scope.spawn(|| remove(&file));
            let process = &scene.process;
            scope.spawn(move || process.store(&mut cpu, page(1), 3u8).is_ok()).join().unwrap()
        });
        let mut cpu = scene.machine.cpu(2);
        assert_shows(&scene.process, &mut cpu, 0, false);
        assert_eq!(scene.process.load(&mut cpu, page(1)), Ok(if stored { 3u8 } else { 0 }));
        drop(cpu);
        end(scene, file);
    });
}

#[test]
fn forced_stores_during_probe_changes_are_kept() {
    explore("forced stores concurrent with a probe added and removed", 60, |locking| {
        let scene = Scene::new(locking);
        let file = file(&scene);
        map_text(&scene.process, &file, RX);
        // The process shares its private copy with a child.
        scene.process.write_memory(page(1), &[9], AccessMode::Forced).unwrap();
        let child = Process::of(scene.process.fork().unwrap());
        thread::scope(|scope| {
            scope.spawn(|| {
                add(&file);
                assert_eq!(look(&child, &mut scene.machine.cpu(0), 0), TRAP);
                remove(&file);
            });
            for (process, value) in [(&scene.process, 5u8), (&child, 6)] {
                scope.spawn(move || {
                    for n in 0..2 {
                        process.write_memory(page(1) + 1 + n, &[value], AccessMode::Forced).unwrap();
                    }
                });
            }
        });
        let mut cpu = scene.machine.cpu(2);
        for (process, value) in [(&scene.process, 5u8), (&child, 6)] {
            assert_shows(process, &mut cpu, 0, false);
            let mut out = [0; 3];
            process.read(&mut cpu, page(1), &mut out).unwrap();
            assert_eq!(out, [9, value, value]);
            assert_eq!(process.rss().anon, 1);
        }
        drop((cpu, child));
        end(scene, file);
    });
}

#[test]
fn c68_mremap_concurrent_with_probe_changes() {
    explore("mremap back and forth concurrent with one probe added and another removed", 60, |locking| {
        let scene = Scene::new(locking);
        let file = file(&scene);
        map_text(&scene.process, &file, RX);
        look(&scene.process, &mut scene.machine.cpu(OLD), 0);
        let child = Process::of(scene.process.fork().unwrap());
        file.mapping().add_probe(PLACE + 4, &[TRAP]).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| add(&file));
            scope.spawn(|| {
                // In the parent, the page moves and moves back. In the child, the mapping shrinks and grows
                // again. Afterwards each process maps the page exactly once.
                let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
                scene.process.mremap(page(1), PAGE, PAGE, flags, page(5)).unwrap();
                scene.process.mremap(page(5), PAGE, PAGE, flags, page(1)).unwrap();
                child.mremap(page(0), 2 * PAGE, PAGE, RemapFlags::empty(), 0).unwrap();
                child.mremap(page(0), PAGE, 2 * PAGE, RemapFlags::MAYMOVE, 0).unwrap();
            });
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(1);
                if let Ok(seen) = scene.process.load::<u8>(&mut cpu, page(0) + PLACE) {
                    assert!(seen == 0 || seen == TRAP, "{seen}");
                }
                file.mapping().remove_probe(PLACE + 4).unwrap();
            });
        });
        let mut cpu = scene.machine.cpu(2);
        for process in [&scene.process, &child] {
            assert_shows(process, &mut cpu, 0, true);
            assert_eq!(process.load(&mut cpu, page(0) + PLACE + 4), Ok(0u8));
            assert_eq!(process.rss().anon, 1);
        }
        remove(&file);
        assert_shows(&scene.process, &mut cpu, 0, false);
        drop((cpu, child));
        end(scene, file);
    });
}

#[test]
fn truncation_concurrent_with_a_probe() {
    explore("truncation concurrent with a probe added and a fault", 60, |locking| {
        let scene = Scene::new(locking);
        let file = file(&scene);
        map_text(&scene.process, &file, RX);
        let added = thread::scope(|scope| {
            scope.spawn(|| {
                file.mapping().truncate(PAGE).unwrap();
                let at = page(0) + PLACE;
                assert_eq!(scene.process.load::<u8>(&mut scene.machine.cpu(0), at), beyond(at));
            });
            scope.spawn(|| {
                let found = scene.process.load::<u8>(&mut scene.machine.cpu(1), page(0) + PLACE);
                assert!(found.is_err() || found == Ok(0) || found == Ok(TRAP), "{found:?}");
            });
            scope.spawn(|| file.mapping().add_probe(PLACE, &[TRAP]).is_ok()).join().unwrap()
        });
        assert_eq!(scene.process.rss().anon, 0);
        file.mapping().truncate(2 * PAGE).unwrap();
        let mut cpu = scene.machine.cpu(2);
        // The grown file contains zeroes again, so the probe takes effect again if it was added.
        assert_shows(&scene.process, &mut cpu, 0, added);
        drop(cpu);
        end(scene, file);
    });
}

#[test]
fn mapping_that_becomes_text_gets_a_concurrent_probe() {
    explore("a mapping that becomes text concurrent with the addition of a probe", 60, |locking| {
        let scene = Scene::new(locking);
        let file = file(&scene);
        map_text(&scene.process, &file, RW);
        let mut cpu = scene.machine.cpu(OLD);
        assert_eq!(look(&scene.process, &mut cpu, 0), 0);
        drop(cpu);
        thread::scope(|scope| {
            scope.spawn(|| add(&file));
            scope.spawn(|| scene.process.mprotect(page(1), PAGE, R).unwrap());
            scope.spawn(|| {
                // A store that succeeds is kept.
                let mut cpu = scene.machine.cpu(1);
                if scene.process.store(&mut cpu, page(1), 3u8).is_ok() {
                    assert_eq!(scene.process.load(&mut cpu, page(1)), Ok(3u8));
                }
            });
        });
        let mut cpu = scene.machine.cpu(2);
        assert_shows(&scene.process, &mut cpu, 0, true);
        drop(cpu);
        end(scene, file);
    });
}

#[test]
fn migration_of_copies_concurrent_with_probe_changes() {
    explore("migration of a copy concurrent with a probe added and removed", 60, |locking| {
        let scene = Scene::new(locking);
        let file = file(&scene);
        map_text(&scene.process, &file, RX);
        scene.process.write_memory(page(1), &[9], AccessMode::Forced).unwrap();
        let child = Process::of(scene.process.fork().unwrap());
        thread::scope(|scope| {
            scope.spawn(|| {
                add(&file);
                assert_eq!(look(&child, &mut scene.machine.cpu(0), 0), TRAP);
                remove(&file);
            });
            scope.spawn(|| {
                for process in [&scene.process, &child] {
                    let Some(pfn) = process.frame_at(page(1)) else { continue };
                    match scene.engine.migrate(pfn) {
                        Ok(_) | Err(MigrateError::Busy | MigrateError::NoPage) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        });
        let mut cpu = scene.machine.cpu(2);
        for process in [&scene.process, &child] {
            assert_shows(process, &mut cpu, 0, false);
            assert_eq!(process.load(&mut cpu, page(1)), Ok(9u8));
        }
        drop((cpu, child));
        end(scene, file);
    });
}
