//! The tasks of a recording, their processes, and the address spaces that they run in.
//!
//! [`Processes`] is a part of the planner. Tasks have the serial numbers of the recording. Address spaces
//! have numbers of the plan, because a process gets a new address space at each exec, and several tasks may
//! share an address space. `events.rs` adds and removes tasks, and `run.rs` asks for the state of a task
//! before it places an event. A task of which events were lost has no known address space (`Task::lost`): use
//! [`Processes::space_of`], which checks for losses, instead of the field.

use super::aside;
use super::effect::Beside;
use super::order::Stamp;
use super::space::Space;
use super::step::Step;
use crate::{FaultCode, KnownLimits};
use rustc_hash::FxHashMap as HashMap;
use std::collections::VecDeque;
use std::ops::Range;

/// Tasks, processes and address spaces, by number.
#[derive(Default)]
pub(super) struct Processes {
    /// Tasks by serial number. A task stays here after its exit until the end of the segment.
    pub(super) tasks: HashMap<u32, Task>,
    /// The models of living address spaces, by number. `syscall.rs` takes a model out while it plans a call.
    pub(super) spaces: HashMap<u32, Box<Space>>,
    /// The number of the newest address space.
    last_space: u32,
    /// The living tasks of each process.
    pub(super) members: HashMap<u32, Vec<u32>>,
    /// Resource limits by process.
    pub(super) limits: HashMap<u32, KnownLimits>,
    /// The highest number of a family of anonymous pages so far.
    pub(super) families: u32,
}

/// The planner's state of a task.
#[derive(Default)]
pub(super) struct Task {
    /// The process: the serial number of its first thread. 0 after the exit of the task.
    pub(super) process: u32,
    /// The number of the address space, if it is known and the task has not left it.
    pub(super) space: Option<u32>,
    /// The number of the task's next step.
    pub(super) next: u32,
    /// The number of the task's first step in this segment.
    pub(super) first: u32,
    /// True if a step of another task creates the task in this segment.
    pub(super) made_here: bool,
    /// The steps that the task has already waited for in this segment: the last step of each other task.
    pub(super) known: HashMap<u32, u32>,
    /// The steps of the task in this segment.
    pub(super) steps: Vec<Step>,
    /// The step number of the fault that the task has not finished, if there is one. The task's next event
    /// shows how the fault ended.
    pub(super) open_fault: Option<u32>,
    /// Faults that the kernel has taken in the task's current execve.
    pub(super) in_exec: Vec<Fault>,
    /// True if events were lost since the start of the task's address space, so the contents of the address
    /// space are unknown.
    pub(super) lost: bool,
    /// The task's last events that brought in or removed pages while other tasks ran in the address space.
    pub(super) beside: VecDeque<Beside>,
    /// Number of entries of `Kin::ends` for which the task has waited in this segment. The kin is that of the
    /// task's address space.
    pub(super) exits_known: usize,
    /// True if the task has torn down an address space since its last exec.
    pub(super) torn_down: bool,
    /// True if the personality makes readable memory executable.
    pub(super) read_implies_exec: bool,
    /// True if the task ends in an execve, perhaps in the new address space.
    pub(super) dies_in_exec: bool,
}

/// A recorded fault.
pub(super) struct Fault {
    /// Line of the recording.
    pub(super) line: u32,
    /// The faulting address.
    pub(super) address: u64,
    /// The kind of access.
    pub(super) code: FaultCode,
    /// True if the page was present afterwards.
    pub(super) resolved: bool,
    /// True if the kernel has looked up the VMA of the address. While page faults are disabled, the kernel
    /// does not look up the VMA.
    pub(super) looked: bool,
    /// The time at which the fault ended, in nanoseconds.
    pub(super) to: u64,
}

