//! The order in which events of tasks that share an address space took effect, where that is not the order of
//! the recording.
//!
//! A recording has a fault at the exception, and a call that changes VMAs where it got the mmap lock:
//!
//! ```text
//! fork, mprotect   |== mmap lock, written ==|
//! fault A             |----|                      under its VMA's lock: before the fork has come to that VMA
//! fault B             |--- waits for the lock --|-|    behind the fork
//! fault C                               |-----|   under its VMA's lock: before or behind?
//! ```
//!
//! | event | is planned |
//! | --- | --- |
//! | holds the mmap lock for writing (`w`, `h`) | where it releases the lock. Until then other tasks run in VMAs that it has not locked yet |
//! | holds the mmap lock for reading (`r`) | where it got the lock, and behind an event that held the lock for writing at that time |
//! | holds only the lock of a VMA, or none | at its time |
//!
//! An address space of one task needs no such order. A fault like C leaves open whether the fork has copied
//! the page, and so does a call that takes pages. These pages are *unsure* in the child, and are not compared
//! there. Where a recording tells no locks, every fault and call that overlaps the fork is like C.

use crate::addresses::{PAGE, addresses, page_of};
use crate::{Call, CallName, Cost, Event, Kind};
use std::ops::Range;

/// Events of a task, or forks of an address space, that are remembered.
pub(super) const REMEMBERED: usize = 64;
const MAP_POPULATE: u64 = 0x8000;
const MAP_LOCKED: u64 = 0x2000;
/// Advice that takes pages (DONTNEED, FREE, REMOVE, PAGEOUT, DONTNEED_LOCKED), brings them (POPULATE_READ,
/// POPULATE_WRITE), or makes huge ones of them (COLLAPSE).
const ABOUT_PAGES: [u64; 8] = [4, 8, 9, 21, 22, 23, 24, 25];

/// An event that has not taken effect yet.
#[derive(Debug)]
pub(super) struct Waiting {
    /// The time at which it takes effect.
    pub(super) at: u64,
    /// It holds the mmap lock for reading: events that held it for writing until this time come first.
    pub(super) reads: bool,
    pub(super) space: u32,
    pub(super) event: Event,
}

/// An event that brought pages, or took some, while other tasks ran in the address space.
#[derive(Debug)]
pub(super) struct Beside {
    pub(super) pages: Range<u64>,
    pub(super) from: u64,
    pub(super) to: u64,
    /// If it held the mmap lock: the earliest time at which it may have released the lock, and the latest at
    /// which it may have got it.
    pub(super) locked: Option<(u64, u64)>,
}

/// The time in which a fork copied the address space.
pub(super) struct Copying {
    pub(super) from: u64,
    pub(super) to: u64,
    /// The recording tells when it held the mmap lock.
    pub(super) locked: bool,
}

impl Copying {
    pub(super) fn of(time: u64, cost: &Cost) -> Copying {
        match (cost.write_wait, cost.held) {
            (Some(_), Some(held)) => Copying { from: time, to: time.saturating_add(held), locked: true },
            _ => Copying { from: time.saturating_sub(cost.before.unwrap_or(0)), to: time, locked: false },
        }
    }

    /// Returns true if the copy may or may not have what the event did.
    pub(super) fn leaves_open(&self, event: &Beside) -> bool {
        match (self.locked, event.locked) {
            (false, _) => event.from <= self.to && event.to >= self.from,
            (true, None) => event.from < self.to && event.to > self.to,
            (true, Some((done, taken))) => done <= self.from && taken >= self.to,
        }
    }
}

/// Returns the pages that an event may bring or take, by themselves.
pub(super) fn brings_or_takes(kind: &Kind, cost: &Cost) -> Option<Range<u64>> {
    match kind {
        Kind::Fault { address, in_exec: false, .. } => {
            let page = page_of(*address);
            Some(page..page.saturating_add(PAGE))
        }
        // A call that holds the mmap lock for writing, and takes no other, does not overlap a fork.
        Kind::Call(call) if cost.write_wait.is_none() || cost.more_locks > 0 => about_pages(call),
        _ => None,
    }
}

/// Returns the time in which the event may have taken effect.
pub(super) fn event_span(time: u64, cost: &Cost) -> (u64, u64) {
    (time.saturating_sub(cost.before.unwrap_or(0)), time.saturating_add(cost.after.unwrap_or(0)))
}

/// Returns the addresses where a call may bring or take pages without the mmap lock for writing.
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
