//! Sleeping and waking by address, and signals, in the host of the checker. The guarantees are those of
//! `host_std/wait.rs`.
//!
//! One mutex of the checker guards the list of sleepers, so a waker sees the check of the word and the start
//! of the sleep as one step. A wakeup that the engine forgets leaves the sleeper in the list for ever, and
//! the checker reports a deadlock. Sleepers wake in the order in which they began to sleep; no wait ends
//! without a wakeup or a signal.

use super::signals::{Ends, Task};
use crate::exempt::exempt;
use freehold_sync::atomic::{AtomicU32, Ordering};
use shuttle::sync::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

shuttle::lazy_static! {
    static ref SLEEPERS: Mutex<Vec<Sleeper>> = Mutex::new(Vec::new());
}

shuttle::thread_local! {
    static TASK: Task = Task::new();
}

/// Unused on this host, which keeps its sleepers in one list.
pub(super) type Sleep = ();

/// An entry of the list, present while its thread sleeps. The waker removes it.
struct Sleeper {
    address: usize,
    bell: Arc<Condvar>,
    /// The task, and the signals that wake it. `None` if no signal ends the wait.
    task: Option<(Task, Ends)>,
}

impl Task {
    /// Returns the task of the calling thread.
    pub fn current() -> Task {
        TASK.with(Task::clone)
    }

    /// Makes a fatal signal pending and wakes the task if it sleeps killably.
    pub fn kill(&self) {
        let mut sleepers = sleepers();
        self.0.killed.store(true, SeqCst);
        wake(&mut sleepers, usize::MAX, |sleeper| self.sleeps_as(sleeper).is_some());
    }

    /// Makes a signal pending that is not fatal, and wakes the task if it sleeps interruptibly.
    pub fn signal(&self) {
        let mut sleepers = sleepers();
        self.0.signalled.store(true, SeqCst);
        wake(&mut sleepers, usize::MAX, |sleeper| self.sleeps_as(sleeper) == Some(Ends::ByAny));
    }

    /// Returns the signals that end the sleep, if the sleeper is this task.
    fn sleeps_as(&self, sleeper: &Sleeper) -> Option<Ends> {
        let (task, ends) = sleeper.task.as_ref()?;
        Arc::ptr_eq(&self.0, &task.0).then_some(*ends)
    }
}

/// If the word equals `expected`, waits for a wakeup. No signal ends the wait.
pub(crate) fn wait(word: &AtomicU32, expected: u32) {
    TASK.with(Task::count_wait);
    sleep(word, expected, None);
}

/// Waits, unless a pending signal ends the wait at once. Returns false if a signal ended the wait.
pub(super) fn wait_unless_over(word: &AtomicU32, expected: u32, ends: Ends) -> bool {
    let task = Task::current();
    task.enters_wait();
    if task.is_over(ends) {
        return false;
    }
    sleep(word, expected, Some((task.clone(), ends)));
    !task.is_over(ends)
}

pub(crate) fn wake_one(word: &AtomicU32) {
    let address = address_of(word);
    wake(&mut sleepers(), 1, |sleeper| sleeper.address == address);
}

pub(crate) fn wake_all(word: &AtomicU32) {
    let address = address_of(word);
    wake(&mut sleepers(), usize::MAX, |sleeper| sleeper.address == address);
}

/// Sleeps until a wakeup. Returns at once if the word differs from `expected` or a signal ends the sleep.
fn sleep(word: &AtomicU32, expected: u32, task: Option<(Task, Ends)>) {
    let mut sleepers = sleepers();
    // A signal or a change of the word may have arrived after the caller's check and before this thread
    // locked the list.
    if task.as_ref().is_some_and(|(task, ends)| task.is_over(*ends))
        || word.load(Ordering::SeqCst) != expected
    {
        return;
    }
    let bell = exempt(|| Arc::new(Condvar::new()));
    exempt(|| sleepers.push(Sleeper { address: address_of(word), bell: Arc::clone(&bell), task }));
    while sleepers.iter().any(|sleeper| Arc::ptr_eq(&sleeper.bell, &bell)) {
        sleepers = match bell.wait(sleepers) {
            Ok(sleepers) => sleepers,
            Err(poisoned) => poisoned.into_inner(),
        };
    }
}

/// Removes from the list up to `most` sleepers that `wanted` accepts, and wakes them in the order in which
/// they began to sleep.
fn wake(sleepers: &mut Vec<Sleeper>, most: usize, wanted: impl Fn(&Sleeper) -> bool) {
    let mut woken = 0;
    sleepers.retain(|sleeper| {
        let goes = woken < most && wanted(sleeper);
        if goes {
            woken += 1;
            sleeper.bell.notify_one();
        }
        !goes
    });
}

fn sleepers() -> MutexGuard<'static, Vec<Sleeper>> {
    SLEEPERS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn address_of(word: &AtomicU32) -> usize {
    std::ptr::from_ref(word).addr()
}
