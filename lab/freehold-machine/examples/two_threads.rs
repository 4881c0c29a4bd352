//! An example of the engine on the test machine: two threads of one process map, fault, fork and unmap
//! memory, and the program prints the costs.
//!
//! `cargo run --release --example two_threads`
//!
//! The first half (`together`) runs on a machine with contents and with every oracle on. This half panics if
//! a CPU uses a stale translation, or if a page holds anything except the values that were stored there. The
//! second half (`beside_a_large_munmap`) unmaps a large mapping with each design of munmap, while a sibling
//! thread maps and unmaps a small mapping, and prints how long the sibling's calls took. Its machine has
//! phantom memory and no oracles, so that the times are those of the engine. The times are an illustration;
//! `freehold reproduce` measures them.

use freehold::PAGE_SIZE;
use freehold::counted::Counted;
use freehold::engine::{Config, Engine};
use freehold::file::{File, FileAccess, Mapping, Zeroes};
use freehold::space::{Locking, MapFlags, Prot, SpaceConfig, Unmap};
use freehold_machine::DefaultFormat;
use freehold_machine::{Cpu, Machine, MachineConfig, MachineStats, Process};
use freehold_sync::stats::{Histogram, LockSnapshot};
use std::error::Error;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;
type Kernel = Counted<Engine<Machine>>;

const RW: Prot = Prot::READ.union(Prot::WRITE);
const ANON: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS);
/// Number of rounds of each thread in the first half.
const ROUNDS: u64 = 1000;
/// Bytes that a thread maps or fills in a round of the first half.
const PART: u64 = 256 << 10;
/// Bytes of the large mapping of the second half.
const LARGE: u64 = 8 << 30;
/// Bytes of the sibling's mappings in the second half.
const SMALL: u64 = 64 << 10;

fn main() -> Outcome<()> {
    together()?;
    println!();
    beside_a_large_munmap()
}

/// The first half: two threads on a machine with oracles.
fn together() -> Outcome<()> {
    let machine: Machine = Machine::new(MachineConfig::backed(256 << 20).cpus(3))?;
    let kernel = Engine::new(machine.clone(), Config::default())?;
    let process = Process::new(&kernel, &SpaceConfig::new().lock_stats(true))?;
    let shared = furnish(&kernel, &process)?;

    let began = Instant::now();
    thread::scope(|threads| {
        let mapping = threads.spawn(|| maps_and_unmaps(&process, machine.cpu(0), shared));
        let forking = threads.spawn(|| faults_and_forks(&process, machine.cpu(1), shared));
        mapping.join().map_err(|_| "the mapping thread panicked")??;
        forking.join().map_err(|_| "the forking thread panicked")?
    })?;
    println!("Two threads, {ROUNDS} rounds each, {:.0} ms.\n", began.elapsed().as_secs_f64() * 1e3);

    let mut maps = String::new();
    process.write_maps(&mut maps)?;
    print!("The process's maps:\n{maps}");
    if let Some(stats) = process.lock_stats() {
        print_lock(&stats);
    }
    print_faults(&process);
    print_flushes(&machine.stats());

    process.check();
    drop((process, kernel));
    machine.accounting().assert_clean();
    println!("All frames, page tables and address spaces are free.");
    Ok(())
}

/// Creates the mappings of a new program: a file, a heap and a stack. Also maps memory that the two threads
/// share, and returns its address.
fn furnish(kernel: &Kernel, process: &Process) -> Outcome<u64> {
    let contents = Mapping::new(kernel, Zeroes, 64 << 10, false)?;
    let program = File::new(&contents, FileAccess::READ_WRITE, "/bin/two-threads")?;
    let text = 0x5555_5555_0000;
    process.mmap(
        text,
        0x5000,
        Prot::READ | Prot::EXEC,
        MapFlags::PRIVATE | MapFlags::FIXED,
        Some(&program),
        0,
    )?;
    let heap = process.brk(0)?;
    process.brk(heap + (1 << 20))?;
    let stack = <Process>::TASK_SIZE - (64 << 10);
    process.mmap(stack, 64 << 10, RW, ANON | MapFlags::FIXED | MapFlags::GROWSDOWN, None, 0)?;
    Ok(process.mmap(0, 2 * PART, RW, ANON, None, 0)?)
}

/// Maps memory, fills it, removes write permission from one page, and unmaps the memory, in each round.
fn maps_and_unmaps(process: &Process, mut cpu: Cpu<DefaultFormat>, shared: u64) -> Outcome<()> {
    for round in 0..ROUNDS {
        let at = cpu.call(|| process.mmap(0, PART, RW, ANON, None, 0))?;
        for page in (at..at + PART).step_by(PAGE_SIZE as usize) {
            process.store(&mut cpu, page, page ^ round)?;
        }
        cpu.call(|| process.mprotect(at + PART / 2, PAGE_SIZE, Prot::READ))?;
        expect(process.load(&mut cpu, at + PART / 2)?, (at + PART / 2) ^ round);
        process.store(&mut cpu, shared, round)?;
        cpu.call(|| process.munmap(at, PART))?;
    }
    Ok(())
}

/// Fills memory, and forks every 16 rounds. Checks that the child sees the memory as it was at the time of
/// the fork, and that later stores of one process are not visible in the other process.
fn faults_and_forks(process: &Process, mut cpu: Cpu<DefaultFormat>, shared: u64) -> Outcome<()> {
    let own = shared + PART;
    for round in 0..ROUNDS {
        for page in (own..own + PART).step_by(PAGE_SIZE as usize) {
            process.store(&mut cpu, page, page + round)?;
        }
        if round % 16 == 0 {
            let child = Process::of(cpu.call(|| process.fork())?);
            process.store(&mut cpu, own, 0u64)?;
            expect(child.load(&mut cpu, own)?, own + round);
            child.store(&mut cpu, own + PAGE_SIZE, 0u64)?;
            expect(process.load(&mut cpu, own + PAGE_SIZE)?, own + PAGE_SIZE + round);
            cpu.run(process.mmu());
            cpu.call(|| drop(child));
        }
    }
    Ok(())
}

