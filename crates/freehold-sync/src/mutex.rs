//! A mutex by which tasks sleep, with a place in the order and statistics: a lock that has no readers, to be
//! compared with one that has.
//!
//! | word | meaning | leaves it by |
//! | --- | --- | --- |
//! | 0 | free | exchange to 1 or 2, by the task that becomes the holder |
//! | 1 | held | exchange to 0, by the holder; exchange to 2, by a task that is about to sleep |
//! | 2 | held, and somebody may sleep | exchange to 0, by the holder, which then wakes one |
//!
//! The release of the exchange to 0 pairs with the acquire of the exchange that finds 0. A task that was
//! woken takes the mutex as 2, since others may still sleep: so its release wakes the next, and no sleeper is
//! forgotten. One that comes in between may take it before the task that was woken, as long as that is on its
//! way; no order is promised. A task looks for a while before it sleeps, as with the reader/writer lock.

use crate::atomic::{AtomicU32, Ordering, PAUSES, const_unless_loom};
use crate::counted::Counted;
use crate::host::Host;
use crate::rank::{self, Rank};
use crate::stats::{Hold, LockStats, Mode};
use core::fmt;
use core::marker::PhantomData;

const FREE: u32 = 0;
const HELD: u32 = 1;
const WANTED: u32 = 2;

/// A lock that one task has at a time, and that guards what its owner says it guards.
pub struct Mutex<H: Host> {
    /// See the [module's table](self).
    word: AtomicU32,
    rank: Rank,
    stats: Option<Counted<LockStats<H>>>,
}

/// The right that a [`Mutex`] gives. Dropping it releases the mutex.
#[must_use = "the mutex is released when the guard is dropped"]
pub struct MutexGuard<'a, H: Host> {
    mutex: &'a Mutex<H>,
    hold: Hold,
    /// Not `Send`: the task's record of held locks is its own.
    task: PhantomData<*const ()>,
}

impl<H: Host> Mutex<H> {
    const_unless_loom! {
        /// A free mutex at `rank` in the order.
        pub fn new(rank: Rank) -> Self {
            Mutex { word: AtomicU32::new(FREE), rank, stats: None }
        }

        /// A free mutex that keeps statistics of its use: its holds count as holds for writing.
        pub fn with_stats(rank: Rank, stats: Counted<LockStats<H>>) -> Self {
            Mutex { word: AtomicU32::new(FREE), rank, stats: Some(stats) }
        }
    }

    /// Takes the mutex, sleeping until it is free.
    ///
    /// # Panics
    /// With debug assertions, when its rank is out of order.
    pub fn lock(&self) -> MutexGuard<'_, H> {
        rank::will_wait::<H>(self.rank);
        let begun = self.begin();
        let at_once = self.take();
        if !at_once && !self.is_taken_soon() {
            // Acquire: see the module.
            while self.word.swap(WANTED, Ordering::Acquire) != FREE {
                H::wait(&self.word, WANTED);
            }
        }
        self.guard(begun, !at_once)
    }

    /// Takes the mutex if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, H>> {
        let begun = self.begin();
        self.take().then(|| self.guard(begun, false))
    }

    fn take(&self) -> bool {
        // Acquire: see the module. Relaxed on failure: nothing was got.
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn is_taken_soon(&self) -> bool {
        for _ in 0..PAUSES {
            // Relaxed: a hint.
            if self.word.load(Ordering::Relaxed) == FREE && self.take() {
                return true;
            }
            H::relax();
        }
        false
    }

    fn begin(&self) -> Hold {
        Hold::begin(self.stats.as_deref())
    }

    fn guard(&self, begun: Hold, waited: bool) -> MutexGuard<'_, H> {
        rank::acquired::<H>(self.rank);
        let hold = begun.acquired(self.stats.as_deref(), Mode::Write, waited);
        MutexGuard { mutex: self, hold, task: PhantomData }
    }
}

impl<H: Host> fmt::Debug for Mutex<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Relaxed: pairs with nothing.
        let held = self.word.load(Ordering::Relaxed) != FREE;
        f.debug_struct("Mutex").field("rank", &self.rank).field("held", &held).finish_non_exhaustive()
    }
}

impl<H: Host> Drop for MutexGuard<'_, H> {
    fn drop(&mut self) {
        let mutex = self.mutex;
        rank::released::<H>(mutex.rank);
        let ended = self.hold.end(mutex.stats.as_deref());
        // Release: see the module.
        if mutex.word.swap(FREE, Ordering::Release) == WANTED {
            H::wake_one(&mutex.word);
        }
        ended.record(mutex.stats.as_deref(), None);
    }
}
