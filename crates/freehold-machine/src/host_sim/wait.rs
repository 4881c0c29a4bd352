//! Sleeping and waking by address, and fatal signals. The guarantees are those of `host_std::wait`; they are
//! simpler to keep where one task runs at a time.

use super::state;
use freehold_sim::task;
use freehold_sync::Killed;
use freehold_sync::atomic::AtomicU32;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};

/// A task of a run, as the target of a fatal signal.
#[derive(Clone, Debug)]
pub struct Task(Arc<Record>);

#[derive(Debug, Default)]
struct Record {
    /// A fatal signal is pending.
    killed: AtomicBool,
    /// Killable waits until one is interrupted; 0: none will.
    countdown: AtomicU64,
    /// The address of the word that it sleeps on killably, 0 when none.
    sleeps_on: AtomicUsize,
}

impl Task {
    pub(super) fn new() -> Task {
        Task(Arc::default())
    }

    /// The calling task.
    pub fn current() -> Task {
        state(|state| state.task().clone())
    }

    /// Makes a fatal signal pending and wakes the task if it sleeps killably.
    pub fn kill(&self) {
        self.0.killed.store(true, SeqCst);
        // Others that sleep there return as well, and look again.
        task::wake_at(self.0.sleeps_on.load(SeqCst), usize::MAX);
    }

    /// Whether a fatal signal is pending.
    pub fn is_killed(&self) -> bool {
        self.0.killed.load(SeqCst)
    }

    /// Takes the fatal signal back, so that a test can go on with this task.
    pub fn revive(&self) {
        self.0.killed.store(false, SeqCst);
        self.0.countdown.store(0, SeqCst);
    }

    /// Makes a fatal signal pending as the task enters its `nth` killable wait from now, counted from 1.
    pub fn interrupt_wait(&self, nth: u64) {
        self.0.countdown.store(nth, SeqCst);
    }

    /// Counts one killable wait; whether a fatal signal is pending for it.
    fn enters_wait(&self) -> bool {
        let left = self.0.countdown.load(SeqCst);
        if left > 0 {
            self.0.countdown.store(left - 1, SeqCst);
            if left == 1 {
                self.0.killed.store(true, SeqCst);
            }
        }
        self.is_killed()
    }
}

pub(crate) fn wait(word: &AtomicU32, expected: u32) {
    task::sleep(word, expected);
}

pub(crate) fn wait_killable(word: &AtomicU32, expected: u32) -> Result<(), Killed> {
    let task = Task::current();
    if task.enters_wait() {
        return Err(Killed);
    }
    task.0.sleeps_on.store(ptr::from_ref(word).addr(), SeqCst);
    task::sleep(word, expected);
    task.0.sleeps_on.store(0, SeqCst);
    if task.is_killed() { Err(Killed) } else { Ok(()) }
}

pub(crate) fn wake_one(word: &AtomicU32) {
    task::wake(word, 1);
}

pub(crate) fn wake_all(word: &AtomicU32) {
    task::wake(word, usize::MAX);
}
