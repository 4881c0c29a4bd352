//! Step 4: a load like that of the benchmark PFT. Threads of one process fault in memory concurrently, either
//! all in one VMA or each in a separate VMA. The experiment compares the locks that faults take.
//!
//! Sides: the designs of [`FaultLock`] and the host. All threads start together, write to each page of their
//! memory once, and unmap; only the faults are timed. The findings are two rates next to the published
//! figures (`published.rs`). Faults per second of one thread's processor time show the cost of a fault;
//! faults per second of all threads together show how well faults scale. A new [`FaultLock`] needs a name in
//! [`SIDES`].

use super::{Experiment, published};
use crate::executor::{Barrier, Instant, thread_time, together};
use crate::findings::{Axis, Cell, Findings, Line, Plot, Point, Row, Table};
use crate::host::Area;
use crate::load::{ANON, GIB, HOST, PAGE, RW, Side, World, fault_in};
use crate::measure::{Figure, figures, in_turns};
use crate::unit::Unit;
use crate::{memory, scale::Scale, steps::Steps};
use freehold::fault::Access;
use freehold::space::{FaultLock, MapFlags};
use freehold_machine::Process;
use std::cell;
use std::time::Duration;

/// See the [module](self).
pub struct PageFault;

/// The memory that the threads fault in.
#[derive(Clone, Copy, PartialEq)]
enum Where {
    /// One VMA, of which each thread has a part.
    OneVma,
    /// A separate VMA for each thread.
    VmaEach,
}

/// Names of the values of [`FaultLock::ALL`], in order, followed by the host.
const SIDES: [&str; OF_HOST + 1] = ["MmapLock", "VmaRwsem", "VmaCount", "VmaPerCpu", HOST];
/// Index of the host among the sides.
const OF_HOST: usize = FaultLock::ALL.len();
/// Indices of the designs before and after the step.
const STEP: [usize; 2] = [1, 2];

/// Both kinds of memory with their names.
const WHERE: [(Where, &str); 2] = [(Where::OneVma, "one VMA"), (Where::VmaEach, "a VMA each")];

/// Two rates of faults: per second of one thread's processor time, and per second of all threads together.
struct Turn {
    /// Faults per second of processor time.
    each: f64,
    /// Faults per second of all threads together.
    all: f64,
}

/// Returns the number of pages that a thread faults in before they are unmapped.
fn pages(scale: &Scale) -> u64 {
    (scale.size(GIB, GIB / 8) / PAGE).max(1)
}

/// Returns the number of pages for a thread on the host: at most 32,768, so that all pages fit into the
/// memory of the host.
fn host_pages(scale: &Scale) -> u64 {
    pages(scale).min(1 << 15)
}

/// Returns the numbers of threads: the user's choice, or otherwise the published numbers and the numbers that
/// suit the machine.
fn threads(scale: &Scale) -> Vec<usize> {
    if let Some(threads) = &scale.threads {
        return threads.clone();
    }
    let seed = published::PAGE_FAULT.iter().map(|seed| seed.0).filter(|threads| *threads <= scale.cpus);
    let mut threads: Vec<usize> = scale.threads().into_iter().chain(seed).collect();
    threads.sort_unstable();
    threads.dedup();
    threads
}

/// Returns true if the host is measured.
fn host(scale: &Scale) -> bool {
    scale.fits_host(host_pages(scale) * PAGE * scale.cpus as u64)
}

impl Experiment for PageFault {
    fn name(&self) -> &'static str {
        "page-fault"
    }

    fn title(&self) -> &'static str {
        "threads that fault in memory concurrently (step 4)"
    }

    fn sides(&self) -> Vec<String> {
        SIDES[..OF_HOST].iter().map(|design| (*design).to_owned()).collect()
    }

    fn memory(&self, scale: &Scale) -> u64 {
        memory::of_phantom(pages(scale) * PAGE * scale.cpus as u64)
    }

    fn seconds(&self, scale: &Scale) -> f64 {
        (WHERE.len() * threads(scale).len()) as f64 * scale.seconds(sides(scale))
    }

    fn run(&self, scale: &Scale, steps: &Steps) -> anyhow::Result<Findings> {
        // In addition to the pages, each CPU has some frames in its free list.
        let bytes = (pages(scale) * PAGE + (GIB / 64)) * scale.cpus as u64 + GIB;
        let world = World::new(bytes, scale.cpus, scale.config())?;
        let others = scale.usual_locking();
        let processes = FaultLock::ALL.map(|fault| world.process(others.fault(fault)));
        let processes: Vec<Process> = processes.into_iter().collect::<anyhow::Result<_>>()?;
        let mut sides: Vec<Side> = processes.into_iter().map(Side::Design).collect();
        if host(scale) {
            sides.push(Side::Host);
        }
        let mut all = Vec::new();
        for (place, name) in WHERE {
            for threads in threads(scale) {
                let found = in_turns(scale.turns(), &mut sides, |side, turn| {
                    let what = format!("{name}, {threads} threads, turn {}", turn + 1);
                    steps.step(what, scale.turn.as_secs_f64(), || match side {
                        Side::Design(process) => of_design(&world, process, place, threads, scale),
                        Side::Host => of_host(place, threads, scale),
                    })
                })?;
                all.push((
                    place,
                    threads,
                    figures(&found, |turn| turn.each),
                    figures(&found, |turn| turn.all),
                ));
            }
        }
        Ok(findings(&all))
    }
}

