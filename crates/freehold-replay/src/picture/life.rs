//! A recording's life: address spaces, what was mapped in each, and the faults.

use super::coverage::{Block, Coverage};
use super::kind::{Kind, Memory};
use freehold_trace::{Call, CallName, Event, Kind as Happened, Returned, Snapshot, Why};
use std::collections::HashMap;

const PAGE: u64 = 4096;
/// `CLONE_VM`.
const SHARES_SPACE: u64 = 0x100;
/// Index of no address space.
const NONE: usize = usize::MAX;
/// How far below a stack a fault makes it grow.
const STACK_REACH: u64 = 8 << 20;
/// Above this lies what the kernel shows of itself.
const USER_END: u64 = 1 << 47;

/// All that the picture shows. Times are nanoseconds since the first event, without the time the program was
/// frozen.
#[derive(Debug, Default)]
pub struct Life {
    pub(super) spaces: Vec<Space>,
    pub(super) processes: Vec<Process>,
    /// When the last event was.
    pub(super) end: u64,
    pub(super) faults: u64,
    pub(super) snapshots: Vec<u64>,
    frozen: u64,
    /// Process of each task.
    tasks: HashMap<u32, usize>,
    /// Sizes of System V segments.
    segments: HashMap<u64, u64>,
}

/// An address space, from fork or exec to exec or exit.
#[derive(Debug)]
pub(super) struct Space {
    pub from: u64,
    pub to: u64,
    /// Ends with what is over; complete when the space has ended.
    pub blocks: Vec<Block>,
    /// Time and page.
    pub faults: Vec<(u64, u64)>,
    coverage: Coverage,
    /// Processes that live in it.
    users: u32,
    brk: Option<u64>,
}

/// A process.
#[derive(Debug)]
pub(super) struct Process {
    /// By the serial number of its first thread.
    pub serial: u32,
    /// Index of its parent.
    pub parent: Option<usize>,
    /// The name of its last command.
    pub name: String,
    pub from: u64,
    pub to: u64,
    /// Indices of the address spaces that it began itself, one after the other.
    pub own: Vec<usize>,
    /// The one it lives in.
    space: usize,
    ended: bool,
}

impl Life {
    /// What happened next. `snapshot` is the one that the event names, if it names one.
    pub fn event(&mut self, event: &Event, snapshot: Option<&Snapshot>) {
        // Time does not go back, whatever was frozen for longer than it lasted.
        let now = event.time.saturating_sub(self.frozen).max(self.end);
        self.end = now;
        match &event.kind {
            Happened::Frozen { ns } => self.frozen = self.frozen.saturating_add(*ns),
            Happened::Fault { in_exec: true, .. } => {}
            Happened::Fault { address, .. } => self.fault(event.task, *address, now),
            Happened::Call(call) => self.call(event.task, call, now),
            Happened::Clone { child, process, flags } => {
                self.clone(event.task, *child, *process, *flags, now)
            }
            Happened::Exec { .. } => {
                let process = self.process_of(event.task, now);
                self.begin(process, Coverage::default(), now);
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
    }

    /// Ends what has not ended.
    pub fn finish(&mut self) {
        let now = self.end;
        for process in 0..self.processes.len() {
            self.exit(process, now);
        }
    }

    fn process_of(&mut self, task: u32, now: u64) -> usize {
        if let Some(process) = self.tasks.get(&task) {
            return *process;
        }
        self.new_process(task, None, now)
    }

    /// The address space that a task lives in; begun when the recording does not show its beginning.
    fn space_of(&mut self, task: u32, now: u64) -> Option<&mut Space> {
        let process = self.process_of(task, now);
        if self.processes[process].space == NONE && !self.processes[process].ended {
            self.begin(process, Coverage::default(), now);
        }
        self.spaces.get_mut(self.processes[process].space)
    }

    fn new_process(&mut self, serial: u32, parent: Option<usize>, now: u64) -> usize {
        let name = parent.map_or_else(String::new, |parent| self.processes[parent].name.clone());
        let index = self.processes.len();
        let (own, space) = (Vec::new(), NONE);
        self.processes.push(Process { serial, parent, name, from: now, to: now, own, space, ended: false });
        self.tasks.insert(serial, index);
        index
    }

    /// The process gets an address space of its own and leaves the one it has.
    fn begin(&mut self, process: usize, coverage: Coverage, now: u64) {
        self.leave(process, now);
        let space = self.spaces.len();
        let (blocks, faults, brk) = (Vec::new(), Vec::new(), None);
        self.spaces.push(Space { from: now, to: now, blocks, faults, coverage, users: 1, brk });
        self.processes[process].space = space;
        self.processes[process].own.push(space);
    }

    fn leave(&mut self, process: usize, now: u64) {
        let Some(space) = self.spaces.get_mut(self.processes[process].space) else { return };
        space.users -= 1;
        if space.users == 0 {
            space.to = now;
            space.coverage.finish(now, &mut |block| space.blocks.push(block));
        }
    }

    fn exit(&mut self, process: usize, now: u64) {
        if std::mem::replace(&mut self.processes[process].ended, true) {
            return;
        }
        self.processes[process].to = now;
        self.leave(process, now);
        self.processes[process].space = NONE;
    }

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
                let (coverage, brk) = (copied.coverage.forked(now), copied.brk);
                self.begin(index, coverage, now);
                let own = self.processes[index].space;
                self.spaces[own].brk = brk;
            }
            None => self.begin(index, Coverage::default(), now),
        }
    }

    fn fault(&mut self, task: u32, address: u64, now: u64) {
        self.faults += 1;
        let Some(space) = self.space_of(task, now) else { return };
        if address >= USER_END {
            return;
        }
        space.faults.push((now, address / PAGE));
        if space.coverage.at(address).is_none()
            && let Some((start, memory)) = space.coverage.above(address)
            && memory.kind == Kind::Stack
            && start - address <= STACK_REACH
        {
            space.set((address / PAGE * PAGE, start), Some(memory), now);
        }
    }

    /// The kernel's own list replaces what was followed so far.
    fn listed(&mut self, process: usize, snapshot: Option<&Snapshot>, now: u64) {
        let Some(snapshot) = snapshot else { return };
        let Some(space) = self.spaces.get_mut(self.processes[process].space) else { return };
        // Later the name may be that of a thread.
        let name = &mut self.processes[process].name;
        if snapshot.why == Why::Exec || name.is_empty() {
            name.clone_from(&snapshot.comm);
        }
        let mut at = 0;
        for area in snapshot.areas.iter().filter(|area| area.end <= USER_END) {
            space.set((at, area.start), None, now);
            let memory = Memory::of(area);
            // A thread's stack has no name there.
            let becomes = |old: Option<Memory>| match old {
                Some(Memory { kind: Kind::Stack, .. }) if memory.kind == Kind::Anonymous => {
                    Some(Memory { kind: Kind::Stack, ..memory })
                }
                _ => Some(memory),
            };
            space.change((area.start, area.end), becomes, now);
            at = area.end;
        }
        space.set((at, USER_END), None, now);
    }

    fn call(&mut self, task: u32, call: &Call, now: u64) {
        let Returned::Value(value) = call.returned else { return };
        if call.name == CallName::Shmget {
            let known = self.segments.entry(value).or_default();
            *known = call.args[1].max(*known);
        }
        let segment = self.segments.get(&call.args[0]).copied().unwrap_or(PAGE);
        if let Some(space) = self.space_of(task, now) {
            space.call(call, value, segment, now);
        }
    }
}

