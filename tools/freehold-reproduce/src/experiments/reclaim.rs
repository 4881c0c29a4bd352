//! Reclaim: threads that read a file twice the size of memory beside a thread that maps and faults elsewhere,
//! the cost of taking a page away, and the share of a hot set that stays.
//!
//! The sides are the policies of reclaim. A thread of its own reclaims while few frames are free, as a
//! kernel's thread for this purpose does. An operation that finds no frame reclaims by itself
//! (`Platform::memory_short`). Good reclaim keeps frames free, so that the other thread rarely has to do
//! this, and takes no lock that the other thread needs.
//!
//! `reclaim/` of `freehold` is the code under test. `file_reads.rs` has the device and the other thread, and
//! `hot_set.rs` the load with the hot set.

use super::Experiment;
use super::file_reads::{Device, Served, idle_time, map_and_fault};
use super::hot_set::{Kept, kept};
use crate::executor::{Instant, idle, sleep, together};
use crate::findings::{Cell, Findings, Row, Table};
use crate::load::{PAGE, World, since};
use crate::measure::{figures, in_turns};
use crate::unit::Unit;
use crate::{scale::Scale, steps::Steps};
use freehold::{
    PageIndex,
    engine::Engine,
    fault::Access,
    file::{File, FileAccess, Mapping, ReadRequest, Zeroes},
    platform::ShortageAnswer,
    reclaim::{ReclaimPolicy, ReclaimRequest},
    space::{MapFlags, Prot},
};
use freehold_machine::{Machine, Process};
use freehold_sync::stats::Histogram;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};

/// See the [module](self).
pub struct Reclaim;

/// Sizes of memory of a full run and of a quick run, in bytes.
const MEMORY: [u64; 2] = [64 << 20, 16 << 20];
/// Sizes of memory of the load with a hot set, in bytes.
const HOT_MEMORY: [u64; 2] = [64 << 20, 16 << 20];
/// Size of the smallest memory, in bytes. Each CPU keeps some free frames for itself, and a reader may keep
/// the frames of a request.
const LEAST_MEMORY: u64 = 8 << 20;
/// Number of threads that read.
const READERS: usize = 4;
/// Numbers of the threads that are not readers.
const DEVICE: usize = 0;
const OTHER: usize = 1;
const RECLAIMER: usize = 2;
/// Number of pages that an operation without a frame takes away.
const DIRECT: u64 = 32;
/// The thread that reclaims keeps this part of the frames free.
const FREE: u64 = 16;
/// Numbers of address spaces that map the pages whose cost is measured.
const MAPPERS: [usize; 3] = [0, 1, 8];

/// A side: a policy.
type Side = (ReclaimPolicy, &'static str);

const SIDES: [Side; 3] = [
    (ReclaimPolicy::Clock, "clock"),
    (ReclaimPolicy::TwoLists, "two lists"),
    (ReclaimPolicy::Generations, "generations"),
];

/// Results of a turn with readers.
struct Beside {
    /// Times of the other thread's operations before the reads, in nanoseconds.
    alone: Histogram,
    /// The same, during the reads.
    beside: Histogram,
    /// Pages that the readers have visited, per second.
    visits: f64,
    /// Pages that were read from the device, per visited page.
    misses: f64,
    /// Operations that found no frame, per second.
    direct: f64,
    /// Share of the time in which the device was busy.
    busy: f64,
}

/// Cost of taking pages away, by the number of mappers.
struct Cost {
    /// Nanoseconds for a page that became free.
    page: [f64; MAPPERS.len()],
    /// Frames that were visited, for a page that became free.
    visits: [f64; MAPPERS.len()],
}

/// The measurements of one thread in a turn.
#[derive(Default)]
struct Thread {
    alone: Histogram,
    beside: Histogram,
    served: Served,
    visits: u64,
}

impl Experiment for Reclaim {
    fn name(&self) -> &'static str {
        "reclaim"
    }

    fn title(&self) -> &'static str {
        "reads of a file twice the size of memory, the cost of reclaim, the hot set that stays"
    }

    fn sides(&self) -> Vec<String> {
        SIDES.map(|(_, name)| name.to_owned()).into()
    }

    fn memory(&self, scale: &Scale) -> u64 {
        (1 << 28) + memory(scale) + 4 * hot_memory(scale)
    }

    fn seconds(&self, scale: &Scale) -> f64 {
        let turn = beside_seconds(scale) + cost_seconds(scale);
        (scale.turns() as f64 * turn + hot_seconds(scale)) * SIDES.len() as f64
    }

    fn run(&self, scale: &Scale, steps: &Steps) -> anyhow::Result<Findings> {
        let beside = in_turns(scale.turns(), &mut SIDES.clone(), |side, turn| {
            let what = format!("{READERS} threads, turn {}", turn + 1);
            steps.step(what, beside_seconds(scale), || readers(*side, scale))
        })?;
        let cost = in_turns(scale.turns(), &mut SIDES.clone(), |side, turn| {
            let what = format!("cost of a page, turn {}", turn + 1);
            steps.step(what, cost_seconds(scale), || cost(*side, scale))
        })?;
        // The figures are the same in each turn, so there is one turn.
        let hot = in_turns(1, &mut SIDES.clone(), |side, _| {
            let config = scale.config().reclaim(side.0);
            steps.step("a hot set".to_owned(), hot_seconds(scale), || {
                kept(config, hot_memory(scale), scale.usual_locking())
            })
        })?;
        Ok(findings(&beside, &cost, &hot))
    }
}

