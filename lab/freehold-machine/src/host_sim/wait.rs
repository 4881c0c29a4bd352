//! Sleeping and waking by address, and signals. The guarantees are those of `host_std::wait`; they are
//! simpler to keep where one task runs at a time.

use super::state;
use freehold_sim::task;
use freehold_sync::atomic::AtomicU32;
use freehold_sync::{Interrupted, Killed};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};

/// A task of a run, as the target of signals.
#[derive(Clone, Debug)]
pub struct Task(Arc<Record>);

#[derive(Debug, Default)]
struct Record {
    /// A fatal signal is pending.
    killed: AtomicBool,
    /// Another signal is.
    signalled: AtomicBool,
    /// Killable waits until one is interrupted; 0: none will.
    countdown: AtomicU64,
    /// Waits begun.
    waits: AtomicU64,
    /// The address of the word that it sleeps on, 0 when none, or where no signal ends that.
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

    /// Makes a signal pending that is not fatal, and wakes the task: a killable wait looks again, and may
    /// return before its time.
    pub fn signal(&self) {
        self.0.signalled.store(true, SeqCst);
        task::wake_at(self.0.sleeps_on.load(SeqCst), usize::MAX);
    }

    /// Takes that signal back: it was handled.
    pub fn handle_signal(&self) {
        self.0.signalled.store(false, SeqCst);
    }

    /// Whether a fatal signal is pending.
    pub fn is_killed(&self) -> bool {
        self.0.killed.load(SeqCst)
    }

    /// Returns how many waits the task has begun, looks for a fatal signal included. A test that has to go on
    /// once another thread waits asks this in a loop.
    pub fn waits(&self) -> u64 {
        self.0.waits.load(SeqCst)
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

    fn count_wait(&self) {
        self.0.waits.fetch_add(1, SeqCst);
    }

    /// Counts one killable wait.
    fn enters_wait(&self) {
        self.count_wait();
        let left = self.0.countdown.load(SeqCst);
        if left > 0 {
            self.0.countdown.store(left - 1, SeqCst);
            if left == 1 {
                self.0.killed.store(true, SeqCst);
            }
        }
    }
}

pub(crate) fn wait(word: &AtomicU32, expected: u32) {
    Task::current().count_wait();
    task::sleep(word, expected);
}

pub(crate) fn wait_killable(word: &AtomicU32, expected: u32) -> Result<(), Killed> {
    let is_over = |task: &Task| task.is_killed();
    if wait_unless(word, expected, is_over) { Ok(()) } else { Err(Killed) }
}

pub(crate) fn wait_interruptible(word: &AtomicU32, expected: u32) -> Result<(), Interrupted> {
    let is_over = |task: &Task| task.is_killed() || task.0.signalled.load(SeqCst);
    if wait_unless(word, expected, is_over) { Ok(()) } else { Err(Interrupted) }
}

/// False: a signal has ended the wait.
fn wait_unless(word: &AtomicU32, expected: u32, is_over: impl Fn(&Task) -> bool) -> bool {
    let task = Task::current();
    task.enters_wait();
    if is_over(&task) {
        return false;
    }
    task.0.sleeps_on.store(ptr::from_ref(word).addr(), SeqCst);
    task::sleep(word, expected);
    task.0.sleeps_on.store(0, SeqCst);
    !is_over(&task)
}

pub(crate) fn wake_one(word: &AtomicU32) {
    task::wake(word, 1);
}

pub(crate) fn wake_all(word: &AtomicU32) {
    task::wake(word, usize::MAX);
}
