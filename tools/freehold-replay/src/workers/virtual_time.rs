//! Workers as tasks on the processors of a simulated machine, with virtual time. The replayer and the engine
//! run in one thread, and the replayer's own work takes no virtual time.
//!
//! The counterpart of `threads.rs`. `run.rs` starts one worker per virtual CPU with [`side_by_side`]; the
//! workers wait for each other with [`Changed`]. Every wait here goes through the simulation
//! ([`task::sleep`], [`task::relax`]). `tests/sim_replay.rs` (`cargo xtask sim`) runs this file.

use freehold_sim::{Machine, Report, atomic, task};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// The machine that the workers run on, and the report over all segments so far.
#[derive(Clone, Debug)]
pub struct Workers {
    machine: Machine,
    report: Arc<Mutex<Option<Report>>>,
}

impl Workers {
    /// Returns workers on the first processors of this machine.
    #[must_use]
    pub fn on(machine: Machine) -> Workers {
        Workers { machine, report: Arc::default() }
    }

    /// Returns the report. `None` if no segment has run.
    #[must_use]
    pub fn report(&self) -> Option<Report> {
        lock(&self.report).clone()
    }
}

impl Default for Workers {
    fn default() -> Workers {
        Workers::on(Machine::named("e5-2690v4").expect("a known machine"))
    }
}

/// A condition variable for the state that a mutex guards.
#[derive(Default)]
pub(crate) struct Changed {
    /// Number of workers that wait or are about to wait. An ordinary atomic, so that access to it takes no
    /// virtual time.
    waiting: AtomicUsize,
    /// Counts notifications.
    count: AtomicU32,
    /// Copy of `count` on which workers sleep. While no worker waits, `notify` changes neither `word` nor
    /// `count`.
    word: atomic::AtomicU32,
}

impl Changed {
    /// Releases the mutex until a notification arrives. May also return without a notification.
    pub(crate) fn wait<'m, T>(&self, mutex: &'m Mutex<T>, guard: MutexGuard<'m, T>) -> MutexGuard<'m, T> {
        self.waiting.fetch_add(1, Relaxed);
        let seen = self.count.load(Relaxed);
        drop(guard);
        task::sleep(&self.word, seen);
        self.waiting.fetch_sub(1, Relaxed);
        lock(mutex)
    }

    /// Lets one waiting worker continue.
    pub(crate) fn notify_one(&self) {
        self.notify(1);
    }

    /// Lets all waiting workers continue.
    pub(crate) fn notify_all(&self) {
        self.notify(usize::MAX);
    }

    fn notify(&self, most: usize) {
        if self.waiting.load(Relaxed) > 0 {
            let count = self.count.fetch_add(1, Relaxed) + 1;
            self.word.store(count, Relaxed);
            task::wake(&self.word, most);
        }
    }
}

/// Locks a mutex. If another task holds the mutex, for example inside the engine, this task lets other tasks
/// run and tries again.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    loop {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(error)) => return error.into_inner(),
            Err(TryLockError::WouldBlock) if task::current().is_some() => task::relax(),
            // Outside a run, only a defect could make this thread wait: no other task exists that could hold
            // the mutex.
            Err(TryLockError::WouldBlock) => return mutex.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

/// Returns the virtual time since the run began.
pub(crate) fn now() -> Duration {
    Duration::from_nanos(task::now_ns().unwrap_or(0))
}

/// Runs every worker to its end, each on a processor. Returns the time that this took.
pub(crate) fn side_by_side<F: FnOnce() + Send>(
    workers: &Workers,
    seed: u64,
    tasks: impl ExactSizeIterator<Item = F>,
) -> Duration {
    let report = freehold_sim::run(&workers.machine, tasks.len(), seed, tasks);
    let took = Duration::from_nanos(report.elapsed_ns);
    let mut all = lock(&workers.report);
    match &mut *all {
        Some(all) => all.add(report),
        None => *all = Some(report),
    }
    took
}
