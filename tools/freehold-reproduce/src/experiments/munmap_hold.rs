//! Steps 0 and 1: the time of munmap of populated memory, and the time that munmap holds the mmap lock, by
//! size and design.
//!
//! Each turn maps and populates memory of one size, unmaps it, and reads the statistics of the mmap lock.
//! Sides: the four designs of munmap, and the host. For the host, only the time of the call is known. A sweep
//! repeats the sectioned design with sections of several sizes. At the end exec unmaps one size.
//! `published.rs` has the published times of Linux. The length of a hold comes from the statistics of the
//! lock, so processes are created with `World::watched`.

use super::{Experiment, published};
use crate::executor::{Instant, alone};
use crate::findings::{Axis, Cell, Findings, Line, Plot, Point, Row, Table};
use crate::host::Area;
use crate::load::{GIB, HOST, PAGE, Side, World, populated, since, unmap_name, unmap_names, unmaps};
use crate::measure::{Figure, figures, in_turns};
use crate::unit::Unit;
use crate::{memory, scale::Scale, steps::Steps};
use freehold::space::{Locking, Unmap};
use freehold_machine::Process;
use freehold_replay::units;
use freehold_sync::stats::LockSnapshot;

/// See the [module](self).
pub struct MunmapHold;

/// Sizes of the unmapped memory in a full run, in bytes.
const FULL: [u64; 7] = [PAGE, 1 << 20, GIB, 8 * GIB, 80 * GIB, 160 * GIB, 320 * GIB];
/// Sizes of the unmapped memory in a quick run, in bytes.
const QUICK: [u64; 5] = [PAGE, 1 << 20, 64 << 20, GIB / 2, 2 * GIB];
/// Largest size for the host in a quick run. The host takes 50 times as long per page as the engine.
const QUICK_HOST: u64 = GIB / 2;
/// Largest number of calls in a turn. A turn with a small size has several calls.
const MAX_CALLS: u64 = 200;

/// Sizes of sections in the sweep.
const SECTIONS: [u64; 6] = [4 << 20, 16 << 20, 64 << 20, 256 << 20, GIB, 4 * GIB];

/// Results of one turn of one side, in nanoseconds. For the host only `call` is known.
#[derive(Default)]
struct Turn {
    /// Median time of the calls.
    call: f64,
    /// Mean length of a hold for writing in the median call.
    hold: f64,
    /// Length of the longest hold of all calls.
    longest: f64,
    /// Number of holds for writing in one call.
    holds: f64,
    /// Total time of the holds for writing in one call.
    written: f64,
    /// Total time of the holds for reading in one call.
    read: f64,
}

impl Experiment for MunmapHold {
    fn name(&self) -> &'static str {
        "munmap-hold"
    }

    fn title(&self) -> &'static str {
        "munmap of populated memory: the call, and its holds of the mmap lock (steps 0 and 1)"
    }

    fn sides(&self) -> Vec<String> {
        unmap_names()
    }

    fn memory(&self, scale: &Scale) -> u64 {
        memory::of_phantom(scale.sizes(&FULL, &QUICK).into_iter().max().unwrap_or(0))
    }

    fn seconds(&self, scale: &Scale) -> f64 {
        let of_size = |size| 4.0 * seconds(size) + if host(scale, size) { host_seconds(size) } else { 0.0 };
        let sizes = scale.sizes(&FULL, &QUICK).into_iter().map(of_size).sum::<f64>();
        let swept = sections(scale).count() as f64 * seconds(swept(scale));
        (sizes + swept + 4.0 * seconds(executed(scale))) * scale.turns() as f64
    }

    fn run(&self, scale: &Scale, steps: &Steps) -> anyhow::Result<Findings> {
        let sizes = scale.sizes(&FULL, &QUICK);
        let largest = sizes.iter().max().copied().unwrap_or(PAGE);
        let world = World::new(largest + largest / 64 + GIB, 1, scale.config())?;
        let designs = unmaps(scale.usual_locking());
        let mut of_sizes = Vec::new();
        for &size in &sizes {
            let processes = designs.map(|locking| world.watched(locking).map(Side::Design));
            let mut sides: Vec<Side> = processes.into_iter().collect::<anyhow::Result<_>>()?;
            if host(scale, size) {
                sides.push(Side::Host);
            }
            of_sizes.push(in_turns(scale.turns(), &mut sides, |side, turn| {
                let what = format!("{}, turn {}", units::bytes(size), turn + 1);
                match side {
                    Side::Design(process) => {
                        steps.step(what, seconds(size), || of_design(&world, process, size, munmap))
                    }
                    Side::Host => steps.step(what + ", host", host_seconds(size), || of_host(size)),
                }
            })?);
        }
        let size = swept(scale);
        let process = |section| {
            let locking = designs[0].unmap(Unmap::Sectioned { bytes: section });
            anyhow::Ok((section, world.watched(locking)?))
        };
        let mut sides: Vec<_> = sections(scale).map(process).collect::<anyhow::Result<_>>()?;
        let found = in_turns(scale.turns(), &mut sides, |(section, process), turn| {
            let (size_text, section) = (units::bytes(size), units::bytes(*section));
            let what = format!("{size_text} by sections of {section}, turn {}", turn + 1);
            steps.step(what, seconds(size), || of_design(&world, process, size, munmap))
        })?;
        let sweep = Sweep { size, sections: sections(scale).collect(), found };
        let size = executed(scale);
        let processes = designs.map(|locking| world.watched(locking));
        let mut sides: Vec<Process> = processes.into_iter().collect::<anyhow::Result<_>>()?;
        let found = in_turns(scale.turns(), &mut sides, |process, turn| {
            let what = format!("exec with {}, turn {}", units::bytes(size), turn + 1);
            steps.step(what, seconds(size), || of_design(&world, process, size, exec))
        })?;
        Ok(findings(&designs, &sizes, &of_sizes, &sweep, &Exec { size, found }))
    }
}

