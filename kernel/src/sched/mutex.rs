//! A lock that threads sleep for: what a holder does may wait for a page, or for a device.
//!
//! | word | meaning | leaves it by |
//! | --- | --- | --- |
//! | 0 | free | exchange to 1 or 2, by the thread that becomes the holder |
//! | 1 | held | exchange to 0, by the holder; exchange to 2, by a thread that is about to sleep |
//! | 2 | held, and somebody may sleep | exchange to 0, by the holder, which then wakes one |
//!
//! The release of the exchange to 0 pairs with the acquire of the exchange that finds 0. A thread that was
//! woken takes the lock as 2, since others may still sleep.

use super::thread::current;
use crate::sched::wait::{self, Key, Sleep, Woken};
use core::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};
use freehold::error::Errno;

const FREE: u32 = 0;
const HELD: u32 = 1;
const WANTED: u32 = 2;

/// A lock that one thread has at a time.
#[derive(Default)]
pub struct Mutex {
    /// See the module's table.
    word: AtomicU32,
}

/// The lock is held; dropping this gives it back.
#[must_use = "the lock is given back when the guard is dropped"]
pub struct MutexGuard<'a>(&'a Mutex);

impl Mutex {
    pub const fn new() -> Self {
        Mutex { word: AtomicU32::new(FREE) }
    }

    /// Takes the lock; sleeps until it is free. No spin lock is held.
    ///
    /// # Errors
    ///
    /// EINTR: the thread has to end.
    pub fn lock(&self) -> Result<MutexGuard<'_>, Errno> {
        if self.word.compare_exchange(FREE, HELD, Acquire, Relaxed).is_ok() {
            return Ok(MutexGuard(self));
        }
        while self.word.swap(WANTED, Acquire) != FREE {
            if current().is_killed() {
                return Err(Errno::EINTR);
            }
            // SeqCst: the holder changes the word first, and needs the lock of the list to wake.
            let waiting = wait::enqueue_if(self.key(), || self.word.load(SeqCst) == WANTED);
            if waiting.is_some_and(|waiting| waiting.sleep(Sleep::Killable, u64::MAX) == Woken::Signal) {
                return Err(Errno::EINTR);
            }
        }
        Ok(MutexGuard(self))
    }

    fn key(&self) -> Key {
        Key::kernel(self.word.as_ptr() as u64)
    }
}

impl Drop for MutexGuard<'_> {
    fn drop(&mut self) {
        if self.0.word.swap(FREE, Release) == WANTED {
            wait::wake(self.0.key(), 1);
        }
    }
}
