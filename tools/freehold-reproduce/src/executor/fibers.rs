//! Tasks on the processors of a simulated machine, in virtual time. Each load is a separate run that begins
//! at the time at which the previous run ended. No time passes between runs.
//!
//! The counterpart of `threads.rs`. A *side* is one of the designs that an experiment compares. [`together`],
//! [`alone`] and [`for_a_while`] run tasks on a simulated machine, and add the report of the run to the
//! current side ([`side`]). *Lost* time is the time for which processors waited for a cache line; [`hottest`]
//! names the fields whose cache lines cost most of this time. The state (place, clock, lost time) is
//! thread-local: experiments run on one thread. `tests/sim_experiments.rs` (`cargo xtask sim`) runs this
//! file.

use super::Stop;
use crate::findings::{Cell, Row, Table};
use crate::measure::Figure;
use crate::unit::Unit;
use freehold_sim::{HotField, Machine, Report, names, task};
use std::cell::{Cell as StdCell, RefCell};
use std::collections::BTreeMap;
use std::ops::Sub;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Number of fields shown for each side.
const SHOWN: usize = 4;

/// The place where loads run.
#[derive(Clone, Debug)]
pub struct Place {
    /// The machine.
    pub machine: Machine,
    /// Seed that orders simultaneous events.
    pub seed: u64,
}

impl Default for Place {
    fn default() -> Place {
        Place { machine: Machine::named("zen5-vm-2").expect("a known machine"), seed: 1 }
    }
}

impl Place {
    /// Makes loads of the calling thread run in this place, and starts their clock. Drops the records of
    /// earlier loads.
    pub fn enter(&self) {
        names::clear();
        PLACE.set(Some(self.clone()));
        PASSED.set(0);
        LOST.take();
    }

    /// Returns the title of the simulated machine.
    pub fn simulated(&self) -> Option<&str> {
        Some(&self.machine.title)
    }
}

/// Time lost by the sides of a comparison in one step.
#[derive(Default)]
struct Lost {
    /// The name of the step.
    what: String,
    /// Sum of the reports of the runs of each side, by the number of the side.
    sides: BTreeMap<usize, Report>,
}

thread_local! {
    /// Place of this thread's loads.
    static PLACE: RefCell<Option<Place>> = const { RefCell::new(None) };
    /// Total time of the runs so far, in nanoseconds.
    static PASSED: StdCell<u64> = const { StdCell::new(0) };
    /// Time lost in the comparisons so far. The last entry is in progress.
    static LOST: RefCell<Vec<Lost>> = const { RefCell::new(Vec::new()) };
    /// The side that is running.
    static SIDE: StdCell<usize> = const { StdCell::new(0) };
    /// True while runs do not record their lost time.
    static UNNOTED: StdCell<bool> = const { StdCell::new(false) };
}

/// Records that this side of a comparison runs from now on.
pub fn side(number: usize) {
    SIDE.set(number);
}

/// Begins a step. `what` is its name. Steps whose names differ only in the part `, turn N` belong to the same
/// comparison.
pub fn step(what: &str) {
    let what = what.rsplit_once(", turn").map_or(what, |(what, _)| what);
    LOST.with_borrow_mut(|lost| {
        if lost.last().is_none_or(|last| last.what != what) {
            lost.push(Lost { what: what.to_owned(), sides: BTreeMap::new() });
        }
    });
}

/// Runs work that is not part of any step.
pub fn unnoted<R>(work: impl FnOnce() -> R) -> R {
    let before = UNNOTED.replace(true);
    let result = work();
    UNNOTED.set(before);
    result
}

/// Returns a table of the fields on which one side lost most time. The table covers each step so far whose
/// name ends in `of`.
pub fn hottest_of_each(side: usize, of: &str) -> Option<Table> {
    const SHOWN: usize = 2;
    let rows: Vec<Row> = LOST.with_borrow(|all| {
        let of_side = all.iter().filter_map(|lost| {
            Some((lost.what.strip_suffix(of)?.trim_end_matches(", "), lost.sides.get(&side)?))
        });
        of_side.flat_map(|(what, report)| rows(what, report, SHOWN)).collect()
    });
    let title = format!("fields on which most time was lost, by load: {of}");
    (!rows.is_empty()).then_some(Table { title, columns: COLUMNS.map(str::to_owned).into(), rows })
}

/// Returns a table of the fields on which most time was lost since [`Place::enter`], for the step with the
/// largest loss. `sides` are the names of the sides, in order.
pub fn hottest(sides: &[String]) -> Option<Table> {
    let all = LOST.take();
    let engines = |report: &Report| -> u64 { fields(report).map(|field| field.lost_ns).sum() };
    let most = all.iter().max_by_key(|lost| lost.sides.values().map(engines).sum::<u64>())?;
    let rows: Vec<Row> = most
        .sides
        .iter()
        .flat_map(|(side, report)| rows(sides.get(*side).map_or("", String::as_str), report, SHOWN))
        .collect();
    let title = format!("fields on which most time was lost: {}", most.what);
    (!rows.is_empty()).then_some(Table { title, columns: COLUMNS.map(str::to_owned).into(), rows })
}

const COLUMNS: [&str; 8] = [
    "field",
    "lines",
    "transfers",
    "share of accesses",
    "between sockets",
    "time lost",
    "share of processor time",
    "per transfer",
];

