//! Seeds 000 and 001: who waits while a large munmap runs. Their complaint was a `ps` that hung for more than 120 seconds.

use super::Experiment;
use super::victim::Victim;
use crate::reproduce::findings::{Axis, Cell, Findings, Line, Plot, Point, Row, Table};
use crate::reproduce::load::{ANON, GIB, PAGE, RW, World, populated, unmap_name};
use crate::reproduce::measure::{Figure, figures, in_turns};
use crate::reproduce::unit::Unit;
use crate::reproduce::{memory, scale::Scale, steps::Steps};
use crate::units;
use freehold::space::{FaultLock, Locking, Unmap};
use freehold_sync::stats::Histogram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// See the [module](self).
pub struct MunmapStall;

const FULL: [u64; 2] = [16 * GIB, 320 * GIB];
const QUICK: [u64; 1] = [2 * GIB];
/// The host does it at this size.
const HOST: u64 = 8 * GIB;
const QUICK_HOST: u64 = GIB / 2;
/// How long a victim is watched before the munmap begins.
const ALONE: Duration = Duration::from_millis(250);

/// One side: a design, or the host.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Design(Locking),
    Host,
}

impl Side {
    /// The four designs of munmap with faults as they were locked in their day, and the two newer ones with faults as now.
    const ALL: [Side; 7] = {
        const fn with(unmap: Unmap, fault: FaultLock) -> Side {
            Side::Design(Locking { unmap, fault, hugetlb: freehold::space::HugetlbLock::VmaLock })
        }
        use FaultLock::{MmapLock, VmaLock};
        [
            with(Unmap::Exclusive, MmapLock),
            with(Unmap::SECTIONED, MmapLock),
            with(Unmap::Downgraded, MmapLock),
            with(Unmap::Released, MmapLock),
            with(Unmap::Downgraded, VmaLock),
            with(Unmap::Released, VmaLock),
            Side::Host,
        ]
    };

    fn name(self) -> String {
        match self {
            Side::Design(Locking { unmap, fault: FaultLock::MmapLock, .. }) => unmap_name(unmap).to_owned(),
            Side::Design(Locking { unmap, .. }) => format!("{}, VMA lock", unmap_name(unmap)),
            Side::Host => "Linux (host)".to_owned(),
        }
    }
}

/// What a victim saw, and what the munmap took.
struct Turn {
    alone: Histogram,
    beside: Histogram,
    munmap: Duration,
}

/// All turns of a size, by victim and side.
struct OfSize {
    size: u64,
    sides: Vec<Side>,
    found: Vec<Vec<Vec<Turn>>>,
}

impl Experiment for MunmapStall {
    fn name(&self) -> &'static str {
        "munmap-stall"
    }

    fn title(&self) -> &'static str {
        "who waits while a large munmap runs (the hung task of seed 001)"
    }

    fn memory(&self, scale: &Scale) -> u64 {
        memory::of_phantom(scale.sizes(&FULL, &QUICK).into_iter().max().unwrap_or(0))
    }

    fn seconds(&self, scale: &Scale) -> f64 {
        let steps = (Victim::ALL.len() * (Side::ALL.len() - 1) * turns(scale)) as f64;
        scale.sizes(&FULL, &QUICK).iter().map(|size| seconds(*size) * steps).sum()
    }

    fn run(&self, scale: &Scale, steps: &Steps) -> anyhow::Result<Findings> {
        let sizes = scale.sizes(&FULL, &QUICK);
        let largest = sizes.iter().max().copied().unwrap_or(PAGE);
        let world = World::new(largest + largest / 64 + 2 * GIB, 2, Default::default())?;
        let mut all = Vec::new();
        for &size in &sizes {
            let host_bytes = scale.size(HOST, QUICK_HOST).min(size);
            let host = size == sizes[0] && scale.fits_host(host_bytes);
            let mut sides = Side::ALL.to_vec();
            sides.retain(|side| *side != Side::Host || host);
            let found = Victim::ALL.map(|victim| {
                in_turns(turns(scale), &mut sides, |side, turn| match *side {
                    Side::Design(locking) => {
                        let what = format!("{}, {}, turn {}", units::bytes(size), victim.name(), turn + 1);
                        steps.step(what, seconds(size), || of_design(&world, locking, victim, size))
                    }
                    Side::Host => of_host(victim, host_bytes),
                })
            });
            let found = found.into_iter().collect::<anyhow::Result<_>>()?;
            all.push(OfSize { size, sides, found });
        }
        Ok(findings(&all))
    }
}

/// Turns at the seeds' sizes take seconds each.
fn turns(scale: &Scale) -> usize {
    scale.turns.min(3)
}

/// About how long a turn takes.
fn seconds(size: u64) -> f64 {
    (size / PAGE) as f64 * 65e-9 + ALONE.as_secs_f64()
}

