//! A process that starts from a compressed snapshot: a pager supplies each page on its first access.
//!
//! `cargo run --release --example snapshot_pager`
//!
//! One process fills its memory, which is compressed page by page. A second process gets an empty mapping at
//! the same addresses, registered with a userfaultfd. Four of its threads check all pages, each in an order
//! of its own, while the process discards some pages, moves some pages, and forks. The machine's oracles are
//! on. The run fails if a page has wrong contents. The pager is in `pager.rs`; `tests/snapshot_pager.rs` runs
//! it without this program.

mod pager;

use freehold::PAGE_SIZE;
use freehold::counted::Counted;
use freehold::engine::{Config, Engine};
use freehold::uffd::{Features, RegisterMode, UffdConfig, Userfaultfd};
use freehold::{
    call::{Advice, RemapFlags},
    space::{MapFlags, Prot, SpaceConfig},
};
use freehold_machine::DefaultFormat;
use freehold_machine::{Cpu, Machine, MachineConfig, Process};
use pager::{Pager, Snapshot, Work};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Instant;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const RW: Prot = Prot::READ.union(Prot::WRITE);
const FIXED: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS).union(MapFlags::FIXED);
const START: u64 = 0x10_0000_0000;
const PAGES: u64 = 4096;
const THREADS: u64 = 4;
/// Number of pages that are discarded, and number of pages that move to [`ELSEWHERE`].
const DISCARDED: u64 = 64;
const MOVED: u64 = 64;
const ELSEWHERE: u64 = START + (1 << 30);

fn main() -> Outcome<()> {
    let machine: Machine = Machine::new(MachineConfig::backed(256 << 20))?;
    let kernel = Engine::new(machine.clone(), Config::default())?;
    let snapshot = record(&kernel, &mut machine.cpu(0))?;
    println!("{} KiB of memory, {} KiB compressed", (PAGES * PAGE_SIZE) >> 10, snapshot.bytes() >> 10);
    let began = Instant::now();
    let work = restore(&machine, &kernel, &snapshot)?;
    println!(
        "served in {:.0} ms: {} pages copied, {} of zeroes, {} events",
        began.elapsed().as_secs_f64() * 1e3,
        work.copied.load(Relaxed),
        work.zeroes.load(Relaxed),
        work.events.load(Relaxed)
    );
    drop((work, kernel));
    machine.accounting().assert_clean();
    Ok(())
}

/// Returns the first 8 bytes of page `number`. Every eighth page is all zero.
fn value(number: u64) -> u64 {
    if number.is_multiple_of(8) { 0 } else { number * 1_000_003 }
}

/// Fills the memory of a process and takes its snapshot.
fn record(kernel: &Counted<Engine<Machine>>, cpu: &mut Cpu<DefaultFormat>) -> Outcome<Snapshot> {
    let process = Process::new(kernel, &SpaceConfig::default())?;
    process.mmap(START, PAGES * PAGE_SIZE, RW, FIXED, None, 0)?;
    for number in (0..PAGES).filter(|number| value(*number) != 0) {
        process.store(cpu, START + number * PAGE_SIZE, value(number))?;
        process.write(
            cpu,
            START + number * PAGE_SIZE + 512,
            format!("page {number}. ").repeat(40).as_bytes(),
        )?;
    }
    Snapshot::take(process.space(), START, PAGES)
}

/// Restores the snapshot in another process.
fn restore(machine: &Machine, kernel: &Counted<Engine<Machine>>, snapshot: &Snapshot) -> Outcome<Work> {
    let process = Process::new(kernel, &SpaceConfig::default())?;
    process.mmap(START, PAGES * PAGE_SIZE, RW, FIXED, None, 0)?;
    let features =
        Features::EVENT_FORK | Features::EVENT_REMAP | Features::EVENT_REMOVE | Features::EVENT_UNMAP;
    let config = UffdConfig::new().features(features);
    let uffd = Arc::new(Userfaultfd::new(process.space(), config)?);
    uffd.register(START, PAGES * PAGE_SIZE, RegisterMode::MISSING)?;
    let work = Work::default();
    let pager = Pager::new(snapshot, &work, START);
    let done = thread::scope(|scope| {
        let served = uffd.clone();
        scope.spawn(move || pager.serve(&served, scope));
        let done = run(machine, &process);
        uffd.close();
        work.children.lock().expect("no pager panics").iter().for_each(|child| child.close());
        done
    });
    process.check();
    work.children.lock().expect("no pager panics").clear();
    done.map(|()| work)
}

/// Runs the program of the process: threads check pages, one part of the memory is discarded, another part is
/// moved, and a child is forked.
fn run(machine: &Machine, process: &Process) -> Outcome<()> {
    process.madvise(START, DISCARDED * PAGE_SIZE, Advice::DontNeed)?;
    let from = START + DISCARDED * PAGE_SIZE;
    let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    process.mremap(from, MOVED * PAGE_SIZE, MOVED * PAGE_SIZE, flags, ELSEWHERE)?;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || check(process, &mut machine.cpu(thread as usize), thread, 1)))
            .collect();
        let child = Process::of(process.fork()?);
        check(&child, &mut machine.cpu(THREADS as usize), 0, 8)?;
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
    })
}

/// Checks one of every `stride` pages, in a scattered order. Each thread starts at a different page.
fn check(process: &Process, cpu: &mut Cpu<DefaultFormat>, thread: u64, stride: u64) -> Outcome<()> {
    for n in (0..PAGES).step_by(stride as usize) {
        let number = (n * 17 + thread * PAGES / THREADS) % PAGES;
        let (at, expected) = match number {
            ..DISCARDED => (START + number * PAGE_SIZE, 0),
            number if number < DISCARDED + MOVED => {
                (ELSEWHERE + (number - DISCARDED) * PAGE_SIZE, value(number))
            }
            number => (START + number * PAGE_SIZE, value(number)),
        };
        let found: u64 = process.load(cpu, at)?;
        if found != expected {
            return Err(format!("page {number} holds {found}, not {expected}").into());
        }
    }
    Ok(())
}
