//! The state of a file's seals ([`Sealing`]): the seals, and the word that counts the writers.
//!
//! `seals.rs` has the protocol, the table of the word's values, and the operations. This file has the atomic
//! accesses. No increment or decrement may change the word while it is `DENIED`. The release in `leave` must
//! pair with the acquire in `deny`, so that a store through a mapping happens before the seal.
//! `write_seal_and_writable_mmap_exclude_each_other` in `tests/files/seals.rs` tests the race, and
//! `sealing_loom_tests.rs` the orders.

use bitflags::bitflags;
use freehold_sync::{
    atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
    publish::PublishedNumber,
};

bitflags! {
    /// Seals of a memfd, with Linux's numbers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Seals: u32 {
        /// F_SEAL_SEAL: no more seals can be added.
        const SEAL = 1;
        /// F_SEAL_SHRINK: the file cannot shrink.
        const SHRINK = 2;
        /// F_SEAL_GROW: the file cannot grow.
        const GROW = 4;
        /// F_SEAL_WRITE: the contents cannot change.
        const WRITE = 8;
        /// F_SEAL_FUTURE_WRITE: the contents can change only through existing mappings.
        const FUTURE_WRITE = 0x10;
        /// F_SEAL_EXEC: the execute permission cannot change. The embedder keeps file permissions and gives
        /// this seal its meaning. If the file is executable, Linux also seals its size and contents.
        const EXEC = 0x20;
    }
}

impl Seals {
    /// The seals that forbid new writers.
    pub(super) const ANY_WRITE: Seals = Seals::WRITE.union(Seals::FUTURE_WRITE);
}

/// Value of `writers` while the file cannot be mapped for writing.
const DENIED: u64 = u64::MAX;

/// The seals of a file and the count of its writers.
pub(super) struct Sealing {
    /// True if the file can be sealed. Never changes.
    pub(super) possible: bool,
    /// The bits of [`Seals`]. Written under the content lock held for writing.
    pub(super) seals: PublishedNumber,
    /// Count of writers, or `DENIED`; the table in `seals` describes the values.
    pub(super) writers: AtomicU64,
}

impl Sealing {
    /// Creates the state of a file that can be sealed if `possible`.
    pub fn new(possible: bool) -> Self {
        Sealing { possible, seals: PublishedNumber::new(0), writers: AtomicU64::new(0) }
    }

    /// Returns the seals.
    pub(super) fn seals(&self) -> Seals {
        Seals::from_bits_retain(self.seals.get() as u32)
    }

    /// Counts one more writer, unless writers are denied. Returns true if the writer was counted.
    pub(super) fn allow(&self) -> bool {
        let mut seen = self.writers.load(Relaxed);
        while seen != DENIED {
            // Relaxed, as for every increment of this count: locks order the data that the count guards.
            match self.writers.compare_exchange_weak(seen, seen + 1, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Uncounts a writer.
    pub(super) fn leave(&self) {
        // Release pairs with the acquire in `deny`: stores through the mapping happen before the seal.
        self.writers.fetch_sub(1, Release);
    }

    /// Denies new writers if the file has no writer. Returns true if new writers are now denied.
    pub(super) fn deny(&self) -> bool {
        // Acquire pairs with the release in `leave`.
        self.writers.compare_exchange(0, DENIED, Acquire, Relaxed).is_ok()
    }
}

#[cfg(all(test, loom))]
#[path = "sealing_loom_tests.rs"]
mod loom_tests;
