//! A mutex on which tasks sleep.
//!
//! The mutex has no read mode. It exists for comparison with [`RwSem`](crate::RwSem): `FileRmap` of the
//! engine selects one of the two as the lock over the VMAs of a file. The object contains both, so the caller
//! passes the rank and the statistics to each call. `tests/loom_small.rs` tests the mutex.
//!
//! | word | meaning | transitions |
//! | --- | --- | --- |
//! | 0 | free | exchange to 1 or 2, by the task that becomes the holder |
//! | 1 | held | exchange to 0, by the holder; exchange to 2, by a task that is about to sleep |
//! | 2 | held, and tasks may sleep | exchange to 0, by the holder, which then wakes one task |
//!
//! The release of the exchange to 0 pairs with the acquire of the exchange that finds 0. A woken task takes
//! the mutex by an exchange to 2, because other tasks may still sleep. The release of that task then wakes
//! the next sleeper, so no sleeper is forgotten. Another task may take the mutex before the woken task does;
//! the mutex guarantees no order. A task spins for a while before it sleeps, as with the reader/writer lock.

use crate::atomic::{AtomicU32, Ordering, SPINS_BEFORE_QUEUEING, const_unless_loom};
use crate::host::Host;
use crate::rank::{self, HeldRank, Rank};
use crate::stats::{Hold, LockStats, Mode};
use core::fmt;
use core::marker::PhantomData;

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// A lock that one task holds at a time. Its owner defines what it guards. Four bytes.
pub struct Mutex {
    /// See the [module's table](self).
    word: AtomicU32,
}

/// Guard of a [`Mutex`]. Releases the mutex when dropped.
#[must_use = "the mutex is released when the guard is dropped"]
pub struct MutexGuard<'a, H: Host> {
    mutex: &'a Mutex,
    rank: HeldRank,
    stats: Option<&'a LockStats<H>>,
    hold: Hold,
    /// Not `Send`: the rank checker keeps its record of held locks per task.
    task: PhantomData<*const ()>,
}

impl Mutex {
    const_unless_loom! {
        /// Creates a free mutex.
        pub fn new() -> Self {
            Mutex { word: AtomicU32::new(FREE) }
        }
    }

    /// Takes the mutex, sleeping until it is free. `stats` records the hold as a hold for writing.
    ///
    /// # Panics
    /// With debug assertions, panics if the task holds a lock that does not precede `rank`.
    pub fn lock<'a, H: Host>(&'a self, rank: Rank, stats: Option<&'a LockStats<H>>) -> MutexGuard<'a, H> {
        rank::will_wait::<H>(rank);
        let begun = Hold::begin(stats);
        let at_once = self.try_take();
        if !at_once && !self.spin_for_lock::<H>() {
            // Acquire: pairs with the release in the guard's drop.
            while self.word.swap(CONTENDED, Ordering::Acquire) != FREE {
                H::wait(&self.word, CONTENDED);
            }
        }
        self.guard(rank, stats, begun, !at_once)
    }

    /// Takes the mutex if it is free.
    pub fn try_lock<'a, H: Host>(
        &'a self,
        rank: Rank,
        stats: Option<&'a LockStats<H>>,
    ) -> Option<MutexGuard<'a, H>> {
        let begun = Hold::begin(stats);
        self.try_take().then(|| self.guard(rank, stats, begun, false))
    }

    /// Takes the mutex if it is free. Returns true on success.
    fn try_take(&self) -> bool {
        // Acquire: pairs with the release in the guard's drop. Relaxed on failure: nothing was acquired.
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Looks at the mutex a few times, with pauses. Returns true if the task has taken it.
    fn spin_for_lock<H: Host>(&self) -> bool {
        for _ in 0..SPINS_BEFORE_QUEUEING {
            // Relaxed: only a hint; `try_take` acquires.
            if self.word.load(Ordering::Relaxed) == FREE && self.try_take() {
                return true;
            }
            H::relax();
        }
        false
    }

    fn guard<'a, H: Host>(
        &'a self,
        rank: Rank,
        stats: Option<&'a LockStats<H>>,
        begun: Hold,
        waited: bool,
    ) -> MutexGuard<'a, H> {
        rank::acquired::<H>(rank);
        let hold = begun.acquired(stats, None, Mode::Write, waited);
        MutexGuard { mutex: self, rank: HeldRank::new(rank), stats, hold, task: PhantomData }
    }
}

impl Default for Mutex {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Relaxed: pairs with nothing, for display only.
        f.debug_struct("Mutex").field("held", &(self.word.load(Ordering::Relaxed) != FREE)).finish()
    }
}

impl<H: Host> Drop for MutexGuard<'_, H> {
    fn drop(&mut self) {
        self.rank.released::<H>();
        let ended = self.hold.end(self.stats);
        // Release: pairs with the acquires in `lock` and `try_take`.
        if self.mutex.word.swap(FREE, Ordering::Release) == CONTENDED {
            H::wake_one(&self.mutex.word);
        }
        ended.record(self.stats, None, Mode::Write);
    }
}
