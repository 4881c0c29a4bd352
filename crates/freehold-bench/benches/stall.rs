//! Who waits for a large munmap, and how long the mmap lock is held for it.
//!
//! `cargo bench --bench stall` (16 GiB), `cargo bench --bench stall -- 320` for another number of GiB. Phantom memory: page
//! tables and frame records are real, contents are not. Times include two reads of the clock per lock operation.

use freehold::engine::{Config, Engine};
use freehold::fault::Access;
use freehold::space::{FaultLock, Locking, MapFlags, Prot, SpaceConfig, Unmap};
use freehold_bench::{PAGE, machine};
use freehold_machine::Process;
use freehold_sync::stats::Histogram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const DESIGNS: [(&str, Unmap); 4] = [
    ("Exclusive", Unmap::Exclusive),
    ("Sectioned", Unmap::SECTIONED),
    ("Downgraded", Unmap::Downgraded),
    ("Released", Unmap::Released),
];
const RW: Prot = Prot::READ.union(Prot::WRITE);
const ANON: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS).union(MapFlags::NORESERVE);

fn main() {
    let gib: u64 = std::env::args().filter_map(|word| word.parse().ok()).next().unwrap_or(16);
    println!("munmap of populated memory: the call, and the mmap lock's holds for it\n");
    println!(
        "{:<11} {:>9} {:>12} {:>9} {:>14} {:>14}",
        "design", "size", "call", "ns/page", "exclusive max", "downgraded"
    );
    for bytes in [PAGE, 1 << 20, 1 << 30, gib << 30] {
        for (name, unmap) in DESIGNS {
            hold(name, unmap, bytes);
        }
    }
    println!("\na sibling thread's mmap + munmap of a page, alone and while {gib} GiB are unmapped\n");
    println!(
        "{:<11} {:>11} {:>11} {:>11} | {:>11} {:>11} {:>11}",
        "design", "alone p50", "p99", "max", "beside p50", "p99", "max"
    );
    for (name, unmap) in DESIGNS {
        sibling(name, unmap, gib << 30);
    }
}

fn process(unmap: Unmap, bytes: u64, lock_stats: bool) -> Process {
    let engine = Engine::new(machine(bytes + (1 << 30)), Config::default()).expect("memory");
    let locking = Locking { unmap, fault: FaultLock::VmaLock, ..Locking::default() };
    Process::new(&engine, &SpaceConfig { locking, lock_stats, ..SpaceConfig::default() }).expect("memory")
}

fn populated(process: &Process, bytes: u64) -> u64 {
    let at = process.mmap(0, bytes, RW, ANON, None, 0).expect("room");
    for n in 0..bytes / PAGE {
        process.space().handle_fault(at + n * PAGE, Access::WRITE).expect("room");
    }
    at
}

fn hold(name: &str, unmap: Unmap, bytes: u64) {
    let process = process(unmap, bytes, true);
    let rounds = ((1u64 << 24) / bytes).clamp(1, 200);
    let (mut call, mut exclusive, mut downgraded) =
        (Duration::MAX, Histogram::default(), Histogram::default());
    for _ in 0..rounds {
        let at = populated(&process, bytes);
        let before = process.lock_stats().expect("asked for");
        let started = Instant::now();
        process.munmap(at, bytes).expect("mapped");
        call = call.min(started.elapsed());
        let mut during = process.lock_stats().expect("asked for");
        during.remove(&before);
        exclusive.merge(&during.write.held);
        downgraded.merge(&during.downgraded);
    }
    println!(
        "{name:<11} {:>5} {:>3} {:>12} {:>9.1} {:>14} {:>14}",
        size(bytes).0,
        size(bytes).1,
        time(call.as_nanos() as u64),
        call.as_nanos() as f64 / (bytes / PAGE) as f64,
        time(exclusive.max()),
        time(downgraded.max()),
    );
}

fn sibling(name: &str, unmap: Unmap, bytes: u64) {
    let process = process(unmap, bytes, false);
    let at = populated(&process, bytes);
    let (go, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let (alone, beside) = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let alone = map_until(&process, || go.load(Ordering::Acquire));
            (alone, map_until(&process, || stop.load(Ordering::Acquire)))
        });
        std::thread::sleep(Duration::from_millis(300));
        go.store(true, Ordering::Release);
        process.munmap(at, bytes).expect("mapped");
        stop.store(true, Ordering::Release);
        watcher.join().expect("the sibling")
    });
    let row = |h: &Histogram| [h.percentile(5_000), h.percentile(9_900), h.max()].map(time);
    let ([a, b, c], [d, e, f]) = (row(&alone), row(&beside));
    println!("{name:<11} {a:>11} {b:>11} {c:>11} | {d:>11} {e:>11} {f:>11}");
}

/// Maps and unmaps a page again and again until told to stop; at least once.
fn map_until(process: &Process, stop: impl Fn() -> bool) -> Histogram {
    let mut times = Histogram::default();
    loop {
        let started = Instant::now();
        let at = process.mmap(0, PAGE, RW, ANON, None, 0).expect("room");
        process.munmap(at, PAGE).expect("mapped");
        times.record(started.elapsed().as_nanos() as u64);
        if stop() {
            return times;
        }
    }
}

fn size(bytes: u64) -> (u64, &'static str) {
    match bytes {
        0..0x10_0000 => (bytes >> 10, "KiB"),
        0x10_0000..0x4000_0000 => (bytes >> 20, "MiB"),
        _ => (bytes >> 30, "GiB"),
    }
}

fn time(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{} us", ns / 1_000),
        _ => format!("{} ms", ns / 1_000_000),
    }
}
