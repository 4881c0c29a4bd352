//! History of a recording: address spaces, their mappings and their faults.
//!
//! `mod.rs` reads a recording, passes each event to [`Life::event`], and then calls [`Life::finish`]. `Life`
//! follows the VMAs of each address space (`Vmas` of `freehold-trace`), and converts their changes to
//! *blocks*: ranges of one kind of memory from one time to another (`coverage.rs`). `lanes.rs` chooses the
//! processes to draw, and `panel.rs` draws their blocks.
//!
//! `analysis/` follows the same history and reads the current VMAs of each address space.
//!
//! Nothing is replayed on the engine: the recorded results of calls count as true. Events with impossible
//! values must not cause a panic (`extreme_values_give_a_well_formed_picture` in `mod_tests.rs`). A new kind
//! of event needs an arm in [`Life::event`].

use super::coverage::{Block, Coverage};
use super::kind::Memory;
use freehold_trace::plan::Vmas;
use freehold_trace::{Call, CallName, Event, Kind as Happened, Returned, Snapshot, Why};
use std::collections::HashMap;
use std::ops::Range;

const PAGE: u64 = 4096;
/// `CLONE_VM`.
const SHARES_SPACE: u64 = 0x100;
/// Index that stands for no address space.
pub(crate) const NONE: usize = usize::MAX;
/// End of user addresses. The kernel's own pages lie above.
const USER_END: u64 = 1 << 47;

/// All data that the picture shows. Times are nanoseconds since the first event, without the time for which
/// the program was frozen.
#[derive(Debug, Default)]
pub struct Life {
    /// All address spaces, in the order of their beginning. Indices elsewhere refer to this list.
    pub(crate) spaces: Vec<Space>,
    /// All processes, in the order of their beginning.
    pub(crate) processes: Vec<Process>,
    /// Time of the last event.
    pub(crate) end: u64,
    /// Number of page faults of all tasks.
    pub(super) faults: u64,
    /// Times of the snapshots.
    pub(super) snapshots: Vec<u64>,
    /// Time for which the program was frozen so far, in nanoseconds.
    frozen: u64,
    /// Process of each task.
    tasks: HashMap<u32, usize>,
    /// Sizes in bytes of System V segments, by the identifier that shmget returned.
    segments: HashMap<u64, u64>,
}

/// An address space, from fork or exec to the next exec or exit.
#[derive(Debug)]
pub(crate) struct Space {
    /// Time of the beginning, in nanoseconds.
    pub from: u64,
    /// Time of the end.
    pub to: u64,
    /// Blocks that have ended. Complete once the address space has ended.
    pub blocks: Vec<Block>,
    /// Time and page number of each fault.
    pub faults: Vec<(u64, u64)>,
    /// The current VMAs.
    pub vmas: Vmas,
    /// The drawn state of `vmas`.
    coverage: Coverage,
    /// Number of processes in this address space.
    pub users: u32,
}

/// A process.
#[derive(Debug)]
pub(crate) struct Process {
    /// Serial number of its first thread.
    pub serial: u32,
    /// Index of its parent.
    pub parent: Option<usize>,
    /// Name of its last command.
    pub name: String,
    /// Time of the beginning, in nanoseconds.
    pub from: u64,
    /// Time of the end.
    pub to: u64,
    /// Indices of the address spaces that were created for the process, in order.
    pub own: Vec<usize>,
    /// Index of its current address space.
    space: usize,
    /// True if the process has exited.
    ended: bool,
}