/// Results of munmap by sections of several sizes.
struct Sweep {
    /// Number of bytes that are unmapped.
    size: u64,
    /// Sizes of the sections in bytes.
    sections: Vec<u64>,
    /// The turns by size of section.
    found: Vec<Vec<Turn>>,
}

/// Returns the number of bytes that the sweep unmaps.
fn swept(scale: &Scale) -> u64 {
    scale.size(8 * GIB, GIB / 2)
}

/// Returns the sizes of sections up to the size of the sweep.
fn sections(scale: &Scale) -> impl Iterator<Item = u64> {
    let size = swept(scale);
    SECTIONS.into_iter().filter(move |section| *section <= size)
}

impl Sweep {
    fn table(&self) -> Table {
        let longest = figures(&self.found, |turn| turn.longest);
        let call = figures(&self.found, |turn| turn.call);
        let holds = figures(&self.found, |turn| turn.holds);
        let found = longest.into_iter().zip(call).zip(holds);
        let rows = self.sections.iter().zip(found).map(|(section, ((longest, call), holds))| {
            let [longest, call] = [longest, call].map(|figure| Cell::measured(Unit::Nanoseconds, figure));
            Row {
                name: units::bytes(*section),
                cells: vec![longest, call, Cell::measured(Unit::Count, holds)],
            }
        });
        Table {
            title: format!("munmap of {} by sections, by section size", units::bytes(self.size)),
            columns: ["section", "longest hold", "the whole munmap", "holds"].map(str::to_owned).into(),
            rows: rows.collect(),
        }
    }

    fn plot(&self) -> Plot {
        let line = |name: &str, value: fn(&Turn) -> f64| {
            let points = self.sections.iter().zip(figures(&self.found, value));
            let points = points.map(|(section, y)| Point { x: *section as f64, y });
            Line { name: name.to_owned(), points: points.collect() }
        };
        Plot {
            title: format!("Munmap of {} by sections", units::bytes(self.size)),
            x: Axis::logarithmic("section", Unit::Bytes),
            y: Axis::logarithmic("time", Unit::Nanoseconds),
            lines: vec![
                line("longest hold", |turn| turn.longest),
                line("the whole munmap", |turn| turn.call),
            ],
        }
    }
}

/// Results of exec in each design.
struct Exec {
    /// Number of bytes that are unmapped.
    size: u64,
    /// The turns by design.
    found: Vec<Vec<Turn>>,
}

/// Returns the number of bytes that exec unmaps.
fn executed(scale: &Scale) -> u64 {
    scale.size(64 * GIB, GIB / 2)
}

