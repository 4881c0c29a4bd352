//! A sleeping reader/writer lock without starvation: [`RwSem`].
//!
//! This file adds guards, ranks and statistics to the protocol. `raw.rs` has the steps of the protocol, and
//! `word.rs` computes values of the state word. A change of a step also changes the tables below.
//! `tests/loom_rwsem.rs`, `tests/threads.rs` and `raw/tests.rs` test the lock.
//!
//! # Guarantees
//!
//! - The lock is phase-fair. If a writer holds the lock or waits for it when a reader arrives, the reader
//!   waits. A writer that releases the lock admits all readers that wait at that moment, before any other
//!   writer. So at most one writer overtakes a waiting reader, and only the readers of one phase overtake a
//!   waiting writer.
//! - A lock may [batch readers](RwSem::with_passing_writers): then a fixed number of waiting writers may
//!   overtake the waiting readers, and afterwards all waiting readers hold the lock together. This option is
//!   for a lock that readers hold much longer than writers, and that each task takes often for writing and
//!   rarely for reading. Without the option, the next release would admit each reader, and such a lock would
//!   rarely have two readers at once.
//! - Among writers, a running writer may overtake a writer that is still waking up. A writer that was
//!   overtaken a few times keeps new writers out of the queue until it has acquired the lock.
//! - A writer that finds the lock held looks a few times, with pauses, before it queues. So a task that takes
//!   the lock repeatedly may take it several times in a row, and the cache lines of the lock move only once
//!   for all these holds. Holds that overtake the waiting writer in this way must fit between its looks, so
//!   they are at most a few dozen short holds.
//! - Without contention, acquiring and releasing cost one atomic read-modify-write each.
//! - A writer can become a reader without releasing the lock ([`RwSemWriteGuard::downgrade`]). A reader
//!   cannot become a writer.
//! - A killable wait that fails has no effect on the lock. If the lock is granted to a waiter at the moment
//!   at which the signal arrives, the waiter gets the lock.
//!
//! # The state word
//!
//! | bits | name | meaning | at most |
//! | --- | --- | --- | --- |
//! | 0-20 | readers | readers that hold the lock; while `writer` is set or writers wait, also readers *in doubt* | 2^20 that arrive, 2^19 from the queue, 2^19 in doubt |
//! | 21-41 | read waiters | readers in the queue | 2^19 |
//! | 42-61 | write waiters | writers in the queue, without the one that the lock is granted to | 2^20 - 1 |
//! | 62 | phase | flips whenever a writer that releases the lock admits the waiting readers | |
//! | 63 | writer | a writer holds the lock, or the lock is granted to the queue of writers | |
//!
//! Tasks beyond these bounds wait outside the queue: they look again and again, and the guarantees above do
//! not cover them. A reader is in doubt for a few instructions only. To reach the bound of readers in doubt,
//! half a million tasks would each have to be preempted within these instructions.
//!
//! | state | holders | transition |
//! | --- | --- | --- |
//! | all zero except the phase and read waiters | no task; a queued reader admits itself | a reader's addition, a writer's exchange |
//! | readers > 0, no writer, no write waiters | the readers; a queued reader admits itself | the last reader's subtraction; a writer queues |
//! | readers > 0, no writer, write waiters > 0 | the readers; new readers queue | the last reader grants the lock to the writers |
//! | writer | one writer | release: the read waiters become readers; if there are none, or if a write waiter may overtake them, a write waiter becomes the writer; with no waiters, zero. Downgrade: the writer becomes a reader |
//! | readers = 0, no writer, write waiters > 0 | no task; lasts for a moment only | the task that caused the state grants the lock |
//!
//! A reader first adds itself to the word and then looks at the old value: that is its single
//! read-modify-write. If the old value does not admit it, the reader is *in doubt*. Its next step is one of
//! three: it enters the queue; it finds that the writers have left, so that its addition counts; or it finds
//! the lock or the queue full and removes its addition. A reader in doubt delays the grant to a writer. So
//! the reader makes the grant itself if it was the last obstacle.
//!
//! One bit is enough for the phase. The readers that one flip admits hold the lock, and only a writer that
//! holds the lock flips the phase. So no second flip occurs before each of these readers has noticed the
//! first flip and released the lock. For that reason the last waiting writer does not flip the phase when it
//! abandons its wait: other readers may hold the lock and may not have noticed their flip yet. Instead that
//! writer wakes the waiting readers, and each reader moves itself from the waiters to the readers. Until they
//! have moved, the waiting readers keep no task out.
//!
//! # The words that tasks sleep on
//!
//! | word | values | sleepers | waker |
//! | --- | --- | --- | --- |
//! | `read_event` | number of reasons to look again | queued readers | the task that flipped the phase, or that left the readers without a writer to wait for; it adds 1, then wakes all |
//! | `write_token` | 0; 1: granted, not yet taken | queued writers | the task that granted the lock; it stores 1, then wakes one |
//! | `starved` | number of starved waiting writers | writers that are not queued yet | the last of the starved writers; it wakes all |
//!
//! A separate word counts how many writers in a row have overtaken waiting readers. Only the holder accesses
//! that word, before it releases the lock. A release that admits readers, or finds no waiting readers, resets
//! the word. A downgrade does not reset the word, so fewer writers overtake the readers that wait next.
//!
//! For every queued writer there is one unit in `write waiters`, or one token that is stored or about to be
//! stored. So a writer that abandons its wait takes one unit off `write waiters`. If the count is zero, the
//! writer takes the token, which is its own. A writer that abandons its wait may have received the wake-up
//! for a token that it now leaves to another writer. In that case it wakes another writer.
//!
//! # Pairing of accesses
//!
//! - `unlock_write` and `downgrade` change the word with release. All later changes of the word are
//!   read-modify-writes, so an acquire of any later value pairs with that release (hazard C-5). The acquires
//!   are
//!   - the reader's addition (fast path);
//!   - the load that ends a doubt (empty queue);
//!   - the load that sees the flipped phase (queued, then woken);
//!   - the exchange of a reader that admits itself;
//!   - the exchange in `try_read`;
//!   - a writer's exchange.
//! - `unlock_read` subtracts with release; the writer's exchange acquires. If the lock is granted, the
//!   granter acquires from the word and passes the order on through the token: release in `hand_over`,
//!   acquire in `take_token`.

