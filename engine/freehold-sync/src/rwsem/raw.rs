//! The protocol of the reader/writer lock. `mod.rs` adds guards, ranks and statistics.
//!
//! [`RwSem`](super::RwSem) and the external rwsem of a VMA (`vma_lock/external_rwsem.rs`) use this type. The
//! [module head](super) describes the state word, the words that tasks sleep on, and which accesses pair.
//! `word.rs` computes values of the state word; only this file reads and exchanges it.
//!
//! Some changes of the state oblige the task to wake other tasks or to hand the lock over. Such a change is
//! one read-modify-write, and the wake-up follows at once: a task must never return between the two.
//! `tests/loom_rwsem.rs` runs this code in all schedules, `raw/tests.rs` tests the limits of the counts, and
//! `tests/threads.rs` tests the fairness.

use super::word::{READER, Word};
use crate::atomic::{
    AtomicU32, AtomicU64, MAX_FAILED_WAKEUPS, Order, Ordering, SPINS_BEFORE_QUEUEING, SPINS_BEFORE_SLEEP,
    WRITER_SPIN_INTERVAL, WRITER_SPINS, const_unless_loom,
};
use crate::host::{Host, Killed};
use core::marker::PhantomData;

/// The way in which a task acquired the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// The first attempt succeeded.
    Fast,
    /// The task spun or slept.
    Slow,
}

/// The words of a reader/writer lock, without ranks and statistics. Its owner defines what it guards.
#[repr(C)]
pub(crate) struct RawRwSem<H> {
    /// The state word; see the [table](super#the-state-word).
    state: AtomicU64,
    /// Number of events for waiting readers, which sleep on this word. Written after `state`.
    read_event: AtomicU32,
    /// 1 if the lock is granted to the waiting writers and no writer has taken the grant. The writer that
    /// sets the word back to 0 becomes the holder. Waiting writers sleep on this word.
    write_token: AtomicU32,
    /// Number of starved waiting writers. While it is not 0, new writers sleep on it before they queue.
    starved: AtomicU32,
    /// Number of writers in a row to which the lock was granted while readers waited. Accessed only by the
    /// holder of the lock for writing.
    passed_by_writers: AtomicU32,
    host: PhantomData<fn() -> H>,
}

const NO_TOKEN: u32 = 0;
const TOKEN: u32 = 1;

/// The result of the step in which a reader ends its doubt.
enum SlowRead {
    /// The reader holds the lock.
    Admitted,
    /// The reader waits in the queue. The field is the state word with which the reader entered the queue.
    Queued(Word),
    /// The reader has removed its addition, because the lock or the queue is full.
    Full,
}

/// A function that waits for a wake-up or, if the wait is killable, for a fatal signal.
pub(crate) type Wait = fn(&AtomicU32, u32) -> Result<(), Killed>;

/// A [`Wait`] that ignores signals and does not fail.
fn wait_unkillable<H: Host>(word: &AtomicU32, expected: u32) -> Result<(), Killed> {
    H::wait(word, expected);
    Ok(())
}

impl<H: Host> RawRwSem<H> {
    const_unless_loom! {
        pub fn new() -> Self {
            RawRwSem {
                state: AtomicU64::new(0),
                read_event: AtomicU32::new(0),
                write_token: AtomicU32::new(NO_TOKEN),
                starved: AtomicU32::new(0),
                passed_by_writers: AtomicU32::new(0),
                host: PhantomData,
            }
        }
    }

    // ---- reading ----

    #[inline]
    pub fn read(&self) -> Path {
        if self.read_fast() {
            return Path::Fast;
        }
        // An unkillable wait does not fail.
        let _ = self.read_slow(wait_unkillable::<H>);
        Path::Slow
    }

    #[inline]
    pub fn read_killable(&self) -> Result<Path, Killed> {
        if self.read_fast() {
            return Ok(Path::Fast);
        }
        self.read_slow(H::wait_killable).map(|()| Path::Slow)
    }

