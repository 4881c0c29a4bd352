//! Several threads fault in one VMA and become readers in their CPUs' slots, while writers lock the VMA for
//! writing.
//!
//! In the builds for checkers, a VMA becomes per-CPU at the first contention. These scenarios test the engine
//! around the lock (C-19, C-22). loom detects a lock that overlooks a reader in a slot
//! (`freehold-sync/tests/loom_vma`). Shuttle would rarely find such a bug, because readers must collide and a
//! whole system call must then run inside one of their faults.

use crate::{
    explore::{explore, thread},
    scene::{ANON, PAGE, R, Scene, Vcpu, denied, map, page, unmap, unmapped},
};
use freehold::fault::{Access, FaultError};
use freehold_machine::Process;
use freehold_sync::atomic::{AtomicBool, Ordering::SeqCst};

const THREADS: usize = 3;
/// Number of pages. Each thread stores to one page and then to another.
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

/// Maps the pages, and makes threads fault concurrently, so that the VMA has per-CPU readers afterwards in
/// most schedules. One page is present then.
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

/// Runs threads that store while `change` runs. After `change` has returned, every store ends as `after`
/// says.
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
        // Every populated page has the new protection, and the VMA can be locked for reading and for writing.
        scene.process.check();
        beside(&scene, || scene.process.mprotect(page(0), PAGES * PAGE, R).unwrap(), denied);
        unmap(&scene.process, 0..PAGES);
        scene.assert_empty();
        scene.end();
    });
}

/// The slab may hand out the VMA again while a reader is leaving a slot.
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
