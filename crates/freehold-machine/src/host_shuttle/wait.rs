//! Sleeping and waking by address, and fatal signals, decided by the schedule. The guarantees are those of
//! `host_std::wait`.
//!
//! One mutex guards the list of sleepers, so looking at the word and going to sleep are one step for the
//! waker.

use crate::inject::exempt;
use freehold_sync::Killed;
use freehold_sync::atomic::{AtomicU32, Ordering};
use shuttle::sync::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

shuttle::lazy_static! {
    static ref SLEEPERS: Mutex<Vec<Sleeper>> = Mutex::new(Vec::new());
}

shuttle::thread_local! {
    static TASK: Task = Task(Arc::new(Record::default()));
}

/// A thread, as the target of a fatal signal.
#[derive(Clone, Debug)]
pub struct Task(Arc<Record>);

#[derive(Debug, Default)]
struct Record {
    killed: AtomicBool,
    /// Killable waits until one is interrupted; 0: none will.
    countdown: AtomicU64,
}

/// In the list while its thread sleeps; the waker takes it out.
struct Sleeper {
    address: usize,
    bell: Arc<Condvar>,
    /// The task that a fatal signal wakes; `None` for a wait that is not killable.
    task: Option<Task>,
}

impl Task {
    /// The calling thread.
    pub fn current() -> Task {
        TASK.with(Task::clone)
    }

    /// Makes a fatal signal pending and wakes the task if it sleeps killably.
    pub fn kill(&self) {
        let mut sleepers = sleepers();
        self.0.killed.store(true, SeqCst);
        wake(&mut sleepers, usize::MAX, |sleeper| sleeper.task.as_ref().is_some_and(|task| self.is(task)));
    }

    /// Whether a fatal signal is pending.
    pub fn is_killed(&self) -> bool {
        self.0.killed.load(SeqCst)
    }

    /// Takes the fatal signal back, so that a test can go on with this thread.
    pub fn revive(&self) {
        self.0.killed.store(false, SeqCst);
        self.0.countdown.store(0, SeqCst);
    }

    /// Makes a fatal signal pending as the task enters its `nth` killable wait from now, counted from 1.
    pub fn interrupt_wait(&self, nth: u64) {
        self.0.countdown.store(nth, SeqCst);
    }

    fn is(&self, other: &Task) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
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
    sleep(word, expected, None);
}

pub(crate) fn wait_killable(word: &AtomicU32, expected: u32) -> Result<(), Killed> {
    let task = Task::current();
    if task.enters_wait() {
        return Err(Killed);
    }
    sleep(word, expected, Some(task.clone()));
    if task.is_killed() { Err(Killed) } else { Ok(()) }
}

pub(crate) fn wake_one(word: &AtomicU32) {
    let address = address_of(word);
    wake(&mut sleepers(), 1, |sleeper| sleeper.address == address);
}

pub(crate) fn wake_all(word: &AtomicU32) {
    let address = address_of(word);
    wake(&mut sleepers(), usize::MAX, |sleeper| sleeper.address == address);
}

fn sleep(word: &AtomicU32, expected: u32, task: Option<Task>) {
    let mut sleepers = sleepers();
    // Killed or changed after the caller looked, but before the list was locked.
    if task.as_ref().is_some_and(Task::is_killed) || word.load(Ordering::SeqCst) != expected {
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

/// Takes up to `most` sleepers that `wanted` accepts out of the list, the longest asleep first.
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