/// Returns the number of sides that are measured.
fn sides(scale: &Scale) -> usize {
    FaultLock::ALL.len() + usize::from(host(scale))
}

/// Starts all threads at once, repeatedly until the turn is over, and measures only the time of their faults.
/// `round` creates the memory, and dropping the result of `round` releases it. `fault` is the work of one
/// thread, and calls the given function immediately before its first fault.
fn rounds<M: Sync>(
    threads: usize,
    pages: u64,
    turn: Duration,
    mut round: impl FnMut() -> anyhow::Result<M>,
    fault: impl Fn(&M, usize, &dyn Fn()) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<Turn> {
    let (mut of_each, mut of_all, mut count) = (Duration::ZERO, Duration::ZERO, 0u64);
    let turn_began = Instant::now();
    while turn_began.elapsed() < turn || count == 0 {
        let memory = round()?;
        let ready = Barrier::new(threads);
        let run = |thread| {
            let began = cell::Cell::new((Instant::now(), Duration::ZERO));
            fault(&memory, thread, &|| {
                ready.wait();
                began.set((Instant::now(), thread_time()));
            })?;
            let (wall, processor) = began.get();
            anyhow::Ok((wall, Instant::now(), thread_time() - processor))
        };
        let times: anyhow::Result<Vec<_>> = together(threads, run).into_iter().collect();
        let times = times?;
        of_each += times.iter().map(|(.., processor)| *processor).sum::<Duration>();
        let (first, last) =
            (times.iter().map(|times| times.0).min(), times.iter().map(|times| times.1).max());
        of_all += last.zip(first).map_or(Duration::ZERO, |(last, first)| last - first);
        count += 1;
    }
    let faults = (count * pages * threads as u64) as f64;
    Ok(Turn { each: faults / of_each.as_secs_f64(), all: faults / of_all.as_secs_f64() })
}

/// Runs one turn on the engine.
fn of_design(
    world: &World,
    process: &Process,
    place: Where,
    threads: usize,
    scale: &Scale,
) -> anyhow::Result<Turn> {
    let pages = pages(scale);
    // The parts of different threads share no page table of the two lowest levels, as if the parts were
    // large.
    let distance = (pages * PAGE).next_multiple_of(GIB) + if place == Where::VmaEach { GIB } else { 0 };
    let base = 1 << 40;
    let round = || {
        let flags = ANON | MapFlags::FIXED;
        let whole = distance * threads as u64;
        match place {
            Where::OneVma => drop(process.mmap(base, whole, RW, flags, None, 0)?),
            Where::VmaEach => {
                for thread in 0..threads as u64 {
                    process.mmap(base + thread * distance, pages * PAGE, RW, flags, None, 0)?;
                }
            }
        }
        Ok(Mapped { process, at: base, bytes: whole })
    };
    rounds(threads, pages, scale.turn, round, |mapped: &Mapped, thread, begin| {
        let mut cpu = world.machine.cpu(thread);
        cpu.run(process.mmu());
        let at = mapped.at + thread as u64 * distance;
        begin();
        match scale.place.simulated() {
            // The simulated time includes the work of a processor before and after a fault.
            Some(_) => (0..pages).try_for_each(|page| {
                Ok(process.touch(&mut cpu, at + page * PAGE, Access::WRITE).map(drop)?)
            }),
            None => cpu.call(|| fault_in(process, at, pages, Access::WRITE)),
        }
    })
}

/// Memory that is unmapped when dropped.
struct Mapped<'p> {
    /// The process.
    process: &'p Process,
    /// The address.
    at: u64,
    /// The length in bytes.
    bytes: u64,
}

impl Drop for Mapped<'_> {
    fn drop(&mut self) {
        self.process.munmap(self.at, self.bytes).expect("a whole VMA can be unmapped");
    }
}

/// Runs one turn on the host.
fn of_host(place: Where, threads: usize, scale: &Scale) -> anyhow::Result<Turn> {
    let pages = host_pages(scale);
    let areas = if place == Where::OneVma { 1 } else { threads };
    let round = || {
        let bytes = pages * PAGE * threads as u64 / areas as u64;
        (0..areas).map(|_| Ok(Area::apart(bytes)?)).collect::<anyhow::Result<Vec<Area>>>()
    };
    rounds(threads, pages, scale.turn, round, |all: &Vec<Area>, thread, begin| {
        let (area, first) = match place {
            Where::OneVma => (&all[0], thread as u64 * pages),
            Where::VmaEach => (&all[thread], 0),
        };
        begin();
        (first..first + pages).for_each(|page| area.touch(page));
        Ok(())
    })
}

