//! Counters that tasks sleep on until the state of a page changes, where the word that has the state cannot
//! be slept on: a page of a file that is being read or written (`file/cache/reading.rs`, `file/write.rs`),
//! and a page that is being read from a swap device (`swap/slot.rs`).
//!
//! A set of counters serves many pages, so a wake-up of one page may wake the sleepers of another, which look
//! again. A sleeper first reads the counter, then makes sure that the end of the wait will be announced (it
//! sets a bit in the word of the page), and then sleeps unless the counter has changed. The task that ends
//! the wait changes the word first, and calls [`Turn::wake`] if the bit was set.
//!
//! `turns_loom_tests.rs` tests a waiter whose state is a word of its own, as in the queue of a userfaultfd.
//! The other users have tests with their states: `reading_loom_tests.rs`, `marks_loom_tests.rs`,
//! `slot_loom_tests.rs`.

use freehold_sync::{
    Host, Killed,
    atomic::{
        AtomicU32, CHECKED,
        Ordering::{Acquire, Release},
    },
};

/// Number of counters of a set.
const TURNS: usize = if CHECKED { 1 } else { 64 };

/// A set of counters.
pub(crate) struct Turns([AtomicU32; TURNS]);

impl Turns {
    /// Creates the counters.
    pub fn new() -> Self {
        Turns(core::array::from_fn(|_| AtomicU32::new(0)))
    }

    /// Returns the counter for a page. `object` identifies the file or the device that has the page.
    pub fn of(&self, object: usize, index: u64) -> Turn<'_> {
        // Mixes the address of the object, whose low bits are zero, with the index.
        let mixed = (object as u64 >> 6).wrapping_add(index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Turn(&self.0[(mixed >> 58) as usize % TURNS])
    }
}

/// The counter that the sleepers of a page use.
#[derive(Clone, Copy)]
pub(crate) struct Turn<'t>(&'t AtomicU32);

impl<'t> Turn<'t> {
    /// Returns a counter that does not belong to a set.
    pub fn on(counter: &'t AtomicU32) -> Self {
        Turn(counter)
    }

    /// Sleeps until `ended` returns a value. As long as `ended` returns `None`, it has made sure that the end
    /// wakes the caller.
    ///
    /// # Errors
    ///
    /// Fails with `Killed` if a fatal signal ends the wait.
    pub fn wait<H: Host, T>(self, ended: impl Fn() -> Option<T>) -> Result<T, Killed> {
        self.wait_by(H::wait_killable, ended)
    }

    /// Sleeps like [`wait`](Self::wait), by a wait of the host.
    ///
    /// # Errors
    ///
    /// Fails if `sleep` fails.
    pub fn wait_by<T, E>(
        self,
        sleep: impl Fn(&AtomicU32, u32) -> Result<(), E>,
        ended: impl Fn() -> Option<T>,
    ) -> Result<T, E> {
        loop {
            // Acquire pairs with the release in `wake`: a sleeper that reads the new count sees the new
            // state.
            let seen = self.0.load(Acquire);
            match ended() {
                None => sleep(self.0, seen)?,
                Some(ended) => return Ok(ended),
            }
        }
    }

    /// Sleeps as long as `under_way` returns true. It first makes sure that the end wakes the caller.
    ///
    /// # Errors
    ///
    /// Fails with `Killed` if a fatal signal ends the wait.
    pub fn wait_while<H: Host>(self, under_way: impl Fn() -> bool) -> Result<(), Killed> {
        self.wait::<H, ()>(|| (!under_way()).then_some(()))
    }

    /// Wakes the tasks that sleep on the counter, after the state of a page has changed.
    pub fn wake<H: Host>(self) {
        // Release pairs with the acquire in `wait_by`.
        self.0.fetch_add(1, Release);
        H::wake_all(self.0);
    }
}

#[cfg(all(test, loom))]
#[path = "turns_loom_tests.rs"]
mod loom_tests;
