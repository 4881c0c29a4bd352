//! The protocol of the reader/writer lock: the steps of the [module's description](super), without guards.

use super::word::{READER, Word};
use crate::atomic::{
    AtomicU32, AtomicU64, MAX_FAILED_WAKEUPS, Order, Ordering, SPINS_BEFORE_QUEUEING, SPINS_BEFORE_SLEEP,
    WRITER_SPIN_INTERVAL, WRITER_SPINS, const_unless_loom,
};
use crate::host::{Host, Killed};
use core::marker::PhantomData;

/// Whether an acquisition found the lock free, or had to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    Fast,
    Slow,
}

#[repr(C)]
pub(crate) struct RawRwSem<H> {
    /// See the [module's table](super#the-state-word).
    state: AtomicU64,
    /// Counts what waiting readers are woken for; they sleep on it. Written after `state`.
    read_event: AtomicU32,
    /// 1: the lock was granted to the waiting writers, and the one that makes this 0 is the holder. They
    /// sleep on it.
    write_token: AtomicU32,
    /// Waiting writers that lost patience. While it is not 0, new writers sleep on it before they queue.
    starved: AtomicU32,
    /// How many writers in a row the lock was granted to while readers waited. The holder's, for writing.
    passed_by_writers: AtomicU32,
    host: PhantomData<fn() -> H>,
}

const NO_TOKEN: u32 = 0;
const TOKEN: u32 = 1;

/// What became of a reader in doubt.
enum SlowRead {
    /// It holds the lock.
    Admitted,
    /// It waits since this word.
    Queued(Word),
    /// Its addition is taken back: there are too many readers, or too many wait.
    Full,
}

