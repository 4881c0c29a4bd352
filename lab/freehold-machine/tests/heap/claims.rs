//! C-10: memory runs out in a change by one thread while another thread makes changes.
//!
//! The code under test is `space/claim.rs` and the writers of the VMA tree in `freehold-range`. The claim or
//! lock of the failed change is released, so no thread waits for it, and the change can be repeated.
//! `change_without_memory` makes changes (`change`) whose first, second or third allocation fails. Each test
//! requires that some allocation failed. If a change keeps its claim, the change cannot be repeated, or the
//! test never ends.

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
/// Number of VMAs of four pages: enough for a tree of several leaves.
const VMAS: u64 = 64;

fn page(number: u64) -> u64 {
    (1 << 30) + number * PAGE_SIZE
}

/// Changes three pages from page `at` on, in one VMA or across two. The kinds 0 to 3 are mprotect, munmap,
/// mmap over the range, and mmap and munmap elsewhere. Returns true if the change succeeded.
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

/// Maps VMAs of four pages each. No two adjacent VMAs may merge.
fn fill(process: &Process) {
    for number in 0..VMAS {
        let prot = if number % 2 == 0 { R } else { RW };
        let at = page(4 * number);
        assert_eq!(process.mmap(at, 4 * PAGE_SIZE, prot, FIXED, None, 0), Ok(at));
    }
}

/// Runs `scenario` on a process with the given design of changes. Checks that all memory is free at the end.
fn with_scene<R>(write: Write, scenario: impl FnOnce(&Process) -> R) -> R {
    let machine: Machine = Machine::new(MachineConfig::backed(4 << 20).cpus(2)).unwrap();
    let engine = Engine::new(machine.clone(), Config::default()).unwrap();
    let locking = Locking::default().write(write);
    let process = Process::new(&engine, &SpaceConfig::new().locking(locking)).unwrap();
    fill(&process);
    let result = scenario(&process);
    process.check();
    process.clear();
    process.check();
    drop((process, engine));
    machine.accounting().assert_clean();
    result
}

/// Makes the changes of one thread, on pages from `first` on. In each change the first, second or third
/// allocation fails, if the change makes so many allocations. A change that failed is repeated. Returns the
/// number of failed allocations.
fn change_without_memory(process: &Process, first: u64, rounds: u64) -> u64 {
    let change_once = |round: u64| {
        let (at, kind) = (first + round * 7 % (4 * VMAS - 3 - first), round % 4);
        // Frees unused VMAs and nodes, so that a change must allocate the VMAs and nodes that it needs.
        process.engine().trim();
        fail_heap_once(1 + round / 4 % 3);
        let done = change(process, kind, at);
        let failures = stop_failing_heap();
        assert!(done || change(process, kind, at), "kind {kind}: a claim was kept");
        // Fills the hole again, because a change of a range with holes waits for the exclusive writer.
        if kind == 1 {
            assert!(change(process, 2, at));
        }
        failures
    };
    (0..rounds).map(change_once).sum()
}

/// Memory runs out in a change while another change waits and holds a claim of its own. The failed change
/// leaves no claim behind. The thread repeats the change with a fatal signal pending, which succeeds only if
/// no claim makes the thread wait.
#[test]
fn c10_claim_is_released_when_allocation_fails() {
    let failures = with_scene(Write::RangesOnly, |process| {
        let reader = process.find_vma(page(0)).unwrap();
        thread::scope(|scope| {
            let (tell, hear) = channel();
            let waiting = scope.spawn(move || {
                tell.send(Task::current()).unwrap();
                // The change also claims the next VMA, with which it merges.
                process.mprotect(page(0), 4 * PAGE_SIZE, RW)
            });
            let waiter = hear.recv().unwrap();
            while waiter.waits() == 0 {
                thread::yield_now();
            }
            // The changes run on a thread of their own, because this thread holds a VMA lock.
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

/// A change that holds the mmap lock releases it when an allocation fails.
#[test]
fn c10_mmap_lock_is_released_when_allocation_fails() {
    for write in [Write::Ranges, Write::Whole] {
        let failures = with_scene(write, |process| change_without_memory(process, 0, 400));
        assert!(failures > 0, "no allocation failed");
    }
}

/// Memory runs out in the changes of one thread, but not in the changes of another thread.
#[test]
fn c10_failed_allocations_do_not_disturb_other_threads() {
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
                // These changes use the same ranges as the other thread, or adjacent ranges.
                let _over = Over(&over);
                change_without_memory(process, 0, Effort::of(200, 1000, 20_000))
            })
        });
    }
}

/// Stops the other thread when this thread ends or fails.
struct Over<'o>(&'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
