//! The order in which events of tasks in one address space took effect, if that is not the order of the
//! recording.
//!
//! A recording gives a fault the time of the exception, and a call that changes VMAs the time when the call
//! got the mmap lock:
//!
//! ```text
//! fork, mprotect   |== mmap lock, written ==|
//! fault A             |----|                      under its VMA's lock: before the fork reaches that VMA
//! fault B             |--- waits for the lock --|-|    after the fork
//! fault C                               |-----|   under its VMA's lock: before or after the fork?
//! ```
//!
//! | event | is planned |
//! | --- | --- |
//! | holds the mmap lock for writing (`w`, `h`) | at the release of the lock. Until then other tasks run in VMAs that the event has not locked yet |
//! | holds the mmap lock for reading (`r`) | when the event got the lock, but after any event that held the lock for writing at that time |
//! | holds only the lock of a VMA, or no lock | at its time |
//!
//! An address space of one task needs no such order. An event is *beside* another event if their times
//! overlap, so either event may have taken effect first. The recording does not determine whether the fork
//! copied the page of a fault like C, or the pages that a call beside the fork removes. These pages are
//! *unsure* in the child, and are not compared there. If a recording contains no locks, every fault and every
//! call that overlaps the fork is like C.
//!
//! This file has the rules and their data. `overlaps.rs` applies the rules to the planner's tasks, and
//! `run.rs` holds the events that wait. The tests (`effect_tests.rs`) have small recordings of these cases.

use crate::addresses::{PAGE, addresses, page_of};
use crate::{Call, CallName, Cost, Event, Kind};
use std::ops::Range;

/// Maximum number of past events that the planner keeps for a task, and of past forks that it keeps for an
/// address space. The planner treats older events and forks as if they did not overlap a new event.
pub(super) const REMEMBERED: usize = 64;
const MAP_POPULATE: u64 = 0x8000;
const MAP_LOCKED: u64 = 0x2000;
/// Kinds of advice to madvise that remove pages (DONTNEED, FREE, REMOVE, PAGEOUT, DONTNEED_LOCKED), bring
/// pages in (POPULATE_READ, POPULATE_WRITE), or make huge pages (COLLAPSE).
const ABOUT_PAGES: [u64; 8] = [4, 8, 9, 21, 22, 23, 24, 25];

/// An event that was read and has not taken effect yet (`Planner::waiting`).
#[derive(Debug)]
pub(super) struct Waiting {
    /// The time at which the event takes effect, in nanoseconds.
    pub(super) at: u64,
    /// True if the event holds the mmap lock for reading. If several events have the same `at`, those that
    /// held the lock for writing come first.
    pub(super) reads: bool,
    /// The number of the event's address space.
    pub(super) space: u32,
    /// The event.
    pub(super) event: Event,
}

/// A past event that brought in or removed pages while other tasks ran in the address space. The planner
/// keeps the event because a fork by another task, later in the recording, may overlap the event.
#[derive(Debug)]
pub(super) struct Beside {
    /// The pages that the event may have brought in or removed.
    pub(super) pages: Range<u64>,
    /// The earliest time at which the event may have taken effect, in nanoseconds.
    pub(super) from: u64,
    /// The latest time at which the event may have taken effect, in nanoseconds.
    pub(super) to: u64,
    /// If the event held the mmap lock: the earliest time at which it may have released the lock, and the
    /// latest time at which it may have acquired the lock.
    pub(super) locked: Option<(u64, u64)>,
}

/// The period in which a fork copied the address space.
pub(super) struct Copying {
    /// The start of the period, in nanoseconds.
    pub(super) from: u64,
    /// The end of the period, in nanoseconds.
    pub(super) to: u64,
    /// True if the recording shows when the fork held the mmap lock.
    pub(super) locked: bool,
}

impl Copying {
    /// Returns the period of a fork at `time`: the hold of the mmap lock if it is recorded, otherwise the
    /// whole call until `time`.
    pub(super) fn of(time: u64, cost: &Cost) -> Copying {
        match (cost.write_wait, cost.held) {
            (Some(_), Some(held)) => Copying { from: time, to: time.saturating_add(held), locked: true },
            _ => Copying { from: time.saturating_sub(cost.before.unwrap_or(0)), to: time, locked: false },
        }
    }

    /// Returns true if the recording does not determine whether the copy includes the effect of the event.
    pub(super) fn leaves_open(&self, event: &Beside) -> bool {
        match (self.locked, event.locked) {
            (false, _) => event.from <= self.to && event.to >= self.from,
            (true, None) => event.from < self.to && event.to > self.to,
            (true, Some((done, taken))) => done <= self.from && taken >= self.to,
        }
    }
}

/// Returns the pages that an event may bring in or remove.
pub(super) fn brings_or_takes(kind: &Kind, cost: &Cost) -> Option<Range<u64>> {
    match kind {
        Kind::Fault { address, in_exec: false, .. } => {
            let page = page_of(*address);
            Some(page..page.saturating_add(PAGE))
        }
        // A call that acquires the mmap lock only once, for writing, cannot take effect while a fork holds
        // the lock. Such a call is not beside the fork.
        Kind::Call(call) if cost.write_wait.is_none() || cost.more_locks > 0 => about_pages(call),
        _ => None,
    }
}

/// Returns the period in which the event may have taken effect.
pub(super) fn event_span(time: u64, cost: &Cost) -> (u64, u64) {
    (time.saturating_sub(cost.before.unwrap_or(0)), time.saturating_add(cost.after.unwrap_or(0)))
}

/// Returns the addresses where a call may bring in or remove pages without the mmap lock for writing.
fn about_pages(call: &Call) -> Option<Range<u64>> {
    let [_, _, advice, flags, ..] = call.args;
    let counts = match call.name {
        CallName::Madvise => ABOUT_PAGES.contains(&advice),
        CallName::Mlock | CallName::Mlock2 => true,
        CallName::Mmap => flags & (MAP_POPULATE | MAP_LOCKED) != 0 && call.returned.value().is_some(),
        CallName::Mlockall => return Some(0..1 << 47),
        _ => false,
    };
    let [pages, _] = addresses(call.name, &call.args, call.returned.value(), PAGE).filter(|_| counts)?;
    (!pages.is_empty()).then_some(pages)
}

#[cfg(test)]
#[path = "effect_tests.rs"]
mod tests;
