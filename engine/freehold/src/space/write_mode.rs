//! Whether changes of an address space run side by side or take turns, with [`Write::Ranges`].
//!
//! Side by side, a change pays for its claim; and where it meets another, in one hole or one VMA, it pays
//! more than a turn at the mmap lock costs. So an address space goes from one to the other as it is used:
//!
//! | changes | take turns from | until |
//! | --- | --- | --- |
//! | of one task | the last of many that ran side by side, and beside nobody | one finds another under way |
//! | that rarely meet | never | |
//! | of which an eighth meets others | the meeting that makes it so many | [`TURNS`] of them have waited for their turn |
//!
//! The gate of the mmap lock says which of the two it is (`freehold-sync/src/mmap_lock/gate.rs`); here is
//! only when to change it. All of it are hints.

use super::{AddressSpace, Write};
use crate::platform::Platform;
use freehold_sync::atomic::{AtomicU32, Ordering::Relaxed};

/// How many changes wait for their turn before it is tried again whether they meet: in a millisecond or two.
const TURNS: u32 = 4096;

/// How many meetings are too many, less those that are forgiven.
const MEETINGS: u32 = 16;

/// A CPU forgives so many meetings, of its own or of others,
const FORGIVEN: u32 = 2;

/// in so many changes. So meetings add up where more than an eighth of all changes meets.
const PERIOD: u64 = 16;

/// A CPU looks for others in so many changes, times the number of CPUs: a look goes to all of them.
const LOOK: u64 = 64;

/// See the [module](self).
pub(crate) struct WriteContention {
    /// Meetings, less those forgiven. Written where changes meet, and a while after.
    met: AtomicU32,
    /// How many changes that wait are still to take turns.
    left: AtomicU32,
}

impl WriteContention {
    pub fn new() -> Self {
        WriteContention { met: AtomicU32::new(0), left: AtomicU32::new(0) }
    }

    /// Some of the meetings are forgiven.
    #[inline]
    fn decay(&self) {
        // Nearly always there are none.
        let met = self.met.load(Relaxed);
        if met > 0 {
            self.met.store(met.saturating_sub(FORGIVEN), Relaxed);
        }
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Whether a change that could be one of a part should be: it has found the mmap lock taken, or changes
    /// run side by side already. Counts it.
    #[inline]
    pub(crate) fn prefers_ranges(&self) -> bool {
        match self.locking.write {
            Write::Whole => false,
            Write::RangesOnly => true,
            Write::Ranges if self.turns.left.load(Relaxed) > 0 => false,
            Write::Ranges => !self.mmap_lock.admits_range_writers() || self.keeps_ranges(),
        }
    }

    /// Whether changes should go on to run side by side.
    fn keeps_ranges(&self) -> bool {
        let changes = self.counters.count_change();
        if changes.is_multiple_of(PERIOD) {
            self.turns.decay();
            if changes.is_multiple_of(LOOK) {
                return !self.counters.only_this_cpu_changed(changes, LOOK);
            }
        }
        true
    }

    /// A change of a part has met another one. Returns whether it should go on as one of the whole: then
    /// changes take turns for a while.
    #[cold]
    pub(super) fn record_contention(&self) -> bool {
        if self.locking.write != Write::Ranges || self.turns.met.fetch_add(1, Relaxed) < MEETINGS {
            return false;
        }
        self.turns.met.store(0, Relaxed);
        self.turns.left.store(TURNS, Relaxed);
        true
    }

    /// A change that waited for its turn has it.
    #[inline]
    pub(crate) fn count_exclusive(&self) {
        let left = self.turns.left.load(Relaxed);
        // Counted by CPU, and only now and then for all: the next one has enough lines to fetch.
        if left > 0 && self.counters.count_change().is_multiple_of(LOOK) {
            self.turns.left.store(left.saturating_sub(LOOK as u32), Relaxed);
        }
    }
}