    #[inline]
    pub fn try_read(&self) -> bool {
        // The first exchange assumes that the lock is free. If the exchange fails, it has loaded the cache
        // line and the current value in one step. A load before the exchange would transfer the line twice.
        let mut word = Word(0);
        while !word.bars_new_readers() {
            // Acquire: pairs with the writer's release in `unlock_write` and `downgrade`.
            match self.exchange(word, word.add_reader(), Ordering::Acquire, Ordering::Relaxed) {
                Ok(()) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Adds a reader. Returns false if the reader is in doubt; the caller must then call `read_slow`.
    #[inline]
    fn read_fast(&self) -> bool {
        // Acquire: pairs with the writer's release in `unlock_write` and `downgrade`.
        !Word(self.state.fetch_add(READER, Ordering::Acquire)).bars_new_readers()
    }

    #[cold]
    fn read_slow(&self, wait: Wait) -> Result<(), Killed> {
        loop {
            if self.spin_for_admission() {
                return Ok(());
            }
            match self.settle_slow_read() {
                SlowRead::Admitted => return Ok(()),
                SlowRead::Queued(word) => return self.wait_for_phase_after(word, wait),
                SlowRead::Full => self.yield_and_check(wait)?,
            }
            if self.read_fast() {
                return Ok(());
            }
        }
    }

    /// Ends the doubt of a reader: the reader holds the lock afterwards, or is in the queue, or has removed
    /// its addition.
    fn settle_slow_read(&self) -> SlowRead {
        // Acquire, here and on failure below: this load may admit a reader in doubt that finds no writer, so
        // it pairs with the release of the writer that left (hazard C-5).
        let mut word = self.load(Ordering::Acquire);
        loop {
            if !word.bars_new_readers() {
                return SlowRead::Admitted;
            }
            // Ends the doubt: the reader enters the queue, or leaves if the lock or the queue is full. If
            // this doubt was the last obstacle to a grant, the reader also grants the lock.
            let queues = word.bars_readers() && word.has_room_for_reader();
            let left = if queues { word.drop_reader().add_read_waiter() } else { word.drop_reader() };
            let next = if left.wants_grant() { left.drop_write_waiter().set_writer() } else { left };
            // AcqRel: if this exchange grants the lock, the writer must see the accesses of all readers that
            // have left.
            match self.exchange(word, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(()) => {
                    if next != left {
                        self.hand_over();
                    }
                    return if queues { SlowRead::Queued(left) } else { SlowRead::Full };
                }
                Err(now) => word = now,
            }
        }
    }

    /// Lets another task run and checks for a fatal signal. Called by a task that waits outside the queue.
    fn yield_and_check(&self, wait: Wait) -> Result<(), Killed> {
        H::relax();
        // Relaxed: orders nothing. The expected value is far from the value of the word, so the wait does not
        // sleep.
        let event = self.read_event.load(Ordering::Relaxed);
        wait(&self.read_event, event ^ (1 << 31))
    }

    /// Spins, as a reader in doubt, until the writer leaves. Returns true if the reader is admitted. Stops
    /// when writers wait, because the doubt delays them.
    fn spin_for_admission(&self) -> bool {
        for _ in 0..SPINS_BEFORE_QUEUEING {
            // Acquire: as in `settle_slow_read`.
            let word = self.load(Ordering::Acquire);
            if !word.bars_new_readers() || word.write_waiters() > 0 {
                return !word.bars_new_readers();
            }
            H::relax();
        }
        false
    }

    /// Waits, as a reader in the queue, until the reader holds the lock.
    fn wait_for_phase_after(&self, queued: Word, wait: Wait) -> Result<(), Killed> {
        for _ in 0..SPINS_BEFORE_SLEEP {
            if self.is_admitted(queued) {
                return Ok(());
            }
            H::relax();
        }
        loop {
            // Acquire: pairs with the release in `wake_readers`. A reader that sees the event also sees its
            // reason. A reader that does not see the event waits with a stale number, so the wait returns at
            // once.
            let event = self.read_event.load(Ordering::Acquire);
            if self.is_admitted(queued) {
                return Ok(());
            }
            if wait(&self.read_event, event).is_err() {
                return self.leave_readers(queued);
            }
        }
    }

    /// Returns true if a queued reader now holds the lock: either it was admitted, or no writer is left to
    /// wait for and the reader admits itself.
    fn is_admitted(&self, queued: Word) -> bool {
        // Acquire, here and below: pairs with the release of the last writer (hazard C-5).
        let mut word = self.load(Ordering::Acquire);
        while word.phase() == queued.phase() {
            if word.bars_readers() {
                return false;
            }
            let next = word.drop_read_waiter().add_reader();
            match self.exchange(word, next, Ordering::Acquire, Ordering::Acquire) {
                Ok(()) => return true,
                Err(now) => word = now,
            }
        }
        true
    }

    /// Abandons the wait of a reader, unless the reader is already admitted.
    fn leave_readers(&self, queued: Word) -> Result<(), Killed> {
        // Acquire, also on failure: a reader that finds itself admitted holds the lock from here on.
        let mut word = self.load(Ordering::Acquire);
        while word.phase() == queued.phase() {
            // Relaxed on success: the reader has made no change that another task waits for.
            match self.exchange(word, word.drop_read_waiter(), Ordering::Relaxed, Ordering::Acquire) {
                Ok(()) => return Err(Killed),
                Err(now) => word = now,
            }
        }
        Ok(())
    }

    #[inline]
    pub fn unlock_read(&self) {
        // Release: pairs with the acquire of the writer that takes the lock next, or of the task that grants
        // the lock to it.
        let before = Word(self.state.fetch_sub(READER, Ordering::Release));
        debug_assert!(before.readers() > 0, "a reader releases a lock that is not held for reading");
        if before.drop_reader().wants_grant() {
            self.grant();
        }
    }

    /// Grants the lock to the waiting writers, unless another task has granted it.
    #[cold]
    fn grant(&self) {
        let mut word = self.load(Ordering::Relaxed);
        while word.wants_grant() {
            let next = word.drop_write_waiter().set_writer();
            // AcqRel: the writer must see the accesses of all readers that have left.
            match self.exchange(word, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(()) => return self.hand_over(),
                Err(now) => word = now,
            }
        }
    }

    // ---- writing ----

    #[inline]
    pub fn write(&self) -> Path {
        if self.try_write() {
            return Path::Fast;
        }
        // An unkillable wait does not fail.
        let _ = self.write_slow(wait_unkillable::<H>);
        Path::Slow
    }

    #[inline]
    pub fn write_killable(&self) -> Result<Path, Killed> {
        if self.try_write() {
            return Ok(Path::Fast);
        }
        self.write_slow(H::wait_killable).map(|()| Path::Slow)
    }

    /// Like [`write_killable`](Self::write_killable), with the given kind of wait.
    pub fn write_by(&self, wait: Wait) -> Result<(), Killed> {
        if self.try_write() { Ok(()) } else { self.write_slow(wait) }
    }

    #[inline]
    pub fn try_write(&self) -> bool {
        let mut word = self.load(Ordering::Relaxed);
        while word.is_free() {
            // Acquire: pairs with the releases of all earlier readers and writers.
            match self.exchange(word, word.set_writer(), Ordering::Acquire, Ordering::Relaxed) {
                Ok(()) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Takes the lock for writing after a failed attempt: spins, and then queues.
    #[cold]
    fn write_slow(&self, wait: Wait) -> Result<(), Killed> {
        if self.spin_for_lock() {
            return Ok(());
        }
        self.wait_for_starved(wait)?;
        let mut word = self.load(Ordering::Relaxed);
        loop {
            let free = word.is_free();
            if !free && !word.has_room_for_writer() {
                self.yield_and_check(wait)?;
                word = self.load(Ordering::Relaxed);
                continue;
            }
            let next = if free { word.set_writer() } else { word.add_write_waiter() };
            // Acquire: as in `try_write`.
            match self.exchange(word, next, Ordering::Acquire, Ordering::Relaxed) {
                Ok(()) if free => return Ok(()),
                Ok(()) => break,
                Err(now) => word = now,
            }
        }
        self.wait_for_token(wait)
    }

    /// Tries for a short time to take the lock without queueing, so that its holder need not wake this task.
    /// Stops when other tasks queue, because the lock is then granted to those tasks.
    ///
    /// The pauses between two looks are long. During a pause, a task can release the lock and take it again
    /// several times, while the cache lines of the lock and of the guarded data stay with its CPU.
    fn spin_for_lock(&self) -> bool {
        for _ in 0..WRITER_SPINS {
            // Relaxed: only a hint.
            if self.load(Ordering::Relaxed).has_waiters() {
                return false;
            }
            if self.try_write() {
                return true;
            }
            (0..WRITER_SPIN_INTERVAL).for_each(|_| H::relax());
        }
        false
    }

    /// Waits while a writer in the queue is starved.
    fn wait_for_starved(&self, wait: Wait) -> Result<(), Killed> {
        loop {
            // Relaxed: `starved` is for fairness and guards no data.
            match self.starved.load(Ordering::Relaxed) {
                0 => return Ok(()),
                starved => wait(&self.starved, starved)?,
            }
        }
    }

    /// Waits, as a writer in the queue, until the lock is granted to this writer.
    fn wait_for_token(&self, wait: Wait) -> Result<(), Killed> {
        for _ in 0..SPINS_BEFORE_SLEEP {
            if self.take_token() {
                return Ok(());
            }
            H::relax();
        }
        let mut lost = 0;
        let result = loop {
            if self.take_token() {
                break Ok(());
            }
            if wait(&self.write_token, NO_TOKEN).is_err() {
                break self.leave_writers();
            }
            lost += 1;
            if lost == MAX_FAILED_WAKEUPS {
                // Relaxed: see `wait_for_starved`.
                self.starved.fetch_add(1, Ordering::Relaxed);
            }
        };
        if lost >= MAX_FAILED_WAKEUPS && self.starved.fetch_sub(1, Ordering::Relaxed) == 1 {
            H::wake_all(&self.starved);
        }
        result
    }

    /// Takes the grant of the lock, if there is one. Returns true if this task now holds the lock for
    /// writing.
    #[inline]
    fn take_token(&self) -> bool {
        // The load keeps the cache line shared among waiters. Acquire: pairs with the release in `hand_over`.
        self.write_token.load(Ordering::Relaxed) == TOKEN
            && self
                .write_token
                .compare_exchange(TOKEN, NO_TOKEN, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    }

    /// Abandons the wait of a writer, unless the lock is granted and no other writer can take the grant.
    fn leave_writers(&self) -> Result<(), Killed> {
        while !self.unqueue_writer() {
            if self.take_token() {
                return Ok(());
            }
            // Either the lock has been granted and the token is about to appear, or another writer has
            // queued, and this task can leave the token to that writer.
            H::relax();
        }
        // This task may have received the wake-up for a token. If a token is stored, wake another writer.
        // Relaxed: the host orders a wake-up before the return of the wait that the wake-up ends, so this
        // task sees the token.
        if self.write_token.load(Ordering::Relaxed) == TOKEN {
            H::wake_one(&self.write_token);
        }
        Err(Killed)
    }

    /// Removes one writer from the count of waiting writers. Returns false if the count is zero because the
    /// lock is already granted to the last waiting writer.
    fn unqueue_writer(&self) -> bool {
        let mut word = self.load(Ordering::Relaxed);
        while word.write_waiters() > 0 {
            let left = word.drop_write_waiter();
            // Relaxed: the writer has made no change that another task waits for.
            match self.exchange(word, left, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(()) => {
                    // This was the last waiting writer, so the readers that waited behind this writer admit
                    // themselves. The module head explains why this task does not flip the phase.
                    if !left.bars_readers() && left.read_waiters() > 0 {
                        self.wake_readers();
                    }
                    return true;
                }
                Err(now) => word = now,
            }
        }
        false
    }

    /// Releases the lock. At most `passing_writers` queued writers in a row overtake waiting readers.
    #[inline]
    pub fn unlock_write(&self, passing_writers: u32) {
        let word = self.load(Ordering::Relaxed);
        debug_assert!(word.has_writer(), "a writer releases a lock that is not held for writing");
        // Release: pairs with the acquire of every way to be admitted.
        if word.is_only_writer()
            && self.exchange(word, word.clear_writer(), Ordering::Release, Ordering::Relaxed).is_ok()
        {
            return;
        }
        self.unlock_write_slow(passing_writers);
    }

    /// Releases the lock while tasks wait: admits the waiting readers, or grants the lock to the waiting
    /// writers. At most `passing_writers` writers in a row overtake waiting readers.
    #[cold]
    fn unlock_write_slow(&self, passing_writers: u32) {
        let mut word = self.load(Ordering::Relaxed);
        // Relaxed, here and below: only the holder accesses the word, and the lock orders the holders.
        let passed_by_writers = self.passed_by_writers.load(Ordering::Relaxed);
        loop {
            let readers = word.read_waiters() > 0;
            let pass = readers && word.write_waiters() > 0 && passed_by_writers < passing_writers;
            self.passed_by_writers.store(if pass { passed_by_writers + 1 } else { 0 }, Ordering::Relaxed);
            let next = if readers && !pass {
                word.clear_writer().admit_readers()
            } else if word.write_waiters() > 0 {
                // The next writer holds the lock from here on, so readers in doubt are not admitted.
                word.drop_write_waiter()
            } else {
                word.clear_writer()
            };
            // Release: as in `unlock_write`.
            match self.exchange(word, next, Ordering::Release, Ordering::Relaxed) {
                Ok(()) if next.has_writer() => return self.hand_over(),
                Ok(()) if next.phase() != word.phase() => return self.wake_readers(),
                Ok(()) => return,
                Err(now) => word = now,
            }
        }
    }

    /// Turns the writer into a reader, and admits all waiting readers.
    #[inline]
    pub fn downgrade(&self) {
        let mut word = self.load(Ordering::Relaxed);
        debug_assert!(word.has_writer(), "a writer downgrades a lock that is not held for writing");
        loop {
            let next = word.clear_writer().add_reader().admit_readers();
            // Release: pairs with the acquire of every way to be admitted.
            match self.exchange(word, next, Ordering::Release, Ordering::Relaxed) {
                Ok(()) if next.phase() != word.phase() => return self.wake_readers(),
                Ok(()) => return,
                Err(now) => word = now,
            }
        }
    }

    // ---- waking ----

    /// Makes the queued readers look at the state word again.
    #[cold]
    fn wake_readers(&self) {
        // Release: pairs with the acquire in `wait_for_phase_after`.
        self.read_event.fetch_add(1, Ordering::Release);
        H::wake_all(&self.read_event);
    }

    /// Stores the token for a queued writer, and wakes one queued writer. The caller has granted the lock in
    /// the state word.
    #[cold]
    fn hand_over(&self) {
        // Release: pairs with the acquire in `take_token`. Also passes on the releases of earlier readers and
        // writers.
        self.write_token.store(TOKEN, Ordering::Release);
        H::wake_one(&self.write_token);
    }

    // ---- the word ----

    #[inline]
    pub(super) fn load(&self, order: Order) -> Word {
        Word(self.state.load(order))
    }

    /// Replaces the state word if it is still `from`. Returns the current word otherwise.
    #[inline]
    fn exchange(&self, from: Word, to: Word, success: Order, failure: Order) -> Result<(), Word> {
        match self.state.compare_exchange(from.0, to.0, success, failure) {
            Ok(_) => Ok(()),
            Err(now) => Err(Word(now)),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
