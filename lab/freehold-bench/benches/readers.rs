//! Readers of reports and holders of pins: how long they delay other tasks, and what they cost.
//!
//! `cargo bench --bench readers`. A reader repeatedly reads the list of VMAs (`maps`) while a writer maps and
//! unmaps pages; the writer's percentiles show the delay. Then the bench measures pins per page (`pins`), and
//! reads of a VMA with and without its lock (`looks`). The engine's memory is phantom (`src/engine.rs`).
//! Compared measurements alternate in one run. The figures of the host kernel are for calls that do the same
//! work; they include the system call itself, and the memory is real. Compare only how much the reader
//! changes the writer's figures, for the engine and for the host kernel.

use freehold::{
    engine::{Config, Engine},
    fault::Access,
    remote::PinFlags,
    space::{MapFlags, Prot, SpaceConfig},
};
use freehold_bench::{PAGE, machine};
use freehold_machine::Process;
use freehold_sync::stats::Histogram;
use std::{
    fs::File,
    io::Read,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

const RW: Prot = Prot::READ.union(Prot::WRITE);
const R: Prot = Prot::READ;
const ANON: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS);
/// Number of VMAs in a report.
const VMAS: u64 = 1_000;
/// Duration of one measurement of the writer.
const TURN: Duration = Duration::from_millis(200);
/// Number of measurements of the writer.
const TURNS: usize = 5;
/// Numbers of pages pinned at a time.
const SIZES: [usize; 4] = [1, 16, 512, 4096];

fn main() {
    println!("a thread that maps and unmaps a page, with {VMAS} VMAs, while another thread reads maps\n");
    println!("{:<32} {:>10} {:>10} {:>12} {:>16}", "", "p50", "p99", "calls/s", "passes of readers");
    let ours = [false, true].map(|reads| beside(reads, ours_writer()));
    let host = [false, true].map(|reads| beside(reads, host_writer()));
    for (name, [alone, read]) in [("the engine", &ours), ("the host kernel", &host)] {
        for (what, row) in [("alone", alone), ("with a reader", read)] {
            let [median, high] = [5_000, 9_900].map(|percent| row.times.percentile(percent));
            let label = format!("{name}, {what}");
            println!("{label:<32} {median:>7} ns {high:>7} ns {:>12} {:>16}", row.calls, row.passes);
        }
        let p99 = |row: &Row| row.times.percentile(9_900) as f64;
        println!("{:<32} {:>21.2} times the p99\n", "", p99(read) / p99(alone));
    }
    println!("pinning and unpinning present pages, nanoseconds per page\n");
    println!("{:>6} {:>8} {:>8} {:>8} {:>24}", "pages", "fast", "slow", "ratio", "read_memory, for scale");
    SIZES.into_iter().for_each(pins);
    println!("\nreading a VMA: {}", looks());
}

/// The figures of a writer.
struct Row {
    /// The times of its calls, in nanoseconds.
    times: Histogram,
    /// Calls per second.
    calls: u64,
    /// Number of reports that the reader has finished in all measurements.
    passes: u64,
}

/// A function that changes an address space, and a function that reports on that address space.
struct Pair {
    change: Box<dyn Fn() + Sync>,
    report: Box<dyn Fn() + Sync>,
}

/// Calls `change` of the pair repeatedly and returns its figures. If `reads` is true, another thread calls
/// `report` during the measurement.
fn beside(reads: bool, pair: Pair) -> Row {
    let mut row = Row { times: Histogram::default(), calls: 0, passes: 0 };
    for _ in 0..TURNS {
        let (stop, passes) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            if reads {
                scope.spawn(|| {
                    while !stop.load(Relaxed) {
                        (pair.report)();
                        passes.fetch_add(1, Relaxed);
                    }
                });
            }
            let begun = Instant::now();
            while begun.elapsed() < TURN {
                let started = Instant::now();
                (pair.change)();
                row.times.record(started.elapsed().as_nanos() as u64);
                row.calls += 1;
            }
            stop.store(true, Relaxed);
        });
        row.passes += passes.into_inner();
    }
    row.calls = (row.calls as f64 / (TURN * TURNS as u32).as_secs_f64()) as u64;
    row
}

/// Creates a process of the engine.
fn process() -> Process {
    let engine = Engine::new(machine(1 << 30), Config::default()).expect("memory");
    Process::new(&engine, &SpaceConfig::default()).expect("memory")
}

/// Returns the pair for a process of the engine. Every other page is read-only, so that VMAs do not merge.
fn ours_writer() -> Pair {
    let process = process();
    let at = process.mmap(0, 2 * VMAS * PAGE, RW, ANON, None, 0).expect("room");
    for n in 0..VMAS {
        process.mprotect(at + 2 * n * PAGE, PAGE, R).expect("mapped");
    }
    let reader = process.clone();
    let change = move || {
        let at = process.mmap(0, PAGE, RW, ANON, None, 0).expect("room");
        process.munmap(at, PAGE).expect("mapped");
    };
    let report = move || {
        let mut text = String::new();
        reader.write_maps(&mut text).expect("a string");
        std::hint::black_box(text);
    };
    Pair { change: Box::new(change), report: Box::new(report) }
}

