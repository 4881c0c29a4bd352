//! Steps 0 and 1: operations that wait while a large munmap runs. Linux changed munmap after a report of a
//! `ps` that hung for more than 120 seconds.
//!
//! In each turn, victims (`victim.rs`) repeat an operation on some threads: first without a munmap, then
//! while another thread unmaps a large populated range. The findings show the median and the longest time of
//! the operation in both phases, for each lock design of munmap and for the host. A design is good if the
//! longest time does not grow with the size of the munmap. A new victim belongs in `victim.rs`, a new design
//! in `DESIGNS`.

use super::Experiment;
use super::victim::{Operation, Victim};
use crate::executor::{Instant, sleep, together};
use crate::findings::{Axis, Cell, Findings, Line, Plot, Point, Row, Table};
use crate::load::{ANON, GIB, HOST, PAGE, RW, World, populated, unmap_name};
use crate::measure::{Figure, figures, in_turns};
use crate::unit::Unit;
use crate::{memory, scale::Scale, steps::Steps};
use freehold::space::{FaultLock, Locking, Unmap, Write};
use freehold_replay::units;
use freehold_sync::stats::Histogram;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// See the [module](self).
pub struct MunmapStall;

/// Sizes of the munmap of a full run, in bytes.
const FULL: [u64; 2] = [16 * GIB, 320 * GIB];
/// Sizes of a quick run.
const QUICK: [u64; 1] = [2 * GIB];
/// Size that the host unmaps.
const OF_HOST: u64 = 8 * GIB;
/// Size that the host unmaps in a quick run.
const QUICK_OF_HOST: u64 = GIB / 2;
/// Longest time for which victims are watched before the munmap begins, on a host. The host's scheduler needs
/// this time to start the victims.
const ALONE: Duration = Duration::from_millis(250);

/// One side: a design, or the host with a number of bytes.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    /// The engine with this lock design.
    Design(Locking),
    /// The host, with the number of bytes that it unmaps.
    Host(u64),
}

impl Side {
    /// The four designs of munmap with faults under the mmap lock, as in Linux at the time of the steps, and
    /// the two newer designs with faults under the VMA lock, as in Linux today.
    const DESIGNS: [Side; 6] = {
        const fn with(unmap: Unmap, fault: FaultLock) -> Side {
            Side::Design(Locking::ALL[0].unmap(unmap).fault(fault).write(Write::Whole))
        }
        use FaultLock::{MmapLock, VmaPerCpu};
        [
            with(Unmap::Exclusive, MmapLock),
            with(Unmap::SECTIONED, MmapLock),
            with(Unmap::Downgraded, MmapLock),
            with(Unmap::Released, MmapLock),
            with(Unmap::Downgraded, VmaPerCpu),
            with(Unmap::Released, VmaPerCpu),
        ]
    };

    fn name(self) -> String {
        match self {
            Side::Design(Locking { unmap, fault: FaultLock::MmapLock, .. }) => unmap_name(unmap).to_owned(),
            Side::Design(Locking { unmap, .. }) => format!("{}, VMA lock", unmap_name(unmap)),
            Side::Host(bytes) => format!("{HOST}, {}", units::bytes(bytes)),
        }
    }
}

/// Times that a victim measured, and the time of the munmap.
struct Turn {
    /// Times of operations before the munmap, in nanoseconds.
    alone: Histogram,
    /// Times of operations during the munmap, in nanoseconds.
    beside: Histogram,
    /// Duration of the munmap.
    munmap: Duration,
}

/// All turns of a size, by victim and side.
struct OfSize {
    /// Size of the munmap in bytes.
    size: u64,
    /// The sides that were measured.
    sides: Vec<Side>,
    /// The turns by victim, then by side.
    found: Vec<Vec<Vec<Turn>>>,
}