fn of_design(world: &World, locking: Locking, victim: Victim, size: u64) -> anyhow::Result<Turn> {
    let process = world.process(locking)?;
    // A program's worth of VMAs, for the reader of maps.
    for n in 0..32 {
        process.mmap((1 << 40) + 2 * n * PAGE, PAGE, RW, ANON, None, 0)?;
    }
    let mut subject = victim.on(&process)?;
    let at = populated(&process, size)?;
    let mut cpu = world.machine.cpu(0);
    cpu.run(process.mmu());
    let unmap = || {
        let started = Instant::now();
        cpu.call(|| process.munmap(at, size))?;
        Ok(started.elapsed())
    };
    let victim = |watch: &mut Watch| {
        let mut cpu = world.machine.cpu(1);
        cpu.run(process.mmu());
        cpu.call(|| watch.until_told(&mut *subject))
    };
    watch(victim, unmap)
}

fn of_host(victim: Victim, size: u64) -> anyhow::Result<Turn> {
    let mut subject = victim.on_host()?;
    let area = crate::reproduce::host::Area::populated(size)?;
    watch(move |watch| watch.until_told(&mut *subject), || Ok(area.unmap()))
}

/// What a victim records, and when.
struct Watch<'f> {
    begun: &'f AtomicBool,
    over: &'f AtomicBool,
    alone: Histogram,
    beside: Histogram,
}

impl Watch<'_> {
    /// Does `operation`, which tells how long it took, until the munmap is over. What ended after its beginning counts as beside it.
    fn until_told(&mut self, operation: &mut dyn FnMut() -> anyhow::Result<Duration>) -> anyhow::Result<()> {
        loop {
            let nanoseconds = operation()?.as_nanos() as u64;
            // Acquire: what is counted as beside the munmap ended after the call began.
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

/// Watches a victim on a thread of its own, alone, and while `unmap` runs.
fn watch(
    victim: impl FnOnce(&mut Watch) -> anyhow::Result<()> + Send,
    unmap: impl FnOnce() -> anyhow::Result<Duration>,
) -> anyhow::Result<Turn> {
    let (begun, over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let watched = scope.spawn(|| {
            let mut watch = Watch {
                begun: &begun,
                over: &over,
                alone: Histogram::default(),
                beside: Histogram::default(),
            };
            victim(&mut watch).map(|()| (watch.alone, watch.beside))
        });
        std::thread::sleep(ALONE);
        begun.store(true, Ordering::Release);
        let munmap = unmap();
        over.store(true, Ordering::Release);
        let (alone, beside) = watched.join().expect("the victim's thread")?;
        Ok(Turn { alone, beside, munmap: munmap? })
    })
}

fn findings(all: &[OfSize]) -> Findings {
    let mut tables = Vec::new();
    for of_size in all {
        for (victim, found) in Victim::ALL.iter().zip(&of_size.found) {
            tables.push(table(of_size, *victim, found));
        }
    }
    let largest = all.last();
    let plots = largest.into_iter().flat_map(|of_size| {
        Victim::ALL.iter().zip(&of_size.found).map(|(victim, found)| plot(of_size, *victim, found))
    });
    Findings {
        experiment: MunmapStall.name(),
        title: MunmapStall.title(),
        work: "One thread unmaps populated memory of 4 KiB pages by one call; another thread on another CPU of the same process does something else all the \
               while, and each time is taken. A victim is watched alone first."
            .to_owned(),
        tables,
        plots: plots.collect(),
        notes: vec![
            "Published, seed 001: a ps that read a cmdline was blocked for more than 120 seconds while 320 GB were unmapped.".to_owned(),
            "Faults and readers take the mmap lock in the first four rows, as Linux had them in the seeds' day, and that of the VMA in the rows that \
             say so, as now."
                .to_owned(),
            "The longest times contain what the machine takes away from its processors. The host unmaps less, of real memory.".to_owned(),
        ],
        seconds: 0.0,
    }
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
    let rows = of_size.sides.iter().enumerate().map(|(side, which)| {
        let mut cells: Vec<Cell> = nanoseconds
            .iter()
            .map(|figures| Cell::measured(Unit::Nanoseconds, figures[side].clone()))
            .collect();
        cells.push(Cell::measured(Unit::Times, nanoseconds[4][side].ratio(&nanoseconds[1][side])));
        Row { name: which.name(), cells }
    });
    let columns = [
        "design",
        "alone: median",
        "99 %",
        "longest",
        "beside: median",
        "99 %",
        "longest",
        "the munmap",
        "99 %: beside / alone",
    ];
    let title = format!("{} while {} are unmapped", victim.title(), units::bytes(of_size.size));
    Table { title, columns: columns.map(str::to_owned).into(), rows: rows.collect() }
}

/// Which part of the time went into operations that took longer than a time. Of a hundred operations that wait for a moment and one that waits
/// for all of the munmap, this says what matters to who waits.
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
        y: Axis::linear("time spent in longer ones", Unit::Share),
        lines: of_size.sides.iter().zip(found).map(line).collect(),
    }
}

/// Which part of the sum of all values is of those larger than `limit`; a value counts as much as the largest of its bucket.
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
