//! Threads that change one address space at separate places: two threads compared with one thread.
//!
//! ```text
//! cargo bench --bench writers              prints the table
//! cargo bench --bench writers -- mprotect  prints these rows
//! ```
//!
//! `whole`: one change at a time. `ranges`: one change at a time until two changes meet, then concurrent
//! changes; a single thread is measured in a space that no other thread has changed. `ranges only`: always
//! concurrent changes. For comparison, the table has a tree and `memory_set` (`src/`), each behind a lock,
//! and the host's own calls. The round trip of a cache line between two CPUs is printed before and after the
//! rows.
//!
//! The engine's memory is phantom (`src/engine.rs`). Compared measurements alternate in one run; a figure is
//! the median of its measurements. A new load is an entry of [`LOADS`]; it must leave the space unchanged.
//! `docs/performance.md` has the recorded table.

use freehold::{
    fault::Access,
    space::{DEFAULT_MAP_WINDOW, Locking, MapFlags, Placement, Prot, Write},
};
use freehold_bench::{BASE, LockedSet, LockedTree, PAGE, Space, Subject, area};
use std::sync::Barrier;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};
use std::time::{Duration, Instant};

const RW: Prot = Prot::READ.union(Prot::WRITE);
const ANON: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS).union(MapFlags::NORESERVE);
/// Number of areas of the process in addition to the areas that threads map. Also the number of areas at the
/// place of each thread.
const AREAS: u64 = 500;
/// Distance of the places of two threads. Each place has its own upper-level tables.
const PLACE: u64 = 1 << 38;
/// Offset of a thread's own area in its place, above the other areas there.
const OWN: u64 = 1 << 30;
/// End of the arena of processor 0: each processor has an arena of addresses (`space/cpu_arena.rs` of
/// `freehold`), in which mappings without an address hint are placed. The benches put an area at the end of
/// each arena, below the boundary that takes the last bytes of the arena.
const ARENAS: u64 = (DEFAULT_MAP_WINDOW - (128 << 20)) & !(ARENA - 1);
/// Bytes of an arena.
const ARENA: u64 = 64 << 30;
/// Bytes of a boundary.
const BOUNDARY: u64 = 1 << 30;
/// Duration of one measurement.
const TURN: Duration = Duration::from_millis(150);
/// Number of measurements for each figure.
const TURNS: usize = 7;

