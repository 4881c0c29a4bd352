//! Lock statistics: how often tasks acquire a lock, how long they wait for it, and how long they hold it.
//!
//! A lock keeps statistics if it gets a [`LockStats`] when it is created; several locks may share one
//! [`LockStats`]. A lock without statistics pays for one branch that always has the same result. The branch
//! disappears without the cargo feature `stats`; no lock records anything then. Every CPU counts in its own
//! cells, without read-modify-writes, after the lock is released. [`LockStats::snapshot`] adds the cells up.
//!
//! | recorded | counted for |
//! | --- | --- |
//! | acquisitions | every reader and writer |
//! | contended acquisitions, and the time waited | readers and writers that did not acquire the lock at once |
//! | time held for reading | readers, from admission to release |
//! | time held for writing | writers, from admission to release *or downgrade*: the exclusive part only |
//! | time held downgraded | downgraded writers, from the downgrade to the release |
//!
//! Times are in nanoseconds of [`Host::now_ns`], in buckets of a quarter of a power of two. So a percentile
//! is at most a quarter too high.
//!
//! `tests/lock_stats.rs` tests what is recorded. A new kind of hold is a variant of `Mode`, whose number is
//! its index in `Cell::held`. It needs a field of [`LockSnapshot`], and a line in `snapshot`, `merge` and
//! `remove`.

mod histogram;

pub use histogram::Histogram;

use crate::atomic::{AtomicU64, Ordering};
use crate::counted::{Counted, Shared};
use crate::host::Host;
use crate::percpu::PerCpu;
use allocator_api2::alloc::AllocError;
use core::fmt;
use histogram::LiveHistogram;

/// The way in which a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Read,
    Write,
    /// Held by a writer that has become a reader.
    Downgraded,
}

/// Statistics of one lock, or of several locks that share them.
pub struct LockStats<H: Host> {
    cells: PerCpu<Cell, H>,
}

/// The statistics of one CPU. Written inside `with_cpu` with plain loads and stores.
struct Cell {
    /// Number of acquisitions for reading, and for writing.
    acquired: [AtomicU64; 2],
    /// Time waited for reading, and for writing.
    waited: [LiveHistogram; 2],
    /// Time held, by mode.
    held: [LiveHistogram; 3],
}

impl<H: Host> Shared for LockStats<H> {}

impl<H: Host> LockStats<H> {
    /// Creates empty statistics.
    ///
    /// # Errors
    /// Fails with [`AllocError`] if there is no memory: about 7 KiB per CPU number.
    pub fn try_new() -> Result<Self, AllocError> {
        Ok(LockStats {
            cells: PerCpu::try_new(|_| Cell {
                acquired: core::array::from_fn(|_| AtomicU64::new(0)),
                waited: core::array::from_fn(|_| LiveHistogram::new()),
                held: core::array::from_fn(|_| LiveHistogram::new()),
            })?,
        })
    }

    /// Creates empty statistics if `wanted` is true and the crate has the feature `stats`.
    ///
    /// # Errors
    /// Fails with [`AllocError`] like [`try_new`](Self::try_new).
    pub fn try_new_if(wanted: bool) -> Result<Option<Counted<Self>>, AllocError> {
        match wanted && cfg!(feature = "stats") {
            true => Ok(Some(Counted::try_new(Self::try_new()?)?)),
            false => Ok(None),
        }
    }

    /// Returns everything recorded so far. The result has about 7 KiB, which matters on a small stack. The
    /// result is exact if the lock is not in use.
    pub fn snapshot(&self) -> LockSnapshot {
        let mut sum = LockSnapshot::default();
        for cell in self.cells.iter() {
            // Relaxed: orders nothing; counts only.
            sum.read.acquired += cell.acquired[0].load(Ordering::Relaxed);
            sum.write.acquired += cell.acquired[1].load(Ordering::Relaxed);
            cell.waited[0].add_to(&mut sum.read.waited);
            cell.waited[1].add_to(&mut sum.write.waited);
            cell.held[0].add_to(&mut sum.read.held);
            cell.held[1].add_to(&mut sum.write.held);
            cell.held[2].add_to(&mut sum.downgraded);
        }
        sum
    }

    /// Counts an acquisition, and the nanoseconds waited if the task had to wait.
    #[cold]
    fn note_acquired(&self, mode: Mode, waited: Option<u64>) {
        let side = usize::from(mode == Mode::Write);
        self.cells.with(|cell| {
            // Relaxed, without read-modify-writes: see `Cell`.
            let acquired = cell.acquired[side].load(Ordering::Relaxed);
            cell.acquired[side].store(acquired + 1, Ordering::Relaxed);
            if let Some(ns) = waited {
                cell.waited[side].record(ns);
            }
        });
    }

