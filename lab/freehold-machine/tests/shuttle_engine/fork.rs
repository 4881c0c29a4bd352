//! fork concurrent with faults, munmap and other forks (C-21): the child has the memory of the parent at one
//! moment.
//!
//! The code under test is `call/fork.rs`. Other threads store, fault, map or unmap while one thread forks.
//! The pages of the child may have old or new values, but only a combination that the parent had at some
//! moment: a child with a later store also has every earlier store. Forks concurrent with probes, range
//! writers and huge pages are in the files of these names.

use crate::{
    explore::{explore, thread},
    scene::{ANON, FIXED, OLD, PAGE, Scene, Vcpu, map, page, unmap, unmapped, value},
};
use freehold::{
    fault::FaultError,
    space::{MapFlags, Prot},
};
use freehold_machine::Process;

/// Fills two pages in separate VMAs. fork copies page 0 first.
fn fill_apart(scene: &Scene) {
    scene.fill(0..1);
    scene.fill(2..3);
}

/// Loads the first word of a mapped page.
fn look(process: &Process, cpu: &mut Vcpu, number: u64) -> u64 {
    process.load(cpu, page(number)).unwrap()
}

#[test]
fn c21_child_has_a_consistent_snapshot() {
    explore("fork concurrent with stores to one page and then another", 150, |locking| {
        let scene = Scene::new(locking);
        fill_apart(&scene);
        let mut cpu = scene.machine.cpu(OLD);
        for number in [0, 2] {
            scene.process.store(&mut cpu, page(number), 0u64).unwrap();
        }
        drop(cpu);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                for number in 1..4u64 {
                    scene.process.store(&mut cpu, page(0), number).unwrap();
                    scene.process.store(&mut cpu, page(2), number).unwrap();
                    assert_eq!(look(&scene.process, &mut cpu, 0), number);
                    assert_eq!(look(&scene.process, &mut cpu, 2), number);
                }
            });
            scope.spawn(|| {
                let child = Process::of(scene.process.fork().unwrap());
                let mut cpu = scene.machine.cpu(1);
                let (second, first) = (look(&child, &mut cpu, 2), look(&child, &mut cpu, 0));
                assert!(second <= first && first <= second + 1, "the child saw {first}, and {second} later");
                // Later stores of the parent do not affect the child, and vice versa.
                child.store(&mut cpu, page(0), 77u64).unwrap();
                thread::yield_now();
                assert_eq!(look(&child, &mut cpu, 2), second);
                assert_eq!(look(&child, &mut cpu, 0), 77);
                child.check();
            });
        });
        let mut cpu = scene.machine.cpu(2);
        assert_eq!((look(&scene.process, &mut cpu, 0), look(&scene.process, &mut cpu, 2)), (3, 3));
        drop(cpu);
        scene.end();
    });
}

#[test]
fn c21_two_concurrent_forks_get_snapshots() {
    explore("two forks concurrent with a store", 60, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..2);
        thread::scope(|scope| {
            for number in 0..2 {
                let scene = &scene;
                scope.spawn(move || {
                    let child = Process::of(scene.process.fork().unwrap());
                    let mut cpu = scene.machine.cpu(number);
                    let found = look(&child, &mut cpu, 0);
                    assert!(found == value(0) || found == 7, "{found}");
                    child.store(&mut cpu, page(1), number as u64).unwrap();
                    assert_eq!(look(&child, &mut cpu, 1), number as u64);
                    assert_eq!(look(&child, &mut cpu, 0), found);
                });
            }
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(2);
                scene.process.store(&mut cpu, page(0), 7u64).unwrap();
                assert_eq!(look(&scene.process, &mut cpu, 1), value(1));
            });
        });
        unmap(&scene.process, 0..2);
        scene.assert_empty();
        scene.end();
    });
}

#[test]
fn fork_concurrent_with_munmap() {
    explore("fork concurrent with munmap", 100, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..4);
        thread::scope(|scope| {
            scope.spawn(|| {
                unmap(&scene.process, 1..3);
                scene.assert_unmapped(1..3);
            });
            scope.spawn(|| {
                let child = Process::of(scene.process.fork().unwrap());
                let mut cpu = scene.machine.cpu(1);
                assert_eq!((look(&child, &mut cpu, 0), look(&child, &mut cpu, 3)), (value(0), value(3)));
                // The child has both pages of the range or neither page.
                match child.load::<u64>(&mut cpu, page(1)) {
                    Ok(found) => assert_eq!((found, look(&child, &mut cpu, 2)), (value(1), value(2))),
                    error => {
                        assert_eq!(error, unmapped(page(1)));
                        assert_eq!(child.load::<u64>(&mut cpu, page(2)), unmapped(page(2)));
                    }
                }
                // No range is closing in the child, whatever the state of the parent.
                map(&child, 1..3, ANON);
                child.store(&mut cpu, page(2), 5u64).unwrap();
                child.check();
            });
        });
        unmap(&scene.process, 0..4);
        scene.assert_empty();
        scene.end();
    });
}

#[test]
fn fork_concurrent_with_faults_in_new_memory() {
    explore("fork concurrent with mmap and its first stores", 60, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..1);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut cpu = scene.machine.cpu(0);
                let shared = MapFlags::SHARED | MapFlags::ANONYMOUS;
                map(&scene.process, 4..6, FIXED);
                scene.process.store(&mut cpu, page(4), 4u64).unwrap();
                map(&scene.process, 8..9, shared);
                scene.process.store(&mut cpu, page(8), 8u64).unwrap();
                scene.process.mprotect(page(5), PAGE, Prot::READ).unwrap();
            });
            scope.spawn(|| {
                let child = Process::of(scene.process.fork().unwrap());
                let mut cpu = scene.machine.cpu(1);
                assert_eq!(look(&child, &mut cpu, 0), value(0));
                let absent = |found: &Result<u64, FaultError>, at| *found == unmapped(at);
                let early = child.load::<u64>(&mut cpu, page(4));
                assert!(matches!(early, Ok(0 | 4)) || absent(&early, page(4)), "{early:?}");
                let late = child.load::<u64>(&mut cpu, page(8));
                assert!(matches!(late, Ok(0 | 8)) || absent(&late, page(8)), "{late:?}");
                // If the child has the later mapping, it must also have the earlier store.
                assert!(late.is_err() || early == Ok(4), "{early:?}, {late:?}");
                child.check();
            });
        });
        scene.end();
    });
}