/// The memory, the number of threads, and both rates by side.
type Measured = (Where, usize, Vec<Figure>, Vec<Figure>);

/// Returns the findings from all measurements.
fn findings(all: &[Measured]) -> Findings {
    let of = |place: Where| all.iter().filter(move |(at, ..)| *at == place);
    let tables = WHERE.iter().map(|(place, name)| {
        let each = of(*place)
            .map(|(_, threads, each, _)| row(format!("faults/cpu-{threads}"), *threads, each, |seed| seed.1));
        let every = of(*place).map(|(_, threads, _, every)| {
            row(format!("faults/sec-{threads}"), *threads, every, |seed| seed.2)
        });
        let scaling = of(*place).filter(|(_, threads, ..)| *threads > 1).map(|(_, threads, _, every)| {
            let one = of(*place).next().map(|(.., every)| every);
            let ratio = |side: usize| {
                Cell::measured(Unit::Times, one.and_then(|one| every.get(side)?.ratio(&one[side])))
            };
            let seed = |threads: usize| {
                published::PAGE_FAULT.iter().find(|seed| seed.0 == threads).map(|seed| seed.2)
            };
            let published = |which: usize| {
                let (many, one) = (seed(*threads), seed(1));
                Cell::published(Unit::Times, many.zip(one).map(|(many, one)| many[which] / one[which]))
            };
            let mut cells: Vec<Cell> = (0..OF_HOST).map(ratio).collect();
            cells.extend([Cell::Nothing, ratio(OF_HOST), published(0), published(1), Cell::Nothing]);
            Row { name: format!("{threads} threads / 1"), cells }
        });
        let after = ["change of step 4", HOST, "step 4: before", "after", "change"];
        let columns = [""].iter().chain(&SIDES[..OF_HOST]).chain(&after);
        Table {
            title: format!("faults per second of one processor and of all, {name}"),
            columns: columns.map(|name| (*name).to_owned()).collect(),
            rows: each.chain(every).chain(scaling).collect(),
        }
    });
    let plots = WHERE.iter().map(|(place, name)| {
        let lines = SIDES.iter().enumerate().map(|(side, design)| {
            let points = of(*place).filter_map(|(_, threads, _, every)| {
                Some(Point { x: *threads as f64, y: every.get(side)?.clone() })
            });
            Line { name: (*design).to_owned(), points: points.collect() }
        });
        Plot {
            title: format!("Faults per second of all threads together, {name}"),
            x: Axis::linear("threads", Unit::Count),
            y: Axis::linear("faults", Unit::PerSecond),
            lines: lines.collect(),
        }
    });
    let tables: Vec<Table> = tables.collect();
    let most = all.iter().map(|(_, threads, ..)| *threads).max().unwrap_or(0);
    let found = tables.iter().zip(WHERE).filter_map(|(table, (_, place))| {
        let what = format!("Faults per second of {most} threads together, {place}");
        table.row_says(&what, &format!("faults/sec-{most}"), &SIDES)
    });
    Findings {
        experiment: PageFault.name(),
        title: PageFault.title(),
        found: found.collect(),
        work: "Threads of one process write to every page of anonymous memory, each in its own part of one VMA or in its own VMA, with separate page tables. Mapping and \
               unmapping is not counted. faults/cpu: per second of a thread's processor time. faults/sec: of all threads, from the start of the first to the end of the last."
            .to_owned(),
        tables,
        plots: plots.collect(),
        notes: vec![
            "Published: two sockets of E5-2690 v4, 56 processors; before and after correspond to VmaRwsem (a lock outside the VMA) and VmaCount (a count in the VMA).".to_owned(),
            "Linux's fault includes a trap and zeroes 4 KiB. On a host the engine's column includes neither, so compare how the columns grow with threads; on a simulated machine \
             the column includes both."
                .to_owned(),
        ],
        seconds: 0.0,
    }
}

/// Returns a row with the rates of a number of threads.
fn row(name: String, threads: usize, figures: &[Figure], seed: fn(&published::PageFault) -> [f64; 2]) -> Row {
    let published = published::PAGE_FAULT.iter().find(|seed| seed.0 == threads).map(seed);
    let rate = |side: usize| Cell::measured(Unit::PerSecond, figures.get(side).cloned());
    let mut cells: Vec<Cell> = (0..OF_HOST).map(rate).collect();
    let [before, after] = STEP.map(|side| &figures[side]);
    cells.extend([
        Cell::measured(Unit::Change, after.change(before)),
        rate(OF_HOST),
        Cell::published(Unit::PerSecond, published.map(|[before, _]| before)),
        Cell::published(Unit::PerSecond, published.map(|[_, after]| after)),
        Cell::published(Unit::Change, published.map(|[before, after]| after / before - 1.0)),
    ]);
    Row { name, cells }
}
