//! Step 3: processes map a file of huge pages, fault in every page and unmap the file. The experiment
//! compares the locks that keep shared page tables in place.
//!
//! Sides: the two designs of [`HugetlbLock`], on a machine with a pool of huge pages. In a turn, each process
//! maps the file, writes to each page and unmaps, until the time is over. The findings are faults per second,
//! waits for the locks, the longest wait, and the number of page tables. This number shows if tables were
//! shared. `published.rs` has the published figures. A new arrangement of the processes needs a variant of
//! [`Place`] and an entry in `others` of `run`.

use super::{Experiment, published};
use crate::executor::Stop;
use crate::findings::{Axis, Cell, Findings, Line, Plot, Point, Row, Table};
use crate::load::{Format, GIB, Open, RW, World};
use crate::measure::{Figure, figures, in_turns};
use crate::unit::Unit;
use crate::{scale::Scale, steps::Steps};
use freehold::fault::Access;
use freehold::file::{File, FileAccess, Mapping};
use freehold::hugetlb::HugePageSize;
use freehold::space::{HugetlbLock, Locking, MapFlags};
use freehold_machine::{Cpu, Process};
use freehold_replay::units;
use freehold_sync::stats::{Histogram, LockSnapshot};
use std::time::Duration;

/// See the [module](self).
pub struct Hugetlb;

/// Bytes of a huge page.
const HUGE: u64 = HugePageSize::Mib2.bytes();

/// Positions at which processes map the file.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// Positions at which processes can share page tables, as in a program that is designed to share them.
    Shared,
    /// Different offsets within a table. Processes cannot share tables, so each process takes every fault and
    /// has its own page-table entries.
    Apart,
    /// Positions at which processes can share page tables. Each process also punches its part of the pages
    /// out of the file after every round, so the pool, the reservations and the fault mutexes stay in use.
    Punched,
}

impl Place {
    /// Returns the suffix of the table titles.
    fn title(self) -> &'static str {
        match self {
            Place::Shared => "",
            Place::Apart => ", apart",
            Place::Punched => ", punched",
        }
    }
}

/// One design of the comparison, with its world and its file.
struct Side {
    /// The machine and the engine of this design.
    world: World,
    /// The file of huge pages that all processes map.
    file: Open,
    /// The locks of each process.
    locking: Locking,
    /// Size of the file in bytes.
    bytes: u64,
}

/// Results of a turn.
struct Turn {
    /// Faults per second.
    faults: f64,
    /// Pages touched per second.
    touched: f64,
    /// Waits for the file's lock and the VMAs' locks.
    waited: Histogram,
    /// Use of the fault mutexes.
    makers: LockSnapshot,
    /// Length of the turn.
    seconds: f64,
}

/// Measurements with one number of processes.
struct Of {
    /// Number of processes.
    processes: usize,
    /// Positions at which the processes map the file.
    place: Place,
    /// The turns by side.
    found: Vec<Vec<Turn>>,
    /// Number of page tables by side.
    tables: Vec<f64>,
}

/// Returns the numbers of processes to measure.
fn processes(scale: &Scale) -> Vec<usize> {
    scale.choose(vec![1, 12, 24, 48], vec![1, 8, 16])
}

/// Returns the length of a turn in seconds. The published figures use intervals of ten seconds.
fn turn_seconds(scale: &Scale) -> f64 {
    scale.turn.as_secs_f64() * scale.choose(5.0, 1.0)
}