/// A new task.
pub(super) struct New {
    /// The new task.
    pub(super) child: u32,
    /// The process of the new task.
    pub(super) process: u32,
    /// The flags of clone.
    pub(super) flags: u64,
    /// Pages that are *unsure* in the copy of the address space (`effect.rs`): they are not compared there.
    pub(super) unsure: Vec<Range<u64>>,
}

impl Processes {
    /// Returns the stamp of the task's next step.
    pub(super) fn stamp(&self, task: u32) -> Stamp {
        Stamp { task, index: self.tasks.get(&task).map_or(0, |task| task.next) }
    }

    /// Returns the number of the task's address space. Returns `None` if the address space is unknown, or its
    /// contents are unknown because events were lost.
    pub(super) fn space_of(&self, task: u32) -> Option<u32> {
        self.tasks.get(&task).filter(|task| !task.lost)?.space
    }

    /// Returns the process of a task.
    pub(super) fn process_of(&self, task: u32) -> Option<u32> {
        self.tasks.get(&task).map(|task| task.process)
    }

    /// Returns the reason why the task's address space is unknown.
    pub(super) fn no_space(&self, task: u32) -> &'static str {
        if self.tasks.get(&task).is_some_and(|task| task.lost) { aside::LOST } else { aside::NO_SPACE }
    }

    /// Returns the reason why a snapshot is not compared.
    pub(super) fn unknown_space(&self, task: u32) -> &'static str {
        if self.tasks.get(&task).is_some_and(|task| task.lost) { aside::LOST } else { aside::UNKNOWN_SPACE }
    }

    /// Returns true if the task's address space is known from its start on.
    pub(super) fn is_shown(&self, task: u32) -> bool {
        let space = self.space_of(task).and_then(|number| self.spaces.get(&number));
        space.is_some_and(|space| space.known_ranges.is_none())
    }

    /// Returns true if the task ends in an execve, perhaps with a part of the new image mapped.
    pub(super) fn dies_in_exec(&self, task: u32) -> bool {
        let has_begun = |own: &Task| own.torn_down && !own.in_exec.is_empty();
        self.tasks.get(&task).is_some_and(|own| own.dies_in_exec || has_begun(own))
    }

    /// Adds the model of a new address space. Returns its number.
    pub(super) fn add_space(&mut self, space: Space) -> u32 {
        self.last_space += 1;
        let number = self.last_space;
        self.spaces.insert(number, Box::new(space));
        number
    }

    /// Removes the task from its address space. The address space ends with its last task.
    pub(super) fn leave(&mut self, task: u32) {
        let Some(own) = self.tasks.get_mut(&task) else { return };
        let last = Stamp { task, index: own.next.saturating_sub(1) };
        let Some(number) = own.space.take() else { return };
        let Some(space) = self.spaces.get_mut(&number) else { return };
        space.members.retain(|&member| member != task);
        space.order.departed.push(last);
        if space.members.is_empty() {
            self.spaces.remove(&number);
        }
    }

    /// Appends to `waits` the last step of each task in address space `number`, except `task` itself. The
    /// next step of `task` then waits for all steps that other tasks have in that address space so far.
    pub(super) fn gather_whole(&self, number: u32, task: u32, waits: &mut Vec<Stamp>) {
        let Some(space) = self.spaces.get(&number) else { return };
        waits.push(space.order.whole);
        waits.extend(&space.order.departed);
        for member in space.order.active().filter(|&member| member != task) {
            // The last steps of tasks that have left are in `departed`.
            let stays = self.tasks.get(&member).filter(|member| member.space == Some(number));
            if let Some(index) = stays.and_then(|member| member.next.checked_sub(1)) {
                waits.push(Stamp { task: member, index });
            }
        }
    }

    /// Appends to `waits` the last step that concerned the task's whole address space. The step by which a
    /// task leaves its address space waits for that step.
    pub(super) fn gather_last_whole(&self, task: u32, waits: &mut Vec<Stamp>) {
        let space = self.space_of(task).and_then(|number| self.spaces.get(&number));
        waits.extend(space.map(|space| space.order.whole));
    }
}
