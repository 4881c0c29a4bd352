//! A sleeping reader/writer lock that starves nobody: [`RwSem`].
//!
//! # What it promises
//!
//! - Phase-fair: a reader that comes while a writer holds the lock or waits for it, waits; a writer that lets
//!   go admits all readers waiting at that moment, before any other writer. So a waiting reader is passed by
//!   one writer at most, and waiting writers by the readers of one phase at most.
//! - A lock may [gather readers](RwSem::with_passing_writers): then waiting writers come first a fixed number
//!   of times, and all readers that wait by then hold it together. It is for a lock that its readers hold
//!   much longer than its writers do. Where each task needs it for writing again and again, and for reading
//!   now and then, a lock that admits a reader as soon as it waits would never have two.
//! - Among writers, one that is running may pass one that is still waking up. A writer that was passed a few
//!   times closes the gate for newcomers until it has had its turn.
//! - A writer that comes to a held lock looks a few times, at some distance, before it queues. So a task that
//!   wants the lock again and again has several turns in a row, and the lines that it touches are passed on
//!   once for all of them. What it may be passed by is what fits into these looks: a few dozen short holds.
//! - Uncontended, taking and releasing cost one atomic read-modify-write each.
//! - A writer can become a reader without letting go ([`RwSemWriteGuard::downgrade`]). A reader cannot become
//!   a writer.
//! - A killable wait that fails leaves no trace; but a waiter that was granted the lock in the same moment
//!   gets it.
//!
//! # The state word
//!
//! | bits | name | meaning | at most |
//! | --- | --- | --- | --- |
//! | 0-20 | readers | readers that hold the lock; while `writer` is set or writers wait, also readers *in doubt* | 2^20 that come, 2^19 from the queue, 2^19 in doubt |
//! | 21-41 | read waiters | readers in the queue | 2^19 |
//! | 42-61 | write waiters | writers in the queue, without the one that the lock is granted to | 2^20 - 1 |
//! | 62 | phase | flips whenever a writer that lets go admits the waiting readers | |
//! | 63 | writer | a writer holds the lock, or it is granted to the queue of writers | |
//!
//! Tasks beyond these bounds wait outside the queue: they look again and again, and are not part of what is
//! promised above. A doubt lasts for a few instructions, so half a million tasks in doubt would each have to
//! lose its processor there.
//!
//! | state | may go on | leaves it by |
//! | --- | --- | --- |
//! | all zero but the phase and read waiters | nobody holds it; a queued reader admits itself | a reader's addition, a writer's exchange |
//! | readers > 0, no writer, no write waiters | the readers; a queued reader admits itself | the last reader's subtraction; a writer queues |
//! | readers > 0, no writer, write waiters > 0 | the readers; new ones queue | the last reader: grants the lock to the writers |
//! | writer | one writer | release: read waiters become readers, unless they are still to gather and writers wait; else a write waiter becomes the writer, else zero; downgrade |
//! | readers = 0, no writer, write waiters > 0 | nobody; lasts for a moment | the task that brought it about grants the lock |
//!
//! A reader first adds itself and then looks whether it may: that is its one read-modify-write. If not, it is
//! *in doubt*, and in its next step either goes into the queue or finds that the writers have gone and that
//! its addition counts, or finds the lock or the queue full and takes its addition back. A reader in doubt
//! delays the grant to a writer, so it makes the grant itself when it was the last obstacle.
//!
//! The phase has one bit, and that is enough: readers admitted by one flip hold the lock, and only a writer
//! that has it flips, so there can be no second flip before each of them has noticed the first and let go.
//! That is why the last writer that gives up waiting does not admit the readers behind it: others may hold
//! the lock, and not have noticed yet. It wakes them, and each moves itself from the waiters to the readers.
//! Until they have, they do not bar anybody.
//!
//! # The words slept on
//!
//! | word | values | sleepers | waker |
//! | --- | --- | --- | --- |
//! | `read_event` | a count of reasons to look | queued readers | the task that flipped the phase, or left them without a writer to wait for; all of them, after adding 1 |
//! | `write_token` | 0; 1: granted, not yet taken | queued writers | the task that granted the lock; one of them, after storing 1 |
//! | `starved` | waiting writers without patience | writers before the queue | the last of those writers, all of them |
//!
//! How many writers in a row have passed waiting readers is counted in a word of its own, which only the
//! holder touches, before it lets go. A release that admits readers, or finds none, begins anew; a downgrade
//! does not, so that the next to wait are passed less often.
//!
//! For every queued writer there is one in `write waiters` or one token, made or about to be. So a writer
//! that gives up takes one off the count, and if there is none takes the token, which is its own. It may have
//! swallowed the wake-up of a token that it leaves, and then wakes another.
//!
//! # Which access pairs with which
//!
//! - `unlock_write` and `downgrade` change the word with release. All that follows on the word is
//!   read-modify-writes, so an acquire of any later value pairs with it: in the reader's addition (fast
//!   path), in the load that settles a doubt (empty queue), in the load that sees the phase flipped (queued,
//!   woken), in the exchange of one that admits itself, in `try_read`, and in a writer's exchange (hazard
//!   C-5).
//! - `unlock_read` subtracts with release; the writer's exchange acquires. Where the lock is granted, the
//!   granter acquires from the word, and passes on through the token: release in `hand_over`, acquire in
//!   `take_token`.