impl Experiment for Hugetlb {
    fn name(&self) -> &'static str {
        "hugetlb"
    }

    fn title(&self) -> &'static str {
        "processes that map, fault and unmap a file of huge pages (step 3)"
    }

    fn sides(&self) -> Vec<String> {
        ["FileLock", "VmaLock"].map(str::to_owned).into()
    }

    fn memory(&self, scale: &Scale) -> u64 {
        // Each world has a record for every small frame of its pool.
        let bytes = scale.size(250 * GIB, 16 * GIB);
        2 * (2 * bytes / 4096 * 40) + (1 << 30)
    }

    fn seconds(&self, scale: &Scale) -> f64 {
        ((processes(scale).len() + 2) * 2 * scale.long_turns()) as f64 * turn_seconds(scale)
    }

    fn run(&self, scale: &Scale, steps: &Steps) -> anyhow::Result<Findings> {
        let bytes = scale.size(250 * GIB, 16 * GIB).next_multiple_of(HUGE);
        let counts = processes(scale);
        let most = counts.last().copied().unwrap_or(1);
        let sides =
            [HugetlbLock::FileLock, HugetlbLock::VmaLock].map(|design| Side::new(design, bytes, most, scale));
        let mut sides: Vec<Side> = sides.into_iter().collect::<anyhow::Result<_>>()?;
        let mut all = Vec::new();
        let others = [(most, Place::Apart), (most, Place::Punched)];
        for (processes, place) in counts.into_iter().map(|count| (count, Place::Shared)).chain(others) {
            let found = in_turns(scale.long_turns(), &mut sides, |side, turn| {
                let what = format!("{} of {}, turn {}", counted(processes), units::bytes(bytes), turn + 1);
                steps.step(what, turn_seconds(scale), || side.turn(processes, place, scale))
            })?;
            let tables =
                sides.iter().map(|side| side.tables(processes, place)).collect::<anyhow::Result<_>>()?;
            all.push(Of { processes, place, found, tables });
        }
        Ok(findings(&all, bytes))
    }
}

impl Side {
    /// Creates the world and the file of a side.
    fn new(hugetlb: HugetlbLock, bytes: u64, cpus: usize, scale: &Scale) -> anyhow::Result<Side> {
        let config = scale.config().lock_stats(true);
        // The pool has twice the size of the file. A pool of exactly the file's size could run out of pages
        // when one process punches while other processes map and fault.
        let world = World::new(2 * bytes + GIB, cpus, config)?;
        let pages = 2 * bytes / HUGE;
        let had = world.engine.resize_huge_pool(HugePageSize::Mib2, pages, None);
        anyhow::ensure!(had == pages, "the pool has {had} huge pages instead of {pages}");
        let mapping = Mapping::of_huge_pages(&world.engine, HugePageSize::Mib2, bytes, false)?;
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/hugetlb")?;
        let side = Side { world, file, locking: scale.usual_locking().hugetlb(hugetlb), bytes };
        // Brings every page into the file before anything is measured.
        side.tables(1, Place::Shared)?;
        Ok(side)
    }

    fn map(&self, process: &Process, number: usize, place: Place) -> anyhow::Result<u64> {
        let at = 64 * GIB + if place == Place::Apart { number as u64 * HUGE } else { 0 };
        Ok(process.mmap(at, self.bytes, RW, MapFlags::SHARED | MapFlags::FIXED, Some(&self.file), 0)?)
    }

    /// Runs all processes for one turn.
    fn turn(&self, processes: usize, place: Place, scale: &Scale) -> anyhow::Result<Turn> {
        if place == Place::Punched {
            // A short turn may end before a process reaches its first punch.
            self.file.mapping().punch(0..self.bytes)?;
        }
        let (before, makers_before) = (self.waited(), self.makers());
        let turn = Duration::from_secs_f64(turn_seconds(scale));
        let (counted, took) = self.world.for_a_while(processes, turn, |number, cpu, stop| {
            self.process(number, processes, place, cpu, stop)
        })?;
        let (mut waited, mut makers) = (self.waited(), self.makers());
        waited.remove(&before);
        makers.remove(&makers_before);
        let seconds = took.as_secs_f64();
        let sum = |of: fn(&(u64, u64)) -> u64| counted.iter().map(of).sum::<u64>() as f64 / seconds;
        Ok(Turn {
            faults: sum(|(faults, _)| *faults),
            touched: sum(|(_, touched)| *touched),
            waited,
            makers,
            seconds,
        })
    }

