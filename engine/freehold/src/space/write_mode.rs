//! The choice between range writers and exclusive writers, with [`Write::Ranges`].
//!
//! Making a claim takes time. If two range writers conflict in a hole or a VMA, the conflict costs more than
//! waiting for the mmap lock. An address space therefore changes between the two kinds of writer according to
//! its use:
//!
//! | changes | are exclusive writers from | until |
//! | --- | --- | --- |
//! | of a single task | the end of a period in which nearly all changes were made on one CPU | a change finds another change under way |
//! | with few conflicts | never | |
//! | with a conflict in more than an eighth of them | the conflict that exceeds the limit | about [`EXCLUSIVE_CHANGES`] changes have waited to be the exclusive writer |
//!
//! The gate of the mmap lock records which kind is in use (`freehold-sync/src/mmap_lock/gate.rs`). This file
//! only decides when to change the kind. All values here are hints.
//!
//! `claim.rs`, `closing.rs`, mmap and faults call these functions. A change here cannot make a result wrong,
//! but may make calls slow: the benchmark `writers` (`freehold-bench`) measures their speed.

use super::{AddressSpace, Write, design::MmapHold};
use crate::platform::Platform;
use freehold_sync::atomic::Ordering::Relaxed;

/// The number of changes that are exclusive writers before range writers are tried again: about one or two
/// milliseconds of changes.
const EXCLUSIVE_CHANGES: u32 = 4096;

/// The number of conflicts, after decay, that makes changes exclusive writers.
const MAX_CONFLICTS: u32 = 16;

/// The number of changes on one CPU after which some conflicts are removed from the count. The count grows if
/// more than an eighth of all changes conflict.
const DECAY_PERIOD: u64 = 16;

/// The number of changes, times the number of CPUs, after which a CPU checks whether it is the only CPU that
/// changes the space. The check reads a counter of every CPU.
const SOLO_CHECK_PERIOD: u64 = 64;

impl<P: Platform> AddressSpace<P> {
    /// Returns true if a change that can be a range writer should be one: either it found the mmap lock
    /// taken, or there are range writers already. Counts the change.
    #[inline]
    pub(crate) fn prefers_ranges(&self) -> bool {
        match self.write_kind() {
            Write::Whole => false,
            Write::RangesOnly => true,
            Write::Ranges if self.contention.exclusive_left.load(Relaxed) > 0 => false,
            Write::Ranges => !self.mmap_lock.admits_range_writers() || self.keeps_ranges(),
        }
    }

    /// Returns true if changes should continue as range writers.
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

    /// Counts a conflict between range writers. Returns true if there are too many; changes are then
    /// exclusive writers for a while.
    #[cold]
    pub(crate) fn record_contention(&self) -> bool {
        if self.write_kind() != Write::Ranges
            || self.contention.conflicts.fetch_add(1, Relaxed) < MAX_CONFLICTS
        {
            return false;
        }
        self.contention.conflicts.store(0, Relaxed);
        self.contention.exclusive_left.store(EXCLUSIVE_CHANGES, Relaxed);
        true
    }

    /// Counts a change that has become the exclusive writer after waiting.
    #[inline]
    pub(crate) fn count_exclusive(&self) {
        let exclusive_left = self.contention.exclusive_left.load(Relaxed);
        // Counts per CPU, and updates the shared word only once per period: the next writer already has to
        // fetch many cache lines.
        if exclusive_left > 0 && self.counters.count_write().is_multiple_of(SOLO_CHECK_PERIOD) {
            self.contention
                .exclusive_left
                .store(exclusive_left.saturating_sub(SOLO_CHECK_PERIOD as u32), Relaxed);
        }
    }

    /// Returns the kind of writers of this address space.
    #[cfg_attr(feature = "inline", inline(always))]
    pub(super) fn write_kind(&self) -> Write {
        self.locking.write.available()
    }

    /// Returns true if changes of disjoint ranges may be range writers.
    #[inline]
    pub(crate) fn supports_range_writers(&self) -> bool {
        self.write_kind() != Write::Whole
    }

    /// Returns true if there may be range writers now. The result is a hint.
    #[inline]
    pub(crate) fn has_range_writers(&self) -> bool {
        self.supports_range_writers()
            && (self.mmap_lock.admits_range_writers() || self.write_kind() == Write::RangesOnly)
    }

    /// Returns true if a munmap may be a range writer. `Sectioned` and `Downgraded` require the exclusive
    /// writer, because they hold a lock over more than the range while they zap pages.
    pub(crate) fn range_writers_unmap(&self) -> bool {
        let policy = self.locking.unmap.policy();
        policy.sections.is_none() && !matches!(policy.held, MmapHold::Read)
    }
}
