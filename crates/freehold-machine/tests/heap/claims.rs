//! Memory that runs out in a change of one thread beside those of another (C-10): what was claimed is given
//! up, so nobody waits for it, and the call may be made again.

use freehold::{
    PAGE_SIZE,
    engine::{Config, Engine},
    space::{Locking, MapFlags, Prot, SpaceConfig, Write},
};
use freehold_machine::{Effort, Machine, MachineConfig, Process, fail_heap_once, stop_failing_heap};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
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
/// none of them has failed.
fn change(process: &Process, kind: u64, at: u64) -> bool {
    let (at, len) = (page(at), 3 * PAGE_SIZE);
    match kind {
        0 => process.mprotect(at, len, Prot::empty()).is_ok(),
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

fn beside(locking: Locking) -> u64 {
    let machine: Machine = Machine::new(MachineConfig::backed(4 << 20).cpus(2)).unwrap();
    let engine = Engine::new(machine.clone(), Config::default()).unwrap();
    let process = Process::new(&engine, &SpaceConfig { locking, ..SpaceConfig::default() }).unwrap();
    fill(&process);
    let (mut failures, over) = (0, AtomicBool::new(false));
    thread::scope(|scope| {
        let (process, over) = (&process, &over);
        scope.spawn(move || {
            for round in (0..10_000_000).take_while(|_| !over.load(Relaxed)) {
                let at = round % (4 * VMAS - 3);
                let done = change(process, round % 4, at);
                assert!(done || round % 4 == 0, "memory has run out for another thread");
            }
        });
        let enough = Effort::of(200, 1000, 20_000);
        // Until something has failed, which takes that the two meet.
        for round in 0..100 * enough {
            if round >= enough && failures > 0 {
                break;
            }
            // The same ranges as the other's now and then, else those beside it.
            let (at, kind) = (round * 7 % (4 * VMAS - 3), round % 4);
            fail_heap_once(1 + round / 4 % 5);
            let done = change(process, kind, at);
            failures += stop_failing_heap();
            // At once again: nothing is in the way, but that protection needs something mapped.
            assert!(done || change(process, kind, at) || kind == 0, "a claim was kept");
        }
        over.store(true, Relaxed);
    });
    process.check();
    process.clear();
    process.check();
    drop((process, engine));
    machine.accounting().assert_clean();
    failures
}

#[test]
fn c10_a_claim_ends_with_the_change_that_finds_no_memory() {
    for write in [Write::Ranges, Write::Whole] {
        let failures = beside(Locking { write, ..Locking::default() });
        assert!(failures > 0, "nothing was made to fail");
    }
}