impl Exec {
    fn table(&self, names: &[&str]) -> Table {
        let calls = figures(&self.found, |turn| turn.call);
        let longest = figures(&self.found, |turn| turn.longest);
        let rows = names.iter().zip(calls.into_iter().zip(longest)).map(|(name, (call, longest))| Row {
            name: (*name).to_owned(),
            cells: [call, longest].map(|figure| Cell::measured(Unit::Nanoseconds, figure)).into(),
        });
        Table {
            title: format!("exec in a process with {}", units::bytes(self.size)),
            columns: ["design", "unmapping of all", "longest hold for writing"].map(str::to_owned).into(),
            rows: rows.collect(),
        }
    }
}

/// Returns true if the host is measured at this size.
fn host(scale: &Scale, size: u64) -> bool {
    size <= scale.choose(u64::MAX, QUICK_HOST) && scale.fits_host(size)
}

/// Returns the approximate time of a turn in seconds.
fn seconds(size: u64) -> f64 {
    (size / PAGE * calls(size)) as f64 * 65e-9 + 0.001
}

/// Estimates the time of a turn of the host in seconds.
fn host_seconds(size: u64) -> f64 {
    (size / PAGE * calls(size)) as f64 * 3e-6
}

/// Returns the number of calls in a turn.
fn calls(size: u64) -> u64 {
    ((16 << 20) / size).clamp(1, MAX_CALLS)
}

/// Unmaps memory by munmap.
fn munmap(process: &Process, at: u64, size: u64) -> anyhow::Result<()> {
    Ok(process.munmap(at, size)?)
}

/// Unmaps all memory as exec does.
fn exec(process: &Process, _: u64, _: u64) -> anyhow::Result<()> {
    process.clear();
    Ok(())
}

/// Runs one turn on the engine. `unmap` unmaps the populated memory, which is all memory of the process.
fn of_design(
    world: &World,
    process: &Process,
    size: u64,
    unmap: fn(&Process, u64, u64) -> anyhow::Result<()>,
) -> anyhow::Result<Turn> {
    let mut cpu = world.machine.cpu(0);
    cpu.run(process.mmu());
    cpu.call(|| {
        let (mut times, mut holds) = (Vec::new(), Vec::new());
        for _ in 0..calls(size) {
            let at = populated(process, size)?;
            let before = process.lock_stats().unwrap_or_default();
            times.push(alone(|| {
                let started = Instant::now();
                unmap(process, at, size).map(|()| since(started))
            })?);
            let mut during = process.lock_stats().unwrap_or_default();
            during.remove(&before);
            holds.push(Holds::of(&during));
        }
        let median = |value: fn(&Holds) -> f64| Figure::of(holds.iter().map(value)).median;
        Ok(Turn {
            call: Figure::of(times).median,
            hold: median(|holds| holds.hold),
            longest: holds.iter().map(|holds| holds.longest).fold(0.0, f64::max),
            holds: median(|holds| holds.count),
            written: median(|holds| holds.written),
            read: median(|holds| holds.read),
        })
    })
}

/// Holds of one call, in nanoseconds.
struct Holds {
    /// Number of holds for writing.
    count: f64,
    hold: f64,
    longest: f64,
    written: f64,
    read: f64,
}

impl Holds {
    fn of(during: &LockSnapshot) -> Holds {
        let held = &during.write.held;
        let written = held.sum() as f64;
        // If there were several holds, the statistics have only the bucket of the longest hold.
        let longest = match held.count() {
            1 => written,
            _ => held.buckets().last().map_or(0, |(most, _)| most.min(held.max())) as f64,
        };
        let count = held.count() as f64;
        let hold = written / count.max(1.0);
        Holds { count, hold, longest, written, read: during.downgraded.sum() as f64 }
    }
}

/// Runs one turn on the host.
fn of_host(size: u64) -> anyhow::Result<Turn> {
    let mut times = Vec::new();
    for _ in 0..calls(size) {
        times.push(Area::populated(size)?.unmap().as_nanos() as f64);
    }
    Ok(Turn { call: Figure::of(times).median, ..Turn::default() })
}

