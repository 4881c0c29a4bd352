//! Sleeping and waking with the host's futex, and signals to sleeping tasks.
//!
//! Guarantee: [`Task::kill`] wakes a task that sleeps killably, wherever it sleeps. This wait and every later
//! killable wait of the task return [`Killed`](freehold_sync::Killed). [`Task::signal`] has the same effect
//! on interruptible waits, as long as the signal is pending.
//!
//! Mechanism: a killable sleeper stores the address of its word in its record before it checks the fatal flag
//! for the last time, and removes the address after it wakes up. The killer sets the flag, and then wakes the
//! sleeper at that address repeatedly until the sleeper has removed the address. A single wake is not enough,
//! because it could arrive between the sleeper's last check and its sleep. A sender of another signal does
//! the same if its signal ends the sleep. `signals.rs` has the part that all hosts share, and `tests/host.rs`
//! tests the guarantee.

use super::signals::{Ends, Task};
use freehold_sync::atomic::AtomicU32;
use rustix::thread::futex;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

thread_local! {
    static TASK: Task = Task::new();
}

/// The address of the word that the task sleeps on, and the signals that end the sleep. `None` if no signal
/// ends the sleep. The word outlives its entry here, because the sleeper borrows the word and removes the
/// entry before it returns.
pub(super) type Sleep = Mutex<Option<(WordAddress, Ends)>>;

/// The word that a sleeper borrows.
#[derive(Clone, Copy, Debug)]
pub(super) struct WordAddress(*const AtomicU32);

// The killer uses the address only while it holds the record's lock.
#[expect(unsafe_code, reason = "the word is shared by nature; see `Sleep`")]
// SAFETY: an `AtomicU32` may be used from any thread while it lives.
unsafe impl Send for WordAddress {}

impl Task {
    /// Returns the task of the calling thread.
    pub fn current() -> Task {
        TASK.with(Task::clone)
    }

    /// Makes a fatal signal pending and wakes the task if it sleeps killably.
    pub fn kill(&self) {
        // SeqCst: either the sleeper sees the flag after it stored its address, or this thread sees the
        // address.
        self.0.killed.store(true, Ordering::SeqCst);
        while self.wake_sleeper(|_| true) {
            std::thread::yield_now();
        }
    }

    /// Makes a signal pending that is not fatal, and wakes the task if it sleeps interruptibly.
    pub fn signal(&self) {
        // SeqCst: either the sleeper sees the signal after it stored its address, or this thread sees the
        // address.
        self.0.signalled.store(true, Ordering::SeqCst);
        while self.0.signalled.load(Ordering::SeqCst) && self.wake_sleeper(|ends| ends == Ends::ByAny) {
            std::thread::yield_now();
        }
    }

    /// Wakes the task if the task sleeps and `ends` accepts the kind of its sleep. Returns true if the task
    /// was woken.
    fn wake_sleeper(&self, ends: impl Fn(Ends) -> bool) -> bool {
        let address = self.0.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((WordAddress(word), _)) = address.filter(|(_, how)| ends(*how)) else { return false };
        #[expect(unsafe_code, reason = "borrows the sleeper's word")]
        // SAFETY: the sleeper still borrows the word, and cannot return before it takes this lock.
        let word = unsafe { &*word };
        wake_all(word);
        true
    }

    /// Records on which word the task sleeps, or that it does not sleep.
    fn set_sleeps_on(&self, word: Option<(WordAddress, Ends)>) {
        *self.0.sleep.lock().unwrap_or_else(PoisonError::into_inner) = word;
    }
}

/// If the word equals `expected`, waits for a wakeup. No signal ends the wait, but the wait may end without a
/// wakeup.
pub(crate) fn wait(word: &AtomicU32, expected: u32) {
    // A thread that has run its destructors has no record.
    let _ = TASK.try_with(Task::count_wait);
    sleep(word, expected);
}

fn sleep(word: &AtomicU32, expected: u32) {
    // An error means that the word had changed or that the host sent a signal. In both cases the wait returns
    // spuriously.
    let _ = futex::wait(word, futex::Flags::PRIVATE, expected, None);
}

/// Waits, unless a pending signal ends the wait at once. Returns false if a signal ended the wait.
pub(super) fn wait_unless_over(word: &AtomicU32, expected: u32, ends: Ends) -> bool {
    // A thread that has run its destructors has no record and cannot be killed.
    let Ok(task) = TASK.try_with(Task::clone) else {
        sleep(word, expected);
        return true;
    };
    task.enters_wait();
    if task.is_over(ends) {
        return false;
    }
    task.set_sleeps_on(Some((WordAddress(word), ends)));
    if !task.is_over(ends) {
        sleep(word, expected);
    }
    task.set_sleeps_on(None);
    !task.is_over(ends)
}

/// Wakes one task that sleeps on this address, if there is one. Does not read the word.
pub(crate) fn wake_one(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::PRIVATE, 1);
}

/// Wakes all tasks that sleep on this address. Does not read the word.
pub(crate) fn wake_all(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::PRIVATE, i32::MAX as u32);
}