pub(crate) mod raw;
mod word;

use crate::atomic::{Ordering, const_unless_loom};
use crate::counted::Counted;
use crate::host::{Host, Killed};
use crate::rank::{self, HeldRank, Rank};
use crate::stats::{Hold, LockStats, Mode, Name};
use core::fmt;
use core::marker::PhantomData;
use raw::{Path, RawRwSem};

/// A reader/writer lock whose waiters sleep; see the [module](self). Its owner defines what it guards.
pub struct RwSem<H: Host> {
    raw: RawRwSem<H>,
    rank: Rank,
    /// Number of waiting writers that may overtake waiting readers, not counting the writer that holds the
    /// lock when the readers arrive.
    passing_writers: u32,
    /// `None` if the lock keeps no statistics.
    stats: Option<Counted<LockStats<H>>>,
}

/// Guard of a lock held for reading. Releases the lock when dropped.
#[must_use = "the lock is released when the guard is dropped"]
pub struct RwSemReadGuard<'a, H: Host> {
    sem: &'a RwSem<H>,
    rank: HeldRank,
    hold: Hold,
    /// `Mode::Read` or `Mode::Downgraded`.
    mode: Mode,
    /// Not `Send`: the rank checker keeps its record of held locks per task.
    task: PhantomData<*const ()>,
}

/// Guard of a lock held for writing. Releases the lock when dropped.
#[must_use = "the lock is released when the guard is dropped"]
pub struct RwSemWriteGuard<'a, H: Host> {
    sem: &'a RwSem<H>,
    rank: HeldRank,
    hold: Hold,
    /// Not `Send`, as for reading.
    task: PhantomData<*const ()>,
}

impl<H: Host> RwSem<H> {
    const_unless_loom! {
        /// Creates a free lock with `rank` in the lock order.
        pub fn new(rank: Rank) -> Self {
            RwSem { raw: RawRwSem::new(), rank, passing_writers: 0, stats: None }
        }

        /// Creates a free lock that keeps statistics of its use.
        pub fn with_stats(rank: Rank, stats: Counted<LockStats<H>>) -> Self {
            RwSem { raw: RawRwSem::new(), rank, passing_writers: 0, stats: Some(stats) }
        }
    }

    /// Returns the lock, which then batches readers: up to `writers` waiting writers may overtake waiting
    /// readers.
    pub fn with_passing_writers(mut self, writers: u32) -> Self {
        self.passing_writers = writers;
        self
    }

    /// Returns the statistics, if the lock keeps any.
    pub fn stats(&self) -> Option<&LockStats<H>> {
        self.stats.as_deref()
    }

