//! Threads that change one address space at places of their own: together against one alone.
//!
//! ```text
//! cargo bench --bench writers              the table
//! cargo bench --bench writers -- mprotect  these rows of it
//! ```
//!
//! Phantom memory: page tables, frame records and locks are real, contents are not. What is compared takes
//! turns in one run; a figure is the median of the turns.

use freehold::{
    fault::Access,
    space::{Locking, MapFlags, Placement, Prot, Write},
};
use freehold_bench::{BASE, PAGE, Space};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const RW: Prot = Prot::READ.union(Prot::WRITE);
const ANON: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS).union(MapFlags::NORESERVE);
/// Areas of the process besides what the threads map; and as many at the place of each thread.
const AREAS: u64 = 500;
/// From the place of one thread to that of the next: upper-level tables of their own each.
const PLACE: u64 = 1 << 38;
/// Where a thread's own area lies in its place, above its other areas.
const OWN: u64 = 1 << 30;
const TURN: Duration = Duration::from_millis(150);
const TURNS: usize = 7;

/// What a thread does, over and over, at its place.
type Load = (&'static str, fn(&Space, u64));

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

fn touch(space: &Space, at: u64) {
    space.process().space().handle_fault(at, Access::WRITE).expect("memory");
}

fn main() {
    let names: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with("--")).collect();
    let fixed = |space: &Space, at, pages, prot| {
        space.process().mmap(at, pages * PAGE, prot, ANON | MapFlags::FIXED, None, 0).expect("room");
    };
    let places = |space: &Space| {
        for thread in 0..2 {
            let place = BASE + (thread + 1) * PLACE;
            for n in 0..AREAS {
                fixed(space, place + 16 * n * PAGE, 8, if n % 2 == 0 { RW } else { Prot::READ });
            }
            fixed(space, place + OWN, 8, RW);
        }
    };
    let designs = [
        ("whole", Write::Whole, Placement::FirstFit),
        ("ranges", Write::Ranges, Placement::FirstFit),
        ("ranges, per CPU", Write::Ranges, Placement::PerCpu),
        ("ranges only", Write::RangesOnly, Placement::PerCpu),
    ];
    let spaces = designs.map(|(name, write, placement)| {
        let space = Space::with_areas_by(AREAS, Locking { write, ..Locking::default() }, placement);
        places(&space);
        (name, space)
    });
    println!("{:<30} {:<16} {:>12} {:>12} {:>16}", "", "", "one, ns", "two, ns", "two against one");
    for (name, load) in LOADS {
        if !names.is_empty() && !names.iter().any(|it| name.contains(it.as_str())) {
            continue;
        }
        let mut rates = [(); 4].map(|()| [(); 2].map(|()| Vec::new()));
        for _ in 0..TURNS {
            for (side, (_, space)) in spaces.iter().enumerate() {
                for threads in [1, 2] {
                    rates[side][threads - 1].push(rate(space, threads, load));
                }
            }
        }
        for (side, (design, _)) in spaces.iter().enumerate() {
            let [one, two] = [0, 1].map(|n| median(&mut rates[side][n]));
            let [each, of_two] = [1e9 / one, 2e9 / two];
            println!("{name:<30} {design:<16} {each:>12.0} {of_two:>12.0} {:>16.2}", two / one);
        }
    }
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// Operations a second of so many threads together.
fn rate(space: &Space, threads: usize, load: fn(&Space, u64)) -> f64 {
    let (stop, begin) = (AtomicBool::new(false), Barrier::new(threads + 1));
    let run = |thread: usize| {
        let mut cpu = space.machine().cpu(thread);
        cpu.run(space.process().mmu());
        cpu.call(|| {
            let place = BASE + (thread as u64 + 1) * PLACE;
            begin.wait();
            let (mut done, started) = (0u64, Instant::now());
            while !stop.load(Relaxed) {
                load(space, place);
                done += 1;
            }
            done as f64 / started.elapsed().as_secs_f64()
        })
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        begin.wait();
        std::thread::sleep(TURN);
        stop.store(true, Relaxed);
        all.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    })
}
