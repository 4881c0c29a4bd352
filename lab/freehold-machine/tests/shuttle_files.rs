//! Mapped files under many schedules of the checker: faults concurrent with truncation, hole punching and
//! splits (C-26, C-37), and copy on write concurrent with readers that have stale translations (C-21).
//!
//! These scenarios are small and run with more schedules than those of `shuttle_engine` (modules `files` and
//! `fork`), but only on the default design. [`Scene`] is one process that maps a file twice, shared and
//! private. `Scene::end` checks that no page beyond the end of the file is mapped, and that all memory is
//! free. The last test must fail with the mutation `cow-flush`, which removes the flush of copy on write. A
//! larger scenario, or a scenario for all designs, belongs in `shuttle_engine`.

mod common;

use common::thread;
use freehold::{
    PAGE_SIZE, PageIndex,
    counted::Counted,
    engine::{Config, Engine},
    fault::FaultError,
    file::{File, FileAccess, Mapping, Zeroes},
    space::{Locking, MapFlags, Prot, SpaceConfig},
};
use freehold_machine::{Machine, MachineConfig, Process};
use freehold_sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::Arc;

const RW: Prot = Prot::READ.union(Prot::WRITE);
/// Number of pages of the file.
const PAGES: u64 = 4;

/// Runs a scenario once, or with many schedules under the checker.
fn run(scenario: impl Fn() + Send + Sync + 'static) {
    #[cfg(shuttle)]
    {
        let schedules = freehold_machine::Effort::of(200, 1500, 1500);
        // The scheduler switches threads at few places, so that a thread can run for long between two
        // adjacent steps of another thread.
        let scheduler = shuttle::scheduler::PctScheduler::new_from_seed(common::seed(), 2, schedules);
        shuttle::Runner::new(scheduler, common::config()).run(scenario);
    }
    #[cfg(not(shuttle))]
    scenario();
}

/// A process that maps a file of zeroes twice, at the addresses `shared` and `private`, and its machine.
struct Scene {
    process: Process,
    file: Counted<File<Machine>>,
    shared: u64,
    private: u64,
    machine: Machine,
}

impl Scene {
    fn new() -> Arc<Self> {
        let machine = Machine::new(MachineConfig::backed(1 << 20).tables(1 << 18).cpus(4)).unwrap();
        let engine = Engine::new(machine.clone(), Config::default()).unwrap();
        let config = SpaceConfig::new().locking(Locking::default());
        let process = Process::new(&engine, &config).unwrap();
        let mapping = Mapping::new(&engine, Zeroes, PAGES * PAGE_SIZE, true).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "memory").unwrap();
        let map = |flags| process.mmap(0, PAGES * PAGE_SIZE, RW, flags, Some(&file), 0).unwrap();
        let (shared, private) = (map(MapFlags::SHARED), map(MapFlags::PRIVATE));
        Arc::new(Scene { process, file, shared, private, machine })
    }

    /// Checks that nothing is mapped beyond the end of the file and that all memory is free.
    fn end(scene: Arc<Self>, cpu: usize) {
        let Ok(scene) = Arc::try_unwrap(scene) else { panic!("a thread still runs") };
        let mut cpu = scene.machine.cpu(cpu);
        for page in scene.file.mapping().pages()..PAGES {
            for at in [scene.shared, scene.private] {
                let address = at + page * PAGE_SIZE;
                let found = scene.process.load::<u64>(&mut cpu, address);
                assert_eq!(found, Err(FaultError::Bus { addr: address }), "page {page} is still mapped");
            }
        }
        scene.process.space().check();
        let machine = scene.machine.clone();
        drop((scene, cpu));
        machine.accounting().assert_clean();
    }
}

#[test]
fn c26_fault_concurrent_with_truncation() {
    for store in [false, true] {
        for private in [false, true] {
            run(move || {
                let scene = Scene::new();
                let at = if private { scene.private } else { scene.shared } + PAGE_SIZE;
                scene.file.mapping().fill(PageIndex::new(1)).unwrap();
                let faulting = thread::spawn({
                    let scene = scene.clone();
                    move || {
                        let mut cpu = scene.machine.cpu(0);
                        let result = match store {
                            true => scene.process.store(&mut cpu, at, 1u64),
                            false => scene.process.load(&mut cpu, at).map(|found: u64| assert_eq!(found, 0)),
                        };
                        assert!(matches!(result, Ok(()) | Err(FaultError::Bus { .. })), "{result:?}");
                    }
                });
                scene.file.mapping().truncate(PAGE_SIZE / 2).unwrap();
                faulting.join().unwrap();
                Scene::end(scene, 0);
            });
        }
    }
}

#[test]
fn c26_fault_concurrent_with_a_hole() {
    run(|| {
        let scene = Scene::new();
        let at = scene.shared + PAGE_SIZE;
        scene.file.mapping().write_at(PAGE_SIZE, &7u64.to_le_bytes()).unwrap();
        let faulting = thread::spawn({
            let scene = scene.clone();
            move || {
                let found: u64 = scene.process.load(&mut scene.machine.cpu(0), at).unwrap();
                assert!(found == 0 || found == 7);
            }
        });
        scene.file.mapping().punch(PAGE_SIZE..2 * PAGE_SIZE).unwrap();
        let mut cpu = scene.machine.cpu(1);
        assert_eq!(scene.process.load(&mut cpu, at), Ok(0u64), "the punched page is still mapped");
        faulting.join().unwrap();
        drop(cpu);
        Scene::end(scene, 1);
    });
}

#[test]
fn c37_split_concurrent_with_truncation() {
    run(|| {
        let scene = Scene::new();
        let mut cpu = scene.machine.cpu(0);
        for page in 0..PAGES {
            scene.process.store(&mut cpu, scene.shared + page * PAGE_SIZE, page).unwrap();
        }
        drop(cpu);
        let splitting = thread::spawn({
            let scene = scene.clone();
            move || {
                // Splits the VMA in two, and merges the parts again.
                let at = scene.shared + 2 * PAGE_SIZE;
                scene.process.mprotect(at, PAGE_SIZE, Prot::READ).unwrap();
                scene.process.mprotect(at, PAGE_SIZE, RW).unwrap();
            }
        });
        scene.file.mapping().truncate(PAGE_SIZE).unwrap();
        splitting.join().unwrap();
        Scene::end(scene, 0);
    });
}

#[test]
fn c21_no_cpu_reads_the_old_page_after_a_store() {
    run(|| {
        let scene = Scene::new();
        let at = scene.private;
        let stored = Arc::new(AtomicBool::new(false));
        // The reader's CPU has cached a translation of the file's page.
        let mut reader = scene.machine.cpu(2);
        assert_eq!(scene.process.load(&mut reader, at), Ok(0u64));
        let writers: Vec<_> = (0..2)
            .map(|number| {
                let (scene, stored) = (scene.clone(), stored.clone());
                thread::spawn(move || {
                    scene.process.store(&mut scene.machine.cpu(number), at, 1u64).unwrap();
                    stored.store(true, SeqCst);
                })
            })
            .collect();
        for _ in 0..4 {
            let done = stored.load(SeqCst);
            let found: u64 = scene.process.load(&mut reader, at).unwrap();
            assert!(found == 1 || !done, "the old page was read after a store to the new one");
        }
        for writer in writers {
            writer.join().unwrap();
        }
        drop(reader);
        Scene::end(scene, 0);
    });
}