/// The operation that a thread repeats at its place.
type Load = (&'static str, fn(&Space, u64));

/// The measured operations. Each restores the space.
const LOADS: [Load; 7] = [
    ("mmap anywhere, munmap", |space, _| {
        let at = map(space, 0, 1);
        unmap(space, at, 1);
    }),
    ("the same with a touch", |space, _| {
        let at = map(space, 0, 1);
        touch(space, at);
        unmap(space, at, 1);
    }),
    ("mmap at its place, munmap", |space, place| {
        let at = map(space, place + OWN / 2, 1);
        unmap(space, at, 1);
    }),
    ("the same with a touch there", |space, place| {
        let at = map(space, place + OWN / 2, 1);
        touch(space, at);
        unmap(space, at, 1);
    }),
    ("mprotect of a page and back", |space, place| {
        let page = place + OWN + 2 * PAGE;
        space.process().mprotect(page, PAGE, Prot::READ).expect("mapped");
        space.process().mprotect(page, PAGE, RW).expect("mapped");
    }),
    ("growth in place and back", |space, place| {
        let end = place + OWN + 8 * PAGE;
        space.process().mmap(end, 4 * PAGE, RW, ANON | MapFlags::FIXED, None, 0).expect("room");
        unmap(space, end, 4);
    }),
    ("stack of a thread", |space, place| {
        let at = map(space, place + OWN / 2, 64);
        space.process().mprotect(at, PAGE, Prot::empty()).expect("mapped");
        touch(space, at + 63 * PAGE);
        unmap(space, at, 64);
    }),
];

fn map(space: &Space, hint: u64, pages: u64) -> u64 {
    space.process().mmap(hint, pages * PAGE, RW, ANON, None, 0).expect("room")
}

fn unmap(space: &Space, at: u64, pages: u64) {
    space.process().munmap(at, pages * PAGE).expect("mapped");
}

/// Makes the process fault on a page.
fn touch(space: &Space, at: u64) {
    space.process().space().handle_fault(at, Access::WRITE).expect("memory");
}

/// One design, with a space that only one thread has ever changed, and a space that several threads change.
struct Side {
    name: &'static str,
    spaces: [Space; 2],
}

impl Side {
    /// Creates both spaces, each with the areas of two threads.
    fn new(name: &'static str, write: Write, placement: Placement) -> Side {
        let space = || {
            let space = Space::with_areas_by(AREAS, Locking::default().write(write), placement);
            for thread in 0..2 {
                let place = BASE + (thread + 1) * PLACE;
                for n in 0..AREAS {
                    fixed(&space, place + 16 * n * PAGE, if n % 2 == 0 { RW } else { Prot::READ });
                }
                fixed(&space, place + OWN, RW);
            }
            // Maps an area at the end of the arena of each thread, including the arena of this thread.
            for number in 0..4 {
                fixed(&space, ARENAS - number * ARENA - BOUNDARY - 8 * PAGE, Prot::READ);
            }
            space
        };
        Side { name, spaces: [space(), space()] }
    }
}

/// Maps eight pages at this address.
fn fixed(space: &Space, at: u64, prot: Prot) {
    space.process().mmap(at, 8 * PAGE, prot, ANON | MapFlags::FIXED, None, 0).expect("room");
}

fn main() {
    let names: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with("--")).collect();
    let sides = [
        Side::new("whole", Write::Whole, Placement::FirstFit),
        Side::new("ranges", Write::Ranges, Placement::FirstFit),
        Side::new("ranges, per CPU", Write::Ranges, Placement::PerCpu),
        Side::new("ranges only", Write::RangesOnly, Placement::PerCpu),
    ];
    println!("a cache line passed to the other CPU and back: {:.0} ns", round_trip());
    println!("{:<30} {:<16} {:>12} {:>12} {:>16}", "", "", "one, ns", "two, ns", "two against one");
    for (name, load) in LOADS {
        if !names.is_empty() && !names.iter().any(|it| name.contains(it.as_str())) {
            continue;
        }
        let measured = in_turns(sides.len(), |side, threads| {
            let space = &sides[side].spaces[threads - 1];
            rate(threads, |thread, stop| of_space(space, thread, load, stop))
        });
        for (side, figures) in sides.iter().zip(measured) {
            show(name, side.name, figures);
        }
    }
    if names.is_empty() {
        peers();
    }
    println!("the cache line again: {:.0} ns", round_trip());
}

/// Returns the nanoseconds in which two threads pass a cache line to each other and back. The time depends on
/// where the host runs the two threads, and it determines the figures of the rows in which threads share a
/// line.
fn round_trip() -> f64 {
    const TRIPS: u64 = 50_000;
    let turn = AtomicU64::new(0);
    let play = |own: u64| {
        for trip in 0..TRIPS {
            while turn.load(Acquire) != 2 * trip + own {
                std::hint::spin_loop();
            }
            turn.fetch_add(1, AcqRel);
        }
    };
    let started = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| play(1));
        play(0);
    });
    started.elapsed().as_nanos() as f64 / TRIPS as f64
}