/// Returns the size of memory in bytes.
fn memory(scale: &Scale) -> u64 {
    scale.size(MEMORY[0], MEMORY[1]).max(LEAST_MEMORY)
}

/// Returns the approximate time of a turn with readers, in seconds.
fn beside_seconds(scale: &Scale) -> f64 {
    scale.turn.as_secs_f64() + idle_time(scale).as_secs_f64()
}

/// Returns the approximate time of a turn that measures the cost, in seconds.
fn cost_seconds(scale: &Scale) -> f64 {
    (memory(scale) / PAGE) as f64 * 4e-6
}

/// Returns the size of the memory that does not suffice for the hot set and the other pages, in bytes.
fn hot_memory(scale: &Scale) -> u64 {
    scale.size(HOT_MEMORY[0], HOT_MEMORY[1]).max(LEAST_MEMORY)
}

/// Returns the approximate time of the load with a hot set, in seconds.
fn hot_seconds(scale: &Scale) -> f64 {
    (hot_memory(scale) / PAGE) as f64 * 2e-5
}

fn world(side: Side, scale: &Scale, cpus: usize) -> anyhow::Result<World> {
    World::new(memory(scale), cpus, scale.config().reclaim(side.0))
}

/// Reads a file twice the size of memory by the faults of several threads, while another thread of the
/// process maps and faults in memory, and a thread reclaims.
fn readers(side: Side, scale: &Scale) -> anyhow::Result<Beside> {
    let world = world(side, scale, RECLAIMER + 1 + READERS)?;
    let (device, pages) = (Device::<ReadRequest<Machine>>::default(), 2 * memory(scale) / PAGE);
    let mapping = Mapping::new(&world.engine, device.clone(), pages * PAGE, false)?;
    let file = File::new(&mapping, FileAccess::READ, "file")?;
    let process = world.process(scale.usual_locking())?;
    let at = process.mmap(0, pages * PAGE, Prot::READ, MapFlags::SHARED, Some(&file), 0)?;
    let direct = Arc::new(AtomicU64::new(0));
    let (engine, count) = (world.engine.clone(), direct.clone());
    world.machine.set_memory_short(Some(Arc::new(move |_| {
        count.fetch_add(1, SeqCst);
        engine.reclaim(&ReclaimRequest::pages(DIRECT));
        ShortageAnswer::Retry
    })));
    let (begun, left) = (AtomicBool::new(false), AtomicUsize::new(READERS));
    let over = || left.load(SeqCst) == 0;
    let results = together(RECLAIMER + 1 + READERS, |thread| {
        let mut turn = Thread::default();
        if thread == DEVICE {
            turn.served = device.serve(over);
            return anyhow::Ok(turn);
        }
        let mut cpu = world.machine.cpu(thread);
        cpu.run(process.mmu());
        match thread {
            OTHER => {
                while !over() {
                    let started = Instant::now();
                    cpu.call(|| map_and_fault(&process))?;
                    let times = if begun.load(SeqCst) { &mut turn.beside } else { &mut turn.alone };
                    times.record(since(started) as u64);
                }
            }
            RECLAIMER => {
                while !over() {
                    if !cpu.call(|| keep_free(&world.machine, &world.engine, memory(scale) / PAGE)) {
                        idle();
                    }
                }
            }
            reader => {
                sleep(idle_time(scale));
                begun.store(true, SeqCst);
                let first = (reader - RECLAIMER - 1) as u64 * (pages / READERS as u64);
                let read = cpu.call(|| read_for(&process, at, first, pages, scale));
                left.fetch_sub(1, SeqCst);
                turn.visits = read?;
            }
        }
        Ok(turn)
    });
    world.machine.set_memory_short(None);
    let turns: Vec<Thread> = results.into_iter().collect::<anyhow::Result<_>>()?;
    process.munmap(at, pages * PAGE)?;
    let (took, served) = (scale.turn.as_secs_f64(), &turns[DEVICE].served);
    let visits: u64 = turns.iter().map(|turn| turn.visits).sum();
    Ok(Beside {
        alone: turns[OTHER].alone.clone(),
        beside: turns[OTHER].beside.clone(),
        visits: visits as f64 / took,
        misses: served.pages as f64 / visits as f64,
        direct: direct.load(SeqCst) as f64 / took,
        busy: (served.busy / took / 1e9).min(1.0),
    })
}

