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
//! is at most a quarter too high. [`Host::lock_used`] gets each wait and hold
//! of a reader/writer lock as a [`LockUse`].
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
use crate::rank::Rank;
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

    /// Counts an acquisition that began at `since_ns`. If the task had to wait, the wait ends now. Returns
    /// the beginning of the hold.
    #[cold]
    fn note_acquired(&self, name: Option<Name>, mode: Mode, since_ns: u64, waited: bool) -> u64 {
        let held_since_ns = if waited { H::now_ns() } else { since_ns };
        let side = usize::from(mode == Mode::Write);
        self.cells.with(|cell| {
            // Relaxed, without read-modify-writes: see `Cell`.
            let acquired = cell.acquired[side].load(Ordering::Relaxed);
            cell.acquired[side].store(acquired + 1, Ordering::Relaxed);
            if waited {
                cell.waited[side].record(held_since_ns.saturating_sub(since_ns));
            }
        });
        if let Some(name) = name.filter(|_| waited) {
            name.used::<H>(true, mode, since_ns, held_since_ns);
        }
        held_since_ns
    }

    /// Records that the lock was held from `from_ns` to `to_ns`.
    #[cold]
    fn note_held(&self, name: Option<Name>, mode: Mode, from_ns: u64, to_ns: u64) {
        self.cells.with(|cell| cell.held[mode as usize].record(to_ns.saturating_sub(from_ns)));
        if let Some(name) = name {
            name.used::<H>(false, mode, from_ns, to_ns);
        }
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

/// A wait for a lock, or a hold of it, by the task that [`Host::lock_used`] runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockUse {
    /// Address of the lock. It identifies the lock until the lock is dropped.
    pub lock: usize,
    /// Rank of the lock.
    pub rank: Rank,
    /// True for a wait, which ended with the acquisition. False for a hold.
    pub waited: bool,
    /// True if the lock was acquired, or held, for writing. A hold after a downgrade is one for reading.
    pub write: bool,
    /// Beginning, in nanoseconds of [`Host::now_ns`].
    pub from_ns: u64,
    /// End.
    pub to_ns: u64,
}

/// The name of a lock in [`LockUse`].
#[derive(Clone, Copy)]
pub(crate) struct Name {
    pub lock: usize,
    pub rank: Rank,
}

impl Name {
    /// Passes a wait or a hold of the lock to the host.
    fn used<H: Host>(self, waited: bool, mode: Mode, from_ns: u64, to_ns: u64) {
        let Name { lock, rank } = self;
        H::lock_used(&LockUse { lock, rank, waited, write: mode == Mode::Write, from_ns, to_ns });
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
    /// pays for no call. The host gets the wait if the lock has a name.
    #[inline]
    pub fn acquired<H: Host>(
        self,
        stats: Option<&LockStats<H>>,
        name: Option<Name>,
        mode: Mode,
        waited: bool,
    ) -> Hold {
        let Some(stats) = available(stats) else { return self };
        Hold { since_ns: stats.note_acquired(name, mode, self.since_ns, waited) }
    }

    /// Called when the lock is about to be released or downgraded.
    #[inline]
    pub fn end<H: Host>(self, stats: Option<&LockStats<H>>) -> Ended {
        Ended { hold: self, at_ns: now(stats) }
    }
}

impl Ended {
    /// Called when the lock is released or downgraded; it was held in `mode`. Returns the hold that follows a
    /// downgrade. The host gets the hold if the lock has a name.
    #[inline]
    pub fn record<H: Host>(self, stats: Option<&LockStats<H>>, name: Option<Name>, mode: Mode) -> Hold {
        if let Some(stats) = available(stats) {
            stats.note_held(name, mode, self.hold.since_ns, self.at_ns);
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
