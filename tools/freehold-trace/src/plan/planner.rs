//! The planner: its parts, and small operations that several of its files share.
//!
//! A [`Planner`] owns a recording and all state of its plan. `run.rs` reads events and calls the functions of
//! each kind of event (`events.rs`, `syscall.rs`, `file_calls.rs`), which use the parts of the planner and
//! push steps into the [`SegmentBuilder`]. One thread uses a planner; another thread may run the segments
//! that the planner has returned. State that concerns one subject belongs in a part, not in a field here.
//! Functions that query a plan are in `queries.rs`.

use super::effect::Waiting;
use super::files::Files;
use super::kin::Kins;
use super::losses::Losses;
use super::order::Stamp;
use super::pools::Pool;
use super::processes::Processes;
use super::recorded::Recorded;
use super::registered::Userfaultfds;
use super::removals::Removals;
use super::segment::{SEGMENT, SegmentBuilder};
use super::step::StepKind;
use crate::{Event, ReadError, Recording};

/// Makes the plan of a recording, segment by segment.
pub struct Planner {
    /// The recording, read up to the last planned event.
    pub(super) recording: Recording,
    /// True if calls that change the set of free addresses keep their order (`Planner::keeping_layout`).
    pub(super) keeps_layout: bool,
    /// The reason why the rest of the recording cannot be read. Set at the end of the readable part.
    pub(super) cut_off: Option<ReadError>,
    /// Time in nanoseconds of the last event that may be planned.
    pub(super) until: u64,
    /// An event that was read and belongs to the next segment.
    pub(super) held: Option<Event>,
    /// Events that were read and take effect later than the last planned event (`effect.rs`).
    pub(super) waiting: Vec<Waiting>,
    /// The tasks, their processes and the models of their address spaces.
    pub(super) processes: Processes,
    /// The files and System V segments, their descriptors and lengths.
    pub(super) files: Files,
    /// The userfaultfds and their address spaces.
    pub(super) userfaultfds: Userfaultfds,
    /// The removals of System V segments.
    pub(super) removals: Removals,
    /// Counts of what is set aside, and losses of events.
    pub(super) losses: Losses,
    /// The address spaces that share huge pages after a fork.
    pub(super) kins: Kins,
    /// The order of steps that use pools of huge pages.
    pub(super) pool: Pool,
    /// Times of the recorded machine.
    pub(super) recorded: Recorded,
    /// True if the recording shows the bytes that a call moved between processes.
    pub(super) shows_bytes: bool,
    /// True if a call has shown that the recorded machine has protection keys.
    pub(super) uses_keys: bool,
    /// True if a process_vm_writev has written to addresses that the recording does not contain.
    pub(super) unseen_writes: bool,
    /// True if the recording contains an mseal.
    pub(super) shows_seals: bool,
    /// The segment that is being built.
    pub(super) builder: SegmentBuilder,
}

impl Planner {
    /// Plans the events of `recording` from its current position on.
    pub fn new(recording: Recording) -> Planner {
        Planner {
            recording,
            until: u64::MAX,
            cut_off: None,
            keeps_layout: false,
            held: None,
            waiting: Vec::new(),
            processes: Processes::default(),
            files: Files::default(),
            userfaultfds: Userfaultfds::default(),
            removals: Removals::default(),
            losses: Losses::default(),
            kins: Kins::default(),
            pool: Pool::default(),
            recorded: Recorded::default(),
            shows_bytes: false,
            uses_keys: false,
            unseen_writes: false,
            shows_seals: false,
            builder: SegmentBuilder::of(SEGMENT),
        }
    }

    /// Limits segments to `steps` steps.
    pub fn with_segments_of(mut self, steps: usize) -> Planner {
        self.builder.limit = steps.max(1);
        self
    }

    /// Keeps the recording's order of the calls that change the set of free addresses, and of the calls for
    /// which the kernel chooses free addresses. Each call then finds the same addresses free as on Linux.
    pub fn keeping_layout(self, keeps_layout: bool) -> Planner {
        Planner { keeps_layout, ..self }
    }

    /// Plans only the events up to `time`, in nanoseconds.
    pub fn until(self, time: u64) -> Planner {
        Planner { until: time, ..self }
    }

    /// Returns the process of a task.
    pub fn process_of(&self, task: u32) -> Option<u32> {
        self.processes.process_of(task)
    }

    /// Returns the number of the task's address space, if it is known.
    pub(super) fn space_of(&self, task: u32) -> Option<u32> {
        self.processes.space_of(task)
    }

    /// Returns the stamp of the task's next step.
    pub(super) fn stamp(&self, task: u32) -> Stamp {
        self.processes.stamp(task)
    }

    /// Makes the next step, a step of `task`, wait for all steps so far in address space `number`.
    pub(super) fn gather_whole(&mut self, number: u32, task: u32) {
        self.processes.gather_whole(number, task, &mut self.builder.waits);
    }

    /// Adds a step of `task`, which waits for the steps that were gathered.
    pub(super) fn push(&mut self, task: u32, line: u32, what: StepKind) {
        self.builder.push(&mut self.processes, task, line, what);
    }

    /// Counts an event as set aside (not planned, or not checked) for the reason `why`, a text of `aside.rs`.
    pub(super) fn aside(&mut self, why: &'static str) {
        self.losses.aside(why);
    }

    /// Makes the next step, `stamp`, wait for the previous step that used a pool of huge pages.
    pub(super) fn use_pool(&mut self, stamp: Stamp) {
        self.pool.use_in_order(&self.recording, stamp, &mut self.builder.waits);
    }

    /// If the task's address space maps huge pages of a pool, makes the task's next step wait for the
    /// previous step that used a pool. Called before the task leaves the address space.
    pub(super) fn leave_pool(&mut self, task: u32) {
        let space = self.space_of(task).and_then(|number| self.processes.spaces.get(&number));
        if space.is_some_and(|space| space.has_pool_pages()) {
            self.use_pool(self.stamp(task));
        }
    }

    /// If `file` has huge pages of a pool, makes the next step, `stamp`, wait for the previous step that used
    /// a pool.
    pub(super) fn change_in_pool(&mut self, file: u32, stamp: Stamp) {
        if self.files.huge.contains_key(&file) {
            self.use_pool(stamp);
        }
    }
}