    /// Records that the lock was held for `ns` nanoseconds.
    #[cold]
    fn note_held(&self, mode: Mode, ns: u64) {
        self.cells.with(|cell| cell.held[mode as usize].record(ns));
    }
}

impl<H: Host> fmt::Debug for LockStats<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LockStats")
    }
}

/// The part of a [`LockSnapshot`] for one mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModeSnapshot {
    /// Number of acquisitions.
    pub acquired: u64,
    /// Time waited by tasks that had to wait. Its count is the number of contended acquisitions.
    pub waited: Histogram,
    /// Time held.
    pub held: Histogram,
}

impl ModeSnapshot {
    /// Returns the number of acquisitions that had to wait.
    pub fn contended(&self) -> u64 {
        self.waited.count()
    }

    fn merge(&mut self, other: &ModeSnapshot) {
        self.acquired += other.acquired;
        self.waited.merge(&other.waited);
        self.held.merge(&other.held);
    }

    fn remove(&mut self, earlier: &ModeSnapshot) {
        self.acquired = self.acquired.saturating_sub(earlier.acquired);
        self.waited.remove(&earlier.waited);
        self.held.remove(&earlier.held);
    }
}

/// Statistics of one lock, or of several locks merged, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockSnapshot {
    /// Acquisitions of the lock for reading.
    pub read: ModeSnapshot,
    /// Acquisitions of the lock for writing. The time held ends at the downgrade, if there is one.
    pub write: ModeSnapshot,
    /// Time held by writers after their downgrade. Its count is the number of downgrades.
    pub downgraded: Histogram,
}

impl LockSnapshot {
    /// Adds the statistics of another lock.
    pub fn merge(&mut self, other: &LockSnapshot) {
        self.read.merge(&other.read);
        self.write.merge(&other.write);
        self.downgraded.merge(&other.downgraded);
    }

    /// Subtracts `earlier`, a snapshot of the same lock. The maxima do not change: they still cover the whole
    /// time since the lock was created.
    pub fn remove(&mut self, earlier: &LockSnapshot) {
        self.read.remove(&earlier.read);
        self.write.remove(&earlier.write);
        self.downgraded.remove(&earlier.downgraded);
    }
}

/// The time at which the current wait, or the current hold, of a lock began. Always 0 without statistics.
// One word, because every guard contains it.
#[derive(Clone, Copy)]
pub(crate) struct Hold {
    since_ns: u64,
}

/// A hold that has ended but is not recorded yet, so that recording does not prolong it.
pub(crate) struct Ended {
    hold: Hold,
    at_ns: u64,
}

impl Hold {
    /// Called when a task begins to acquire the lock.
    #[inline]
    pub fn begin<H: Host>(stats: Option<&LockStats<H>>) -> Hold {
        Hold { since_ns: now(stats) }
    }

    /// Called when the lock is acquired. Inlined, like the functions below, so that a lock without statistics
    /// pays for no call.
    #[inline]
    pub fn acquired<H: Host>(self, stats: Option<&LockStats<H>>, mode: Mode, waited: bool) -> Hold {
        let Some(stats) = available(stats) else { return self };
        let since_ns = if waited { H::now_ns() } else { self.since_ns };
        stats.note_acquired(mode, waited.then(|| since_ns.saturating_sub(self.since_ns)));
        Hold { since_ns }
    }

    /// Called when the lock is about to be released or downgraded.
    #[inline]
    pub fn end<H: Host>(self, stats: Option<&LockStats<H>>) -> Ended {
        Ended { hold: self, at_ns: now(stats) }
    }
}

impl Ended {
    /// Called when the lock is released or downgraded; it was held in `mode`. Returns the hold that follows a
    /// downgrade.
    #[inline]
    pub fn record<H: Host>(self, stats: Option<&LockStats<H>>, mode: Mode) -> Hold {
        if let Some(stats) = available(stats) {
            stats.note_held(mode, self.at_ns.saturating_sub(self.hold.since_ns));
        }
        Hold { since_ns: self.at_ns }
    }
}

/// Returns the time, or 0 without statistics, because reading a clock is not free.
#[inline]
fn now<H: Host>(stats: Option<&LockStats<H>>) -> u64 {
    if available(stats).is_some() { H::now_ns() } else { 0 }
}

/// Returns `stats`, or `None` if the crate is built without lock statistics.
#[inline]
fn available<H: Host>(stats: Option<&LockStats<H>>) -> Option<&LockStats<H>> {
    if cfg!(feature = "stats") { stats } else { None }
}
