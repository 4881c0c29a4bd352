//! The sequence count over the changes of an interval of addresses. The [module](super) has the protocol.
//!
//! | access | pairs with | effect |
//! | --- | --- | --- |
//! | `active`, increment, then `sequence`, increment, release, in `start` | `sequence`, acquire, then `active`, acquire, in `read_begin` | a reader that finds a new number also finds the change counted, unless the change has ended |
//! | `active`, decrement, release, in `end` | `active`, acquire, in `read_begin` | a reader that finds no change in progress finds the entries that earlier changes stored |
//! | the driver's lock, after `start` | the driver's lock, before `read_retry` | a reader whose translation the change could not remove finds the new number |
//!
//! `loom_tests.rs` checks the table.

use crate::UserRange;
use core::marker::PhantomData;
use freehold_sync::{
    Host,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

/// The value of an interval's sequence count when a lookup began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntervalSequence(u64);

/// The changes of an interval of addresses: the number of changes in progress, and a count of all changes.
///
/// # Examples
///
/// A driver looks up a translation, and installs it unless a change has started since the look-up began:
///
/// ```
/// use freehold_machine::Machine;
/// use freehold_vmspace::{Interval, UserRange};
/// use std::{collections::BTreeMap, sync::Mutex};
///
/// let range = UserRange::new(0x1000, 0x9000);
/// let interval = Interval::<Machine>::new(range);
/// let installed = Mutex::new(BTreeMap::new());
/// let lookup = |_: u64| 7;
///
/// let seen = interval.read_begin();
/// let frame = lookup(0x2000);
/// // A change removes the translation: the driver's listener calls `start` and `end`.
/// interval.start(range);
/// installed.lock().unwrap().clear();
/// interval.end(range);
/// let mut translations = installed.lock().unwrap();
/// assert!(interval.read_retry(seen), "the driver must look up again");
/// # let seen = interval.read_begin();
/// if !interval.read_retry(seen) {
///     translations.insert(0x2000, frame);
/// }
/// ```
pub struct Interval<H> {
    range: UserRange,
    /// Number of changes that have started and not ended.
    active: AtomicU32,
    /// Number of changes that have started.
    sequence: AtomicU64,
    host: PhantomData<fn() -> H>,
}

impl<H: Host> Interval<H> {
    /// Returns an interval without changes.
    pub fn new(range: UserRange) -> Self {
        Interval { range, active: AtomicU32::new(0), sequence: AtomicU64::new(0), host: PhantomData }
    }

    /// Returns the addresses of the interval.
    pub fn range(&self) -> UserRange {
        self.range
    }

    /// Returns true if `range` overlaps the interval.
    fn overlaps(&self, range: UserRange) -> bool {
        range.start() < self.range.end() && self.range.start() < range.end()
    }

    /// Starts a change of `range`, for [`Listener::range_start`](super::Listener). Returns true if the range
    /// overlaps the interval. The listener then takes the driver's lock and removes the translations of the
    /// range.
    pub fn start(&self, range: UserRange) -> bool {
        let overlaps = self.overlaps(range);
        if overlaps {
            // Relaxed: the release of the sequence number publishes the increment.
            self.active.fetch_add(1, Ordering::Relaxed);
            self.sequence.fetch_add(1, Ordering::Release);
        }
        overlaps
    }

    /// Ends a change of `range`, for [`Listener::range_end`](super::Listener).
    pub fn end(&self, range: UserRange) {
        if self.overlaps(range) && self.active.fetch_sub(1, Ordering::Release) == 1 {
            H::wake_all(&self.active);
        }
    }

    /// Waits until no change of the interval is in progress, and returns the sequence count. The caller looks
    /// up a translation afterwards, and holds no lock that a listener or the engine takes.
    pub fn read_begin(&self) -> IntervalSequence {
        loop {
            let sequence = self.sequence.load(Ordering::Acquire);
            let active = self.active.load(Ordering::Acquire);
            if active == 0 {
                return IntervalSequence(sequence);
            }
            H::wait(&self.active, active);
        }
    }

    /// Returns true if a change of the interval has started since `seen` was read, so that the translation
    /// that was looked up may be wrong. The caller holds the driver's lock, and installs the translation
    /// before it releases the lock.
    pub fn read_retry(&self, seen: IntervalSequence) -> bool {
        // Relaxed: the driver's lock orders this load after the increment of a change that has removed the
        // driver's translations.
        self.sequence.load(Ordering::Relaxed) != seen.0
    }
}