impl Experiment for MunmapStall {
    fn name(&self) -> &'static str {
        "munmap-stall"
    }

    fn title(&self) -> &'static str {
        "operations that wait while a large munmap runs (the hung task of step 1)"
    }

    fn sides(&self) -> Vec<String> {
        Side::DESIGNS.map(Side::name).into()
    }

    fn memory(&self, scale: &Scale) -> u64 {
        memory::of_phantom(scale.sizes(&FULL, &QUICK).into_iter().max().unwrap_or(0))
    }

    fn seconds(&self, scale: &Scale) -> f64 {
        let of_size = |size: u64| {
            let host = if host(scale, size).is_some() { host_seconds(scale, size) } else { 0.0 };
            Side::DESIGNS.len() as f64 * seconds(scale, size) + host
        };
        let turns = (Victim::ALL.len() * scale.long_turns()) as f64;
        scale.sizes(&FULL, &QUICK).into_iter().map(of_size).sum::<f64>() * turns
    }

    fn run(&self, scale: &Scale, steps: &Steps) -> anyhow::Result<Findings> {
        let sizes = scale.sizes(&FULL, &QUICK);
        let largest = sizes.iter().max().copied().unwrap_or(PAGE);
        let world = World::new(largest + largest / 64 + 2 * GIB, 1 + victims(scale), scale.config())?;
        let mut all = Vec::new();
        for &size in &sizes {
            let mut sides: Vec<Side> = Side::DESIGNS.into_iter().chain(host(scale, size)).collect();
            let found = Victim::ALL.map(|victim| {
                in_turns(scale.long_turns(), &mut sides, |side, turn| {
                    let what = format!("{}, {}, turn {}", units::bytes(size), victim.name(), turn + 1);
                    match *side {
                        Side::Design(locking) => steps.step(what, seconds(scale, size), || {
                            of_design(&world, locking, victim, size, scale)
                        }),
                        Side::Host(bytes) => steps.step(what + ", host", host_seconds(scale, size), || {
                            of_host(victim, bytes, scale)
                        }),
                    }
                })
            });
            let found = found.into_iter().collect::<anyhow::Result<_>>()?;
            all.push(OfSize { size, sides, found });
        }
        Ok(findings(&all))
    }
}

/// Returns the host's side, which is measured with the first size only.
fn host(scale: &Scale, size: u64) -> Option<Side> {
    let bytes = host_bytes(scale, size);
    let first = scale.sizes(&FULL, &QUICK).first() == Some(&size);
    (first && scale.fits_host(bytes)).then_some(Side::Host(bytes))
}

/// Returns the number of bytes that the host unmaps.
fn host_bytes(scale: &Scale, size: u64) -> u64 {
    scale.size(OF_HOST, QUICK_OF_HOST).min(size)
}

/// Estimates the time of a turn of the host in seconds.
fn host_seconds(scale: &Scale, size: u64) -> f64 {
    (host_bytes(scale, size) / PAGE) as f64 * 3e-6 + alone(scale).as_secs_f64()
}

/// Returns the approximate time of a turn in seconds.
fn seconds(scale: &Scale, size: u64) -> f64 {
    (size / PAGE) as f64 * 65e-9 + alone(scale).as_secs_f64()
}

/// Returns the time for which victims are watched before the munmap begins. Tests use short turns, and so
/// watch for a shorter time than [`ALONE`].
fn alone(scale: &Scale) -> Duration {
    if scale.place.simulated().is_some() { scale.turn / 4 } else { ALONE.min(25 * scale.turn) }
}

/// Returns the number of concurrent victims. On a simulated machine, each processor runs a victim, except the
/// processor that runs the munmap. On a host there is one victim, because several victims would compete for
/// processors.
fn victims(scale: &Scale) -> usize {
    if scale.place.simulated().is_some() { (scale.cpus - 1).max(1) } else { 1 }
}

/// Runs one turn on the engine with a lock design.
fn of_design(
    world: &World,
    locking: Locking,
    victim: Victim,
    size: u64,
    scale: &Scale,
) -> anyhow::Result<Turn> {
    let process = world.process(locking)?;
    // Map some more VMAs, so that `maps` has about as many lines as for a typical program.
    for n in 0..32 {
        process.mmap((1 << 40) + 2 * n * PAGE, PAGE, RW, ANON, None, 0)?;
    }
    let subjects = (0..victims(scale)).map(|_| Ok(Mutex::new(victim.on(&process)?)));
    let subjects: Vec<Mutex<Operation>> = subjects.collect::<anyhow::Result<_>>()?;
    let at = populated(&process, size)?;
    let unmap = || {
        let mut cpu = world.machine.cpu(0);
        cpu.run(process.mmu());
        let started = Instant::now();
        cpu.call(|| process.munmap(at, size))?;
        Ok(started.elapsed())
    };
    let victim = |number: usize, watch: &mut Watch| {
        let mut cpu = world.machine.cpu(1 + number);
        cpu.run(process.mmu());
        let mut subject = subjects[number].lock().expect("the lock of this victim");
        cpu.call(|| watch.until_told(&mut *subject))
    };
    watch(subjects.len(), alone(scale), victim, unmap)
}

