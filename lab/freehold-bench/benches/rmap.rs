//! The cost of the reverse map: linking VMAs, and walks over the VMAs that map a page.
//!
//! `cargo bench --bench rmap`. The bench first measures a file that is mapped up to 100,000 times, and then
//! an anonymous page of a server with up to 1,000 children. The engine runs on phantom memory
//! (`src/engine.rs`), on one thread. The figures of the file are per VMA, and show whether that cost grows
//! with the number of VMAs. `links` measures the file, and `family` the anonymous page. The experiment
//! `i-mmap` of `freehold reproduce` measures the lock over all VMAs of a file, and the calls that this lock
//! delays.

use freehold::{
    PageIndex,
    counted::Counted,
    engine::{Config, Engine},
    fault::Access,
    file::{File, FileAccess, Mapping, Zeroes},
    space::{MapFlags, Prot, SpaceConfig},
};
use freehold_bench::{PAGE, machine};
use freehold_machine::{Machine, Process};
use std::time::Instant;

const RW: Prot = Prot::READ.union(Prot::WRITE);
const ANON: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS);

/// An open file of the engine.
type Open = Counted<File<Machine>>;

fn main() {
    println!("a file that is mapped N times, nanoseconds per VMA\n");
    println!("{:>8} {:>14} {:>16} {:>12}", "mapped", "mmap (link)", "munmap (unlink)", "walk");
    for mapped in [10, 1_000, 100_000] {
        links(mapped);
    }
    println!("\nan anonymous page of a server with N forked children, microseconds per walk\n");
    println!("{:>9} {:>20} {:>22}", "children", "shared by all", "of one child only");
    for children in [1, 10, 100, 1_000] {
        family(children);
    }
}

/// Creates an engine.
fn engine() -> Counted<Engine<Machine>> {
    Engine::new(machine(4 << 30), Config::default()).expect("memory")
}

/// Creates a file of `pages` filled pages.
fn open(engine: &Counted<Engine<Machine>>, pages: u64) -> Open {
    let mapping = Mapping::new(engine, Zeroes, pages * PAGE, false).expect("memory");
    (0..pages).for_each(|page| mapping.fill(PageIndex::new(page)).expect("memory"));
    File::new(&mapping, FileAccess::READ_WRITE, "file").expect("memory")
}

/// Creates a process.
fn new(engine: &Counted<Engine<Machine>>) -> Process {
    Process::new(engine, &SpaceConfig::default()).expect("memory")
}

/// Makes the process fault on each of `pages` pages.
fn touch(process: &Process, at: u64, pages: u64, access: Access) {
    for page in 0..pages {
        process.space().handle_fault(at + page * PAGE, access).expect("memory");
    }
}

/// Returns the nanoseconds of one of `count` operations.
fn each(started: Instant, count: u64) -> f64 {
    started.elapsed().as_nanos() as f64 / count as f64
}

/// Measures a file that is mapped `mapped` times: linking, walking, unlinking.
fn links(mapped: u64) {
    let engine = engine();
    let file = open(&engine, 16);
    // Each process gets at most 10,000 VMAs, which is below the limit for one process.
    let processes: Vec<_> = (0..mapped.div_ceil(10_000)).map(|_| new(&engine)).collect();
    let mut places = Vec::new();
    let started = Instant::now();
    for n in 0..mapped {
        let process = &processes[(n / 10_000) as usize];
        // Every other page stays unmapped, so that no VMAs merge.
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

/// Measures walks from a page that all children share, and from a private page of the last child.
fn family(children: u64) {
    const ROUNDS: u64 = 20;
    let engine = engine();
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
