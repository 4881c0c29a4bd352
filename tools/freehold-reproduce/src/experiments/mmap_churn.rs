//! Measures the rate at which threads of one process map, touch and unmap small areas. Then measures each
//! operation by itself.
//!
//! The sides are the lock designs of the engine, and the host. Each thread maps four pages, writes to them
//! and unmaps them, for the time of a turn. The findings are the operations per second for each number of
//! threads, the waits for the mmap lock, and the time of each single operation (`single.rs`) in nanoseconds.
//!
//! `registry.rs` lists the experiment; `measure.rs` runs the sides in turns. A new single operation belongs
//! in `single.rs`.

use super::Experiment;
use super::single::Single;
use crate::executor::alone;
use crate::findings::{Axis, Cell, Findings, Line, Plot, Point, Row, Table};
use crate::host::Area;
use crate::load::{
    ANON, GIB, HOST, PAGE, RW, Side, World, fault_in, for_a_while, unmap_name, unmap_names, unmaps,
};
use crate::measure::{Figure, figures, in_turns};
use crate::unit::Unit;
use crate::{scale::Scale, steps::Steps};
use freehold::fault::Access;
use freehold::space::Locking;
use freehold_machine::Process;
use freehold_sync::stats::Histogram;
use std::time::Duration;

/// See the [module](self).
pub struct MmapChurn;

/// Number of pages in an area.
const AREA: u64 = 4;

/// Results of a turn.
struct Turn {
    /// Operations per second of all threads together.
    operations: f64,
    /// Number of waits for the mmap lock per second.
    waits: f64,
    /// Nanoseconds per second that threads waited for the mmap lock, summed over all threads.
    waited: f64,
}

impl Experiment for MmapChurn {
    fn name(&self) -> &'static str {
        "mmap-churn"
    }

    fn title(&self) -> &'static str {
        "threads that map, touch and unmap small areas; each operation by itself"
    }

    fn sides(&self) -> Vec<String> {
        unmap_names()
    }

    fn memory(&self, _: &Scale) -> u64 {
        1 << 30
    }

    fn seconds(&self, scale: &Scale) -> f64 {
        let sides = 4 + usize::from(scale.host);
        scale.threads().len() as f64 * scale.seconds(sides) + single_seconds(scale)
    }

    fn run(&self, scale: &Scale, steps: &Steps) -> anyhow::Result<Findings> {
        let world = World::new(4 * GIB, scale.cpus, scale.config())?;
        let designs = unmaps(scale.usual_locking());
        let processes = designs.map(|locking| world.process(locking).map(Side::Design));
        let mut sides: Vec<Side> = processes.into_iter().collect::<anyhow::Result<_>>()?;
        if scale.host {
            sides.push(Side::Host);
        }
        let mut all = Vec::new();
        for threads in scale.threads() {
            let found = in_turns(scale.turns(), &mut sides, |side, turn| {
                let what = format!("{threads} threads, turn {}", turn + 1);
                steps.step(what, scale.turn.as_secs_f64(), || match side {
                    Side::Design(process) => of_design(&world, process, threads, scale),
                    Side::Host => of_host(threads, scale),
                })
            })?;
            all.push((threads, found));
        }
        let singles = singles(&world, scale, steps)?;
        Ok(findings(&all, singles))
    }
}

/// Measures the rate in the first three quarters of the turn, and the waits for the lock in the last quarter.
/// The lock statistics read the clock twice for each hold, so the rate is measured without them.
fn of_design(world: &World, process: &Process, threads: usize, scale: &Scale) -> anyhow::Result<Turn> {
    let (operations, _) = churn(world, process, threads, scale.turn * 3 / 4)?;
    let watched = world.watched(process.locking())?;
    let (_, seconds) = churn(world, &watched, threads, scale.turn / 4)?;
    let during = watched.lock_stats().unwrap_or_default();
    let mut waited: Histogram = during.read.waited.clone();
    waited.merge(&during.write.waited);
    Ok(Turn { operations, waits: waited.count() as f64 / seconds, waited: waited.sum() as f64 / seconds })
}

/// Returns the operations per second, and the time in seconds.
fn churn(world: &World, process: &Process, threads: usize, turn: Duration) -> anyhow::Result<(f64, f64)> {
    let (done, took) = world.for_a_while(threads, turn, |_, cpu, stop| {
        cpu.run(process.mmu());
        cpu.call(|| {
            let mut done = 0u64;
            while !stop.is_told() {
                let at = process.mmap(0, AREA * PAGE, RW, ANON, None, 0)?;
                fault_in(process, at, AREA, Access::WRITE)?;
                process.munmap(at, AREA * PAGE)?;
                done += 1;
            }
            Ok(done)
        })
    })?;
    let seconds = took.as_secs_f64();
    Ok((done.iter().sum::<u64>() as f64 / seconds, seconds))
}