/// Takes some pages away if few of the `frames` of memory are free. Returns false if enough are free, or if
/// no page became free.
pub(super) fn keep_free(machine: &Machine, engine: &Engine<Machine>, frames: u64) -> bool {
    let counts = machine.stats().frames;
    let free = frames.saturating_sub(counts.allocated - counts.freed);
    free < frames / FREE && engine.reclaim(&ReclaimRequest::pages(DIRECT)).freed > 0
}

/// Faults in all pages of a file again and again, from this page on, for the time of a turn. Returns the
/// number of visited pages.
fn read_for(process: &Process, at: u64, first: u64, pages: u64, scale: &Scale) -> anyhow::Result<u64> {
    let started = Instant::now();
    let mut visits = 0;
    while since(started) < scale.turn.as_nanos() as f64 {
        process.space().handle_fault(at + (first + visits) % pages * PAGE, Access::READ)?;
        visits += 1;
    }
    Ok(visits)
}

/// Measures the time in which one CPU takes away the pages of a file, by the number of spaces that map it.
fn cost(side: Side, scale: &Scale) -> anyhow::Result<Cost> {
    let mut found = Cost { page: [0.0; MAPPERS.len()], visits: [0.0; MAPPERS.len()] };
    for (place, mappers) in MAPPERS.into_iter().enumerate() {
        let (world, pages) = (world(side, scale, 1)?, memory(scale) / PAGE / 2);
        let mapping = Mapping::new(&world.engine, Zeroes, pages * PAGE, false)?;
        let file = File::new(&mapping, FileAccess::READ, "file")?;
        (0..pages).try_for_each(|page| mapping.fill(PageIndex::new(page)))?;
        let mut spaces = Vec::new();
        for _ in 0..mappers {
            let process = world.process(scale.usual_locking())?;
            let at = process.mmap(0, pages * PAGE, Prot::READ, MapFlags::SHARED, Some(&file), 0)?;
            crate::load::fault_in(&process, at, pages, Access::READ)?;
            spaces.push(process);
        }
        let started = Instant::now();
        let done = world.machine.cpu(0).call(|| world.engine.reclaim(&ReclaimRequest::pages(pages)));
        let took = since(started);
        anyhow::ensure!(done.freed > pages / 2, "only {} of {pages} pages became free", done.freed);
        found.page[place] = took / done.freed as f64;
        found.visits[place] = done.visited as f64 / done.freed as f64;
    }
    Ok(found)
}

