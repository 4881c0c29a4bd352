//! Sleeping and waking by the host's futex, and fatal signals.
//!
//! Guarantee: a task that sleeps killably wakes up when [`Task::kill`] is called, wherever it sleeps,
//! and returns [`Killed`] from this and every later killable wait.
//!
//! Mechanism: a killable sleeper leaves the address of its word in its record before it looks at the
//! fatal flag for the last time, and takes it out after it woke. The killer sets the flag and then wakes
//! that address again and again until it is gone: one wake alone could come in the moment between the
//! sleeper's last look and its sleep.

use freehold_sync::Killed;
use freehold_sync::atomic::AtomicU32;
use rustix::thread::futex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

thread_local! {
    static TASK: Task = Task(Arc::new(Record::default()));
}

/// A thread, as the target of a fatal signal.
#[derive(Clone, Debug)]
pub struct Task(Arc<Record>);

#[derive(Debug, Default)]
struct Record {
    /// A fatal signal is pending. Written by the killer, read by the task.
    killed: AtomicBool,
    /// The address of the word this task sleeps on killably, 0 when none. The word outlives its being
    /// here, because the sleeper that borrowed it takes it out before it returns.
    sleeps_on: Mutex<Option<WordAddress>>,
    /// Killable waits until one is interrupted; 0 when none will be. Only the task counts down.
    countdown: AtomicU64,
}

/// A word borrowed by a sleeper.
#[derive(Clone, Copy, Debug)]
struct WordAddress(*const AtomicU32);

// The address travels to the killer, which uses it only while the record is locked.
#[expect(unsafe_code, reason = "the word is shared by nature; see `Record::sleeps_on`")]
// SAFETY: an `AtomicU32` may be used from any thread while it lives.
unsafe impl Send for WordAddress {}

impl Task {
    /// The calling thread.
    pub fn current() -> Task {
        TASK.with(Task::clone)
    }

    /// Makes a fatal signal pending and wakes the task if it sleeps killably.
    pub fn kill(&self) {
        // SeqCst: either the sleeper sees the flag after it left its address, or its address is seen here.
        self.0.killed.store(true, Ordering::SeqCst);
        while self.wake_sleeper() {
            std::thread::yield_now();
        }
    }

    /// Whether a fatal signal is pending.
    pub fn is_killed(&self) -> bool {
        self.0.killed.load(Ordering::SeqCst)
    }

    /// Takes the fatal signal back, so that a test can go on with this thread.
    pub fn revive(&self) {
        self.0.killed.store(false, Ordering::SeqCst);
        self.0.countdown.store(0, Ordering::SeqCst);
    }

    /// Makes a fatal signal pending as the task enters its `nth` killable wait from now, counted from 1.
    pub fn interrupt_wait(&self, nth: u64) {
        self.0.countdown.store(nth, Ordering::SeqCst);
    }

    fn wake_sleeper(&self) -> bool {
        let address = self.0.sleeps_on.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(WordAddress(word)) = *address else { return false };
        #[expect(unsafe_code, reason = "borrows the sleeper's word")]
        // SAFETY: the sleeper still borrows the word, and cannot return before it takes this lock.
        let word = unsafe { &*word };
        wake_all(word);
        true
    }

    /// Counts one killable wait; whether a fatal signal is pending for it.
    fn enters_wait(&self) -> bool {
        let left = self.0.countdown.load(Ordering::Relaxed);
        if left > 0 {
            self.0.countdown.store(left - 1, Ordering::Relaxed);
            if left == 1 {
                self.0.killed.store(true, Ordering::SeqCst);
            }
        }
        self.is_killed()
    }

    fn set_sleeps_on(&self, word: Option<&AtomicU32>) {
        let mut address = self.0.sleeps_on.lock().unwrap_or_else(PoisonError::into_inner);
        *address = word.map(|word| WordAddress(word));
    }
}

pub(crate) fn wait(word: &AtomicU32, expected: u32) {
    // An error means that the word had changed, or a signal of the host: both are spurious returns.
    let _ = futex::wait(word, futex::Flags::PRIVATE, expected, None);
}

pub(crate) fn wait_killable(word: &AtomicU32, expected: u32) -> Result<(), Killed> {
    // A thread past its destructors has no record any more and cannot be killed.
    let Ok(task) = TASK.try_with(Task::clone) else {
        wait(word, expected);
        return Ok(());
    };
    if task.enters_wait() {
        return Err(Killed);
    }
    task.set_sleeps_on(Some(word));
    if !task.is_killed() {
        wait(word, expected);
    }
    task.set_sleeps_on(None);
    if task.is_killed() { Err(Killed) } else { Ok(()) }
}

pub(crate) fn wake_one(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::PRIVATE, 1);
}

pub(crate) fn wake_all(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::PRIVATE, i32::MAX as u32);
}