/// Runs one turn on the host.
fn of_host(victim: Victim, size: u64, scale: &Scale) -> anyhow::Result<Turn> {
    let subject = Mutex::new(victim.on_host()?);
    let area = Mutex::new(Some(crate::host::Area::populated(size)?));
    let unmap = || Ok(area.lock().expect("the lock of the area").take().expect("once").unmap());
    watch(
        1,
        alone(scale),
        |_, watch| watch.until_told(&mut *subject.lock().expect("the lock of the victim")),
        unmap,
    )
}

/// The times that a victim records.
struct Watch<'f> {
    /// Set when the munmap begins.
    begun: &'f AtomicBool,
    /// Set when the munmap has ended.
    over: &'f AtomicBool,
    alone: Histogram,
    beside: Histogram,
}

impl Watch<'_> {
    /// Repeats `operation`, which returns its time, until the munmap is over. An operation that ends after
    /// the munmap has begun counts as concurrent with the munmap.
    fn until_told(&mut self, operation: &mut dyn FnMut() -> anyhow::Result<Duration>) -> anyhow::Result<()> {
        loop {
            let nanoseconds = operation()?.as_nanos() as u64;
            // Acquire: pairs with the Release store in `watch`, so every operation that counts as concurrent
            // ended after the munmap began.
            if !self.begun.load(Ordering::Acquire) {
                self.alone.record(nanoseconds);
                continue;
            }
            self.beside.record(nanoseconds);
            if self.over.load(Ordering::Acquire) {
                return Ok(());
            }
        }
    }
}

