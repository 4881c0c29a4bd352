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

use super::calls::{CLONE_VM, Space};
use super::step::What;
use super::touch::AROUND;
use super::{Planner, Unsure};
use crate::addresses::{PAGE, addresses, page_of};
use crate::{Call, CallName, Cost, Event, Format, Kind, ReadError};
use std::collections::VecDeque;
use std::ops::Range;

/// Events of a task, or forks of an address space, that are remembered.
const REMEMBERED: usize = 64;
const MAP_POPULATE: u64 = 0x8000;
const MAP_LOCKED: u64 = 0x2000;
/// Advice that takes pages (DONTNEED, FREE, REMOVE, PAGEOUT, DONTNEED_LOCKED), brings them (POPULATE_READ,
/// POPULATE_WRITE), or makes huge ones of them (COLLAPSE).
const ABOUT_PAGES: [u64; 8] = [4, 8, 9, 21, 22, 23, 24, 25];

/// An event that has not taken effect yet.
#[derive(Debug)]
pub(super) struct Waiting {
    /// The time at which it takes effect.
    at: u64,
    /// It holds the mmap lock for reading: events that held it for writing until this time come first.
    reads: bool,
    space: u32,
    event: Event,
}

/// An event that brought pages, or took some, while other tasks ran in the address space.
#[derive(Debug)]
pub(super) struct Beside {
    pages: Range<u64>,
    from: u64,
    to: u64,
    /// If it held the mmap lock: the earliest time at which it may have released the lock, and the latest at
    /// which it may have got it.
    locked: Option<(u64, u64)>,
}

/// The time in which a fork copied the address space.
struct Copying {
    from: u64,
    to: u64,
    /// The recording tells when it held the mmap lock.
    locked: bool,
}

impl Copying {
    fn of(time: u64, cost: &Cost) -> Copying {
        match (cost.write_wait, cost.held) {
            (Some(_), Some(held)) => Copying { from: time, to: time.saturating_add(held), locked: true },
            _ => Copying { from: time.saturating_sub(cost.before.unwrap_or(0)), to: time, locked: false },
        }
    }

    /// Returns true if the copy may or may not have what the event did.
    fn leaves_open(&self, event: &Beside) -> bool {
        match (self.locked, event.locked) {
            (false, _) => event.from <= self.to && event.to >= self.from,
            (true, None) => event.from < self.to && event.to > self.to,
            (true, Some((done, taken))) => done <= self.from && taken >= self.to,
        }
    }
}

impl Planner {
    /// Plans the events that took effect before `event`, and then `event`, unless that takes effect later.
    pub(super) fn in_turn(&mut self, event: Event) -> Result<(), ReadError> {
        if !self.waiting.is_empty() {
            let until = if self.is_behind_all(&event) { u64::MAX } else { event.time };
            self.plan_waiting(until)?;
        }
        match self.takes_effect(&event) {
            Some((space, at, reads)) => self.waiting.push(Waiting { at, reads, space, event }),
            None => self.plan(event)?,
        }
        Ok(())
    }

    /// Plans the events that have taken effect at `until`.
    pub(super) fn plan_waiting(&mut self, until: u64) -> Result<(), ReadError> {
        let place = |waiting: &Waiting| (waiting.at, waiting.reads, waiting.event.line);
        loop {
            let due = self.waiting.iter().enumerate().filter(|(_, waiting)| waiting.at <= until);
            let Some((first, _)) = due.min_by_key(|(_, waiting)| place(waiting)) else { return Ok(()) };
            let event = self.waiting.swap_remove(first).event;
            self.plan(event)?;
        }
    }

    fn plan(&mut self, event: Event) -> Result<(), ReadError> {
        self.segment.events += 1;
        self.recorded.note(&event);
        self.note_beside(&event);
        self.event(event)
    }

    /// Returns true if all events that wait come before `event`, whatever their times: one is of its task, or
    /// makes its task; or all tasks stand still.
    fn is_behind_all(&self, event: &Event) -> bool {
        let still = matches!(event.kind, Kind::Snapshot { .. } | Kind::Frozen { .. } | Kind::Lost { .. });
        let waits = || self.waiting.iter().any(|waiting| waiting.event.task == event.task);
        still || !self.tasks.contains_key(&event.task) || waits()
    }

