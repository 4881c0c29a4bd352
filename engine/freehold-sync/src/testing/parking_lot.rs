//! Where the tasks of the test hosts sleep.

use crate::atomic::{AtomicU32, Ordering};
use crate::host::Killed;
use std::vec::Vec;

#[cfg(loom)]
use loom::sync::{Condvar, Mutex};
#[cfg(not(loom))]
use std::sync::{Condvar, Mutex};

/// All sleepers whose addresses belong here.
#[derive(Debug)]
pub(super) struct ParkingLot {
    sleepers: Mutex<Sleepers>,
    condvar: Condvar,
}

#[derive(Debug)]
struct Sleepers {
    next: u64,
    /// In the order of their coming.
    list: Vec<Sleeper>,
}

#[derive(Debug)]
struct Sleeper {
    number: u64,
    address: usize,
    woken: bool,
}

impl ParkingLot {
    pub fn new() -> Self {
        ParkingLot { sleepers: Mutex::new(Sleepers { next: 0, list: Vec::new() }), condvar: Condvar::new() }
    }

    /// Sleeps while the word is as expected. `killed` is asked before sleeping and whenever somebody calls
    /// `wake_killed`.
    pub fn sleep(&self, word: &AtomicU32, expected: u32, killed: impl Fn() -> bool) -> Result<(), Killed> {
        let mut sleepers = self.sleepers.lock().unwrap();
        if killed() {
            return Err(Killed);
        }
        // Relaxed: a wake-up takes the mutex after the word was changed, so either its change is seen here or
        // it finds the sleeper.
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

    pub fn wake(&self, word: &AtomicU32, most: usize) {
        let mut sleepers = self.sleepers.lock().unwrap();
        let address = address(word);
        let asleep = sleepers.list.iter_mut().filter(|sleeper| sleeper.address == address && !sleeper.woken);
        if asleep.take(most).map(|sleeper| sleeper.woken = true).count() > 0 {
            self.condvar.notify_all();
        }
    }

    /// Makes `change`, and every sleeper ask whether it is killed.
    pub fn wake_killed(&self, change: impl FnOnce()) {
        let _sleepers = self.sleepers.lock().unwrap();
        change();
        self.condvar.notify_all();
    }
}

fn address(word: &AtomicU32) -> usize {
    core::ptr::from_ref(word).addr()
}
