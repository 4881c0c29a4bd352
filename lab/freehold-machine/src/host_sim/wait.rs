//! Sleeping and waking by address, and signals, in virtual time. The guarantees are those of
//! `host_std/wait.rs`.
//!
//! `freehold_sim::task` has the sleepers and charges the time of sleeping and waking. The code is simpler
//! than on the other hosts, because one task runs at a time.

use super::signals::{Ends, Task};
use super::state;
use freehold_sim::task;
use freehold_sync::atomic::AtomicU32;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// The address of the word that the task sleeps on. 0 if the task does not sleep, or if no signal ends the
/// sleep.
pub(super) type Sleep = AtomicUsize;

impl Task {
    /// Returns the calling task.
    pub fn current() -> Task {
        state(|state| state.task().clone())
    }

    /// Makes a fatal signal pending and wakes the task if it sleeps killably.
    pub fn kill(&self) {
        self.0.killed.store(true, SeqCst);
        // Other tasks that sleep on the same word wake up too, and check the word again.
        task::wake_at(self.0.sleep.load(SeqCst), usize::MAX);
    }

    /// Makes a signal pending that is not fatal, and wakes the task. A killable wait checks again, and may
    /// return early.
    pub fn signal(&self) {
        self.0.signalled.store(true, SeqCst);
        task::wake_at(self.0.sleep.load(SeqCst), usize::MAX);
    }
}

pub(crate) fn wait(word: &AtomicU32, expected: u32) {
    Task::current().count_wait();
    task::sleep(word, expected);
}

/// Waits, unless a pending signal ends the wait at once. Returns false if a signal ended the wait.
pub(super) fn wait_unless_over(word: &AtomicU32, expected: u32, ends: Ends) -> bool {
    let task = Task::current();
    task.enters_wait();
    if task.is_over(ends) {
        return false;
    }
    task.0.sleep.store(ptr::from_ref(word).addr(), SeqCst);
    task::sleep(word, expected);
    task.0.sleep.store(0, SeqCst);
    !task.is_over(ends)
}

pub(crate) fn wake_one(word: &AtomicU32) {
    task::wake(word, 1);
}

pub(crate) fn wake_all(word: &AtomicU32) {
    task::wake(word, usize::MAX);
}
