//! Tasks on the processors of a simulated machine, in virtual time. Every load is a run of its own, which
//! begins at the time at which the one before ended: between two runs no time passes.

use freehold_sim::{Machine, task};
use std::cell::{Cell, RefCell};
use std::ops::Sub;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

thread_local! {
    /// Where loads of this thread run.
    static MODEL: RefCell<Option<Machine>> = const { RefCell::new(None) };
    /// What the runs so far took together, in nanoseconds.
    static PASSED: Cell<u64> = const { Cell::new(0) };
}

/// Loads of the calling thread run on this machine from here on.
pub fn simulate(model: Machine) {
    MODEL.set(Some(model));
}

/// A point of virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(u64);

impl Instant {
    /// On the clock of the calling task's processor.
    pub fn now() -> Instant {
        Instant(PASSED.get() + task::now_ns().unwrap_or(0))
    }

    /// Virtual time since.
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

/// The calling task's processor time: its processor has nothing else to do in a load with a task for each.
pub fn thread_time() -> Duration {
    Duration::from_nanos(Instant::now().0)
}

/// Nothing to wait for: all tasks of a run begin at one time.
pub struct Barrier;

impl Barrier {
    /// For so many tasks.
    pub fn new(_: usize) -> Barrier {
        Barrier
    }

    /// Goes on at once.
    pub fn wait(&self) {}
}

/// Lets `work` run as so many tasks side by side; what each returned, in order.
pub fn together<R>(tasks: usize, work: impl Fn(usize) -> R) -> Vec<R> {
    run(tasks, None, |task, _| work(task)).0
}

/// Lets `work` run as so many tasks, all starting at once, until it is told to stop after `turn`. What each
/// returned, and the time until the last was done.
pub fn for_a_while<R>(
    tasks: usize,
    turn: Duration,
    work: impl Fn(usize, &AtomicBool) -> anyhow::Result<R>,
) -> anyhow::Result<(Vec<R>, Duration)> {
    let (results, took) = run(tasks, Some(turn), work);
    Ok((results.into_iter().collect::<anyhow::Result<_>>()?, took))
}

fn run<R>(
    tasks: usize,
    turn: Option<Duration>,
    work: impl Fn(usize, &AtomicBool) -> R,
) -> (Vec<R>, Duration) {
    let model = MODEL.with_borrow(|model| model.clone().expect("a machine to simulate"));
    let (stop, results) = (AtomicBool::new(false), RefCell::new(Vec::new()));
    let load = (0..tasks).map(|task| {
        let (stop, results, work) = (&stop, &results, &work);
        Box::new(move || {
            let result = work(task, stop);
            results.borrow_mut().push((task, result));
        }) as Box<dyn FnOnce()>
    });
    let end = turn.map(|turn| {
        let stop = &stop;
        Box::new(move || {
            task::sleep_until(turn.as_nanos() as u64);
            stop.store(true, Relaxed);
        }) as Box<dyn FnOnce()>
    });
    let report = freehold_sim::run(&model, tasks.min(model.cpus()), 1, load.chain(end));
    PASSED.set(PASSED.get() + report.elapsed_ns);
    let mut results = results.into_inner();
    results.sort_by_key(|(task, _)| *task);
    (results.into_iter().map(|(_, result)| result).collect(), Duration::from_nanos(report.elapsed_ns))
}
