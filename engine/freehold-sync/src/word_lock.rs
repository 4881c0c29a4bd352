//! A lock of one word by which tasks sleep: for objects of which there are too many for more.
//!
//! | word | meaning | leaves it by |
//! | --- | --- | --- |
//! | 0 | free | exchange to 1 or 2, by the task that becomes the holder |
//! | 1 | held | exchange to 0, by the holder; compare-and-swap to 2, by a task that is about to sleep |
//! | 2 | held, and somebody may sleep | exchange to 0, by the holder, which then wakes all, perhaps when others have held it since |
//!
//! The release of the exchange to 0 pairs with the acquire of the exchange that finds 0. A waiter sleeps
//! while the word is 2, and the holder wakes whenever it finds 2: no sleeper is forgotten ([`Host::wait`]). A
//! woken waiter takes the lock as 2, since others may still sleep. No order among waiters is promised: the
//! lock is rarely wanted by two.

use crate::atomic::{AtomicU32, Ordering, const_unless_loom};
use crate::host::{Host, Killed};
use crate::rank::{self, Rank};
use core::fmt;
use core::marker::PhantomData;

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// A lock that guards what its owner says it guards. Four bytes; all zero is unlocked.
#[repr(transparent)]
pub struct WordLock {
    /// See the [module's table](self).
    word: AtomicU32,
}

/// The right that a [`WordLock`] gives. Dropping it releases the lock.
#[must_use = "the lock is released when the guard is dropped"]
pub struct WordGuard<'a, H: Host> {
    lock: &'a WordLock,
    rank: Rank,
    host: PhantomData<fn() -> H>,
    /// Not `Send`: the task's record of held locks is its own.
    task: PhantomData<*const ()>,
}

impl WordLock {
    const_unless_loom! {
        /// An unlocked lock.
        pub fn new() -> Self {
            WordLock { word: AtomicU32::new(FREE) }
        }
    }

    /// Takes the lock, sleeping until it is free.
    ///
    /// # Panics
    /// With debug assertions, when `rank` is out of order.
    pub fn lock<H: Host>(&self, rank: Rank) -> WordGuard<'_, H> {
        rank::will_wait::<H>(rank);
        // Acquire: see the module. Relaxed on failure: the word is looked at again.
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
        // Acquire: see the module. Relaxed on failure: nothing was got.
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).ok()?;
        rank::acquired::<H>(rank);
        Some(WordGuard { lock: self, rank, host: PhantomData, task: PhantomData })
    }

    /// Waits until the present holder of the lock, if there is one, has released it; others may hold it by
    /// then.
    ///
    /// # Panics
    /// As [`lock`](Self::lock).
    pub fn wait<H: Host>(&self, rank: Rank) {
        let waited = self.wait_by::<H>(rank, |word, expected| {
            H::wait(word, expected);
            Ok(())
        });
        debug_assert!(waited.is_ok());
    }

    /// As [`wait`](Self::wait), unless a fatal signal ends the wait.
    ///
    /// # Errors
    /// [`Killed`].
    ///
    /// # Panics
    /// As [`lock`](Self::lock).
    pub fn wait_killable<H: Host>(&self, rank: Rank) -> Result<(), Killed> {
        self.wait_by::<H>(rank, H::wait_killable)
    }

    fn wait_by<H: Host>(
        &self,
        rank: Rank,
        sleep: impl Fn(&AtomicU32, u32) -> Result<(), Killed>,
    ) -> Result<(), Killed> {
        rank::will_wait::<H>(rank);
        // Acquire, here and below, pairs with the holder's release: what it did is seen, also if the next one
        // holds it by now.
        let mut seen = self.word.load(Ordering::Acquire);
        while seen != FREE {
            if seen == HELD {
                // Relaxed: only the sleep depends on it.
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

    /// The holder's last step. Returns whether tasks may sleep that it has to wake.
    fn release(&self) -> bool {
        self.word.swap(FREE, Ordering::Release) == CONTENDED
    }

    /// Whether somebody holds it at this moment.
    pub fn is_locked(&self) -> bool {
        // Relaxed: a hint.
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
    /// Releases the lock where nobody may be woken, under a spin lock. Sleepers are woken when what this
    /// returns is dropped; until then others may take the lock and release it.
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

/// Tasks that sleep for a lock that [was released](WordGuard::release_quietly). Dropping this wakes them.
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