    /// Takes the lock for reading.
    ///
    /// # Panics
    /// With debug assertions, panics if the task holds a lock that does not precede the rank of this lock.
    #[inline]
    pub fn read(&self) -> RwSemReadGuard<'_, H> {
        rank::will_wait::<H>(self.rank);
        let begun = self.begin();
        let path = self.raw.read();
        self.reader(begun, path)
    }

    /// Takes the lock for reading, unless a fatal signal ends the wait.
    ///
    /// # Errors
    /// Fails with [`Killed`] if a fatal signal is pending; nothing is acquired.
    ///
    /// # Panics
    /// Panics like [`read`](Self::read).
    #[inline]
    pub fn read_killable(&self) -> Result<RwSemReadGuard<'_, H>, Killed> {
        rank::will_wait::<H>(self.rank);
        let begun = self.begin();
        let path = self.raw.read_killable()?;
        Ok(self.reader(begun, path))
    }

    /// Takes the lock for reading if that is possible without waiting. Fails while a writer holds the lock or
    /// waits for it.
    #[inline]
    pub fn try_read(&self) -> Option<RwSemReadGuard<'_, H>> {
        let begun = self.begin();
        self.raw.try_read().then(|| self.reader(begun, Path::Fast))
    }

    /// Takes the lock for writing.
    ///
    /// # Panics
    /// Panics like [`read`](Self::read).
    #[inline]
    pub fn write(&self) -> RwSemWriteGuard<'_, H> {
        self.write_at(self.rank)
    }

    /// Like [`write`](Self::write), with another rank than the lock's own.
    #[inline]
    pub(crate) fn write_at(&self, rank: Rank) -> RwSemWriteGuard<'_, H> {
        rank::will_wait::<H>(rank);
        let begun = self.begin();
        let path = self.raw.write();
        self.writer(rank, begun, path)
    }

    /// Takes the lock for writing, unless a fatal signal ends the wait.
    ///
    /// # Errors
    /// Fails with [`Killed`] if a fatal signal is pending; nothing is acquired.
    ///
    /// # Panics
    /// Panics like [`read`](Self::read).
    #[inline]
    pub fn write_killable(&self) -> Result<RwSemWriteGuard<'_, H>, Killed> {
        rank::will_wait::<H>(self.rank);
        let begun = self.begin();
        let path = self.raw.write_killable()?;
        Ok(self.writer(self.rank, begun, path))
    }

    /// Takes the lock for writing if no task holds it.
    #[inline]
    pub fn try_write(&self) -> Option<RwSemWriteGuard<'_, H>> {
        let begun = self.begin();
        self.raw.try_write().then(|| self.writer(self.rank, begun, Path::Fast))
    }

    /// Returns true if tasks wait for the lock. The result is a hint.
    pub fn is_contended(&self) -> bool {
        // Relaxed: orders nothing.
        let word = self.raw.load(Ordering::Relaxed);
        word.read_waiters() > 0 || word.write_waiters() > 0
    }

    #[inline]
    fn begin(&self) -> Hold {
        Hold::begin(self.stats.as_deref())
    }

    /// Returns the name of the lock for [`Host::lock_used`].
    #[inline]
    fn name(&self) -> Option<Name> {
        Some(Name { lock: core::ptr::from_ref(self).addr(), rank: self.rank })
    }

    #[inline]
    fn reader(&self, begun: Hold, path: Path) -> RwSemReadGuard<'_, H> {
        rank::acquired::<H>(self.rank);
        let hold = begun.acquired(self.stats.as_deref(), self.name(), Mode::Read, path == Path::Slow);
        RwSemReadGuard {
            sem: self,
            rank: HeldRank::new(self.rank),
            hold,
            mode: Mode::Read,
            task: PhantomData,
        }
    }

    #[inline]
    fn writer(&self, rank: Rank, begun: Hold, path: Path) -> RwSemWriteGuard<'_, H> {
        rank::acquired::<H>(rank);
        let hold = begun.acquired(self.stats.as_deref(), self.name(), Mode::Write, path == Path::Slow);
        RwSemWriteGuard { sem: self, rank: HeldRank::new(rank), hold, task: PhantomData }
    }
}

impl<H: Host> fmt::Debug for RwSem<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Relaxed: orders nothing.
        let word = self.raw.load(Ordering::Relaxed);
        f.debug_struct("RwSem")
            .field("rank", &self.rank)
            .field("writer", &word.has_writer())
            .field("readers", &word.readers())
            .field("read_waiters", &word.read_waiters())
            .field("write_waiters", &word.write_waiters())
            .finish_non_exhaustive()
    }
}

impl<'a, H: Host> RwSemWriteGuard<'a, H> {
    /// Turns the writer into a reader, without releasing the lock in between, and admits the waiting readers.
    #[inline]
    pub fn downgrade(self) -> RwSemReadGuard<'a, H> {
        let (sem, rank) = (self.sem, self.rank);
        let ended = self.hold.end(sem.stats.as_deref());
        core::mem::forget(self);
        sem.raw.downgrade();
        let hold = ended.record(sem.stats.as_deref(), sem.name(), Mode::Write);
        RwSemReadGuard { sem, rank, hold, mode: Mode::Downgraded, task: PhantomData }
    }
}

impl<H: Host> Drop for RwSemReadGuard<'_, H> {
    #[inline]
    fn drop(&mut self) {
        self.rank.released::<H>();
        let ended = self.hold.end(self.sem.stats.as_deref());
        self.sem.raw.unlock_read();
        ended.record(self.sem.stats.as_deref(), self.sem.name(), self.mode);
    }
}

impl<H: Host> Drop for RwSemWriteGuard<'_, H> {
    #[inline]
    fn drop(&mut self) {
        self.rank.released::<H>();
        let ended = self.hold.end(self.sem.stats.as_deref());
        self.sem.raw.unlock_write(self.sem.passing_writers);
        ended.record(self.sem.stats.as_deref(), self.sem.name(), Mode::Write);
    }
}
