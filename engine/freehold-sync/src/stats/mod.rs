//! What a lock's users cost each other: how often, how long they wait and how long they hold it.
//!
//! A lock keeps statistics if it was given a [`LockStats`] when it was made; otherwise the price is one
//! branch that always goes the same way. Every CPU counts in cells of its own, without read-modify-writes,
//! after the lock was released; [`LockStats::snapshot`] adds them up.
//!
//! | recorded | of which users |
//! | --- | --- |
//! | acquisitions | every reader and writer |
//! | contended acquisitions, and the time waited | those that did not get the lock at once |
//! | time held for reading | readers, from admission to release |
//! | time held for writing | writers, from admission to release *or downgrade*: the exclusive part alone |
//! | time held downgraded | writers that went on as readers, from the downgrade to the release |
//!
//! Times are in nanoseconds by [`Host::now_ns`], in buckets of a quarter of a power of two: a percentile is
//! too high by a quarter at most.

mod histogram;

pub use histogram::Histogram;

use crate::atomic::{AtomicU64, Ordering};
use crate::counted::Shared;
use crate::host::Host;
use crate::percpu::PerCpu;
use allocator_api2::alloc::AllocError;
use core::fmt;
use histogram::LiveHistogram;

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Read,
    Write,
    Downgraded,
}

/// The statistics of one lock, or of several that share them.
pub struct LockStats<H: Host> {
    cells: PerCpu<Cell, H>,
}

/// One CPU's share. Written inside `with_cpu` with plain loads and stores.
struct Cell {
    /// Acquisitions for reading, and for writing.
    acquired: [AtomicU64; 2],
    /// Time waited, in the same order.
    waited: [LiveHistogram; 2],
    /// Time held, by mode.
    held: [LiveHistogram; 3],
}

impl<H: Host> Shared for LockStats<H> {}

impl<H: Host> LockStats<H> {
    /// Statistics of nothing yet.
    ///
    /// # Errors
    /// No memory: about 7 KiB per CPU number.
    pub fn try_new() -> Result<Self, AllocError> {
        Ok(LockStats {
            cells: PerCpu::try_new(|_| Cell {
                acquired: core::array::from_fn(|_| AtomicU64::new(0)),
                waited: core::array::from_fn(|_| LiveHistogram::new()),
                held: core::array::from_fn(|_| LiveHistogram::new()),
            })?,
        })
    }

    /// What was recorded so far. About 7 KiB: mind the stack. Exact when the lock is not in use.
    pub fn snapshot(&self) -> LockSnapshot {
        let mut sum = LockSnapshot::default();
        for cell in self.cells.iter() {
            // Relaxed: pairs with nothing; counts only.
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

    #[cold]
    fn note_acquired(&self, mode: Mode, waited: Option<u64>) {
        let side = usize::from(mode == Mode::Write);
        self.cells.with(|cell| {
            // Relaxed, and no read-modify-write: see `Cell`.
            let acquired = cell.acquired[side].load(Ordering::Relaxed);
            cell.acquired[side].store(acquired + 1, Ordering::Relaxed);
            if let Some(ns) = waited {
                cell.waited[side].record(ns);
            }
        });
    }

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

/// One mode's part of a [`LockSnapshot`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModeSnapshot {
    /// Acquisitions.
    pub acquired: u64,
    /// Time waited by those that had to wait: its count is the number of contended acquisitions.
    pub waited: Histogram,
    /// Time held.
    pub held: Histogram,
}

impl ModeSnapshot {
    /// Acquisitions that did not get the lock at once.
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

/// The statistics of one lock, or of several merged, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockSnapshot {
    /// Readers that came as readers.
    pub read: ModeSnapshot,
    /// Writers; their time held ends with the downgrade, if there is one.
    pub write: ModeSnapshot,
    /// Time held by writers after their downgrade; its count is the number of downgrades.
    pub downgraded: Histogram,
}

impl LockSnapshot {
    /// Adds what another lock recorded.
    pub fn merge(&mut self, other: &LockSnapshot) {
        self.read.merge(&other.read);
        self.write.merge(&other.write);
        self.downgraded.merge(&other.downgraded);
    }

    /// Takes away what was recorded before `earlier`, a snapshot of the same lock. The largest values stay:
    /// they are those of all time.
    pub fn remove(&mut self, earlier: &LockSnapshot) {
        self.read.remove(&earlier.read);
        self.write.remove(&earlier.write);
        self.downgraded.remove(&earlier.downgraded);
    }
}

/// A moment in the use of a lock: when the wait began, or the lock was got. Without statistics it is 0 and
/// never looked at.
// One word: it is passed on with every guard.
#[derive(Clone, Copy)]
pub(crate) struct Hold {
    since_ns: u64,
}

/// A hold that is over but not recorded yet, so that recording does not prolong it.
pub(crate) struct Ended {
    hold: Hold,
    at_ns: u64,
}

impl Hold {
    /// Somebody wants the lock.
    #[inline]
    pub fn begin<H: Host>(stats: Option<&LockStats<H>>) -> Hold {
        Hold { since_ns: now(stats) }
    }

    /// The lock has been acquired. Inlined, here and below, for the lock that keeps no statistics.
    #[inline]
    pub fn acquired<H: Host>(self, stats: Option<&LockStats<H>>, mode: Mode, waited: bool) -> Hold {
        let Some(stats) = stats else { return self };
        let since_ns = if waited { H::now_ns() } else { self.since_ns };
        stats.note_acquired(mode, waited.then(|| since_ns.saturating_sub(self.since_ns)));
        Hold { since_ns }
    }

    /// The lock is about to be released or downgraded.
    #[inline]
    pub fn end<H: Host>(self, stats: Option<&LockStats<H>>) -> Ended {
        Ended { hold: self, at_ns: now(stats) }
    }
}

impl Ended {
    /// The lock has been released or downgraded; it was held in `mode`. Returns the hold that follows, if it
    /// is held in another mode now.
    #[inline]
    pub fn record<H: Host>(self, stats: Option<&LockStats<H>>, mode: Mode) -> Hold {
        if let Some(stats) = stats {
            stats.note_held(mode, self.at_ns.saturating_sub(self.hold.since_ns));
        }
        Hold { since_ns: self.at_ns }
    }
}

#[inline]
fn now<H: Host>(stats: Option<&LockStats<H>>) -> u64 {
    if stats.is_some() { H::now_ns() } else { 0 }
}
