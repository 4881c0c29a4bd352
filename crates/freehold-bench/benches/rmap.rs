//! What it costs that pages can be found from behind: the i_mmap lock taken by its readers for themselves, and together.
//!
//! `cargo bench --bench rmap`. Phantom memory: page tables, frame records, trees and locks are real, contents are not. The two
//! designs take turns of a second in one run; each figure is the median of its turns.

use freehold::{
    counted::Counted,
    engine::{Config, Engine},
    fault::Access,
    object::{File, FileAccess, Mapping, Zeroes},
    rmap::FileRmap,
    space::{MapFlags, Prot, SpaceConfig},
};
use freehold_bench::{PAGE, machine};
use freehold_machine::{Machine, Process};
use freehold_sync::stats::LockSnapshot;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const RW: Prot = Prot::READ.union(Prot::WRITE);
const RX: Prot = Prot::READ.union(Prot::EXEC);
const ANON: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS);
/// Libraries of a program, and pages of each.
const LIBRARIES: u64 = 4;
const LIBRARY: u64 = 64;
/// Pages of the data file that all map.
const DATA: u64 = 256;
/// Turns of each design.
const TURNS: usize = 5;
const TURN: Duration = Duration::from_millis(1000);

type Open = Counted<File<Machine>>;

fn main() {
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    println!("tasks that fork, map, fault, truncate, unmap and exit, on {threads} threads\n");
    println!(
        "{:>6} {:>16} {:>16} {:>8}   waits on i_mmap a minute: number, total, longest",
        "tasks", "Exclusive, jpm", "Shared, jpm", "ratio"
    );
    for tasks in [100, 500, 1000, 2000] {
        load(tasks, threads);
    }
    println!("\na file mapped so many times, nanoseconds per VMA\n");
    println!("{:>8} {:>14} {:>16} {:>12}", "mapped", "mmap (link)", "munmap (unlink)", "walk");
    for mapped in [10, 1_000, 100_000] {
        links(mapped);
    }
    println!("\nan anonymous page of a server with so many forked children, microseconds a walk\n");
    println!("{:>9} {:>20} {:>22}", "children", "that all share", "of one child alone");
    for children in [1, 10, 100, 1_000] {
        family(children);
    }
}

fn engine(file_rmap: FileRmap) -> Counted<Engine<Machine>> {
    let config = Config { file_rmap, lock_stats: true, ..Config::default() };
    Engine::new(machine(4 << 30), config).expect("memory")
}

fn open(engine: &Counted<Engine<Machine>>, pages: u64) -> Open {
    let mapping = Mapping::new(engine, Zeroes, pages * PAGE, false).expect("memory");
    (0..pages).for_each(|page| mapping.fill(page).expect("memory"));
    File::new(&mapping, FileAccess::READ_WRITE, "file").expect("memory")
}

fn new(engine: &Counted<Engine<Machine>>) -> Process {
    Process::new(engine, &SpaceConfig::default()).expect("memory")
}

fn map(process: &Process, file: &Open, pages: u64, prot: Prot, flags: MapFlags) -> u64 {
    process.mmap(0, pages * PAGE, prot, flags, Some(file), 0).expect("room")
}

fn touch(process: &Process, at: u64, pages: u64, access: Access) {
    (0..pages).for_each(|page| process.space().handle_fault(at + page * PAGE, access).expect("memory"));
}

/// A design with its tasks.
struct Side {
    engine: Counted<Engine<Machine>>,
    tasks: Vec<Process>,
    data: Open,
    scratch: Vec<Open>,
    jobs: Vec<f64>,
    waits: LockSnapshot,
}

impl Side {
    fn new(file_rmap: FileRmap, tasks: usize, threads: usize) -> Side {
        let engine = engine(file_rmap);
        let libraries: Vec<Open> = (0..LIBRARIES).map(|_| open(&engine, LIBRARY)).collect();
        let data = open(&engine, DATA);
        let task = |_| {
            let process = new(&engine);
            for library in &libraries {
                let text = map(&process, library, LIBRARY, RX, MapFlags::PRIVATE);
                touch(&process, text, 4, Access::EXEC);
                map(&process, library, 2, RW, MapFlags::PRIVATE);
            }
            let heap = process.mmap(0, 64 * PAGE, RW, ANON, None, 0).expect("room");
            touch(&process, heap, 16, Access::WRITE);
            map(&process, &data, DATA, RW, MapFlags::SHARED);
            process
        };
        let tasks = (0..tasks).map(task).collect();
        let scratch = (0..threads).map(|_| open(&engine, 16)).collect();
        let waits = engine.file_lock_stats().expect("asked for");
        Side { tasks, data, scratch, jobs: Vec::new(), waits, engine }
    }