/// Returns the rows for the first fields of a report.
fn rows(of: &str, report: &Report, shown: usize) -> Vec<Row> {
    let busy: u64 = report.busy_ns.iter().sum();
    let row = |field: &HotField| {
        let count = |value: u64| Cell::measured(Unit::Count, Figure::of([value as f64]));
        let share = |part: u64, all: u64| {
            let part = part as f64 / all.max(1) as f64;
            Cell::measured(Unit::Share, Figure::of([part]))
        };
        let time = |ns: u64| Cell::measured(Unit::Nanoseconds, Figure::of([ns as f64]));
        let cells = vec![
            count(field.lines),
            count(field.transfers),
            share(field.transfers, field.accesses),
            share(field.between[3], field.transfers),
            time(field.lost_ns),
            share(field.lost_ns, busy),
            time(field.lost_ns / field.transfers.max(1)),
        ];
        Row { name: format!("{of}: {}", field.name), cells }
    };
    fields(report).take(shown).map(row).collect()
}

/// Returns the fields of a report, except the fields of the load itself.
fn fields(report: &Report) -> impl Iterator<Item = &HotField> {
    let own = |field: &&HotField| {
        field.pairs.first().is_some_and(|(place, ..)| place.file().contains("freehold-reproduce"))
    };
    report.fields.iter().filter(move |field| !own(field))
}

/// A point in virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(u64);

impl Instant {
    /// Returns the time on the clock of the calling task's processor.
    pub fn now() -> Instant {
        Instant(PASSED.get() + task::now_ns().unwrap_or(0))
    }

    /// Returns the virtual time since this point.
    pub fn elapsed(self) -> Duration {
        Instant::now() - self
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Lets virtual time pass.
pub fn sleep(time: Duration) {
    if let Some(now) = task::now_ns() {
        task::sleep_until(now + time.as_nanos() as u64);
    }
}

/// Lets a little virtual time pass, while the caller waits for an event.
pub fn idle() {
    sleep(Duration::from_micros(1));
}

/// Returns the time on the clock of the calling task's processor. If the load has at most one task for each
/// processor, this time is the processor time of the task.
pub fn thread_time() -> Duration {
    Duration::from_nanos(Instant::now().0)
}

/// A barrier that does nothing: all tasks of a run begin at the same time.
pub struct Barrier;

impl Barrier {
    /// Creates a barrier for any number of tasks.
    pub fn new(_: usize) -> Barrier {
        Barrier
    }

    /// Returns immediately.
    pub fn wait(&self) {}
}

/// Runs `work` in `tasks` concurrent tasks. Returns their results in order.
pub fn together<R>(tasks: usize, work: impl Fn(usize) -> R) -> Vec<R> {
    run(tasks, None, |task, _| work(task)).0
}

/// Runs `work` as the only task of a run, so that the work takes virtual time.
pub fn alone<R>(work: impl FnOnce() -> R) -> R {
    let work = RefCell::new(Some(work));
    let take = || work.take().expect("one task");
    together(1, |_| take()()).pop().expect("the result of one task")
}

/// Runs `work` in `tasks` tasks, which all start at once. Asks the tasks to stop after `turn`. Returns their
/// results, and the time until the last task was done.
pub fn for_a_while<R>(
    tasks: usize,
    turn: Duration,
    work: impl Fn(usize, &Stop) -> anyhow::Result<R>,
) -> anyhow::Result<(Vec<R>, Duration)> {
    let (results, took) = run(tasks, Some(turn), work);
    Ok((results.into_iter().collect::<anyhow::Result<_>>()?, took))
}

fn run<R>(tasks: usize, turn: Option<Duration>, work: impl Fn(usize, &Stop) -> R) -> (Vec<R>, Duration) {
    let Place { machine, seed } =
        PLACE.with_borrow(|place| place.clone().expect("no place for loads was entered"));
    let (stop, results) = (AtomicBool::new(false), RefCell::new(Vec::new()));
    let load = (0..tasks).map(|task| {
        let (stop, results, work) = (&stop, &results, &work);
        Box::new(move || {
            let result = work(task, &Stop::new(stop));
            results.borrow_mut().push((task, result));
        }) as Box<dyn FnOnce() + '_>
    });
    let end = turn.map(|turn| {
        let stop = &stop;
        Box::new(move || {
            task::sleep_until(turn.as_nanos() as u64);
            stop.store(true, Relaxed);
        }) as Box<dyn FnOnce() + '_>
    });
    let report = freehold_sim::run(&machine, tasks.min(machine.cpus()), seed, load.chain(end));
    let took = report.elapsed_ns;
    PASSED.set(PASSED.get() + took);
    LOST.with_borrow_mut(|lost| {
        let Some(lost) = lost.last_mut().filter(|_| !UNNOTED.get()) else { return };
        match lost.sides.get_mut(&SIDE.get()) {
            Some(all) => all.add(report),
            None => drop(lost.sides.insert(SIDE.get(), report)),
        }
    });
    let mut results = results.into_inner();
    results.sort_by_key(|(task, _)| *task);
    (results.into_iter().map(|(_, result)| result).collect(), Duration::from_nanos(took))
}
