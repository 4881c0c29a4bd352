//! The signals of a task, and its killable and interruptible waits: the part that all hosts share.
//!
//! A [`Task`] is a thread that may get signals. Tests send signals, and the engine's waits end with
//! [`Killed`] or [`Interrupted`]. No signal is lost: a sender sets a flag and then wakes the task, and a
//! waiting task checks the flags after it has announced its sleep. Each host (`host_std`, `host_shuttle`,
//! `host_sim`) compiles this file as a module of its own, and has its own sleep and wake-up in `wait.rs`.
//! `tests/host.rs` tests fatal signals and other signals.

use super::wait::{Sleep, wait_unless_over};
use freehold_sync::atomic::AtomicU32;
use freehold_sync::{Interrupted, Killed};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A thread (in a simulation, a task of a run), as the target of signals.
#[derive(Clone, Debug)]
pub struct Task(pub(super) Arc<Record>);

/// The state of a task. All fields are atomics, which the task and senders access.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// True if a fatal signal is pending. The sender writes the flag and the task reads it.
    pub(super) killed: AtomicBool,
    /// True if a signal that is not fatal is pending.
    pub(super) signalled: AtomicBool,
    /// Number of killable waits up to the wait that gets a fatal signal; 0 if no wait will get one. Only the
    /// task counts down.
    countdown: AtomicU64,
    /// Number of waits that began. Only the task itself writes it.
    waits: AtomicU64,
    /// The word on which the task sleeps, if the host needs the word to wake the task.
    #[allow(dead_code, reason = "the checker of schedules finds sleepers in a list")]
    pub(super) sleep: Sleep,
}

/// The signals that end a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    /// Only a fatal signal.
    ByFatal,
    /// Any signal.
    ByAny,
}

impl Task {
    pub(super) fn new() -> Task {
        Task(Arc::default())
    }

    /// Clears a pending signal that is not fatal, because the task handled it.
    pub fn handle_signal(&self) {
        self.0.signalled.store(false, Ordering::SeqCst);
    }

    /// Returns true if a fatal signal is pending.
    pub fn is_killed(&self) -> bool {
        self.0.killed.load(Ordering::SeqCst)
    }

    /// Returns how many waits the task has begun, including waits that only check for a fatal signal. A test
    /// polls this value to continue only when another thread waits.
    pub fn waits(&self) -> u64 {
        self.0.waits.load(Ordering::SeqCst)
    }

    /// Clears a pending fatal signal, so that a test can continue with this task.
    pub fn revive(&self) {
        self.0.killed.store(false, Ordering::SeqCst);
        self.0.countdown.store(0, Ordering::SeqCst);
    }

    /// Makes a fatal signal pending when the task enters its `nth` killable wait from now, counted from 1.
    pub fn interrupt_wait(&self, nth: u64) {
        self.0.countdown.store(nth, Ordering::SeqCst);
    }

    /// Returns true if a signal is pending that ends a sleep of this kind.
    pub(super) fn is_over(&self, ends: Ends) -> bool {
        self.is_killed() || ends == Ends::ByAny && self.0.signalled.load(Ordering::SeqCst)
    }

    /// Counts the beginning of a wait.
    pub(super) fn count_wait(&self) {
        // SeqCst: pairs with the load in `waits`. A test that sees the new count also sees all earlier stores
        // of the task.
        self.0.waits.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts one killable or interruptible wait. Makes a fatal signal pending if `interrupt_wait` chose this
    /// wait.
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

/// If the word equals `expected`, waits for a wakeup. Fails if a fatal signal is pending. The wait may end
/// without a wakeup.
pub(crate) fn wait_killable(word: &AtomicU32, expected: u32) -> Result<(), Killed> {
    if wait_unless_over(word, expected, Ends::ByFatal) { Ok(()) } else { Err(Killed) }
}

/// If the word equals `expected`, waits for a wakeup. Fails if any signal is pending. The wait may end
/// without a wakeup.
pub(crate) fn wait_interruptible(word: &AtomicU32, expected: u32) -> Result<(), Interrupted> {
    if wait_unless_over(word, expected, Ends::ByAny) { Ok(()) } else { Err(Interrupted) }
}