pub(crate) mod raw;
mod word;

use crate::atomic::{Ordering, const_unless_loom};
use crate::counted::Counted;
use crate::host::{Host, Killed};
use crate::rank::{self, HeldRank, Rank};
use crate::stats::{Hold, LockStats, Mode};
use core::fmt;
use core::marker::PhantomData;
use raw::{Path, RawRwSem};

/// A reader/writer lock whose waiters sleep; see the [module](self). It guards what its owner says it guards.
pub struct RwSem<H: Host> {
    raw: RawRwSem<H>,
    rank: Rank,
    /// How many writers may pass readers that wait, beside the one that holds the lock when they come.
    passing_writers: u32,
    /// Absent when nobody asked.
    stats: Option<Counted<LockStats<H>>>,
}

/// The lock held for reading. Dropping it releases the lock.
#[must_use = "the lock is released when the guard is dropped"]
pub struct RwSemReadGuard<'a, H: Host> {
    sem: &'a RwSem<H>,
    rank: HeldRank,
    hold: Hold,
    /// Read, or downgraded.
    mode: Mode,
    /// Not `Send`: the task's record of held locks is its own.
    task: PhantomData<*const ()>,
}

/// The lock held for writing. Dropping it releases the lock.
#[must_use = "the lock is released when the guard is dropped"]
pub struct RwSemWriteGuard<'a, H: Host> {
    sem: &'a RwSem<H>,
    rank: HeldRank,
    hold: Hold,
    /// Not `Send`: as for reading.
    task: PhantomData<*const ()>,
}

impl<H: Host> RwSem<H> {
    const_unless_loom! {
        /// A free lock at `rank` in the order.
        pub fn new(rank: Rank) -> Self {
            RwSem { raw: RawRwSem::new(), rank, passing_writers: 0, stats: None }
        }

        /// A free lock that keeps statistics of its use.
        pub fn with_stats(rank: Rank, stats: Counted<LockStats<H>>) -> Self {
            RwSem { raw: RawRwSem::new(), rank, passing_writers: 0, stats: Some(stats) }
        }
    }

    /// The lock as one that gathers readers: those that wait are passed by so many waiting writers.
    pub fn with_passing_writers(mut self, writers: u32) -> Self {
        self.passing_writers = writers;
        self
    }

    /// The statistics, if the lock keeps any.
    pub fn stats(&self) -> Option<&LockStats<H>> {
        self.stats.as_deref()
    }

