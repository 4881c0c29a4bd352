//! Seals, and the word of a file that says who can write to it. What they are for: [`seals`](super::seals).

use bitflags::bitflags;
use freehold_sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

bitflags! {
    /// Seals of a memfd, with Linux's numbers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Seals: u32 {
        /// F_SEAL_SEAL: no more seals.
        const SEAL = 1;
        /// F_SEAL_SHRINK: never shorter.
        const SHRINK = 2;
        /// F_SEAL_GROW: never longer.
        const GROW = 4;
        /// F_SEAL_WRITE: nobody writes.
        const WRITE = 8;
        /// F_SEAL_FUTURE_WRITE: nobody writes but through the mappings there are.
        const FUTURE_WRITE = 0x10;
        /// F_SEAL_EXEC: as executable as it is. Rights of files are the embedder's, and so is what this means
        /// for them; of a file that can be executed, Linux seals sizes and contents with it.
        const EXEC = 0x20;
    }
}

impl Seals {
    pub(super) const ANY_WRITE: Seals = Seals::WRITE.union(Seals::FUTURE_WRITE);
}

/// Nobody may map the file for writing.
const DENIED: u64 = u64::MAX;

/// What a file keeps of its seals.
pub(super) struct Sealing {
    /// Whether seals can be had at all. Fixed.
    pub(super) possible: bool,
    pub(super) seals: AtomicU32,
    /// See the module's table.
    pub(super) writers: AtomicU64,
}

impl Sealing {
    /// Of a file that can, or cannot, be sealed.
    pub fn new(possible: bool) -> Self {
        Sealing { possible, seals: AtomicU32::new(0), writers: AtomicU64::new(0) }
    }

    pub(super) fn seals(&self) -> Seals {
        // Acquire pairs with the release in `add_seals`.
        Seals::from_bits_retain(self.seals.load(Acquire))
    }

    /// One more that can write, unless that is denied.
    pub(super) fn allow(&self) -> bool {
        let mut seen = self.writers.load(Relaxed);
        while seen != DENIED {
            // Relaxed, as wherever this counts up: what it guards, locks order.
            match self.writers.compare_exchange_weak(seen, seen + 1, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    pub(super) fn leave(&self) {
        // Release pairs with the acquire in `deny`: stores through the mapping come before the seal.
        self.writers.fetch_sub(1, Release);
    }

    pub(super) fn deny(&self) -> bool {
        // Acquire: as above.
        self.writers.compare_exchange(0, DENIED, Acquire, Relaxed).is_ok()
    }
}
