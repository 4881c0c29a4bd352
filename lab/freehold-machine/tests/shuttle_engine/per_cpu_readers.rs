//! Several threads fault in one VMA as per-CPU readers, while writers lock the VMA for writing (C-19, C-22).
//!
//! A per-CPU reader records itself in a slot of its CPU instead of the count of the VMA. In the builds for
//! checkers, a VMA gets such readers at the first contention; `meet` causes this contention. A scenario runs
//! a change concurrently with stores by calling `beside`. These scenarios test the engine around the lock.
//! loom detects a lock that overlooks a reader in a slot (`freehold-sync/tests/loom_vma`). Shuttle would
//! rarely find such a bug, because two readers must meet, and a whole system call must then run inside the
//! fault of one of them.

use crate::{
    explore::{explore, thread},
    scene::{ANON, PAGE, R, Scene, Vcpu, denied, map, page, unmap, unmapped},
};
use freehold::fault::{Access, FaultError};
use freehold_machine::Process;
use freehold_sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Number of threads that fault concurrently.
const THREADS: usize = 3;
/// Number of pages. Each thread stores to two pages of its own.
const PAGES: u64 = 2 * THREADS as u64;

/// Stores to the two pages of a thread. Passes the result of each store and its address to `stored`.
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

/// Maps the pages, and makes threads fault concurrently on the last page. In most schedules, the readers of
/// the VMA are per-CPU afterwards. Only the last page is present.
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

/// Runs threads that store while `change` runs. Checks that every store that begins after `change` has
/// returned gives the result `after(address)`.
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
fn c22_mprotect_concurrent_with_per_cpu_readers() {
    explore("mprotect concurrent with per-CPU readers", 40, |locking| {
        let scene = Scene::new(locking);
        meet(&scene);
        beside(&scene, || scene.process.mprotect(page(0), PAGES * PAGE, R).unwrap(), denied);
        // Every present page has the new protection, and the VMA can still be locked for reading and for
        // writing.
        scene.process.check();
        beside(&scene, || scene.process.mprotect(page(0), PAGES * PAGE, R).unwrap(), denied);
        unmap(&scene.process, 0..PAGES);
        scene.assert_empty();
        scene.end();
    });
}

/// The slab may reuse the VMA while a reader is still leaving its slot.
#[test]
fn c19_munmap_concurrent_with_per_cpu_readers() {
    explore("munmap concurrent with per-CPU readers", 40, |locking| {
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
fn fork_concurrent_with_per_cpu_readers() {
    explore("fork concurrent with per-CPU readers", 30, |locking| {
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