    /// Takes the lock for reading.
    ///
    /// # Panics
    /// With debug assertions, when the lock's rank is out of order.
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
    /// [`Killed`]; nothing was acquired.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    #[inline]
    pub fn read_killable(&self) -> Result<RwSemReadGuard<'_, H>, Killed> {
        rank::will_wait::<H>(self.rank);
        let begun = self.begin();
        let path = self.raw.read_killable()?;
        Ok(self.reader(begun, path))
    }

    /// Takes the lock for reading if that is possible at once. It is not while a writer waits.
    #[inline]
    pub fn try_read(&self) -> Option<RwSemReadGuard<'_, H>> {
        let begun = self.begin();
        self.raw.try_read().then(|| self.reader(begun, Path::Fast))
    }

    /// Takes the lock for writing.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    #[inline]
    pub fn write(&self) -> RwSemWriteGuard<'_, H> {
        self.write_at(self.rank)
    }

    /// As [`write`](Self::write), at another place in the order than the lock's own.
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
    /// [`Killed`]; nothing was acquired.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    #[inline]
    pub fn write_killable(&self) -> Result<RwSemWriteGuard<'_, H>, Killed> {
        rank::will_wait::<H>(self.rank);
        let begun = self.begin();
        let path = self.raw.write_killable()?;
        Ok(self.writer(self.rank, begun, path))
    }

    /// Takes the lock for writing if nobody has it.
    #[inline]
    pub fn try_write(&self) -> Option<RwSemWriteGuard<'_, H>> {
        let begun = self.begin();
        self.raw.try_write().then(|| self.writer(self.rank, begun, Path::Fast))
    }

    /// Whether somebody waits for the lock; a hint.
    pub fn is_contended(&self) -> bool {
        // Relaxed: pairs with nothing.
        let word = self.raw.load(Ordering::Relaxed);
        word.read_waiters() > 0 || word.write_waiters() > 0
    }

    #[inline]
    fn begin(&self) -> Hold {
        Hold::begin(self.stats.as_deref())
    }

    #[inline]
    fn reader(&self, begun: Hold, path: Path) -> RwSemReadGuard<'_, H> {
        rank::acquired::<H>(self.rank);
        let hold = begun.acquired(self.stats.as_deref(), Mode::Read, path == Path::Slow);
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
        let hold = begun.acquired(self.stats.as_deref(), Mode::Write, path == Path::Slow);
        RwSemWriteGuard { sem: self, rank: HeldRank::new(rank), hold, task: PhantomData }
    }
}

impl<H: Host> fmt::Debug for RwSem<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Relaxed: pairs with nothing.
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
    /// Goes on as a reader, without letting go in between, and lets waiting readers in.
    #[inline]
    pub fn downgrade(self) -> RwSemReadGuard<'a, H> {
        let (sem, rank) = (self.sem, self.rank);
        let ended = self.hold.end(sem.stats.as_deref());
        core::mem::forget(self);
        sem.raw.downgrade();
        let hold = ended.record(sem.stats.as_deref(), Mode::Write);
        RwSemReadGuard { sem, rank, hold, mode: Mode::Downgraded, task: PhantomData }
    }
}

impl<H: Host> Drop for RwSemReadGuard<'_, H> {
    #[inline]
    fn drop(&mut self) {
        self.rank.released::<H>();
        let ended = self.hold.end(self.sem.stats.as_deref());
        self.sem.raw.unlock_read();
        ended.record(self.sem.stats.as_deref(), self.mode);
    }
}

impl<H: Host> Drop for RwSemWriteGuard<'_, H> {
    #[inline]
    fn drop(&mut self) {
        self.rank.released::<H>();
        let ended = self.hold.end(self.sem.stats.as_deref());
        self.sem.raw.unlock_write(self.sem.passing_writers);
        ended.record(self.sem.stats.as_deref(), Mode::Write);
    }
}
