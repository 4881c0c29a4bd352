//! Faults of several threads in one VMA, whose readers then go to their CPUs' slots, beside writers that want
//! the VMA without readers.
//!
//! The checkers' builds let a VMA go per-CPU at the first contention. These scenarios are for the engine
//! around the lock (C-19, C-22); a lock that overlooks a reader in a slot is found by loom
//! (`freehold-sync/tests/loom_vma`), for a schedule in which readers meet and a whole system call then fits
//! into one of their faults is too rare here.

use crate::{
    explore::{explore, thread},
    scene::{ANON, PAGE, R, Scene, Vcpu, denied, map, page, unmap, unmapped},
};
use freehold::fault::{Access, FaultError};
use freehold_machine::Process;
use freehold_sync::atomic::{AtomicBool, Ordering::SeqCst};

const THREADS: usize = 3;
/// Each thread has one page and then another.
const PAGES: u64 = 2 * THREADS as u64;

fn first_stores(
    scene: &Scene,
    cpu: &mut Vcpu,
    thread: usize,
    mut stored: impl FnMut(Result<(), FaultError>, u64),
) {
    for number in [thread as u64, (thread + THREADS) as u64] {
        stored(scene.process.store(cpu, page(number), number + 1), page(number));
    }
}

/// Maps the pages and has threads meet there, so that in most schedules the VMA has per-CPU readers
/// afterwards. One page is there then.
fn meet(scene: &Scene) {
    map(&scene.process, 0..PAGES, ANON);
    scene.process.space().handle_fault(page(PAGES - 1), Access::WRITE).unwrap();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..3 {
                    scene.process.space().handle_fault(page(PAGES - 1), Access::WRITE).unwrap();
                }
            });
        }
    });
}

/// Threads that store beside `change`; after that has returned every store ends as `after` says.
fn beside(scene: &Scene, change: impl FnOnce() + Send, after: fn(u64) -> Result<(), FaultError>) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let done = &done;
            scope.spawn(move || {
                let mut cpu = scene.machine.cpu(thread);
                let mut late = done.load(SeqCst);
                first_stores(scene, &mut cpu, thread, |stored, at| {
                    assert!(stored == after(at) || (stored == Ok(()) && !late), "{stored:?}");
                    late = done.load(SeqCst);
                });
            });
        }
        change();
        done.store(true, SeqCst);
    });
}

#[test]
fn c22_mprotect_beside_per_cpu_readers() {
    explore("mprotect beside per-CPU readers", 40, |locking| {
        let scene = Scene::new(locking);
        meet(&scene);
        beside(&scene, || scene.process.mprotect(page(0), PAGES * PAGE, R).unwrap(), denied);
        // Whatever was filled has the new rights, and the VMA can be locked both ways.
        scene.process.check();
        beside(&scene, || scene.process.mprotect(page(0), PAGES * PAGE, R).unwrap(), denied);
        unmap(&scene.process, 0..PAGES);
        scene.assert_empty();
        scene.end();
    });
}

/// The VMA may come back from the slab while a reader is on its way out of a slot.
#[test]
fn c19_munmap_beside_per_cpu_readers() {
    explore("munmap beside per-CPU readers", 40, |locking| {
        let scene = Scene::new(locking);
        meet(&scene);
        let change = || {
            unmap(&scene.process, 0..PAGES);
            map(&scene.another(), 0..PAGES, ANON);
        };
        beside(&scene, change, unmapped);
        scene.assert_empty();
        scene.end();
    });
}

#[test]
fn fork_beside_per_cpu_readers() {
    explore("fork beside per-CPU readers", 30, |locking| {
        let scene = Scene::new(locking);
        meet(&scene);
        let child = thread::scope(|scope| {
            for thread in 0..THREADS {
                let scene = &scene;
                scope.spawn(move || {
                    let mut cpu = scene.machine.cpu(thread);
                    first_stores(scene, &mut cpu, thread, |stored, _| assert_eq!(stored, Ok(())));
                });
            }
            Process::of(scene.process.fork().unwrap())
        });
        let mut cpu = scene.machine.cpu(0);
        for number in 0..PAGES {
            let seen: u64 = child.load(&mut cpu, page(number)).unwrap();
            assert!(seen == 0 || seen == number + 1, "{seen}");
            child.store(&mut cpu, page(number), 99u64).unwrap();
            assert_eq!(scene.process.load(&mut cpu, page(number)), Ok(number + 1));
        }
        drop((child, cpu));
        scene.end();
    });
}