/// Panics if a load did not find the stored value.
#[track_caller]
fn expect(found: u64, stored: u64) {
    assert_eq!(found, stored, "memory does not hold the stored value");
}

fn print_lock(stats: &LockSnapshot) {
    println!("\nThe mmap lock, in microseconds:");
    println!("{:<26}{:>8}{:>10}{:>10}{:>10}", "", "count", "p50", "p99", "longest");
    let line = |what: &str, times: &Histogram| {
        let us = |ns: u64| format!("{:.1}", ns as f64 / 1e3);
        let (p50, p99) = (us(times.percentile(5_000)), us(times.percentile(9_900)));
        println!("{what:<26}{:>8}{p50:>10}{p99:>10}{:>10}", times.count(), us(times.max()));
    };
    line("held for writing", &stats.write.held);
    line("held downgraded", &stats.downgraded);
    line("held for reading", &stats.read.held);
    line("waited for, to write", &stats.write.waited);
    line("waited for, to read", &stats.read.waited);
}

fn print_faults(process: &Process) {
    let faults = process.faults();
    println!(
        "\nFaults served under the VMA lock: {}, under the mmap lock: {}",
        faults.vma_lock, faults.mmap_lock
    );
}

fn print_flushes(stats: &MachineStats) {
    println!(
        "TLB flushes: {} of a range, {} of everything, {} of them with tables freed; visits to the own CPU: {}, to \
         the other: {}; translations dropped: {}",
        stats.range_flushes,
        stats.full_flushes,
        stats.table_flushes,
        stats.local_visits,
        stats.remote_visits,
        stats.entries_flushed
    );
}

/// The second half: the calls of a sibling during a large munmap.
fn beside_a_large_munmap() -> Outcome<()> {
    let (large, small) = (LARGE >> 30, SMALL >> 10);
    println!(
        "While one thread unmaps {large} GiB of touched memory, a sibling maps and unmaps {small} KiB repeatedly:"
    );
    println!(
        "{:<14}{:>10}{:>14}{:>12}{:>16}{:>18}",
        "design", "time, ms", "rounds", "waits", "longest, us", "longest round, us"
    );
    for unmap in [Unmap::Exclusive, Unmap::SECTIONED, Unmap::Downgraded, Unmap::Released] {
        let Beside { took, rounds, longest, waits } = with_design(unmap)?;
        let us = |time: Duration| format!("{:.1}", time.as_secs_f64() * 1e6);
        let name = match unmap {
            Unmap::Exclusive => "Exclusive",
            Unmap::Sectioned { .. } => "Sectioned",
            Unmap::Downgraded => "Downgraded",
            Unmap::Released => "Released",
        };
        println!(
            "{name:<14}{:>10.1}{rounds:>14}{:>12}{:>16}{:>18}",
            took.as_secs_f64() * 1e3,
            waits.count(),
            us(Duration::from_nanos(waits.max())),
            us(longest),
        );
    }
    println!(
        "Waits are for the mmap lock. If a round is much longer than the longest wait, the host preempted it."
    );
    Ok(())
}

/// The result of the second half for one design.
struct Beside {
    /// Time of the large munmap.
    took: Duration,
    /// Number of the sibling's rounds that overlapped the munmap.
    rounds: u64,
    /// The longest of these rounds.
    longest: Duration,
    /// Waits of both threads for the mmap lock for writing.
    waits: Histogram,
}

/// Runs the second half with one design of munmap.
fn with_design(unmap: Unmap) -> Outcome<Beside> {
    let machine: Machine = Machine::new(MachineConfig::phantom(LARGE + (64 << 20)).cpus(2).fast())?;
    let kernel = Engine::new(machine.clone(), Config::default())?;
    let locking = Locking::default().unmap(unmap);
    let process = Process::new(&kernel, &SpaceConfig::new().locking(locking).lock_stats(true))?;
    let large = process.mmap(0, LARGE, RW, ANON | MapFlags::POPULATE, None, 0)?;
    assert!(machine.stats().frames.allocated >= LARGE / PAGE_SIZE, "not all of the memory was populated");

    let (ready, started, ended) = (Barrier::new(2), AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|threads| {
        let sibling = threads.spawn(|| -> Outcome<(u64, Duration)> {
            let cpu = machine.cpu(1);
            let _running = cpu.enter();
            let (mut rounds, mut longest) = (0, Duration::ZERO);
            ready.wait();
            while !ended.load(SeqCst) {
                let began = Instant::now();
                let at = process.mmap(0, SMALL, RW, ANON, None, 0)?;
                process.munmap(at, SMALL)?;
                let took = began.elapsed();
                if started.load(SeqCst) {
                    rounds += 1;
                    longest = longest.max(took);
                }
            }
            Ok((rounds, longest))
        });
        let mut cpu = machine.cpu(0);
        process.load::<u64>(&mut cpu, large)?;
        ready.wait();
        started.store(true, SeqCst);
        let began = Instant::now();
        let unmapped = cpu.call(|| process.munmap(large, LARGE));
        let took = began.elapsed();
        ended.store(true, SeqCst);
        let (rounds, longest) = sibling.join().map_err(|_| "the sibling panicked")??;
        unmapped?;
        let stats = process.lock_stats().ok_or("the process has no lock statistics")?;
        Ok(Beside { took, rounds, longest, waits: stats.write.waited })
    })
}