impl Life {
    /// Adds the next event. `snapshot` is the snapshot that the event names, if any. Returns the ranges of
    /// the task's address space whose VMAs a call or a fault may have changed.
    pub fn event(&mut self, event: &Event, snapshot: Option<&Snapshot>) -> [Range<u64>; 2] {
        // Time never runs backwards, even if a freeze is recorded as longer than it was.
        let now = event.time.saturating_sub(self.frozen).max(self.end);
        self.end = now;
        match &event.kind {
            Happened::Frozen { ns } => self.frozen = self.frozen.saturating_add(*ns),
            Happened::Fault { in_exec: true, .. } => {}
            Happened::Fault { address, .. } => return [self.fault(event.task, *address, now), 0..0],
            Happened::Call(call) => return self.call(event.task, call, now),
            Happened::Clone { child, process, flags } => {
                self.clone(event.task, *child, *process, *flags, now)
            }
            Happened::Exec { .. } => {
                let process = self.process_of(event.task, now);
                self.begin(process, Default::default(), now);
                self.listed(process, snapshot, now);
            }
            Happened::Exit { last } => {
                if *last {
                    let process = self.process_of(event.task, now);
                    self.exit(process, now);
                }
            }
            Happened::Snapshot { why: Why::MidExec, .. } => {}
            Happened::Snapshot { process, .. } => {
                self.snapshots.push(now);
                let process = self.process_of(*process, now);
                self.listed(process, snapshot, now);
            }
            Happened::TornDown { .. }
            | Happened::Signal { .. }
            | Happened::Limits(_)
            | Happened::Lost { .. } => {}
        }
        [0..0, 0..0]
    }

    /// Returns the index of the process of a task, if an event has named the task.
    pub(crate) fn process(&self, task: u32) -> Option<usize> {
        self.tasks.get(&task).copied()
    }

    /// Returns the index of the current address space of a task.
    pub(crate) fn space(&self, task: u32) -> Option<usize> {
        let space = self.processes[self.process(task)?].space;
        (space != NONE).then_some(space)
    }

    /// Ends all processes that have not ended.
    pub fn finish(&mut self) {
        let now = self.end;
        for process in 0..self.processes.len() {
            self.exit(process, now);
        }
    }

    /// Returns the process of a task. Creates the process if the recording does not show its beginning.
    fn process_of(&mut self, task: u32, now: u64) -> usize {
        if let Some(process) = self.tasks.get(&task) {
            return *process;
        }
        self.new_process(task, None, now)
    }

    /// Returns the address space of a task. Creates the address space if the recording does not show its
    /// beginning.
    fn space_of(&mut self, task: u32, now: u64) -> Option<&mut Space> {
        let process = self.process_of(task, now);
        if self.processes[process].space == NONE && !self.processes[process].ended {
            self.begin(process, Default::default(), now);
        }
        self.spaces.get_mut(self.processes[process].space)
    }

    /// Adds a process without an address space. Returns its index.
    fn new_process(&mut self, serial: u32, parent: Option<usize>, now: u64) -> usize {
        let name = parent.map_or_else(String::new, |parent| self.processes[parent].name.clone());
        let index = self.processes.len();
        let (own, space) = (Vec::new(), NONE);
        self.processes.push(Process { serial, parent, name, from: now, to: now, own, space, ended: false });
        self.tasks.insert(serial, index);
        index
    }

    /// Starts a new address space for the process, which leaves its current one.
    fn begin(&mut self, process: usize, (vmas, coverage): (Vmas, Coverage), now: u64) {
        self.leave(process, now);
        let (blocks, faults) = (Vec::new(), Vec::new());
        let mut space = Space { from: now, to: now, blocks, faults, vmas, coverage, users: 1 };
        space.keep_mapped(now);
        self.processes[process].space = self.spaces.len();
        self.processes[process].own.push(self.spaces.len());
        self.spaces.push(space);
    }

    /// Removes the process from its address space. The address space ends with its last process.
    fn leave(&mut self, process: usize, now: u64) {
        let Some(space) = self.spaces.get_mut(self.processes[process].space) else { return };
        space.users -= 1;
        if space.users == 0 {
            space.to = now;
            space.coverage.finish(now, &mut |block| space.blocks.push(block));
        }
    }

    /// Ends a process, unless it has ended before.
    fn exit(&mut self, process: usize, now: u64) {
        if std::mem::replace(&mut self.processes[process].ended, true) {
            return;
        }
        self.processes[process].to = now;
        self.leave(process, now);
        self.processes[process].space = NONE;
    }

