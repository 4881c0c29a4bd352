//! Parking lots, in which the tasks of the test hosts sleep.
//!
//! `loom_host.rs` has one parking lot. `std_host.rs` has several, and selects one by the address of the word.
//! A parking lot is a list of sleepers, a mutex and one condition variable. The mutex makes the comparison of
//! the word and going to sleep one step, so no wake-up is lost.
//!
//! A sleep must end only with a wake-up or a kill, and a wake-up must choose the task that has slept longest.
//! Tests rely on this: if a wake-up is lost, the sleep never ends, so the test hangs or loom reports a
//! deadlock.

use crate::atomic::{AtomicU32, Ordering};
use crate::host::Killed;
use std::vec::Vec;

#[cfg(loom)]
use loom::sync::{Condvar, Mutex};
#[cfg(not(loom))]
use std::sync::{Condvar, Mutex};

/// All tasks that sleep on the addresses of this parking lot.
#[derive(Debug)]
pub(super) struct ParkingLot {
    sleepers: Mutex<Sleepers>,
    condvar: Condvar,
}

/// The sleepers of one parking lot.
#[derive(Debug)]
struct Sleepers {
    /// The number of the next sleeper.
    next: u64,
    /// In the order in which the tasks began to sleep.
    list: Vec<Sleeper>,
}

/// One task that sleeps.
#[derive(Debug)]
struct Sleeper {
    number: u64,
    /// Address of the word that the task sleeps on.
    address: usize,
    /// A wake-up has chosen this sleeper.
    woken: bool,
}

impl ParkingLot {
    pub fn new() -> Self {
        ParkingLot { sleepers: Mutex::new(Sleepers { next: 0, list: Vec::new() }), condvar: Condvar::new() }
    }

    /// If the word has the expected value, sleeps until a wake-up. Calls `killed` before the sleep and after
    /// each wake-up of any task; the sleep fails if `killed` returns true.
    pub fn sleep(&self, word: &AtomicU32, expected: u32, killed: impl Fn() -> bool) -> Result<(), Killed> {
        let mut sleepers = self.sleepers.lock().unwrap();
        if killed() {
            return Err(Killed);
        }
        // Relaxed: a waker takes the mutex after it has changed the word. So either this load sees the
        // change, or the waker finds the sleeper.
        if word.load(Ordering::Relaxed) != expected {
            return Ok(());
        }
        let number = sleepers.next;
        sleepers.next += 1;
        sleepers.list.push(Sleeper { number, address: address(word), woken: false });
        loop {
            sleepers = self.condvar.wait(sleepers).unwrap();
            let at = sleepers.list.iter().position(|sleeper| sleeper.number == number).unwrap();
            let killed = killed();
            if killed || sleepers.list[at].woken {
                sleepers.list.remove(at);
                return if killed { Err(Killed) } else { Ok(()) };
            }
        }
    }

    /// Wakes up to `most` tasks that sleep on the word, beginning with the one that has slept longest.
    pub fn wake(&self, word: &AtomicU32, most: usize) {
        let mut sleepers = self.sleepers.lock().unwrap();
        let address = address(word);
        let asleep = sleepers.list.iter_mut().filter(|sleeper| sleeper.address == address && !sleeper.woken);
        if asleep.take(most).map(|sleeper| sleeper.woken = true).count() > 0 {
            self.condvar.notify_all();
        }
    }

    /// Runs `change`, which makes a fatal signal pending, and makes every sleeper check whether it is killed.
    pub fn wake_killed(&self, change: impl FnOnce()) {
        let _sleepers = self.sleepers.lock().unwrap();
        change();
        self.condvar.notify_all();
    }
}

fn address(word: &AtomicU32) -> usize {
    core::ptr::from_ref(word).addr()
}
