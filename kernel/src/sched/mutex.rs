//! A lock whose waiters sleep. Its holder may wait for a page or for a device. Files (`files/`) use it for
//! positions, contents, readers of pipes, and nested epolls. Short sections that do not sleep use
//! `arch::lock::SpinLock`.
//!
//! | word | meaning | changed by |
//! | --- | --- | --- |
//! | 0 | free | exchange to 1 or 2, by the thread that becomes the holder |
//! | 1 | held | exchange to 0, by the holder; exchange to 2, by a thread that is about to sleep |
//! | 2 | held, and a thread may sleep | exchange to 0, by the holder, which then wakes one thread |
//!
//! The release of the exchange to 0 pairs with the acquire of the exchange that finds 0. A woken thread that
//! takes the lock sets the word to 2, because other threads may still sleep. A wait ends only when the thread
//! gets the lock or is killed, so a signal that does not kill the thread does not interrupt its call.
//!
//! The program `appends.c` of the tests checks that holders exclude each other.

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

/// A lock that one thread holds at a time.
#[derive(Default)]
pub struct Mutex {
    /// 0, 1 or 2: see the table at the head of this file.
    word: AtomicU32,
}

/// The right of the holder. Releases the lock when dropped.
#[must_use = "the lock is released when the guard is dropped"]
pub struct MutexGuard<'a>(&'a Mutex);

impl Mutex {
    pub const fn new() -> Self {
        Mutex { word: AtomicU32::new(FREE) }
    }

    /// Takes the lock. Sleeps until the lock is free, so the caller holds no spin lock.
    ///
    /// # Errors
    ///
    /// EINTR if the thread is killed while waiting.
    pub fn lock(&self) -> Result<MutexGuard<'_>, Errno> {
        if self.word.compare_exchange(FREE, HELD, Acquire, Relaxed).is_ok() {
            return Ok(MutexGuard(self));
        }
        while self.word.swap(WANTED, Acquire) != FREE {
            if current().is_killed() {
                return Err(Errno::EINTR);
            }
            // SeqCst: to wake a thread, the holder first changes the word and then takes the lock of the
            // list. So either this load sees the change, or the holder finds this thread in the list.
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