/// Watches this number of victims, each on its own thread: for some time before the munmap, and while the
/// munmap runs.
fn watch(
    victims: usize,
    alone: Duration,
    victim: impl Fn(usize, &mut Watch) -> anyhow::Result<()> + Sync,
    unmap: impl Fn() -> anyhow::Result<Duration> + Sync,
) -> anyhow::Result<Turn> {
    let (begun, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let results = together(1 + victims, |thread| {
        let mut watch =
            Watch { begun: &begun, over: &over, alone: Histogram::default(), beside: Histogram::default() };
        if thread > 0 {
            victim(thread - 1, &mut watch)?;
            return anyhow::Ok((watch.alone, watch.beside, Duration::ZERO));
        }
        sleep(alone);
        begun.store(true, Ordering::Release);
        let munmap = unmap();
        over.store(true, Ordering::Release);
        Ok((watch.alone, watch.beside, munmap?))
    });
    let mut all = Turn { alone: Histogram::default(), beside: Histogram::default(), munmap: Duration::ZERO };
    for result in results {
        let (alone, beside, munmap) = result?;
        all.alone.merge(&alone);
        all.beside.merge(&beside);
        all.munmap += munmap;
    }
    Ok(all)
}

fn findings(all: &[OfSize]) -> Findings {
    let mut tables = Vec::new();
    for of_size in all {
        for (victim, found) in Victim::ALL.iter().zip(&of_size.found) {
            tables.push(table(of_size, *victim, found));
            tables.push(histogram(of_size, *victim, found));
        }
    }
    let plots = all.iter().flat_map(|of_size| {
        Victim::ALL.iter().zip(&of_size.found).map(|(victim, found)| plot(of_size, *victim, found))
    });
    Findings {
        experiment: MunmapStall.name(),
        title: MunmapStall.title(),
        found: all.iter().filter_map(sentence).collect(),
        work: "One thread unmaps populated memory of 4 KiB pages by one call. At the same time another thread of the process on another CPU repeats an operation, and each \
               operation is timed; on simulated machines there is one such thread on every other CPU. A victim is also watched before the munmap begins."
            .to_owned(),
        tables,
        plots: plots.collect(),
        notes: vec![
            "Published, step 1: a ps that read a cmdline was blocked for more than 120 seconds while 320 GB were unmapped.".to_owned(),
            "In the first four rows faults and readers take the mmap lock, as in Linux at the time of the steps. In the rows with VMA lock they take the VMA lock, as \
             in Linux today."
                .to_owned(),
            "An operation that waits for a whole munmap is one of many, so percentiles hardly show it. The last column does: it is the share of the victim's time spent \
             in operations that took more than twice the 99 % value before the munmap. Processor time that the host takes away is included."
                .to_owned(),
            "The host unmaps real memory, as much as the name of its row says; the reader on the host opens and reads files of its own process in /proc.".to_owned(),
        ],
        seconds: 0.0,
    }
}

/// Summarises the waits of an operation that changes mappings elsewhere.
fn sentence(of_size: &OfSize) -> Option<String> {
    /// Index of the column with the 99th percentile during the munmap.
    const BESIDE: usize = 4;
    let (victim, found) = Victim::ALL.iter().zip(&of_size.found).next_back()?;
    let what = format!(
        "99 % of \"{}\" while {} are unmapped take at most",
        victim.title(),
        units::bytes(of_size.size)
    );
    table(of_size, *victim, found).column_says(&what, BESIDE)
}

fn table(of_size: &OfSize, victim: Victim, found: &[Vec<Turn>]) -> Table {
    let of = |value: fn(&Turn) -> u64| figures(found, |turn| value(turn) as f64);
    let nanoseconds = [
        of(|turn| turn.alone.percentile(5_000)),
        of(|turn| turn.alone.percentile(9_900)),
        of(|turn| turn.alone.max()),
        of(|turn| turn.beside.percentile(5_000)),
        of(|turn| turn.beside.percentile(9_900)),
        of(|turn| turn.beside.max()),
        of(|turn| turn.munmap.as_nanos() as u64),
    ];
    let waited = figures(found, |turn| longer(&turn.beside, 2 * turn.alone.percentile(9_900)));
    let rows = of_size.sides.iter().enumerate().map(|(side, which)| {
        let mut cells: Vec<Cell> = nanoseconds
            .iter()
            .map(|figures| Cell::measured(Unit::Nanoseconds, figures[side].clone()))
            .collect();
        cells.push(Cell::measured(Unit::Share, waited[side].clone()));
        Row { name: which.name(), cells }
    });
    let columns = [
        "design",
        "before: median",
        "99 %",
        "longest",
        "during: median",
        "99 %",
        "longest",
        "munmap time",
        "time in slow operations",
    ];
    let title = format!("{} while {} are unmapped", victim.title(), units::bytes(of_size.size));
    Table { title, columns: columns.map(str::to_owned).into(), rows: rows.collect() }
}

/// Returns the number of operations during a munmap, by their time.
fn histogram(of_size: &OfSize, victim: Victim, found: &[Vec<Turn>]) -> Table {
    // Powers of two near powers of ten, because buckets end at powers of two.
    const ENDS: [u32; 8] = [7, 10, 13, 17, 20, 23, 27, 63];
    let mut columns = vec!["design".to_owned()];
    let mut from = 0;
    for end in ENDS {
        let upto = Unit::Nanoseconds.text(((1u64 << end) - 1) as f64);
        columns.push(if end == 63 { "longer".to_owned() } else { format!("to {upto}") });
    }
    let mut counts = Vec::new();
    for end in ENDS {
        let limits = from..=(1u64 << end) - 1;
        counts.push(figures(found, |turn| {
            turn.beside
                .buckets()
                .filter(|(most, _)| limits.contains(most))
                .map(|(_, count)| count)
                .sum::<u64>() as f64
        }));
        from = 1 << end;
    }
    let rows = of_size.sides.iter().enumerate().map(|(side, which)| {
        let cells = counts.iter().map(|counts| Cell::measured(Unit::Count, counts[side].clone()));
        Row { name: which.name(), cells: cells.collect() }
    });
    let title = format!("{}: operations by their time", victim.title());
    Table { title, columns, rows: rows.collect() }
}

/// Plots the share of time spent in operations longer than a limit. If a hundred operations wait briefly and
/// one operation waits for the whole munmap, this share shows how much of the task's time is lost.
fn plot(of_size: &OfSize, victim: Victim, found: &[Vec<Turn>]) -> Plot {
    let line = |(side, turns): (&Side, &Vec<Turn>)| {
        let points = (5..=31).map(|power| {
            let limit = 1u64 << power;
            Point { x: limit as f64, y: Figure::of(turns.iter().map(|turn| longer(&turn.beside, limit))) }
        });
        Line { name: side.name(), points: points.collect() }
    };
    Plot {
        title: format!("{} while {} are unmapped", victim.title(), units::bytes(of_size.size)),
        x: Axis::logarithmic("time of an operation", Unit::Nanoseconds),
        y: Axis::linear("time spent in longer operations", Unit::Share),
        lines: of_size.sides.iter().zip(found).map(line).collect(),
    }
}

/// Returns the sum of the values above `limit` as a share of the sum of all values. Each value counts as the
/// largest value of its bucket.
fn longer(times: &Histogram, limit: u64) -> f64 {
    let sum = |from: u64| -> u64 {
        times
            .buckets()
            .filter(|(most, _)| *most > from)
            .map(|(most, count)| most.min(times.max()) * count)
            .sum()
    };
    sum(limit) as f64 / sum(0).max(1) as f64
}