    /// Returns the address space and the time at which the event takes effect there, if that is not its own
    /// time, and whether it holds the mmap lock for reading.
    fn takes_effect(&mut self, event: &Event) -> Option<(u32, u64, bool)> {
        let Event { time, task, kind, cost, .. } = event;
        if !matches!(kind, Kind::Fault { in_exec: false, .. } | Kind::Call(_) | Kind::Clone { .. }) {
            return None;
        }
        let (wait, reads) = match (cost.write_wait, cost.held, cost.read_wait) {
            (Some(_), Some(held), _) => (held, false),
            (None, _, Some(wait)) => (wait, true),
            _ => return None,
        };
        let (space, _) = self.shared_space(*task)?;
        let end = time.saturating_add(cost.after.unwrap_or(u64::MAX));
        let at = time.saturating_add(wait).min(end);
        let here = self.waiting.iter_mut().filter(|waiting| waiting.space == space);
        if reads {
            let writers = here.filter(|waiting| !waiting.reads && waiting.event.time <= at);
            return Some((space, writers.map(|writer| writer.at).fold(at, u64::max), true));
        }
        let readers = here.filter(|waiting| waiting.reads && waiting.at >= *time);
        readers.for_each(|reader| reader.at = reader.at.max(at));
        Some((space, at, false))
    }

    /// Returns the task's address space if other tasks run in it, too.
    fn shared_space(&self, task: u32) -> Option<(u32, &Space)> {
        if self.recording.format() == Format::Strace {
            return None;
        }
        let number = self.space_of(task)?;
        let space = self.spaces.get(&number)?;
        (space.members.len() > 1).then_some((number, space))
    }

    /// Remembers an event that brings or takes pages while other tasks run in the address space, for forks.
    fn note_beside(&mut self, event: &Event) {
        let Event { line, time, task, kind, cost, .. } = event;
        let Some((number, space)) = self.shared_space(*task) else { return };
        let Some(pages) = brings_or_takes(kind, cost) else { return };
        let (from, to) = event_span(*time, cost);
        let held = cost.held.unwrap_or(0);
        let lock = cost.read_wait.filter(|_| cost.more_locks == 0 && cost.write_wait.is_none());
        let taken = lock.map(|wait| time.saturating_add(wait));
        let locked = taken.map(|taken| (taken.saturating_add(held), to.saturating_sub(held)));
        let late = space.forks.iter().filter(|(copied, _)| from <= *copied && *copied <= to);
        let late: Vec<_> = late.map(|(_, child)| (*child, self.around(space, &pages))).collect();
        for (child, pages) in late {
            if self.space_of(child).is_some_and(|own| own != number) {
                self.push(child, *line, What::Unsure(Unsure::Pages(pages)));
            }
        }
        let Some(own) = self.tasks.get_mut(task) else { return };
        if own.beside.len() == REMEMBERED {
            own.beside.pop_front();
        }
        own.beside.push_back(Beside { pages, from, to, locked });
    }

    /// Returns `pages` with those that may have come along.
    fn around(&self, space: &Space, pages: &Range<u64>) -> Range<u64> {
        let block = |at: u64| match space.areas.find(at) {
            Some((_, area)) if area.file.is_some() => {
                at.saturating_sub(AROUND)..at.saturating_add(PAGE + AROUND)
            }
            Some((start, area)) => self.block(start, area, at),
            None => at..at.saturating_add(PAGE),
        };
        let last = pages.end.saturating_sub(PAGE).max(pages.start);
        let (first, end) = (block(pages.start).start, block(last).end.max(pages.end));
        first..end
    }

    /// Returns the pages that the copy may or may not have which a fork by `task` makes.
    pub(super) fn unsure_in_copy(&self, task: u32, time: u64, cost: &Cost, flags: u64) -> Vec<Range<u64>> {
        if flags & CLONE_VM != 0 {
            return Vec::new();
        }
        let Some((_, space)) = self.shared_space(task) else { return Vec::new() };
        let copying = Copying::of(time, cost);
        let others = space.members.iter().filter(|member| **member != task);
        let beside = others.filter_map(|member| self.tasks.get(member)).flat_map(|other| &other.beside);
        let open = beside.filter(|event| copying.leaves_open(event));
        open.map(|event| self.around(space, &event.pages)).collect()
    }

    /// Remembers a fork at `time` into `child` of which no lock is recorded: events that overlap it may end
    /// later.
    pub(super) fn remember_fork(&mut self, task: u32, child: u32, time: u64, cost: &Cost) {
        let Some((number, _)) = self.shared_space(task).filter(|_| !Copying::of(time, cost).locked) else {
            return;
        };
        let Some(space) = self.spaces.get_mut(&number) else { return };
        if space.forks.len() == REMEMBERED {
            space.forks.pop_front();
        }
        space.forks.push_back((time, child));
    }
}

/// Returns the pages that an event may bring or take, by themselves.
fn brings_or_takes(kind: &Kind, cost: &Cost) -> Option<Range<u64>> {
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

/// Forks of an address space, each with its time and the task that it made.
pub(super) type Forks = VecDeque<(u64, u32)>;

#[cfg(test)]
#[path = "effect_tests.rs"]
mod tests;
