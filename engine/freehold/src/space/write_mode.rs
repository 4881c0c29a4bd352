//! The choice between range writers and exclusive writers, with [`Write::Ranges`].
//!
//! A range writer pays for its claim; and where it meets another, in one hole or one VMA, it pays more than a
//! turn at the mmap lock costs. So an address space goes from one kind to the other as it is used:
//!
//! | changes | are exclusive writers from | until |
//! | --- | --- | --- |
//! | of one task | the last of many range writers that met no other | one finds another under way |
//! | that rarely meet | never | |
//! | of which an eighth has a conflict | the conflict that makes it so many | [`EXCLUSIVE_CHANGES`] of them have waited for their turn |
//!
//! The gate of the mmap lock says which of the two it is (`freehold-sync/src/mmap_lock/gate.rs`); here is
//! only when to change it. All of it are hints.

use super::{AddressSpace, Write};
use crate::platform::Platform;
use freehold_sync::atomic::Ordering::Relaxed;

/// The number of changes that take turns before ranges are tried again: those of a millisecond or two.
const EXCLUSIVE_CHANGES: u32 = 4096;

/// How many conflicts are too many, after decay.
const MAX_CONFLICTS: u32 = 16;

/// in so many changes. So conflicts add up where more than an eighth of all changes has one.
const DECAY_PERIOD: u64 = 16;

/// A CPU asks whether it is the only one that changes the space in so many changes, times the number of CPUs:
/// the question goes to all of them.
const SOLO_CHECK_PERIOD: u64 = 64;

impl<P: Platform> AddressSpace<P> {
    /// Returns true if a change that can be a range writer should be one: it found the mmap lock taken, or
    /// there are range writers already. Counts the change.
    #[inline]
    pub(crate) fn prefers_ranges(&self) -> bool {
        match self.locking.write {
            Write::Whole => false,
            Write::RangesOnly => true,
            Write::Ranges if self.contention.exclusive_left.load(Relaxed) > 0 => false,
            Write::Ranges => !self.mmap_lock.admits_range_writers() || self.keeps_ranges(),
        }
    }

    /// Returns true if changes should stay range writers.
    fn keeps_ranges(&self) -> bool {
        let changes = self.counters.count_write();
        if changes.is_multiple_of(DECAY_PERIOD) {
            self.contention.decay();
            if changes.is_multiple_of(SOLO_CHECK_PERIOD) {
                return !self.counters.only_this_cpu_changed(changes, SOLO_CHECK_PERIOD);
            }
        }
        true
    }

    /// Counts a conflict between range writers. Returns true if there are too many: then changes are
    /// exclusive writers for a while.
    #[cold]
    pub(super) fn record_contention(&self) -> bool {
        if self.locking.write != Write::Ranges
            || self.contention.conflicts.fetch_add(1, Relaxed) < MAX_CONFLICTS
        {
            return false;
        }
        self.contention.conflicts.store(0, Relaxed);
        self.contention.exclusive_left.store(EXCLUSIVE_CHANGES, Relaxed);
        true
    }

    /// A change that waited for its turn has it.
    #[inline]
    pub(crate) fn count_exclusive(&self) {
        let exclusive_left = self.contention.exclusive_left.load(Relaxed);
        // Counted by CPU, and only now and then for all: the next one has enough lines to fetch.
        if exclusive_left > 0 && self.counters.count_write().is_multiple_of(SOLO_CHECK_PERIOD) {
            self.contention
                .exclusive_left
                .store(exclusive_left.saturating_sub(SOLO_CHECK_PERIOD as u32), Relaxed);
        }
    }

    /// Returns true if changes of disjoint ranges may be range writers.
    #[inline]
    pub(crate) fn supports_range_writers(&self) -> bool {
        self.locking.write != Write::Whole
    }

    /// Returns true if there may be range writers now: a hint.
    #[inline]
    pub(crate) fn has_range_writers(&self) -> bool {
        self.supports_range_writers()
            && (self.mmap_lock.admits_range_writers() || self.locking.write == Write::RangesOnly)
    }
}