    /// Adds a thread, or a process with a copy of the address space or with the same address space.
    fn clone(&mut self, task: u32, child: u32, process: u32, flags: u64, now: u64) {
        let parent = self.process_of(task, now);
        if process != child {
            let process = self.tasks.get(&process).copied().unwrap_or(parent);
            self.tasks.insert(child, process);
            return;
        }
        let index = self.new_process(child, Some(parent), now);
        let space = self.processes[parent].space;
        match self.spaces.get_mut(space) {
            Some(shared) if flags & SHARES_SPACE != 0 => {
                shared.users += 1;
                self.processes[index].space = space;
            }
            Some(copied) => {
                let copy = (copied.vmas.fork(), copied.coverage.forked(now));
                self.begin(index, copy, now);
            }
            None => self.begin(index, Default::default(), now),
        }
    }

    /// Adds a fault. Returns the range by which a stack has grown.
    fn fault(&mut self, task: u32, address: u64, now: u64) -> Range<u64> {
        self.faults += 1;
        let Some(space) = self.space_of(task, now).filter(|_| address < USER_END) else { return 0..0 };
        space.faults.push((now, address / PAGE));
        let grown = space.vmas.touch(address);
        space.follow(grown.clone(), now);
        grown
    }

    /// Replaces the VMAs of a process with those in the kernel's list.
    fn listed(&mut self, process: usize, snapshot: Option<&Snapshot>, now: u64) {
        let Some(snapshot) = snapshot else { return };
        let Some(space) = self.spaces.get_mut(self.processes[process].space) else { return };
        // A snapshot after the exec may contain the name of another thread instead of the command's name.
        let name = &mut self.processes[process].name;
        if snapshot.why == Why::Exec || name.is_empty() {
            name.clone_from(&snapshot.comm);
        }
        space.vmas.show(snapshot);
        space.follow(0..USER_END, now);
    }

    /// Applies a call to the VMAs of its address space. Returns the ranges that may have changed.
    fn call(&mut self, task: u32, call: &Call, now: u64) -> [Range<u64>; 2] {
        if let (CallName::Shmget, Returned::Value(value)) = (call.name, call.returned) {
            let known = self.segments.entry(value).or_default();
            *known = call.args[1].max(*known);
        }
        let segment = self.segments.get(&call.args[0]).copied().unwrap_or(PAGE);
        let Some(space) = self.space_of(task, now) else { return [0..0, 0..0] };
        let changed = space.vmas.call(call, segment);
        changed.iter().for_each(|range| space.follow(range.clone(), now));
        changed
    }
}

impl Space {
    /// Updates the drawn state of `range` from the VMAs.
    fn follow(&mut self, range: Range<u64>, now: u64) {
        let range = range.start.min(USER_END)..range.end.min(USER_END);
        let mut at = range.start;
        let vmas: Vec<_> = self.vmas.within(&range).collect();
        for vma in vmas {
            let (start, end) = (vma.range.start.max(at), vma.range.end.min(range.end));
            self.set(at..start, None, now);
            self.set(start..end, Some(Memory::of(&vma)), now);
            at = end.max(at);
        }
        self.set(at..range.end, None, now);
    }

    /// Removes drawn ranges that are not mapped. A child need not have all mappings of its parent.
    fn keep_mapped(&mut self, now: u64) {
        let mut at = 0;
        let mapped: Vec<_> = self.vmas.within(&(0..USER_END)).map(|vma| vma.range).collect();
        for range in mapped {
            self.set(at..range.start, None, now);
            at = range.end;
        }
        self.set(at..USER_END, None, now);
    }

    /// Sets the kind of memory of a range from now on. Ends the blocks that change.
    fn set(&mut self, range: Range<u64>, memory: Option<Memory>, now: u64) {
        let blocks = &mut self.blocks;
        self.coverage.set(range, memory, now, &mut |block| {
            if block.to > block.from {
                blocks.push(block);
            }
        });
    }
}