fn findings(beside: &[Vec<Beside>], cost: &[Vec<Cost>], hot: &[Vec<Kept>]) -> Findings {
    let tables = vec![beside_table(beside), cost_table(cost), hot_table(hot)];
    let mut found = Vec::new();
    found.extend(tables[0].column_says("99 % of operations beside readers take at most", 3));
    found.extend(tables[0].column_says("Operations that find no frame, per second", 6));
    found.extend(tables[1].column_says("Time for a page that no space maps", 0));
    found.extend(tables[1].column_says("Time for a page that one space maps", 1));
    found.extend(tables[2].column_says("Share of a hot set that stays", 0));
    Findings {
        experiment: Reclaim.name(),
        title: Reclaim.title(),
        found,
        work: format!(
            "{READERS} threads fault in the pages of a file twice the size of memory, each from another part on, while another thread of the process maps, faults in and \
             unmaps 4 pages repeatedly. The device serves one request of at most 32 pages at a time, in 100 us. A thread reclaims while less than one frame in {FREE} is \
             free; an operation that finds no frame takes {DIRECT} pages away by itself. Then one CPU takes the pages of a file away that fills half of memory. Last, a process with 1.5 times as much anonymous memory as there \
             is makes 90 % of its accesses to a quarter of its pages, by a zipf distribution.",
        ),
        tables,
        plots: Vec::new(),
        notes: vec![
            "All pages are equally hot: each reader visits the whole file in a circle. The first table compares what reclaim costs others, not which pages a policy keeps."
                .to_owned(),
            "The hot set is counted without times, so its figures are the same in each run. A hot page counts as missed if its access reads a page from the swap device."
                .to_owned(),
            "No lock is held while a device works: the engine checks this at each request to a swap device and to a file, in builds with debug assertions, as those of the tests."
                .to_owned(),
        ],
        seconds: 0.0,
    }
}

/// Returns a table with a row for each side.
fn side_table(title: String, columns: &[&str], cells: impl Fn(usize) -> Vec<Cell>) -> Table {
    let rows = SIDES.iter().enumerate();
    Table {
        title,
        columns: columns.iter().map(|name| (*name).to_owned()).collect(),
        rows: rows.map(|(side, (_, name))| Row { name: (*name).to_owned(), cells: cells(side) }).collect(),
    }
}

fn beside_table(found: &[Vec<Beside>]) -> Table {
    let measured = [
        (Unit::Nanoseconds, figures(found, |turn| turn.alone.percentile(5_000) as f64)),
        (Unit::Nanoseconds, figures(found, |turn| turn.alone.percentile(9_900) as f64)),
        (Unit::Nanoseconds, figures(found, |turn| turn.beside.percentile(5_000) as f64)),
        (Unit::Nanoseconds, figures(found, |turn| turn.beside.percentile(9_900) as f64)),
        (Unit::PerSecond, figures(found, |turn| turn.visits)),
        (Unit::Share, figures(found, |turn| turn.misses)),
        (Unit::PerSecond, figures(found, |turn| turn.direct)),
        (Unit::Share, figures(found, |turn| turn.busy)),
    ];
    let columns = [
        "policy",
        "before: median",
        "99 %",
        "during: median",
        "99 %",
        "pages visited/s",
        "pages read",
        "found no frame/s",
        "device busy",
    ];
    let title =
        format!("operations of a thread beside {READERS} threads that read a file twice the size of memory");
    side_table(title, &columns, |side| {
        measured.iter().map(|(unit, figures)| Cell::measured(*unit, figures[side].clone())).collect()
    })
}

fn cost_table(found: &[Vec<Cost>]) -> Table {
    let page = [0, 1, 2].map(|place| figures(found, |turn| turn.page[place]));
    let visits = [0, 1, 2].map(|place| figures(found, |turn| turn.visits[place]));
    let columns =
        ["policy", "mapped by none", "by 1 space", "by 8 spaces", "frames visited/page", "by 1", "by 8"];
    side_table("cost of taking a page of a file away, one CPU".to_owned(), &columns, |side| {
        let times = page.iter().map(|figures| Cell::measured(Unit::Nanoseconds, figures[side].clone()));
        let visits = visits.iter().map(|figures| Cell::measured(Unit::Times, figures[side].clone()));
        times.chain(visits).collect()
    })
}

fn hot_table(found: &[Vec<Kept>]) -> Table {
    let measured = [
        (Unit::Share, figures(found, |turn| turn.hot)),
        (Unit::Share, figures(found, |turn| turn.hot_misses)),
        (Unit::Share, figures(found, |turn| turn.swap_ins)),
        (Unit::Share, figures(found, |turn| turn.written)),
        (Unit::PerSecond, figures(found, |turn| turn.faults)),
    ];
    let columns = [
        "policy",
        "hot set kept",
        "hot accesses that miss",
        "pages read/access",
        "written/access",
        "faults/s",
    ];
    side_table("anonymous memory of 1.5 times memory, with a hot quarter".to_owned(), &columns, |side| {
        measured.iter().map(|(unit, figures)| Cell::measured(*unit, figures[side].clone())).collect()
    })
}
