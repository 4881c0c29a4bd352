//! A sleeping lock of one word, for objects that exist in large numbers: the lock of each frame
//! (`freehold-vmspace`). `tests/loom_small.rs` tests it.
//!
//! | word | meaning | transitions |
//! | --- | --- | --- |
//! | 0 | free | to 1: compare-and-swap in `lock` and `try_lock`, by the task that becomes the holder. To 2: exchange in `lock`, by a task whose compare-and-swap failed, and which becomes the holder |
//! | 1 | held | to 0: exchange, by the holder. To 2: exchange in `lock` or compare-and-swap in `wait`, by a task that is about to sleep |
//! | 2 | held, and tasks may sleep | to 0: exchange, by the holder, which then wakes all sleepers; other tasks may take the lock before the wake-up. To 2: exchange in `lock`, by another task that is about to sleep |
//!
//! The release of the exchange to 0 pairs with two acquires. The first acquire belongs to the
//! compare-and-swap or the exchange that finds 0. The second acquire belongs to `wait`, when `wait` reads 0
//! or the value that a later holder stored. A waiter sleeps while the word is 2, and the holder wakes all
//! sleepers if it finds 2, so no sleeper is forgotten ([`Host::wait`]). A waiter in `lock` takes the lock by
//! an exchange to 2, because other tasks may still sleep. The lock guarantees no order among waiters: it is
//! rare that several tasks wait for the same lock.

use crate::atomic::{AtomicU32, Ordering, const_unless_loom};
use crate::host::{Host, Killed};
use crate::rank::{self, Rank};
use core::fmt;
use core::marker::PhantomData;

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// A sleeping lock of one word. Its owner defines what it guards. Four bytes; all zero is unlocked.
#[repr(transparent)]
pub struct WordLock {
    /// See the [module's table](self).
    word: AtomicU32,
}

/// Guard of a [`WordLock`]. Releases the lock when dropped.
#[must_use = "the lock is released when the guard is dropped"]
pub struct WordGuard<'a, H: Host> {
    lock: &'a WordLock,
    rank: Rank,
    host: PhantomData<fn() -> H>,
    /// Not `Send`: the rank checker keeps its record of held locks per task.
    task: PhantomData<*const ()>,
}

impl WordLock {
    const_unless_loom! {
        /// Creates an unlocked lock.
        pub fn new() -> Self {
            WordLock { word: AtomicU32::new(FREE) }
        }
    }

    /// Takes the lock, sleeping until it is free.
    ///
    /// # Panics
    /// With debug assertions, panics if the task holds a lock that does not precede `rank`.
    pub fn lock<H: Host>(&self, rank: Rank) -> WordGuard<'_, H> {
        rank::will_wait::<H>(rank);
        // Acquire: pairs with the release in `release`. Relaxed on failure: the swap below acquires.
        if self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.word.swap(CONTENDED, Ordering::Acquire) != FREE {
                H::wait(&self.word, CONTENDED);
            }
        }
        rank::acquired::<H>(rank);
        WordGuard { lock: self, rank, host: PhantomData, task: PhantomData }
    }

    /// Takes the lock if it is free.
    pub fn try_lock<H: Host>(&self, rank: Rank) -> Option<WordGuard<'_, H>> {
        // Acquire: pairs with the release in `release`. Relaxed on failure: nothing was acquired.
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).ok()?;
        rank::acquired::<H>(rank);
        Some(WordGuard { lock: self, rank, host: PhantomData, task: PhantomData })
    }

    /// If a task holds the lock, waits until that task has released it. Another task may hold the lock when
    /// this returns.
    ///
    /// # Panics
    /// Panics like [`lock`](Self::lock).
    pub fn wait<H: Host>(&self, rank: Rank) {
        let waited = self.wait_by::<H>(rank, |word, expected| {
            H::wait(word, expected);
            Ok(())
        });
        debug_assert!(waited.is_ok());
    }

    /// Like [`wait`](Self::wait), but returns early if a fatal signal is pending.
    ///
    /// # Errors
    /// Fails with [`Killed`] if a fatal signal arrives before or during the wait.
    ///
    /// # Panics
    /// Panics like [`lock`](Self::lock).
    pub fn wait_killable<H: Host>(&self, rank: Rank) -> Result<(), Killed> {
        self.wait_by::<H>(rank, H::wait_killable)
    }

    /// Waits with `sleep` until a holder releases the lock. The caller does not get the lock.
    fn wait_by<H: Host>(
        &self,
        rank: Rank,
        sleep: impl Fn(&AtomicU32, u32) -> Result<(), Killed>,
    ) -> Result<(), Killed> {
        rank::will_wait::<H>(rank);
        // Acquire, here and below: pairs with the release in `release`. The caller sees what the holder did,
        // even if the next task already holds the lock.
        let mut seen = self.word.load(Ordering::Acquire);
        while seen != FREE {
            if seen == HELD {
                // Relaxed on success: only the sleep below depends on the exchange.
                let contended =
                    self.word.compare_exchange(HELD, CONTENDED, Ordering::Relaxed, Ordering::Acquire);
                if let Err(now) = contended {
                    seen = now;
                    continue;
                }
            }
            sleep(&self.word, CONTENDED)?;
            seen = self.word.load(Ordering::Acquire);
            if seen == HELD {
                break;
            }
        }
        Ok(())
    }

    /// Releases the word. Returns true if tasks may be asleep; the holder must then wake them.
    fn release(&self) -> bool {
        self.word.swap(FREE, Ordering::Release) == CONTENDED
    }

    /// Returns true if the lock is held at the moment of the call.
    pub fn is_locked(&self) -> bool {
        // Relaxed: only a hint.
        self.word.load(Ordering::Relaxed) != FREE
    }
}

impl Default for WordLock {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for WordLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WordLock").field("locked", &self.is_locked()).finish()
    }
}

impl<'a, H: Host> WordGuard<'a, H> {
    /// Releases the lock without waking a task, for a holder that has a spin lock. The sleepers are woken
    /// when the returned [`Sleepers`] is dropped; other tasks may take and release the lock before that.
    pub fn release_quietly(self) -> Option<Sleepers<'a, H>> {
        let WordGuard { lock, rank, .. } = self;
        core::mem::forget(self);
        rank::released_quietly::<H>(rank);
        lock.release().then(|| Sleepers { lock, host: PhantomData })
    }
}

impl<H: Host> Drop for WordGuard<'_, H> {
    fn drop(&mut self) {
        rank::released::<H>(self.rank);
        if self.lock.release() {
            H::wake_all(&self.lock.word);
        }
    }
}

/// Tasks that sleep for a lock [released quietly](WordGuard::release_quietly). Wakes them when dropped.
#[must_use = "they are woken when this is dropped"]
pub struct Sleepers<'a, H: Host> {
    lock: &'a WordLock,
    host: PhantomData<fn() -> H>,
}

impl<H: Host> Drop for Sleepers<'_, H> {
    fn drop(&mut self) {
        H::wake_all(&self.lock.word);
    }
}
