//! Threads, and this host's time.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What runs the workers: there is nothing to choose.
#[derive(Clone, Debug, Default)]
pub struct Workers {}

/// Somebody waits until something changes that a mutex guards.
#[derive(Default)]
pub(crate) struct Changed(Condvar);

impl Changed {
    /// Lets the mutex go until a change, or for no reason.
    pub(crate) fn wait<'m, T>(&self, _: &'m Mutex<T>, guard: MutexGuard<'m, T>) -> MutexGuard<'m, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A worker that panicked takes the whole run down; what is behind the lock is no worse for it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The time since some moment.
pub(crate) fn now() -> Duration {
    thread_local! {
        static BEGUN: Instant = Instant::now();
    }
    BEGUN.with(Instant::elapsed)
}

/// Lets every worker run to its end, each a thread. How long that took.
pub(crate) fn side_by_side<F: FnOnce() + Send>(
    _: &Workers,
    _: u64,
    workers: impl ExactSizeIterator<Item = F>,
) -> Duration {
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for (number, work) in workers.enumerate() {
            let worker = std::thread::Builder::new().name(format!("cpu {number}"));
            worker.spawn_scoped(scope, work).expect("a thread for each CPU");
        }
    });
    begun.elapsed()
}