    /// Jobs of all threads in one turn.
    fn turn(&mut self, threads: usize) {
        let (stop, done, next) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        let started = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (side, stop, done, next) = (&*self, &stop, &done, &next);
                scope.spawn(move || {
                    while !stop.load(Relaxed) {
                        let number = next.fetch_add(1, Relaxed);
                        side.job(number, &side.scratch[thread]);
                        done.fetch_add(1, Relaxed);
                    }
                });
            }
            std::thread::sleep(TURN);
            stop.store(true, Relaxed);
        });
        self.jobs.push(done.load(Relaxed) as f64 * 60.0 / started.elapsed().as_secs_f64());
    }

    fn job(&self, number: u64, scratch: &Open) {
        let task = &self.tasks[number as usize % self.tasks.len()];
        let child = Process::of(task.fork().expect("memory"));
        let at = map(&child, &self.data, 32, RW, MapFlags::SHARED);
        touch(&child, at, 16, Access::READ);
        touch(&child, at, 4, Access::WRITE);
        let file = map(&child, scratch, 16, RW, MapFlags::SHARED);
        touch(&child, file, 8, Access::WRITE);
        scratch.mapping().truncate(0).expect("memory");
        scratch.mapping().truncate(16 * PAGE).expect("memory");
        child.munmap(file, 16 * PAGE).expect("mapped");
        if number.is_multiple_of(16) {
            // A walk over all who map the data.
            let page = DATA - 1 - number / 16 % 64;
            self.data.mapping().punch(page * PAGE..(page + 1) * PAGE).expect("memory");
        }
        child.munmap(at, 32 * PAGE).expect("mapped");
    }

    /// Of a minute: number, total, longest.
    fn waits(&self) -> String {
        let mut during = self.engine.file_lock_stats().expect("asked for");
        during.remove(&self.waits);
        let mut waited = during.read.waited.clone();
        waited.merge(&during.write.waited);
        let minutes = TURN.as_secs_f64() * TURNS as f64 / 60.0;
        format!(
            "{:.0}, {:.0} ms, {} us",
            waited.count() as f64 / minutes,
            waited.sum() as f64 / 1e6 / minutes,
            waited.max() / 1000
        )
    }
}

fn load(tasks: usize, threads: usize) {
    let mut sides = [FileRmap::Exclusive, FileRmap::Shared].map(|design| Side::new(design, tasks, threads));
    for _ in 0..TURNS {
        sides.iter_mut().for_each(|side| side.turn(threads));
    }
    let [exclusive, shared] = sides.each_mut().map(|side| median(&mut side.jobs));
    println!(
        "{tasks:>6} {exclusive:>16.0} {shared:>16.0} {:>8.2}   {} | {}",
        shared / exclusive,
        sides[0].waits(),
        sides[1].waits()
    );
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Nanoseconds of one of so many.
fn each(started: Instant, count: u64) -> f64 {
    started.elapsed().as_nanos() as f64 / count as f64
}

fn links(mapped: u64) {
    let engine = engine(FileRmap::Shared);
    let file = open(&engine, 16);
    // As many VMAs as one process may have are in each.
    let processes: Vec<_> = (0..mapped.div_ceil(10_000)).map(|_| new(&engine)).collect();
    let mut places = Vec::new();
    let started = Instant::now();
    for n in 0..mapped {
        let process = &processes[(n / 10_000) as usize];
        // Every other page stays free, so that nothing merges.
        let at = (1 << 40) + n % 10_000 * 2 * PAGE;
        process.mmap(at, PAGE, RW, MapFlags::SHARED | MapFlags::FIXED, Some(&file), 0).expect("room");
        places.push((process, at));
    }
    let link = each(started, mapped);
    places.iter().for_each(|(process, at)| touch(process, *at, 1, Access::READ));
    let pfn = processes[0].frame_at(places[0].1).expect("a page");
    let started = Instant::now();
    assert_eq!(engine.entries_of(pfn), mapped);
    let walk = each(started, mapped);
    let started = Instant::now();
    places.iter().for_each(|(process, at)| process.munmap(*at, PAGE).expect("mapped"));
    println!("{mapped:>8} {link:>14.0} {:>16.0} {walk:>12.0}", each(started, mapped));
}

fn family(children: u64) {
    const ROUNDS: u64 = 20;
    let engine = engine(FileRmap::Shared);
    let server = new(&engine);
    let at = server.mmap(0, 2 * PAGE, RW, ANON, None, 0).expect("room");
    touch(&server, at, 2, Access::WRITE);
    let children: Vec<_> = (0..children).map(|_| Process::of(server.fork().expect("memory"))).collect();
    children.iter().for_each(|child| touch(child, at + PAGE, 1, Access::WRITE));
    let last = children.last().expect("a child");
    let walk = |pfn| {
        let started = Instant::now();
        (0..ROUNDS).for_each(|_| assert_ne!(engine.entries_of(pfn), 0));
        each(started, ROUNDS) / 1e3
    };
    let shared = walk(server.frame_at(at).expect("a page"));
    let own = walk(last.frame_at(at + PAGE).expect("a page"));
    println!("{:>9} {shared:>20.1} {own:>22.1}", children.len());
}
