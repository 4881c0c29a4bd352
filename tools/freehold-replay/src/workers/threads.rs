//! Workers as threads, with the host's time: the ordinary build. `virtual_time.rs` is the counterpart for
//! simulations, and `mod.rs` says what both must define. A new name here needs a counterpart in
//! `virtual_time.rs`.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The workers of a replay. There is only one kind, so the type is empty.
#[derive(Clone, Debug, Default)]
pub struct Workers {}

/// A condition variable for the state that a mutex guards.
#[derive(Default)]
pub(crate) struct Changed(Condvar);

impl Changed {
    /// Releases the mutex, and takes it again after a notification. May also return without a notification.
    pub(crate) fn wait<'m, T>(&self, _: &'m Mutex<T>, guard: MutexGuard<'m, T>) -> MutexGuard<'m, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets one waiting worker continue.
    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Lets all waiting workers continue.
    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Locks a mutex. Ignores poisoning: a panic of a worker ends the whole run, and the data behind the lock
/// stays valid.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the time since this thread first called this function.
pub(crate) fn now() -> Duration {
    thread_local! {
        static BEGUN: Instant = Instant::now();
    }
    BEGUN.with(Instant::elapsed)
}

/// Runs every worker to its end, each in a thread. Returns the time that this took.
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