/// Returns the same pair of functions for the host kernel and this process.
fn host_writer() -> Pair {
    let at = host::map(2 * VMAS as usize * PAGE as usize);
    for n in 0..VMAS as usize {
        host::protect(at + 2 * n * PAGE as usize);
    }
    let change = || {
        let at = host::map(PAGE as usize);
        host::unmap(at, PAGE as usize);
    };
    let report = || {
        let mut text = String::new();
        File::open("/proc/self/maps").and_then(|mut file| file.read_to_string(&mut text)).expect("maps");
        std::hint::black_box(text);
    };
    Pair { change: Box::new(change), report: Box::new(report) }
}

/// Returns the time per page of the fastest of several rounds.
fn per_page(pages: usize, mut f: impl FnMut()) -> f64 {
    let rounds = (20_000 / pages).clamp(5, 2_000);
    let best = (0..rounds).map(|_| {
        let started = Instant::now();
        f();
        started.elapsed()
    });
    best.min().expect("rounds").as_nanos() as f64 / pages as f64
}

/// Measures and prints pinning `pages` present pages, with the fast call and the slow call.
fn pins(pages: usize) {
    let process = process();
    let at = process.mmap(0, pages as u64 * PAGE, RW, ANON, None, 0).expect("room");
    for n in 0..pages as u64 {
        process.space().handle_fault(at + n * PAGE, Access::WRITE).expect("room");
    }
    let space = process.space();
    let mut cpu = space.engine().platform().cpu(0);
    cpu.run(space.mmu());
    let (fast, slow) = cpu.call(|| {
        let fast = || drop(space.pin_user_pages_fast(at, pages, PinFlags::WRITE).expect("there"));
        let slow = || drop(space.pin_user_pages(at, pages, PinFlags::WRITE).expect("there"));
        // Alternate the two kinds.
        let rounds = (0..3).map(|_| (per_page(pages, fast), per_page(pages, slow)));
        rounds.fold((f64::MAX, f64::MAX), |best, one| (best.0.min(one.0), best.1.min(one.1)))
    });
    let mut word = [0; 1];
    let read = per_page(pages, || {
        for n in 0..pages as u64 {
            space.read_memory(at + n * PAGE, &mut word, freehold::remote::AccessMode::Plain).expect("there");
        }
    });
    println!("{pages:>6} {fast:>8.1} {slow:>8.1} {:>8.2} {read:>24.1}", slow / fast);
}

/// Measures reading a VMA without a lock, and with the VMA's lock.
fn looks() -> String {
    const LOOKS: usize = 1000;
    let process = process();
    let at = process.mmap(0, PAGE, RW, ANON, None, 0).expect("room");
    let space = process.space();
    let free = per_page(LOOKS, || {
        (0..LOOKS).for_each(|_| {
            std::hint::black_box(space.vma_info(at));
        });
    });
    let locked = per_page(LOOKS, || {
        (0..LOOKS).for_each(|_| {
            std::hint::black_box(space.find_vma(at).map(|vma| vma.flags()));
        });
    });
    format!("{free:.1} ns without a lock, {locked:.1} ns with the VMA's lock")
}

/// System calls of the host.
mod host {
    #![expect(unsafe_code, reason = "calls the host kernel")]

    use core::ffi::{c_int, c_long, c_void};

    unsafe extern "C" {
        fn mmap(
            at: *mut c_void,
            len: usize,
            prot: c_int,
            flags: c_int,
            fd: c_int,
            offset: c_long,
        ) -> *mut c_void;
        fn munmap(at: *mut c_void, len: usize) -> c_int;
        fn mprotect(at: *mut c_void, len: usize, prot: c_int) -> c_int;
    }

    /// Maps `len` bytes of anonymous memory.
    pub fn map(len: usize) -> usize {
        // SAFETY: requests new memory at an address that the kernel chooses.
        let at = unsafe { mmap(core::ptr::null_mut(), len, 3, 0x22, -1, 0) };
        assert_ne!(at as isize, -1, "no memory");
        at.expose_provenance()
    }

    /// Unmaps the result of [`map`].
    pub fn unmap(at: usize, len: usize) {
        // SAFETY: mapped by `map`, and no reference to the memory exists.
        assert_eq!(unsafe { munmap(core::ptr::with_exposed_provenance_mut(at), len) }, 0);
    }

    /// Makes a page of the result of [`map`] read-only.
    pub fn protect(at: usize) {
        // SAFETY: mapped by `map`, and no reference to the memory exists.
        assert_eq!(unsafe { mprotect(core::ptr::with_exposed_provenance_mut(at), 4096, 1) }, 0);
    }
}