/// Measures the rate of the host's system calls.
fn of_host(threads: usize, scale: &Scale) -> anyhow::Result<Turn> {
    let (done, took) = for_a_while(threads, scale.turn, |_, stop| {
        let mut done = 0u64;
        while !stop.is_told() {
            let area = Area::map(AREA * PAGE)?;
            (0..AREA).for_each(|page| area.touch(page));
            drop(area);
            done += 1;
        }
        Ok(done)
    })?;
    Ok(Turn { operations: done.iter().sum::<u64>() as f64 / took.as_secs_f64(), waits: 0.0, waited: 0.0 })
}

/// Estimates the time of the single operations, in seconds.
fn single_seconds(scale: &Scale) -> f64 {
    Single::ALL.len() as f64 * scale.turns() as f64 * 0.05
}

/// Measures each operation by itself, in turns on the engine and on the host, in nanoseconds.
fn singles(world: &World, scale: &Scale, steps: &Steps) -> anyhow::Result<Table> {
    let process = world.process(scale.usual_locking())?;
    let mut rows = Vec::new();
    for single in Single::ALL {
        let mut sides = vec![false];
        if scale.host {
            sides.push(true);
        }
        let found = in_turns(scale.turns(), &mut sides, |host, _| match host {
            false => steps.step(single.name(), 0.05, || {
                alone(|| {
                    let mut cpu = world.machine.cpu(0);
                    cpu.run(process.mmu());
                    cpu.call(|| single.of_engine(&process))
                })
            }),
            true => single.of_host(),
        })?;
        let of_sides = figures(&found, |nanoseconds| *nanoseconds);
        let (engine, host) = (&of_sides[0], of_sides.get(1));
        let cells = vec![
            Cell::measured(Unit::Nanoseconds, engine.clone()),
            Cell::measured(Unit::Nanoseconds, host.cloned()),
            Cell::measured(Unit::Times, host.and_then(|host| host.ratio(engine))),
        ];
        rows.push(Row { name: single.name().to_owned(), cells });
    }
    let columns = ["operation", "Freehold", HOST, "Linux / Freehold"];
    let title = "each operation by itself, one thread".to_owned();
    Ok(Table { title, columns: columns.map(str::to_owned).into(), rows })
}

/// Returns the findings from the turns of each number of threads.
fn findings(all: &[(usize, Vec<Vec<Turn>>)], singles: Table) -> Findings {
    let mut names: Vec<&str> = unmaps(Locking::default()).map(|design| unmap_name(design.unmap)).into();
    names.push(HOST);
    let table = |title: &str, unit: Unit, sides: usize, value: &dyn Fn(&Turn) -> f64| {
        let rows = all.iter().map(|(threads, found)| {
            let figures = figures(found, value);
            let cells = (0..sides).map(|side| Cell::measured(unit, figures.get(side).cloned()));
            Row { name: threads.to_string(), cells: cells.collect() }
        });
        let columns = ["threads"].into_iter().chain(names[..sides].iter().copied());
        Table { title: title.to_owned(), columns: columns.map(str::to_owned).collect(), rows: rows.collect() }
    };
    let lines = names.iter().enumerate().map(|(side, name)| {
        let points = all.iter().filter_map(|(threads, found)| {
            let turns = found.get(side)?.iter().map(|turn| turn.operations);
            Some(Point { x: *threads as f64, y: Figure::of(turns) })
        });
        Line { name: (*name).to_owned(), points: points.collect() }
    });
    let lines = lines.collect();
    let churn =
        table("areas mapped, touched and unmapped per second", Unit::PerSecond, 5, &|turn| turn.operations);
    let what =
        format!("Areas mapped, touched and unmapped per second, number of threads {}", churn.last_row());
    Findings {
        experiment: MmapChurn.name(),
        title: MmapChurn.title(),
        found: churn.row_says(&what, churn.last_row(), &names).into_iter().collect(),
        work: format!("Threads of one process map {AREA} pages, write to each, and unmap them, repeatedly."),
        tables: vec![
            churn,
            table("waits for the mmap lock, per second", Unit::Count, 4, &|turn| turn.waits),
            table("time waited for the mmap lock by all threads, per second", Unit::Nanoseconds, 4, &|turn| turn.waited),
            singles,
        ],
        plots: vec![Plot {
            title: "Areas mapped, touched and unmapped per second".to_owned(),
            x: Axis::linear("threads", Unit::Count),
            y: Axis::logarithmic("areas", Unit::PerSecond),
            lines,
        }],
        notes: vec![
            "No figures are published for this load, which is typical of memory allocators.".to_owned(),
            "The host's calls trap, zero pages, and interrupt other processors to flush their TLBs; the engine's flush is a word written to a virtual CPU.".to_owned(),
        ],
        seconds: 0.0,
    }
}
