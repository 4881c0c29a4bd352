//! Memory that runs out in a change of one thread beside those of another (C-10): what was claimed is given
//! up, so nobody waits for it, and the call may be made again.

use freehold::{
    PAGE_SIZE,
    engine::{Config, Engine},
    error::MprotectError,
    space::{Locking, MapFlags, Prot, SpaceConfig, Write},
};
use freehold_machine::{Effort, Machine, MachineConfig, Process, Task, fail_heap_once, stop_failing_heap};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::thread;

const R: Prot = Prot::READ;
const RW: Prot = Prot::READ.union(Prot::WRITE);
const ANON: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS);
const FIXED: MapFlags = ANON.union(MapFlags::FIXED);
/// Enough VMAs for a tree of several leaves.
const VMAS: u64 = 64;

fn page(number: u64) -> u64 {
    (1 << 30) + number * PAGE_SIZE
}

/// A change of three pages in the middle of one VMA, or from one into the next; the scene is as before when
/// none of them has failed. Returns whether it was done, as far as something is mapped there.
fn change(process: &Process, kind: u64, at: u64) -> bool {
    let (at, len) = (page(at), 3 * PAGE_SIZE);
    match kind {
        0 => {
            let done = process.mprotect(at, len, Prot::empty());
            matches!(done, Ok(()) | Err(MprotectError::NotMapped))
        }
        1 => process.munmap(at, len).is_ok(),
        2 => process.mmap(at, len, RW, FIXED, None, 0).is_ok(),
        _ => process.mmap(0, PAGE_SIZE, RW, ANON, None, 0).is_ok_and(|at| {
            process.munmap(at, PAGE_SIZE).is_ok() || {
                stop_failing_heap();
                process.munmap(at, PAGE_SIZE).is_ok()
            }
        }),
    }
}

/// Four pages each, of which no two that touch may merge.
fn fill(process: &Process) {
    for number in 0..VMAS {
        let prot = if number % 2 == 0 { R } else { RW };
        let at = page(4 * number);
        assert_eq!(process.mmap(at, 4 * PAGE_SIZE, prot, FIXED, None, 0), Ok(at));
    }
}

/// Runs a scenario on a process whose changes are locked so. All memory has come back when it ends.
fn with_scene<R>(write: Write, scenario: impl FnOnce(&Process) -> R) -> R {
    let machine: Machine = Machine::new(MachineConfig::backed(4 << 20).cpus(2)).unwrap();
    let engine = Engine::new(machine.clone(), Config::default()).unwrap();
    let locking = Locking { write, ..Locking::default() };
    let process = Process::new(&engine, &SpaceConfig { locking, ..SpaceConfig::default() }).unwrap();
    fill(&process);
    let result = scenario(&process);
    process.check();
    process.clear();
    process.check();
    drop((process, engine));
    machine.accounting().assert_clean();
    result
}

/// Makes the changes of one thread, of pages from `first` on. In each an allocation fails if it needs so many,
/// and then the change is made again. Returns how many allocations failed.
fn change_without_memory(process: &Process, first: u64, rounds: u64) -> u64 {
    let change_once = |round: u64| {
        let (at, kind) = (first + round * 7 % (4 * VMAS - 3 - first), round % 4);
        // So that a change which needs a VMA or a node has to allocate it.
        process.engine().trim();
        fail_heap_once(1 + round / 4 % 3);
        let done = change(process, kind, at);
        let failures = stop_failing_heap();
        assert!(done || change(process, kind, at), "kind {kind}: a claim was kept");
        // No hole stays: a change of ranges with holes waits for the whole.
        if kind == 1 {
            assert!(change(process, 2, at));
        }
        failures
    };
    (0..rounds).map(change_once).sum()
}

/// Memory runs out beside a change that waits, with a claim of its own. A change that finds no memory leaves
/// no claim behind: the thread, which is killed where it would have to wait, makes the change again.
#[test]
fn c10_a_claim_ends_with_the_change_that_finds_no_memory() {
    let failures = with_scene(Write::RangesOnly, |process| {
        let reader = process.find_vma(page(0)).unwrap();
        thread::scope(|scope| {
            let (tell, hear) = channel();
            let waiting = scope.spawn(move || {
                tell.send(Task::current()).unwrap();
                // It claims the VMA behind as well, which it joins.
                process.mprotect(page(0), 4 * PAGE_SIZE, RW)
            });
            let waiter = hear.recv().unwrap();
            while waiter.waits() == 0 {
                thread::yield_now();
            }
            // On a thread of its own: this one has the lock of a VMA.
            let changing = scope.spawn(|| {
                Task::current().kill();
                change_without_memory(process, 3 * 4, 400)
            });
            let failures = changing.join();
            assert!(!waiting.is_finished());
            drop(reader);
            let failures = failures.unwrap();
            assert_eq!(waiting.join().unwrap(), Ok(()));
            failures
        })
    });
    assert!(failures > 0, "no allocation failed");
}

/// A change that holds the mmap lock and finds no memory releases the lock.
#[test]
fn c10_a_lock_ends_with_the_change_that_finds_no_memory() {
    for write in [Write::Ranges, Write::Whole] {
        let failures = with_scene(write, |process| change_without_memory(process, 0, 400));
        assert!(failures > 0, "no allocation failed");
    }
}

/// Memory runs out in the changes of one thread, and in none of another's.
#[test]
fn c10_no_memory_beside_changes_of_another_thread() {
    for write in [Write::Ranges, Write::RangesOnly, Write::Whole] {
        let over = AtomicBool::new(false);
        with_scene(write, |process| {
            thread::scope(|scope| {
                scope.spawn(|| {
                    for round in (0..).take_while(|_| !over.load(Relaxed)) {
                        let done = change(process, round % 4, round % (4 * VMAS - 3));
                        assert!(done, "memory has run out for another thread");
                    }
                });
                // The same ranges as the other's now and then, else those beside it.
                let _over = Over(&over);
                change_without_memory(process, 0, Effort::of(200, 1000, 20_000))
            })
        });
    }
}

/// Ends the other thread, whatever becomes of this one.
struct Over<'o>(&'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