fn findings(
    designs: &[Locking; 4],
    sizes: &[u64],
    of_sizes: &[Vec<Vec<Turn>>],
    sweep: &Sweep,
    exec: &Exec,
) -> Findings {
    let names = designs.map(|design| unmap_name(design.unmap));
    let measure = |title: &str, value: &dyn Fn(&Turn, u64) -> f64| {
        let rows = sizes.iter().zip(of_sizes).map(|(size, found)| {
            let figures = figures(&found[..4], |turn| value(turn, *size));
            let cells = figures.into_iter().map(|figure| Cell::measured(Unit::Nanoseconds, figure));
            Row { name: units::bytes(*size), cells: cells.collect() }
        });
        let columns = ["size"].into_iter().chain(names).map(str::to_owned).collect();
        Table { title: title.to_owned(), columns, rows: rows.collect() }
    };
    let line = |name: &str, side: usize, value: &dyn Fn(&Turn) -> f64| {
        let measured = sizes.iter().zip(of_sizes).filter_map(|(size, found)| {
            let turns = found.get(side)?.iter().map(value);
            Some(Point { x: *size as f64, y: Figure::of(turns) })
        });
        Line { name: name.to_owned(), points: measured.collect() }
    };
    let lines = |value: &dyn Fn(&Turn) -> f64| (0..4).map(|side| line(names[side], side, value)).collect();
    let plot = |title: &str, y: &str, lines: Vec<Line>| Plot {
        title: title.to_owned(),
        x: Axis::logarithmic("memory unmapped", Unit::Bytes),
        y: Axis::logarithmic(y, Unit::Nanoseconds),
        lines,
    };
    let mut calls: Vec<Line> = lines(&|turn| turn.call);
    calls.push(line(HOST, 4, &|turn| turn.call));
    let longest = measure("mmap lock held for writing: the longest hold of a turn", &|turn, _| turn.longest);
    let what = format!("Longest hold of the mmap lock for writing by one munmap of {}", longest.last_row());
    Findings {
        experiment: MunmapHold.name(),
        title: MunmapHold.title(),
        found: longest.row_says(&what, longest.last_row(), &names).into_iter().collect(),
        work: "One thread maps anonymous memory, faults in every page of 4 KiB, and unmaps all of it by one call.".to_owned(),
        tables: vec![
            call_table(sizes, of_sizes),
            measure("mmap lock held for writing: mean hold of a call, median of calls", &|turn, _| turn.hold),
            longest,
            measure("mmap lock held for writing: sum of all holds of a call", &|turn, _| turn.written),
            measure("mmap lock held for reading after the downgrade, per call", &|turn, _| turn.read),
            measure("time of the call, per page (zap, flush, free; with one page mostly the call itself)", &|turn, size| turn.call / (size / PAGE) as f64),
            sweep.table(),
            exec.table(&names),
        ],
        plots: vec![
            plot("Longest hold of the mmap lock for writing by one munmap", "longest hold for writing", lines(&|turn| turn.longest)),
            plot("Time of the call", "time", calls),
            sweep.plot(),
        ],
        notes: vec![
            "Published: 32 cores of E5-2680 at 2.7 GHz, 384 GB; real memory, whose pages must be found and freed one by one through records spread over \
             memory. Phantom memory has records and page tables, but no contents."
                .to_owned(),
            "Step 1 publishes no table: at 80 GB the hold for writing fell from seconds to microseconds, which corresponds to the change from Exclusive to \
             Downgraded here."
                .to_owned(),
            "The host's column includes a trap, and frees real memory to the kernel's allocator. The host is measured only with sizes up to half of its free memory.".to_owned(),
        ],
        seconds: 0.0,
    }
}

/// Returns the table of calls, in the form of the table that was published with step 0.
fn call_table(sizes: &[u64], of_sizes: &[Vec<Vec<Turn>>]) -> Table {
    let columns = [
        "size",
        "Exclusive",
        "Sectioned",
        "change",
        "Downgraded",
        "Released",
        HOST,
        "step 0: before",
        "after",
        "change",
    ];
    let rows = sizes.iter().zip(of_sizes).map(|(size, found)| {
        let calls = figures(found, |turn| turn.call);
        let time = |side: usize| Cell::measured(Unit::Nanoseconds, calls.get(side).cloned());
        let published = published::MUNMAP.iter().find(|(gib, ..)| gib * GIB == *size);
        let of_seed = |value: Option<f64>| Cell::published(Unit::Nanoseconds, value.map(|us| us * 1e3));
        let cells = vec![
            time(0),
            time(1),
            Cell::measured(Unit::Change, calls[1].change(&calls[0])),
            time(2),
            time(3),
            time(4),
            of_seed(published.map(|found| found.1)),
            of_seed(published.map(|found| found.2)),
            Cell::published(Unit::Change, published.map(|(_, before, after)| after / before - 1.0)),
        ];
        Row { name: units::bytes(*size), cells }
    });
    let title = "time of the call".to_owned();
    Table { title, columns: columns.map(str::to_owned).into(), rows: rows.collect() }
}