    /// Runs one process. Returns its faults and the pages that it touched.
    fn process(
        &self,
        number: usize,
        processes: usize,
        place: Place,
        cpu: &mut Cpu<Format>,
        stop: &Stop,
    ) -> anyhow::Result<(u64, u64)> {
        let process = self.world.process(self.locking)?;
        let mut touched = 0;
        while !stop.is_told() {
            let at = self.map(&process, number, place)?;
            let mut done = 0;
            while done < self.bytes && !stop.is_told() {
                process.touch(cpu, at + done, Access::WRITE)?;
                done += HUGE;
            }
            process.munmap(at, self.bytes)?;
            if place == Place::Punched {
                let (number, of) = (number as u64, processes as u64);
                let part = |number| self.bytes / HUGE * number / of * HUGE;
                self.file.mapping().punch(part(number)..part(number + 1))?;
            }
            touched += done / HUGE;
        }
        let faults = process.faults();
        Ok((faults.vma_lock + faults.mmap_lock, touched))
    }

    /// Returns the waits so far for the i_mmap locks and the hugetlb VMA locks.
    fn waited(&self) -> Histogram {
        let engine = &self.world.engine;
        let mut sum = Histogram::default();
        for stats in [engine.file_lock_stats(), engine.hugetlb_lock_stats()].into_iter().flatten() {
            sum.merge(&stats.read.waited);
            sum.merge(&stats.write.waited);
        }
        sum
    }

    /// Returns the statistics so far of the fault mutexes. A fault mutex ensures that only one task creates a
    /// page.
    fn makers(&self) -> LockSnapshot {
        self.world.engine.hugetlb_fault_stats().unwrap_or_default()
    }

    /// Returns the number of page tables in use while `processes` processes have the whole file mapped.
    fn tables(&self, processes: usize, place: Place) -> anyhow::Result<f64> {
        let mut cpu = self.world.machine.cpu(0);
        let before = self.world.machine.accounting().tables;
        let mut all = Vec::new();
        for number in 0..processes {
            let process = self.world.process(self.locking)?;
            let at = self.map(&process, number, place)?;
            for done in (0..self.bytes).step_by(HUGE as usize) {
                process.touch(&mut cpu, at + done, Access::READ)?;
            }
            all.push(process);
        }
        Ok((self.world.machine.accounting().tables - before) as f64)
    }
}

/// Returns the findings from the measurements.
fn findings(all: &[Of], bytes: u64) -> Findings {
    let shared: Vec<&Of> = all.iter().filter(|of| of.place == Place::Shared).collect();
    let line = |(side, name): (usize, &str), value: &dyn Fn(&Turn) -> f64| {
        let points = shared
            .iter()
            .map(|of| Point { x: of.processes as f64, y: Figure::of(of.found[side].iter().map(value)) });
        Line { name: name.to_owned(), points: points.collect() }
    };
    let plot = |title: &str, y: Axis, value: &dyn Fn(&Turn) -> f64| Plot {
        title: title.to_owned(),
        x: Axis::linear("processes", Unit::Count),
        y,
        lines: [(0, "FileLock"), (1, "VmaLock")].map(|design| line(design, value)).into(),
    };
    let sentence = |of: &&Of| {
        let what = format!("Faults per second, {}", counted(of.processes));
        table(of, bytes).row_says(&what, "faults per second", &["FileLock", "VmaLock"])
    };
    Findings {
        experiment: Hugetlb.name(),
        title: Hugetlb.title(),
        found: shared.last().and_then(sentence).into_iter().collect(),
        work: format!(
            "Processes repeatedly map a file of {} of huge pages (2 MiB), touch every page and unmap the file; all pages are in the file already. Apart: no process can share \
             tables. Punched: each process also punches its part of the pages out of the file after every round, so that the pages are created again.",
            units::bytes(bytes)
        ),
        tables: all.iter().map(|of| table(of, bytes)).collect(),
        plots: vec![
            plot("Huge pages touched per second", Axis::linear("pages", Unit::PerSecond), &|turn| turn.touched),
            plot("Waits for the file's lock and the VMAs' locks", Axis::linear("time waited in ten seconds", Unit::Nanoseconds), &|turn| waited(turn)),
        ],
        notes: vec![
            "Published: 48 processors. With fewer processors than processes, a wait for a lock lasts until the lock holder is scheduled again, in both designs.".to_owned(),
            "A page that another process has faulted into a shared table needs no fault; the published figure counts every fault. Apart: processes map the file where they cannot \
             share tables, and each takes all faults itself."
                .to_owned(),
            "Waits here are those for the lock of the file's reverse map and for the VMAs' locks, in which the designs differ. The published figures count the waits of faults for their \
             mutex, which have separate rows here: a fault on a page in the file does not take the mutex. Longest wait: within a turn here, within two hours as published."
                .to_owned(),
        ],
        seconds: 0.0,
    }
}

