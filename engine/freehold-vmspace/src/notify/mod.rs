//! Notifications about changes of a space (Linux: MMU notifiers), for devices and hypervisors that keep
//! translations of their own.
//!
//! A [`Listener`] hears about every change that removes a translation, replaces it, or takes a right from it.
//! [`Interval`] is the sequence count that a listener's driver checks before it installs a translation. The
//! gathers of a space announce the changes: [`VmSpace::gather`](crate::VmSpace) takes the range of the
//! change, and every operation that stores such a change takes a gather. `listeners.rs` keeps the listeners
//! of a space and delivers the notifications, and `interval.rs` has the sequence count.
//!
//! # The protocol
//!
//! | step | task that changes the space | driver that installs a translation |
//! | --- | --- | --- |
//! | 1 | `range_start`: starts the change in the interval, then removes the driver's translations of the range under the driver's lock | `read_begin`: waits until no change of the interval is in progress, and returns the sequence number |
//! | 2 | changes the entries, with the locks of their tables held | looks the translation up in the space |
//! | 3 | flushes the TLBs | takes the driver's lock; if `read_retry` returns true, releases the lock and starts again |
//! | 4 | `range_end`: ends the change in the interval | installs the translation, and releases the driver's lock |
//! | 5 | releases the frames | |
//!
//! The driver never has a translation that the space has lost. If the driver takes its lock in step 3 before
//! the task takes it in step 1, the task removes the translation. If the driver takes its lock afterwards, it
//! finds that a change has started since step 1. If the change had ended before step 1 of the driver, the
//! lookup in step 2 finds the changed entry. A gather may release frames between two parts of a large range;
//! this is correct because no driver has a translation of the range until `range_end`.
//!
//! A listener is registered while changes may be in progress. Registration publishes the listener, and then
//! takes each lock once under which entries are changed (`space/listener.rs` of `freehold`). A change that
//! began without a notification has therefore stored its entries before registration returns, and before the
//! driver looks up its first translation.
//!
//! # Cost
//!
//! Without a listener, a gather loads one flag that only registration changes. The flag is next to the
//! pointer to the space's memory, which every gather uses.
//!
//! # Tests
//!
//! `loom_tests.rs` checks the sequence count and the removal of a listener in all interleavings.
//! `shuttle_engine/listeners.rs` explores the protocol in the whole engine. `tests/sweep/heard.rs` of
//! `freehold` compares a device with the tables after every call.

mod interval;
mod listeners;
#[cfg(all(test, loom))]
mod loom_tests;

pub use interval::{Interval, IntervalSequence};
pub(crate) use listeners::{Heard, Listeners};
pub use listeners::{ListenError, ListenerId};

use crate::UserRange;

/// The reason why a change that must not sleep is not made: a listener would have to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// A user of translations of a space that no flush of a TLB reaches: a device, or the second stage of a
/// guest.
///
/// # Contract
///
/// From the return of [`range_start`](Self::range_start) to the call of [`range_end`](Self::range_end) for
/// the same range, the listener uses no translation that overlaps the range, and installs none. This includes
/// translations in TLBs of the device (IOMMU), and translations of huge pages that lie only partly in the
/// range. Changes may overlap: the listener waits for the end of all of them. An [`Interval`] counts them.
///
/// # Locks
///
/// The engine calls `range_start` and `range_end` with sleeping locks held, such as the mmap lock, the lock
/// of a VMA, an rmap lock or the lock of a frame. The functions may sleep, but must not call the engine, and
/// must not wait for a task that calls the engine. `try_range_start`, `clear_young` and `test_young` must not
/// sleep, and spin locks may be held.
///
/// # Examples
///
/// `lab/freehold-machine/src/shadow.rs` is a complete listener.
pub trait Listener: Send + Sync {
    /// Begins a change of the translations of `range`. When the function returns, the listener uses none of
    /// them.
    fn range_start(&self, range: UserRange);

    /// Begins a change like [`range_start`](Self::range_start), without sleeping. Eviction of pages calls
    /// this function.
    ///
    /// # Errors
    ///
    /// Fails with [`Refused`] if the listener would have to sleep. The change is then not made, and
    /// [`range_end`](Self::range_end) is not called.
    fn try_range_start(&self, range: UserRange) -> Result<(), Refused>;

    /// Ends a change. The listener may install translations of `range` again.
    fn range_end(&self, range: UserRange);

    /// The space ends. When the function returns, the listener uses no translation of the space, and installs
    /// none afterwards. Notifications that are in progress may still arrive; the space makes no calls after
    /// its end.
    fn release(&self);

    /// Forgets that pages of `range` were accessed. Returns true if the listener has accessed one since the
    /// last call. A listener that does not record accesses returns false.
    fn clear_young(&self, range: UserRange) -> bool {
        let _ = range;
        false
    }

    /// Returns true if the listener has accessed a page of `range` since [`clear_young`](Self::clear_young).
    fn test_young(&self, range: UserRange) -> bool {
        let _ = range;
        false
    }
}
