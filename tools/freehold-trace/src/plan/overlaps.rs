//! Events of one address space that overlap each other or a fork in time. This file applies the rules of
//! `effect.rs` to the planner's tasks.
//!
//! `run.rs` calls these functions for each event. [`Planner::takes_effect`] returns the time at which an
//! event takes effect. The other functions keep past events ([`Beside`]) per task and past forks per address
//! space. If an event and a fork overlap, these functions add the pages of the event to the *unsure* pages of
//! the child: the recording does not determine whether the child has these pages. Nothing here applies to
//! strace output, which has no times of locks and no faults. The tests are in `effect_tests.rs`.

use super::effect::{Beside, Copying, REMEMBERED, brings_or_takes, event_span};
use super::planner::Planner;
use super::space::{CLONE_VM, Space};
use super::step::{StepKind, Unsure};
use super::touch::AROUND;
use crate::addresses::PAGE;
use crate::{Cost, Event, Format, Kind};
use std::ops::Range;

impl Planner {
    /// Returns the address space, the time at which the event takes effect there, and true if the event holds
    /// the mmap lock for reading. Returns `None` if the event takes effect at its own time.
    pub(super) fn takes_effect(&mut self, event: &Event) -> Option<(u32, u64, bool)> {
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

    /// Returns the task's address space if other tasks also run in it. Returns `None` for strace output, in
    /// which the reader marks overlapping calls instead (`Call::beside`).
    fn shared_space(&self, task: u32) -> Option<(u32, &Space)> {
        if self.recording.format() == Format::Strace {
            return None;
        }
        let number = self.space_of(task)?;
        let space = self.processes.spaces.get(&number)?;
        (space.members.len() > 1).then_some((number, space))
    }

    /// Keeps an event for later forks if the event brings in or removes pages while other tasks run in the
    /// address space. If an earlier fork overlapped the event, the pages become unsure in the child.
    pub(super) fn note_beside(&mut self, event: &Event) {
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
                self.push(child, *line, StepKind::Unsure(Unsure::Pages(pages)));
            }
        }
        let Some(own) = self.processes.tasks.get_mut(task) else { return };
        if own.beside.len() == REMEMBERED {
            own.beside.pop_front();
        }
        own.beside.push_back(Beside { pages, from, to, locked });
    }

    /// Returns `pages`, extended by the pages that a fault may have mapped along with them.
    fn around(&self, space: &Space, pages: &Range<u64>) -> Range<u64> {
        let block = |at: u64| match space.areas.find(at) {
            Some((_, area)) if area.file.is_some() => {
                at.saturating_sub(AROUND)..at.saturating_add(PAGE + AROUND)
            }
            Some((start, area)) => self.kins.block(start, area, at),
            None => at..at.saturating_add(PAGE),
        };
        let last = pages.end.saturating_sub(PAGE).max(pages.start);
        let (first, end) = (block(pages.start).start, block(last).end.max(pages.end));
        first..end
    }

    /// Returns the pages that a fork of `task` may or may not have copied, because earlier events overlapped
    /// the fork.
    pub(super) fn unsure_in_copy(&self, task: u32, time: u64, cost: &Cost, flags: u64) -> Vec<Range<u64>> {
        if flags & CLONE_VM != 0 {
            return Vec::new();
        }
        let Some((_, space)) = self.shared_space(task) else { return Vec::new() };
        let copying = Copying::of(time, cost);
        let others = space.members.iter().filter(|member| **member != task);
        let beside =
            others.filter_map(|member| self.processes.tasks.get(member)).flat_map(|other| &other.beside);
        let open = beside.filter(|event| copying.leaves_open(event));
        open.map(|event| self.around(space, &event.pages)).collect()
    }

    /// Keeps a fork at `time` that created `child`, if the times of its locks are not recorded: an event
    /// later in the recording may overlap the fork.
    pub(super) fn remember_fork(&mut self, task: u32, child: u32, time: u64, cost: &Cost) {
        let Some((number, _)) = self.shared_space(task).filter(|_| !Copying::of(time, cost).locked) else {
            return;
        };
        let Some(space) = self.processes.spaces.get_mut(&number) else { return };
        if space.forks.len() == REMEMBERED {
            space.forks.pop_front();
        }
        space.forks.push_back((time, child));
    }
}
