//! Tasks on the processors of a simulated machine, and its time. Replayer and engine run in one thread: what
//! the replayer itself does takes no virtual time.

use freehold_sim::{Machine, Report, atomic, task};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// The machine that the workers run on, and what it took, over all segments so far.
#[derive(Clone, Debug)]
pub struct Workers {
    machine: Machine,
    report: Arc<Mutex<Option<Report>>>,
}

impl Workers {
    /// On the first processors of this machine.
    #[must_use]
    pub fn on(machine: Machine) -> Workers {
        Workers { machine, report: Arc::default() }
    }

    /// What the replay took. None where nothing ran.
    #[must_use]
    pub fn report(&self) -> Option<Report> {
        lock(&self.report).clone()
    }
}

impl Default for Workers {
    fn default() -> Workers {
        Workers::on(Machine::named("e5-2690v4").expect("a machine that is there"))
    }
}

/// Somebody waits until something changes that a mutex guards.
#[derive(Default)]
pub(crate) struct Changed {
    /// Workers that wait, or are about to. The replayer's own words are the processor's: they take no time.
    waiting: AtomicUsize,
    /// Counts changes for them.
    count: AtomicU32,
    /// The same for those asleep. While nobody waits it does not change.
    word: atomic::AtomicU32,
}

impl Changed {
    /// Lets the mutex go until a change, or for no reason.
    pub(crate) fn wait<'m, T>(&self, mutex: &'m Mutex<T>, guard: MutexGuard<'m, T>) -> MutexGuard<'m, T> {
        self.waiting.fetch_add(1, Relaxed);
        let seen = self.count.load(Relaxed);
        drop(guard);
        task::sleep(&self.word, seen);
        self.waiting.fetch_sub(1, Relaxed);
        lock(mutex)
    }

    pub(crate) fn notify_one(&self) {
        self.notify(1);
    }

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

/// The task that has the lock may be inside the engine: then others go on, and this one looks again.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    loop {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(error)) => return error.into_inner(),
            Err(TryLockError::WouldBlock) if task::current().is_some() => task::relax(),
            // Outside of a run the thread itself has it, which would be a mistake.
            Err(TryLockError::WouldBlock) => return mutex.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

/// Virtual time since the run began.
pub(crate) fn now() -> Duration {
    Duration::from_nanos(task::now_ns().unwrap_or(0))
}

/// Lets every worker run to its end, each on a processor. How long that took.
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
