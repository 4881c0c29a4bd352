//! The waits for mmap locks in a replay: which step waited, and which step of another task held the lock.
//!
//! The engine passes each wait and each hold to the machine, which logs them per thread (`log_locks` of
//! `freehold-machine`). A worker adds the log to its [`StepLocks`] after each step (`run.rs`), and
//! [`LockWaits::segment`] joins the logs of the workers after each segment. It keeps the waits, and only the
//! holds that a wait was for. The result has the form of the recorded waits (`analysis/waits.rs`), with all
//! acquisitions that had to wait and without unrecorded ones. A wait has no holder if the lock was released
//! before the wait began and was granted late, or if only the end of a segment or of the replay used the
//! lock.
//! `lock_waits_tests.rs` and `tests/waits.rs` have the tests.

use crate::analysis::holders::{Acquisition, Hold, Holds};
use crate::analysis::label;
use crate::analysis::waits::{Bounds, Locks, Waits};
use freehold_machine::take_lock_log;
use freehold_sync::stats::LockUse;
use freehold_trace::plan::{Segment, Start, Step, StepKind};
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// Every acquisition that had to wait counts as a wait.
const BOUNDS: Bounds = Bounds { at_once_ns: 0, longest: 40 };

/// The waits and holds of one worker in a segment.
#[derive(Clone, Debug, Default)]
pub(super) struct StepLocks {
    uses: Vec<StepUse>,
    /// Uses that have no step yet. Empty between two steps.
    logged: Vec<LockUse>,
}

/// A wait or a hold, with its step.
#[derive(Clone, Debug)]
struct StepUse {
    used: LockUse,
    task: u32,
    line: u32,
    operation: Cow<'static, str>,
}

impl StepLocks {
    /// Adds the waits and holds of the step that the calling worker has just performed.
    pub(super) fn step(&mut self, task: u32, step: &Step) {
        take_lock_log(&mut self.logged);
        if self.logged.is_empty() {
            return;
        }
        let operation = operation(&step.what);
        let of_step = |used| StepUse { used, task, line: step.line, operation: operation.clone() };
        self.uses.extend(self.logged.drain(..).map(of_step));
    }
}

/// Returns the name of a step, like that of a recorded operation.
fn operation(what: &StepKind) -> Cow<'static, str> {
    match what {
        StepKind::Fault { .. } => "fault".into(),
        StepKind::Call(planned) => label::call(&planned.call),
        StepKind::Clone { shares: true, .. } => "clone".into(),
        StepKind::Clone { shares: false, .. } => "fork".into(),
        StepKind::Exec(_) => "exec".into(),
        StepKind::Exit => "exit".into(),
        StepKind::Compare(_) => "snapshot".into(),
        _ => "implied change".into(),
    }
}

/// The waits of a replay so far.
#[derive(Debug, Default)]
pub(super) struct LockWaits {
    locks: Locks,
    /// Serial number and command of each process.
    processes: Vec<(u32, String)>,
    /// Index of the process of each task.
    of_task: HashMap<u32, usize>,
}

impl LockWaits {
    /// Adds the waits of a segment. `begun` is the machine's time at its beginning, and `before` the time of
    /// earlier segments.
    pub(super) fn segment<'f>(
        &mut self,
        segment: &Segment,
        workers: impl Iterator<Item = &'f mut StepLocks>,
        (begun, before): (u64, Duration),
    ) {
        self.follow(segment);
        let before = u64::try_from(before.as_nanos()).unwrap_or(u64::MAX);
        let (mut waits, mut holds) = (Vec::new(), Vec::new());
        for StepUse { used, task, line, operation } in workers.flat_map(|locks| locks.uses.drain(..)) {
            let LockUse { lock: space, write, from_ns, to_ns, .. } = used;
            let ns = to_ns.saturating_sub(from_ns);
            let from = from_ns.saturating_sub(begun).saturating_add(before);
            let (until, frozen) = (from.saturating_add(ns), 0);
            let operation = self.locks.number(&operation);
            if !used.waited {
                holds.push(Hold { space, task, line, operation, write, from, until, ns, frozen });
                continue;
            }
            let (space, process, wait) = (Some(space), self.process(task), ns);
            let by = Acquisition { space, process, task, line, operation, write, from, wait, until, frozen };
            waits.push(by);
        }
        waits.sort_by_key(|by| (by.space, by.from, by.line));
        let mut holds = Holds::new(holds);
        let holders: BTreeSet<usize> = waits.iter().filter_map(|by| holds.holder_of(by)).collect();
        self.locks.holds.extend(holders.into_iter().map(|index| *holds.get(index)));
        self.locks.acquisitions.append(&mut waits);
    }

    /// Returns all waits.
    pub(super) fn finish(self) -> Waits {
        let LockWaits { locks, processes, .. } = self;
        locks.finish(&|index| processes[index].clone(), BOUNDS)
    }

    /// Returns the index of a task's process. A task that no step has created is the first of its process.
    fn process(&mut self, task: u32) -> usize {
        *self.of_task.entry(task).or_insert_with(|| {
            self.processes.push((task, String::new()));
            self.processes.len() - 1
        })
    }

    /// Follows the processes of tasks, and their commands: a child has the command of its parent until it
    /// executes another program.
    fn follow(&mut self, segment: &Segment) {
        let steps = segment.tasks.iter().flat_map(|of| of.steps.iter().map(|step| (of.task, step)));
        let changes = |(_, step): &(u32, &Step)| {
            matches!(step.what, StepKind::Exec(_) | StepKind::Clone { .. } | StepKind::Compare(_))
        };
        let mut steps: Vec<(u32, &Step)> = steps.filter(changes).collect();
        steps.sort_by_key(|(_, step)| step.line);
        for (task, step) in steps {
            let own = self.process(task);
            match &step.what {
                StepKind::Exec(start) => {
                    if let Start::Shown(snapshot) = &**start {
                        self.processes[own].1.clone_from(&snapshot.comm);
                    }
                }
                StepKind::Clone { child, process, .. } => {
                    let command = self.processes[own].1.clone();
                    let of_child = self.process(*process);
                    if process == child {
                        self.processes[of_child].1 = command;
                    }
                    self.of_task.insert(*child, of_child);
                }
                StepKind::Compare(snapshot) if self.processes[own].1.is_empty() => {
                    self.processes[own].1.clone_from(&snapshot.comm);
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
#[path = "lock_waits_tests.rs"]
mod tests;
