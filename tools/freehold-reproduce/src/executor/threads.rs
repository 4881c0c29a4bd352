//! Threads of the host, and the host's clocks.
//!
//! The usual executor: experiments run on threads of this host and read its clocks. `fibers.rs` is the
//! counterpart for a simulated machine and must have the same names. Functions about lost time do nothing
//! here, because only a simulation knows which cache lines processors waited for.

pub use crate::host::thread_time;
pub use std::sync::Barrier;
pub use std::thread::sleep;
pub use std::time::Instant;

use super::Stop;
use crate::findings::Table;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// The place where loads run: this host.
#[derive(Clone, Debug, Default)]
pub struct Place(());

impl Place {
    /// Makes loads of the calling thread run on this host.
    pub fn enter(&self) {}

    /// Returns `None`: nothing is simulated.
    pub fn simulated(&self) -> Option<&str> {
        None
    }
}

/// Does nothing, because lost time is known only in a simulation.
pub fn side(_number: usize) {}

/// Does nothing, like [`side`].
pub fn step(_what: &str) {}

/// Returns `None`: no lost time is known.
pub fn hottest(_sides: &[String]) -> Option<Table> {
    None
}

/// Runs `work`.
pub fn unnoted<R>(work: impl FnOnce() -> R) -> R {
    work()
}

/// Returns `None`: no lost time is known.
pub fn hottest_of_each(_side: usize, _of: &str) -> Option<Table> {
    None
}

/// Runs `work` on `threads` concurrent threads, of which the calling thread is the first. Returns their
/// results in order.
pub fn together<R: Send>(threads: usize, work: impl Fn(usize) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let work = &work;
        let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        let mine = work(0);
        [mine]
            .into_iter()
            .chain(others.into_iter().map(|other| other.join().expect("a thread panicked")))
            .collect()
    })
}

/// Lets other threads run, while the caller waits for an event.
pub fn idle() {
    std::thread::yield_now();
}

/// Runs `work`.
pub fn alone<R>(work: impl FnOnce() -> R) -> R {
    work()
}

/// Runs `work` on `threads` threads, which all start at once. Asks the threads to stop after `turn`. Returns
/// their results, and the time until the last thread was done.
pub fn for_a_while<R: Send>(
    threads: usize,
    turn: Duration,
    work: impl Fn(usize, &Stop) -> anyhow::Result<R> + Sync,
) -> anyhow::Result<(Vec<R>, Duration)> {
    let (stop, ready) = (AtomicBool::new(false), Barrier::new(threads + 1));
    std::thread::scope(|scope| {
        let run = |thread| {
            let (ready, stop, work) = (&ready, &stop, &work);
            scope.spawn(move || {
                ready.wait();
                work(thread, &Stop::new(stop))
            })
        };
        let all: Vec<_> = (0..threads).map(run).collect();
        ready.wait();
        let started = Instant::now();
        sleep(turn);
        stop.store(true, Relaxed);
        let results = all.into_iter().map(|thread| thread.join().expect("a thread of the load panicked"));
        let results: anyhow::Result<Vec<R>> = results.collect();
        Ok((results?, started.elapsed()))
    })
}
