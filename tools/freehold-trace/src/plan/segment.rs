//! The segment that is being built: its steps, and the waits of each step.
//!
//! [`SegmentBuilder`] belongs to the planner. Adding a step takes two actions: functions of the planner first
//! gather the stamps of earlier steps in `waits`; `push` then adds the step, with those waits that earlier
//! waits of the task do not imply. `run.rs` ends the segment when it is full, and starts the next one: all
//! tasks finish a segment before the next segment begins, so no step waits for a step of another segment. The
//! maximum sizes below bound the memory of a plan; the tests `segments_are_bounded_and_end_at_a_freeze` and
//! `waits_of_many_tasks_grow_linearly` (`tests.rs`) check them.

use super::order::Stamp;
use super::processes::Processes;
use super::step::{Segment, Step, StepKind, TaskSteps};
use rustc_hash::FxHashMap as HashMap;
use std::collections::hash_map::Entry;

/// Maximum number of steps of a segment.
pub const SEGMENT: usize = 1 << 20;
/// Number of steps that a segment may additionally have while the end of a fault is not known, or a call is
/// held.
const SLACK: usize = 1 << 10;
/// A segment also ends when its number of waits is this multiple of the maximum number of steps.
const WAITS: usize = 8;
/// A segment also ends when its snapshots have this many lines.
const LINES: usize = 1 << 21;

/// Builds a segment.
#[derive(Default)]
pub(super) struct SegmentBuilder {
    /// The segment so far. Until the segment ends, its steps are in `Task::steps`.
    pub(super) segment: Segment,
    /// Maximum number of steps of a segment.
    pub(super) limit: usize,
    /// Time of the event that is being planned, in nanoseconds.
    pub(super) now: u64,
    /// Number of steps of all tasks in the segment.
    steps: usize,
    /// Number of faults in the segment whose end is not known yet.
    pub(super) open_faults: usize,
    /// Number of lines of the snapshots in the segment.
    pub(super) lines: usize,
    /// Tasks with steps in the segment.
    active: Vec<u32>,
    /// The gathered waits of the next step.
    pub(super) waits: Vec<Stamp>,
}

impl SegmentBuilder {
    /// Returns a builder of segments of at most `limit` steps.
    pub(super) fn of(limit: usize) -> SegmentBuilder {
        SegmentBuilder { limit, ..SegmentBuilder::default() }
    }

    /// Returns true if the segment has reached its maximum size. `holds` is true while a call is held because
    /// its place in the order is not known yet.
    pub(super) fn is_full(&self, holds: bool) -> bool {
        // The next event of the task shows the end of a fault, and must be in the same segment.
        let limit = if self.open_faults > 0 || holds { self.limit + SLACK } else { self.limit };
        self.steps >= limit || self.segment.waits.len() / WAITS >= self.limit || self.lines >= LINES
    }

    /// Adds a step of `task`, which waits for the steps in `waits`, and empties `waits`.
    pub(super) fn push(&mut self, processes: &mut Processes, task: u32, line: u32, what: StepKind) {
        let from = self.segment.waits.len() as u32;
        let mut waits = std::mem::take(&mut self.waits);
        for stamp in waits.drain(..) {
            self.wait(processes, task, stamp);
        }
        self.waits = waits;
        let range = from..self.segment.waits.len() as u32;
        let Some(own) = processes.tasks.get_mut(&task) else { return };
        if own.steps.is_empty() {
            self.active.push(task);
        }
        own.next += 1;
        own.steps.push(Step { line, time: self.now, waits: range, what });
        self.steps += 1;
        if let Some(space) = own.space.and_then(|space| processes.spaces.get_mut(&space)) {
            space.order.note_step(task);
        }
    }

    /// Makes `task` wait for `other`, unless an earlier wait already implies it.
    fn wait(&mut self, processes: &mut Processes, task: u32, other: Stamp) {
        if other == Stamp::START || other.task == task {
            return;
        }
        // No step waits for a step of an earlier segment, because all steps of that segment are done. A task
        // that is not in the table has ended in an earlier segment.
        if processes.tasks.get(&other.task).is_none_or(|other_task| other.index < other_task.first) {
            return;
        }
        let Some(own) = processes.tasks.get_mut(&task) else { return };
        match own.known.entry(other.task) {
            Entry::Occupied(known) if *known.get() >= other.index => return,
            Entry::Occupied(mut known) => drop(known.insert(other.index)),
            Entry::Vacant(known) => drop(known.insert(other.index)),
        }
        self.segment.waits.push(other);
    }

    /// Ends the segment. Returns it, with the number of faults whose end was not read. Returns `None` if the
    /// segment has no events.
    pub(super) fn finish(&mut self, processes: &mut Processes) -> Option<(Segment, usize)> {
        let mut segment = std::mem::take(&mut self.segment);
        if segment.events == 0 {
            return None;
        }
        (self.steps, self.lines) = (0, 0);
        self.active.sort_unstable();
        for number in self.active.drain(..) {
            let Some(task) = processes.tasks.get_mut(&number) else { continue };
            segment.tasks.push(TaskSteps {
                task: number,
                first: task.first,
                steps: std::mem::take(&mut task.steps),
                runs: !task.made_here,
            });
        }
        // All steps planned so far are done before the next segment begins.
        processes.tasks.retain(|_, task| task.process != 0);
        for task in processes.tasks.values_mut() {
            task.known = HashMap::default();
            task.exits_known = 0;
            (task.first, task.made_here, task.open_fault) = (task.next, false, None);
        }
        for space in processes.spaces.values_mut() {
            space.order.forget();
        }
        Some((segment, std::mem::take(&mut self.open_faults)))
    }
}
