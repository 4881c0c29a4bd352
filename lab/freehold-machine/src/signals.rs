//! The signals of a task, and its killable and interruptible waits: the part that all hosts share.

use super::wait::{Sleep, wait_unless_over};
use freehold_sync::atomic::AtomicU32;
use freehold_sync::{Interrupted, Killed};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A thread (in a simulation, a task of a run), as the target of signals.
#[derive(Clone, Debug)]
pub struct Task(pub(super) Arc<Record>);

#[derive(Debug, Default)]
pub(super) struct Record {
    /// A fatal signal is pending. Written by the killer, read by the task.
    pub(super) killed: AtomicBool,
    /// Another signal is.
    pub(super) signalled: AtomicBool,
    /// Killable waits until one is interrupted; 0 when none will be. Only the task counts down.
    countdown: AtomicU64,
    /// Waits begun. Only the task counts them.
    waits: AtomicU64,
    /// The place where the task sleeps, if the host finds sleepers by their tasks.
    #[allow(dead_code, reason = "the checker of schedules finds sleepers in a list")]
    pub(super) sleep: Sleep,
}

/// Which signals end a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    ByFatal,
    ByAny,
}

impl Task {
    pub(super) fn new() -> Task {
        Task(Arc::default())
    }

    /// Takes back a signal that is not fatal: it was handled.
    pub fn handle_signal(&self) {
        self.0.signalled.store(false, Ordering::SeqCst);
    }

    /// Returns true if a fatal signal is pending.
    pub fn is_killed(&self) -> bool {
        self.0.killed.load(Ordering::SeqCst)
    }

    /// Returns how many waits the task has begun, looks for a fatal signal included. A test that has to go on
    /// once another thread waits asks this in a loop.
    pub fn waits(&self) -> u64 {
        self.0.waits.load(Ordering::SeqCst)
    }

    /// Takes the fatal signal back, so that a test can go on with this task.
    pub fn revive(&self) {
        self.0.killed.store(false, Ordering::SeqCst);
        self.0.countdown.store(0, Ordering::SeqCst);
    }

    /// Makes a fatal signal pending as the task enters its `nth` killable wait from now, counted from 1.
    pub fn interrupt_wait(&self, nth: u64) {
        self.0.countdown.store(nth, Ordering::SeqCst);
    }

    pub(super) fn is_over(&self, ends: Ends) -> bool {
        self.is_killed() || ends == Ends::ByAny && self.0.signalled.load(Ordering::SeqCst)
    }

    pub(super) fn count_wait(&self) {
        // SeqCst, pairs with the load in `waits`: a test that sees the count sees what the task did before.
        self.0.waits.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts one killable wait.
    pub(super) fn enters_wait(&self) {
        self.count_wait();
        let left = self.0.countdown.load(Ordering::Relaxed);
        if left > 0 {
            self.0.countdown.store(left - 1, Ordering::Relaxed);
            if left == 1 {
                self.0.killed.store(true, Ordering::SeqCst);
            }
        }
    }
}

pub(crate) fn wait_killable(word: &AtomicU32, expected: u32) -> Result<(), Killed> {
    if wait_unless_over(word, expected, Ends::ByFatal) { Ok(()) } else { Err(Killed) }
}

pub(crate) fn wait_interruptible(word: &AtomicU32, expected: u32) -> Result<(), Interrupted> {
    if wait_unless_over(word, expected, Ends::ByAny) { Ok(()) } else { Err(Interrupted) }
}
