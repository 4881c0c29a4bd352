//! A fatal signal at every killable wait of a call (C-72): the call returns an error, holds no lock, and has
//! changed nothing.
//!
//! `explore_killed` explores a call twice: with a fatal signal at the second wait of the calling thread, and
//! with a fatal signal at its first wait. Two other threads make the call wait. The signal comes from the
//! machine (`Task::interrupt_wait`), so a scenario need not find the moment of the wait. A test fails if no
//! schedule killed the call. A new killable call gets a test that passes the call to `explore_killed` and
//! checks the memory after a kill (`assert_unchanged`). Kills of a range writer that waits for a claim are in
//! `ranges.rs`, and kills of a fault that waits for a disk in `waiting.rs`.

use crate::{
    explore::{explore_until, thread},
    scene::{ANON, FIXED, PAGE, R, RW, Scene, Vcpu, map, page, unmap, value},
};
use freehold::{
    call::RemapFlags,
    error::{ForkError, MmapError, MprotectError, MremapError, MunmapError},
    fault::FaultError,
    space::Locking,
};
use freehold_machine::{Process, Task};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Number of calls of one scenario that were killed, over all its schedules. A scenario in which no call was
/// killed tests nothing, so each scenario is explored until a call was killed.
type Ended = Arc<AtomicU64>;

/// Explores `attempt` with a fatal signal at the second wait of its thread, and then with a fatal signal at
/// the first wait. Two other threads make the call wait: one maps and unmaps elsewhere, and one causes faults
/// in the VMA of the pages 0 to 4. The first three of these pages are present, and stay present unless
/// `attempt` unmaps them. `attempt` returns true if it was killed.
fn explore_killed(name: &'static str, attempt: impl Fn(&Scene, &mut Vcpu) -> bool + Send + Sync + 'static) {
    let ended = Ended::default();
    let attempt = Arc::new(attempt);
    for nth in [2, 1] {
        let (count, attempt) = (ended.clone(), attempt.clone());
        // Some calls wait only once. A schedule that kills the call is therefore required only for the first
        // wait.
        let is_met = || nth > 1 || ended.load(Relaxed) > 0;
        explore_until(&Locking::ALL, name, 50, is_met, move |locking| {
            let scene = Scene::new(locking);
            map(&scene.process, 0..5, ANON);
            scene.fill(0..3);
            thread::scope(|scope| {
                scope.spawn(|| {
                    let mut cpu = scene.machine.cpu(0);
                    Task::current().interrupt_wait(nth);
                    let killed = attempt(&scene, &mut cpu);
                    count.fetch_add(u64::from(killed), Relaxed);
                });
                scope.spawn(|| {
                    let mut cpu = scene.machine.cpu(1);
                    map(&scene.process, 6..7, ANON);
                    scene.process.store(&mut cpu, page(6), 6u64).unwrap();
                    unmap(&scene.process, 6..7);
                });
                scope.spawn(|| {
                    let mut cpu = scene.machine.cpu(2);
                    for at in [page(3), page(4)] {
                        assert_eq!(scene.process.load(&mut cpu, at), Ok(0u64));
                        scene.process.store(&mut cpu, at, 1u64).unwrap();
                    }
                });
            });
            assert!(scene.process.try_read().is_some(), "a lock is still held");
            scene.end();
        });
    }
}

/// Clears the signal, and checks that the first three pages are unchanged.
fn assert_unchanged(process: &Process, cpu: &mut Vcpu) {
    Task::current().revive();
    for number in 0..3 {
        assert_eq!(process.load(cpu, page(number)), Ok(value(number)));
    }
    assert_eq!(process.find_vma(page(1)).expect("mapped").range(), page(0)..page(5));
}

#[test]
fn c72_killed_munmap_changes_nothing() {
    explore_killed("munmap, killed", |scene, cpu| {
        let process = &scene.process;
        let killed = process.munmap(page(0), 3 * PAGE) == Err(MunmapError::Killed);
        if killed {
            assert_unchanged(process, cpu);
            unmap(process, 0..3);
        }
        Task::current().revive();
        scene.assert_unmapped(0..3);
        killed
    });
}