/// How a wait can end: by a wake-up only, or by a fatal signal too.
pub(crate) type Wait = fn(&AtomicU32, u32) -> Result<(), Killed>;

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
        // A wait that cannot be killed does not fail.
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
        // A guess, that the lock is free: an exchange that fails brings the line with the value; behind a
        // load, the line would have to come twice.
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

    /// Adds a reader. `false`: the reader is in doubt, and `read_slow` has to follow.
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

    fn settle_slow_read(&self) -> SlowRead {
        // Acquire here and on failure below: a reader in doubt that finds nobody in its way is admitted by
        // this very load, so it pairs with the release of the writer that left (hazard C-5).
        let mut word = self.load(Ordering::Acquire);
        loop {
            if !word.bars_new_readers() {
                return SlowRead::Admitted;
            }
            // Out of doubt and into the queue. If only this doubt kept the lock from the writers, grant it.
            let queues = word.bars_readers() && word.has_room_for_reader();
            let left = if queues { word.drop_reader().add_read_waiter() } else { word.drop_reader() };
            let next = if left.wants_grant() { left.drop_write_waiter().set_writer() } else { left };
            // Acquire and release: a grant passes on what the readers before have released into the word.
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

    /// A look from outside the queue: another task goes on, and a fatal signal is noticed.
    fn yield_and_check(&self, wait: Wait) -> Result<(), Killed> {
        H::relax();
        // Relaxed: a number far from the word's. So this does not sleep.
        let event = self.read_event.load(Ordering::Relaxed);
        wait(&self.read_event, event ^ (1 << 31))
    }

    /// Whether the writer leaves while a reader in doubt looks on. Not while writers wait: the doubt holds
    /// them up.
    fn spin_for_admission(&self) -> bool {
        for _ in 0..SPINS_BEFORE_QUEUEING {
            // Acquire: as in `read_slow`.
            let word = self.load(Ordering::Acquire);
            if !word.bars_new_readers() || word.write_waiters() > 0 {
                return !word.bars_new_readers();
            }
            H::relax();
        }
        false
    }

    fn wait_for_phase_after(&self, queued: Word, wait: Wait) -> Result<(), Killed> {
        for _ in 0..SPINS_BEFORE_SLEEP {
            if self.is_admitted(queued) {
                return Ok(());
            }
            H::relax();
        }
        loop {
            // Acquire: pairs with the release in `wake_readers`. A reader that sees that event sees the
            // reason too; one that does not is not put to sleep by the stale number.
            let event = self.read_event.load(Ordering::Acquire);
            if self.is_admitted(queued) {
                return Ok(());
            }
            if wait(&self.read_event, event).is_err() {
                return self.leave_readers(queued);
            }
        }
    }

    /// Whether a queued reader holds the lock by now: it was admitted, or no writer is left that it waits
    /// for, and it admits itself.
    fn is_admitted(&self, queued: Word) -> bool {
        // Acquire, here and below: pairs with the release of the writer that let go last (hazard C-5).
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

    /// A waiting reader gives up, unless it was admitted already.
    fn leave_readers(&self, queued: Word) -> Result<(), Killed> {
        // Acquire, on failure too: finding the admission is one of the ways to be admitted.
        let mut word = self.load(Ordering::Acquire);
        while word.phase() == queued.phase() {
            // Relaxed on success: the reader has done nothing that anyone would wait for.
            match self.exchange(word, word.drop_read_waiter(), Ordering::Relaxed, Ordering::Acquire) {
                Ok(()) => return Err(Killed),
                Err(now) => word = now,
            }
        }
        Ok(())
    }

    #[inline]
    pub fn unlock_read(&self) {
        // Release: pairs with the acquire of the writer that takes the lock next, or of the one that grants
        // it.
        let before = Word(self.state.fetch_sub(READER, Ordering::Release));
        debug_assert!(before.readers() > 0, "released by a reader who does not hold it");
        if before.drop_reader().wants_grant() {
            self.grant();
        }
    }

    /// The lock was left with writers waiting: makes them the holder, unless somebody else has seen to it.
    #[cold]
    fn grant(&self) {
        let mut word = self.load(Ordering::Relaxed);
        while word.wants_grant() {
            let next = word.drop_write_waiter().set_writer();
            // Acquire and release: passes on to the writer what all readers before have released.
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
        // A wait that cannot be killed does not fail.
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

    /// As [`write_killable`](Self::write_killable), by this kind of wait.
    pub fn write_by(&self, wait: Wait) -> Result<(), Killed> {
        if self.try_write() { Ok(()) } else { self.write_slow(wait) }
    }

    #[inline]
    pub fn try_write(&self) -> bool {
        let mut word = self.load(Ordering::Relaxed);
        while word.is_free() {
            // Acquire: pairs with the release of every reader and writer before.
            match self.exchange(word, word.set_writer(), Ordering::Acquire, Ordering::Relaxed) {
                Ok(()) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

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

    /// Tries for a little while to take the lock without queueing, so that its holder need wake nobody. Not
    /// while others queue: the lock is handed to them.
    ///
    /// It looks seldom. So a task that lets the lock go and takes it again has several turns between two
    /// looks, for which the lines of the lock, and of what it guards, stay with its processor.
    fn spin_for_lock(&self) -> bool {
        for _ in 0..WRITER_SPINS {
            // Relaxed: a hint.
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

    /// Waits while somebody in the queue is starving.
    fn wait_for_starved(&self, wait: Wait) -> Result<(), Killed> {
        loop {
            // Relaxed: the gate is about fairness and guards nothing.
            match self.starved.load(Ordering::Relaxed) {
                0 => return Ok(()),
                starved => wait(&self.starved, starved)?,
            }
        }
    }

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

    #[inline]
    fn take_token(&self) -> bool {
        // The load keeps the line shared among waiters. Acquire: pairs with the release in `hand_over`.
        self.write_token.load(Ordering::Relaxed) == TOKEN
            && self
                .write_token
                .compare_exchange(TOKEN, NO_TOKEN, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    }

    /// A waiting writer gives up, unless the lock was granted and nobody else is there to take it.
    fn leave_writers(&self) -> Result<(), Killed> {
        while !self.unqueue_writer() {
            if self.take_token() {
                return Ok(());
            }
            // The grant is made and its token about to appear, or another writer came and is the one to leave
            // to.
            H::relax();
        }
        // The wake-up of a token may have gone to this task: pass it on. Relaxed: a host's wake-up happens
        // before the return from the wait that it ends, so the token it was for is seen.
        if self.write_token.load(Ordering::Relaxed) == TOKEN {
            H::wake_one(&self.write_token);
        }
        Err(Killed)
    }

    /// Takes one writer out of the count of those waiting. `false`: the lock is already granted to all there
    /// are.
    fn unqueue_writer(&self) -> bool {
        let mut word = self.load(Ordering::Relaxed);
        while word.write_waiters() > 0 {
            let left = word.drop_write_waiter();
            // Relaxed: the writer has done nothing that anyone would wait for.
            match self.exchange(word, left, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(()) => {
                    // The last one to leave: readers that waited for it admit themselves. Not by the phase:
                    // see the module.
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

    /// Lets go. Waiting readers are passed by other writers in the queue as long as these were not more than
    /// `passing_writers` in a row.
    #[inline]
    pub fn unlock_write(&self, passing_writers: u32) {
        let word = self.load(Ordering::Relaxed);
        debug_assert!(word.has_writer(), "released by a writer who does not hold it");
        // Release: pairs with the acquire of every way to be admitted.
        if word.is_only_writer()
            && self.exchange(word, word.clear_writer(), Ordering::Release, Ordering::Relaxed).is_ok()
        {
            return;
        }
        self.unlock_write_slow(passing_writers);
    }

    #[cold]
    fn unlock_write_slow(&self, passing_writers: u32) {
        let mut word = self.load(Ordering::Relaxed);
        // Relaxed, here and below: the holder's, and passed on with the lock.
        let passed_by_writers = self.passed_by_writers.load(Ordering::Relaxed);
        loop {
            let readers = word.read_waiters() > 0;
            let pass = readers && word.write_waiters() > 0 && passed_by_writers < passing_writers;
            self.passed_by_writers.store(if pass { passed_by_writers + 1 } else { 0 }, Ordering::Relaxed);
            let next = if readers && !pass {
                word.clear_writer().admit_readers()
            } else if word.write_waiters() > 0 {
                // The next writer holds it from here on: readers in doubt stay barred.
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

    /// Makes the writer a reader, and lets all waiting readers in.
    #[inline]
    pub fn downgrade(&self) {
        let mut word = self.load(Ordering::Relaxed);
        debug_assert!(word.has_writer(), "downgraded by a writer who does not hold it");
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

    #[cold]
    fn wake_readers(&self) {
        // Release: pairs with the acquire in `wait_for_phase_after`.
        self.read_event.fetch_add(1, Ordering::Release);
        H::wake_all(&self.read_event);
    }

    #[cold]
    fn hand_over(&self) {
        // Release: pairs with the acquire in `take_token`; what readers and writers before released goes
        // along.
        self.write_token.store(TOKEN, Ordering::Release);
        H::wake_one(&self.write_token);
    }

    // ---- the word ----

    #[inline]
    pub(super) fn load(&self, order: Order) -> Word {
        Word(self.state.load(order))
    }

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
