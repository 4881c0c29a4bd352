//! Sleeping and waking by the host's futex, and signals, fatal and others.
//!
//! Guarantee: a task that sleeps killably wakes up when [`Task::kill`] is called, wherever it sleeps,
//! and returns [`Killed`](freehold_sync::Killed) from this and every later killable wait. The same of
//! [`Task::signal`] and interruptible waits, as long as the signal is pending.
//!
//! Mechanism: a killable sleeper leaves the address of its word in its record before it looks at the
//! fatal flag for the last time, and takes it out after it woke. The killer sets the flag and then wakes
//! that address again and again until it is gone: one wake alone could come in the moment between the
//! sleeper's last look and its sleep. A sender of other signals does so where the sleep ends by those.

use super::signals::{Ends, Task};
use freehold_sync::atomic::AtomicU32;
use rustix::thread::futex;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

thread_local! {
    static TASK: Task = Task::new();
}

/// The address of the word that the task sleeps on, and which signals end that, if any may. The word outlives
/// its being here, because the sleeper that borrowed it takes it out before it returns.
pub(super) type Sleep = Mutex<Option<(WordAddress, Ends)>>;

/// A word borrowed by a sleeper.
#[derive(Clone, Copy, Debug)]
pub(super) struct WordAddress(*const AtomicU32);

// The address travels to the killer, which uses it only while the record is locked.
#[expect(unsafe_code, reason = "the word is shared by nature; see `Sleep`")]
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
        while self.wake_sleeper(|_| true) {
            std::thread::yield_now();
        }
    }

    /// Makes a signal pending that is not fatal, and wakes the task if it sleeps interruptibly.
    pub fn signal(&self) {
        // SeqCst: as in `kill`.
        self.0.signalled.store(true, Ordering::SeqCst);
        while self.0.signalled.load(Ordering::SeqCst) && self.wake_sleeper(|ends| ends == Ends::ByAny) {
            std::thread::yield_now();
        }
    }

    /// Wakes the task if it sleeps in a way that `ends`.
    fn wake_sleeper(&self, ends: impl Fn(Ends) -> bool) -> bool {
        let address = self.0.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((WordAddress(word), _)) = address.filter(|(_, how)| ends(*how)) else { return false };
        #[expect(unsafe_code, reason = "borrows the sleeper's word")]
        // SAFETY: the sleeper still borrows the word, and cannot return before it takes this lock.
        let word = unsafe { &*word };
        wake_all(word);
        true
    }

    fn set_sleeps_on(&self, word: Option<(WordAddress, Ends)>) {
        *self.0.sleep.lock().unwrap_or_else(PoisonError::into_inner) = word;
    }
}

pub(crate) fn wait(word: &AtomicU32, expected: u32) {
    // A thread past its destructors has no record any more.
    let _ = TASK.try_with(Task::count_wait);
    sleep(word, expected);
}

fn sleep(word: &AtomicU32, expected: u32) {
    // An error means that the word had changed, or a signal of the host: both are spurious returns.
    let _ = futex::wait(word, futex::Flags::PRIVATE, expected, None);
}

/// False: a signal has ended the wait.
pub(super) fn wait_unless_over(word: &AtomicU32, expected: u32, ends: Ends) -> bool {
    // A thread past its destructors has no record any more and cannot be killed.
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

pub(crate) fn wake_one(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::PRIVATE, 1);
}

pub(crate) fn wake_all(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::PRIVATE, i32::MAX as u32);
}