#[test]
fn c72_killed_mmap_over_a_mapping_changes_nothing() {
    explore_killed("mmap(FIXED), killed", |scene, cpu| {
        let process = &scene.process;
        let mapped = process.mmap(page(0), 3 * PAGE, RW, FIXED, None, 0);
        let killed = mapped == Err(MmapError::Killed);
        if killed {
            assert_unchanged(process, cpu);
            map(process, 0..3, ANON);
        }
        Task::current().revive();
        assert_eq!(process.load(cpu, page(1)), Ok(0u64));
        killed
    });
}

#[test]
fn c72_killed_fork_changes_nothing() {
    explore_killed("fork, killed", |scene, cpu| {
        let process = &scene.process;
        let mut child = process.fork();
        let killed = matches!(child, Err(ForkError::Killed));
        if killed {
            assert_unchanged(process, cpu);
            child = process.fork();
        }
        Task::current().revive();
        let child = Process::of(child.expect("memory for a child"));
        process.store(cpu, page(1), 1u64).unwrap();
        assert_eq!(child.load(cpu, page(1)), Ok(value(1)));
        killed
    });
}

#[test]
fn c72_killed_mprotect_changes_nothing() {
    explore_killed("mprotect, killed", |scene, cpu| {
        let process = &scene.process;
        let killed = process.mprotect(page(0), PAGE, R) == Err(MprotectError::Killed);
        if killed {
            assert_unchanged(process, cpu);
            process.store(cpu, page(0), 1u64).expect("still writable");
        }
        Task::current().revive();
        killed
    });
}

#[test]
fn c72_killed_mremap_changes_nothing() {
    explore_killed("mremap, killed", |scene, cpu| {
        let process = &scene.process;
        let to = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        let killed = process.mremap(page(0), 3 * PAGE, 3 * PAGE, to, page(10)) == Err(MremapError::Killed);
        if killed {
            assert_unchanged(process, cpu);
        }
        Task::current().revive();
        assert_eq!(process.load::<u64>(cpu, page(10)).is_ok(), !killed);
        killed
    });
}

#[test]
fn c72_killed_fault_changes_nothing() {
    explore_killed("a first store, killed", |scene, cpu| {
        let process = &scene.process;
        // The signal arrives at the store, not at the mmap.
        Task::current().revive();
        map(process, 10..11, ANON);
        Task::current().interrupt_wait(1);
        let killed = process.store(cpu, page(10), 1u64) == Err(FaultError::Killed);
        Task::current().revive();
        assert_eq!(process.load(cpu, page(10)), Ok(u64::from(!killed)));
        process.store(cpu, page(10), 2u64).expect("a second store succeeds");
        killed
    });
}

#[test]
fn c72_mmap_is_killed_waiting_for_a_closing_range() {
    let ended = Ended::default();
    let count = ended.clone();
    let name = "mmap(FIXED) over a closing range, killed";
    explore_until(
        &Locking::ALL,
        name,
        100,
        || ended.load(Relaxed) > 0,
        move |locking| {
            let scene = Scene::new(locking);
            scene.fill(0..3);
            thread::scope(|scope| {
                scope.spawn(|| unmap(&scene.process, 0..3));
                scope.spawn(|| {
                    let process = &scene.process;
                    let mut cpu = scene.machine.cpu(0);
                    Task::current().interrupt_wait(1);
                    let killed = process.mmap(page(1), PAGE, RW, FIXED, None, 0) == Err(MmapError::Killed);
                    count.fetch_add(u64::from(killed), Relaxed);
                    Task::current().revive();
                    if killed {
                        let found = process.load::<u64>(&mut cpu, page(1));
                        assert!(
                            found == Ok(value(1)) || found.is_err(),
                            "{found:?}: the killed mmap mapped memory"
                        );
                    }
                });
            });
            scene.assert_unmapped(0..1);
            unmap(&scene.process, 0..3);
            scene.assert_empty();
            scene.end();
        },
    );
}
