//! Faults of several threads in one VMA, whose readers then spread over their CPUs' slots, beside whoever wants the VMA without
//! readers.
//!
//! The checkers' builds spread a VMA at the first meeting. A writer that overlooks a reader in a slot lets a fault go on in
//! a VMA that changes or is gone (C-19, C-22): a page is filled by the rights from before, or behind the back of the zap.

use crate::{
    explore::{explore, thread},
    scene::{ANON, PAGE, R, Scene, Vcpu, denied, map, page, unmap, unmapped},
};
use freehold::fault::FaultError;
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
fn c22_mprotect_beside_readers_that_spread() {
    explore("mprotect beside readers that spread", 40, |locking| {
        let scene = Scene::new(locking);
        map(&scene.process, 0..PAGES, ANON);
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
fn c19_munmap_beside_readers_that_spread() {
    explore("munmap beside readers that spread", 40, |locking| {
        let scene = Scene::new(locking);
        map(&scene.process, 0..PAGES, ANON);
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
fn fork_beside_readers_that_spread() {
    explore("fork beside readers that spread", 30, |locking| {
        let scene = Scene::new(locking);
        map(&scene.process, 0..PAGES, ANON);
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