/// Formats a number of processes.
fn counted(processes: usize) -> String {
    if processes == 1 { "1 process".to_owned() } else { format!("{processes} processes") }
}

/// Returns the total waiting time in ten seconds.
fn waited(turn: &Turn) -> f64 {
    turn.waited.sum() as f64 * 10.0 / turn.seconds
}

/// Returns the longest wait, as exactly as the buckets allow.
fn longest(waits: &Histogram) -> f64 {
    waits.buckets().last().map_or(0, |(most, _)| most.min(waits.max())) as f64
}

/// Returns the table for one number of processes.
fn table(of: &Of, bytes: u64) -> Table {
    let columns = ["", "FileLock", "VmaLock", "change", "step 3: i_mmap lock", "VMA lock", "change"];
    let row = |name: &str, unit: Unit, published: Option<[f64; 2]>, value: &dyn Fn(&Turn) -> f64| {
        let figures = figures(&of.found, value);
        let cells = vec![
            Cell::measured(unit, figures[0].clone()),
            Cell::measured(unit, figures[1].clone()),
            Cell::measured(Unit::Change, figures[1].change(&figures[0])),
            Cell::published(unit, published.map(|[before, _]| before)),
            Cell::published(unit, published.map(|[_, after]| after)),
            Cell::published(Unit::Change, published.map(|[before, after]| after / before - 1.0)),
        ];
        Row { name: name.to_owned(), cells }
    };
    let seed = Some(&published::HUGETLB)
        .filter(|_| of.processes == 48 && of.place == Place::Shared && bytes == 250 * GIB);
    let of_seed = |value: fn(&published::Hugetlb) -> [f64; 2]| seed.map(value);
    let mut rows = vec![
        row("faults per second", Unit::PerSecond, of_seed(|seed| seed.faults), &|turn| turn.faults),
        row("pages touched per second", Unit::PerSecond, None, &|turn| turn.touched),
        row("waits in ten seconds", Unit::Count, of_seed(|seed| seed.waits), &|turn| {
            turn.waited.count() as f64 * 10.0 / turn.seconds
        }),
        row("time waited in ten seconds", Unit::Nanoseconds, of_seed(|seed| seed.waited), &waited),
        row("longest wait", Unit::Nanoseconds, of_seed(|seed| seed.longest), &|turn| longest(&turn.waited)),
        row("fault mutexes taken per second", Unit::PerSecond, None, &|turn| {
            turn.makers.write.held.count() as f64 / turn.seconds
        }),
        row("waits for fault mutexes in ten seconds", Unit::Count, None, &|turn| {
            turn.makers.write.waited.count() as f64 * 10.0 / turn.seconds
        }),
        row("time waited for fault mutexes in ten seconds", Unit::Nanoseconds, None, &|turn| {
            turn.makers.write.waited.sum() as f64 * 10.0 / turn.seconds
        }),
        row("longest wait for a fault mutex", Unit::Nanoseconds, None, &|turn| {
            longest(&turn.makers.write.waited)
        }),
    ];
    let tables = of.tables.iter().map(|tables| Cell::measured(Unit::Count, Figure::of([*tables])));
    rows.push(Row {
        name: "page tables".to_owned(),
        cells: tables.chain((0..4).map(|_| Cell::Nothing)).collect(),
    });
    let title = format!("{}{}", counted(of.processes), of.place.title());
    Table { title, columns: columns.map(str::to_owned).into(), rows }
}
