//! `AddressSpace::reap`, which removes the private pages of a killed process, concurrent with what its tasks
//! may still do: faults, fork, munmap, and the end of the process (`call/reap.rs` of `freehold`).
//!
//! The last scenario runs exec, which empties the address space, concurrently with mmap.
//!
//! An access finds the old contents, or fails (hazard C-66). The machine's oracles detect the use of a freed
//! frame, and no page is left at the end.

use crate::{
    explore::{explore, thread},
    scene::{ANON, PAGE, Scene, page, unmap, value},
};
use freehold::{error::ForkError, fault::FaultError, space::Prot};
use freehold_machine::Process;

#[test]
fn reap_concurrent_with_faults_fork_and_munmap() {
    explore("reap concurrent with faults, fork and munmap", 150, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..3);
        thread::scope(|scope| {
            let scene = &scene;
            scope.spawn(move || scene.process.reap().unwrap());
            scope.spawn(move || {
                let mut cpu = scene.machine.cpu(0);
                let found = scene.process.load::<u64>(&mut cpu, page(0));
                assert!(matches!(found, Ok(word) if word == value(0)) || is_lost(found), "{found:?}");
                unmap(&scene.process, 1..2);
            });
            scope.spawn(move || {
                let mut cpu = scene.machine.cpu(1);
                let child = match scene.process.fork() {
                    Ok(child) => child,
                    Err(error) => return assert_eq!(error, ForkError::Killed),
                };
                let child = Process::of(child);
                assert_eq!(child.load(&mut cpu, page(2)), Ok(value(2)), "fork copies all or nothing");
                child.reap().unwrap();
                assert_eq!(child.rss().anon, 0);
            });
        });
        unmap(&scene.process, 0..1);
        unmap(&scene.process, 2..3);
        scene.assert_empty();
        scene.end();
    });
}

/// Returns true if an access failed because its page was removed.
fn is_lost(found: Result<u64, FaultError>) -> bool {
    matches!(found, Err(FaultError::Bus { .. }))
}

#[test]
fn reap_concurrent_with_the_end_of_the_process() {
    explore("reap concurrent with exit", 150, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..3);
        thread::scope(|scope| {
            let scene = &scene;
            scope.spawn(move || scene.process.reap().unwrap());
            scope.spawn(move || scene.process.clear());
        });
        scene.assert_empty();
        scene.end();
    });
}

#[test]
fn mmap_concurrent_with_exec_finds_room() {
    explore("mmap concurrent with exec, which closes all addresses", 150, |locking| {
        let scene = Scene::new(locking);
        scene.fill(0..3);
        thread::scope(|scope| {
            let scene = &scene;
            scope.spawn(move || scene.process.clear());
            scope.spawn(move || {
                let mapped = scene.process.mmap(0, PAGE, Prot::READ, ANON, None, 0);
                // exec may already have removed the mapping.
                scene.process.munmap(mapped.expect("exec leaves room"), PAGE).unwrap();
            });
        });
        scene.assert_empty();
        scene.end();
    });
}