impl Space {
    /// A call that returned `value`; an attached System V segment has `segment` bytes.
    fn call(&mut self, call: &Call, value: u64, segment: u64, now: u64) {
        let [first, second, third, fourth, ..] = call.args;
        match call.name {
            CallName::Mmap => self.set(pages(value, second), Some(Memory::mapped(third, fourth)), now),
            CallName::Munmap => self.set(pages(first, second), None, now),
            CallName::Mremap => self.mremap(first, second, third, fourth, value, now),
            CallName::Mprotect | CallName::PkeyMprotect => {
                let reserved = third & 7 == 0;
                let becomes = |old: Option<Memory>| old.map(|old| Memory { reserved, ..old });
                self.change(pages(first, second), becomes, now);
            }
            CallName::Brk => self.brk(value, now),
            CallName::Shmat => {
                let memory = Memory { kind: Kind::SharedFile, reserved: false };
                self.set(pages(value, segment), Some(memory), now);
            }
            CallName::Shmdt => {
                if let Some((end, _)) = self.coverage.beginning_at(first) {
                    self.set((first, end), None, now);
                }
            }
            _ => {}
        }
    }

    fn change(&mut self, range: (u64, u64), becomes: impl Fn(Option<Memory>) -> Option<Memory>, now: u64) {
        let blocks = &mut self.blocks;
        self.coverage.change(range, now, becomes, &mut |block| {
            if block.to > block.from {
                blocks.push(block);
            }
        });
    }

    fn set(&mut self, range: (u64, u64), memory: Option<Memory>, now: u64) {
        self.change(range, |_| memory, now);
    }

    fn brk(&mut self, to: u64, now: u64) {
        let to = to.min(USER_END).next_multiple_of(PAGE);
        let from = *self.brk.get_or_insert(to);
        if to > from {
            self.set((from, to), Some(Memory { kind: Kind::Heap, reserved: false }), now);
        } else {
            self.set((to, from), None, now);
        }
        self.brk = Some(to);
    }

    fn mremap(&mut self, from: u64, len: u64, new_len: u64, flags: u64, to: u64, now: u64) {
        const DONT_UNMAP: u64 = 4;
        let memory = self.coverage.at(from);
        let (old, new) = (pages(from, len), pages(to, new_len));
        if flags & DONT_UNMAP == 0 && from != to {
            self.set(old, None, now);
        } else if new_len < len {
            self.set((new.1, old.1), None, now);
        }
        self.set(new, memory, now);
    }
}

/// The range of whole pages; an end beyond all addresses is the last of them.
fn pages(start: u64, bytes: u64) -> (u64, u64) {
    let end = start.saturating_add(bytes).min(USER_END).next_multiple_of(PAGE);
    (start / PAGE * PAGE, end)
}