/// Measures other implementations behind a lock, and the host kernel with this process.
fn peers() {
    let (tree, set) = (LockedTree::with_areas(AREAS), LockedSet::with_areas(AREAS));
    type Call<'c> = &'c (dyn Fn(u64) + Sync);
    let loads: [(&str, [Call<'_>; 3]); 2] = [
        ("mmap, munmap", [&|n| tree.map_unmap(n), &|n| set.map_unmap(n), &host::map_unmap]),
        (
            "mprotect of a page and back",
            [&|n| tree.split_merge(area(n, AREAS)), &|n| set.split_merge(area(n, AREAS)), &host::protect],
        ),
    ];
    for (name, subjects) in loads {
        let measured = in_turns(subjects.len(), |side, threads| {
            rate(threads, |thread, stop| {
                let mut done = 0;
                while !stop.load(Relaxed) {
                    subjects[side](thread as u64);
                    done += 1;
                }
                done
            })
        });
        for (subject, figures) in [LockedTree::NAME, LockedSet::NAME, "the host"].iter().zip(measured) {
            show(name, subject, figures);
        }
    }
}

/// Prints a row: the time of one call with one thread and with two threads, and the ratio of the two rates.
fn show(load: &str, subject: &str, [one, two]: [f64; 2]) {
    let [each, of_two] = [1e9 / one, 2e9 / two];
    println!("{load:<30} {subject:<16} {each:>12.0} {of_two:>12.0} {:>16.2}", two / one);
}

/// Returns the operations per second with one thread and with two threads, for each side. The measurements
/// alternate.
fn in_turns(sides: usize, measure: impl Fn(usize, usize) -> f64) -> Vec<[f64; 2]> {
    let mut rates = vec![[const { Vec::new() }; 2]; sides];
    for _ in 0..TURNS {
        for (side, rates) in rates.iter_mut().enumerate() {
            for threads in [1, 2] {
                rates[threads - 1].push(measure(side, threads));
            }
        }
    }
    rates.into_iter().map(|both| both.map(median)).collect()
}

/// Returns the median.
fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// Returns the operations per second of `threads` threads together. `run` repeats the operation on one thread
/// until the stop flag is set, and returns the number of operations.
fn rate(threads: usize, run: impl Fn(usize, &AtomicBool) -> u64 + Sync) -> f64 {
    let (stop, begin) = (AtomicBool::new(false), Barrier::new(threads + 1));
    let (run, stop, begin) = (&run, &stop, &begin);
    std::thread::scope(|scope| {
        let one = |thread: usize| {
            move || {
                begin.wait();
                let started = Instant::now();
                run(thread, stop) as f64 / started.elapsed().as_secs_f64()
            }
        };
        let all: Vec<_> = (0..threads).map(|thread| scope.spawn(one(thread))).collect();
        begin.wait();
        std::thread::sleep(TURN);
        stop.store(true, Relaxed);
        all.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    })
}

/// Repeats the load on processor `thread` of the machine until the stop flag is set. Returns the number of
/// operations.
fn of_space(space: &Space, thread: usize, load: fn(&Space, u64), stop: &AtomicBool) -> u64 {
    let mut cpu = space.machine().cpu(thread);
    cpu.run(space.process().mmu());
    cpu.call(|| {
        let place = BASE + (thread as u64 + 1) * PLACE;
        let mut done = 0;
        while !stop.load(Relaxed) {
            load(space, place);
            done += 1;
        }
        done
    })
}

/// Calls of the host kernel that do the same work.
mod host {
    use std::cell::Cell;

    const PAGE: usize = 4096;
    const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
    const ANON: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

    fn map(pages: usize) -> *mut libc::c_void {
        // SAFETY: requests new memory at an address that the kernel chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), pages * PAGE, RW, ANON, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED, "the host has room");
        at
    }

    pub fn map_unmap(_: u64) {
        let at = map(1);
        // SAFETY: mapped just now, and no reference to the memory exists.
        assert_eq!(unsafe { libc::munmap(at, PAGE) }, 0);
    }

    thread_local! {
        static OWN: Cell<*mut libc::c_void> = const { Cell::new(std::ptr::null_mut()) };
    }

    pub fn protect(_: u64) {
        if OWN.get().is_null() {
            OWN.set(map(8));
        }
        let page = OWN.get().wrapping_byte_add(2 * PAGE);
        for prot in [libc::PROT_READ, RW] {
            // SAFETY: the memory belongs to this thread, and no reference to it exists.
            assert_eq!(unsafe { libc::mprotect(page, PAGE, prot) }, 0);
        }
    }
}
