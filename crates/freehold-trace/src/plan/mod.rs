//! From a recording to a plan: every task's steps in order, and between tasks just the order that addresses and forks
//! force.
//!
//! The recording's own order is one that Linux really took, so it is one exact order. What may be done in another order,
//! or at once, is what would come out the same:
//!
//! | step | waits for earlier steps of other tasks in the same address space that |
//! | --- | --- |
//! | a fault | last changed what is mapped at its page (of a huge page: anywhere in it); a write to private memory: also the first write that gave the VMA its family of anonymous pages |
//! | a call that changes VMAs, a first write | changed, or looked at, any VMA that it overlaps or touches; faulted where it changes |
//! | a call that takes or brings pages | changed what is mapped there; faulted there |
//! | fork, a snapshot, mlockall | did anything |
//!
//! and everybody waits for the last fork, snapshot or mlockall. To know which VMAs a call touches, the planner keeps a
//! sequential model of each address space ([`area`], [`calls`]), without pages.
//!
//! A plan comes in [segments](Segment) of bounded size, so its memory does not grow with the recording. A segment also
//! ends where the recorded program was frozen: the address spaces are compared then, while nobody runs.

mod area;
mod calls;
mod order;
mod recorded;
mod step;
mod told;
mod touch;

#[cfg(test)]
mod tests;

pub use order::Stamp;
pub use recorded::{Recorded, kind_name, show_call};
pub use step::{Ends, Frozen, PlanFile, PlannedCall, Segment, Start, Step, TaskSteps, What};

use crate::{Call, CallName, Event, FaultCode, Format, Kind, ReadError, Recording, Returned, Snapshot, Why};
use area::{Area, PAGE, flag};
use calls::{Doing, Reach, Space};
use rustc_hash::FxHashMap as HashMap;
use std::collections::BTreeMap;

/// Steps of a segment, at most.
pub const SEGMENT: usize = 1 << 20;

const CLONE_VM: u64 = 0x100;

/// Makes the plan of a recording, segment by segment.
pub struct Planner {
    recording: Recording,
    /// Steps of a segment, at most.
    limit: usize,
    /// Only what happened up to this time goes into the plan, in nanoseconds.
    until: u64,
    /// An event that belongs to the next segment.
    held: Option<Event>,
    tasks: HashMap<u32, Task>,
    spaces: HashMap<u32, Box<Space>>,
    next_space: u32,
    /// Live tasks by process.
    processes: HashMap<u32, Vec<u32>>,
    /// Numbers of what is mapped, by path.
    names: HashMap<String, u32>,
    /// Bytes of System V segments, by number.
    segments: HashMap<u64, u64>,
    families: u32,
    recorded: Recorded,
    set_aside: BTreeMap<&'static str, u64>,
    segment: Segment,
    steps: usize,
    /// Tasks with steps in this segment.
    active: Vec<u32>,
    scratch: Vec<Stamp>,
}

/// What the planner knows of a task.
#[derive(Default)]
struct Task {
    process: u32,
    space: Option<u32>,
    /// The number of its next step.
    next: u32,
    /// The number of its first step in this segment.
    first: u32,
    /// A step of another task in this segment makes it.
    made_here: bool,
    /// What it waited for already, in this segment: the last step of each other task.
    known: Vec<Stamp>,
    steps: Vec<Step>,
    /// The step that is a fault of which the end is still to come.
    open_fault: Option<u32>,
}

/// Why an event is not part of the plan.
mod aside {
    pub const NO_SPACE: &str = "before the first exec: what was mapped is not recorded";
    pub const IN_EXEC: &str = "faults of the kernel inside execve: part of the exec's snapshot";
    pub const FIXED_UP: &str = "kernel-mode faults that were not handled: taken with page faults disabled";
    pub const NO_END: &str = "faults that were interrupted: neither resolved nor a signal";
    pub const FILES: &str = "calls on files (ftruncate, fallocate, memfd_create): the file is not recorded";
    pub const NAMES: &str = "prctl(PR_SET_VMA): the recorded kernel has no names for anonymous memory";
    pub const PRCTL: &str = "other prctl calls";
    pub const NUMA: &str = "placement on NUMA nodes";
    pub const KEYS: &str = "allocation of protection keys";
    pub const SHM: &str = "shmget and shmctl: System V segments themselves";
    pub const TASKS: &str = "fork, clone and exec that failed";
    pub const OTHERS: &str = "calls on other processes, and userfaultfd";
    pub const RESTARTED: &str = "calls interrupted by a signal and begun anew";
    pub const MID_EXEC: &str = "snapshots that a freeze took inside an execve";
    pub const UNKNOWN_SPACE: &str = "snapshots of address spaces whose start is not recorded";
    pub const UNSURE: &str = "answers that rest on memory mapped before the recording began";
}

impl Planner {
    /// Plans what `recording` holds, from where it stands.
    pub fn new(recording: Recording) -> Planner {
        Planner {
            recording,
            limit: SEGMENT,
            until: u64::MAX,
            held: None,
            tasks: HashMap::default(),
            spaces: HashMap::default(),
            next_space: 1,
            processes: HashMap::default(),
            names: HashMap::default(),
            segments: HashMap::default(),
            families: 0,
            recorded: Recorded::default(),
            set_aside: BTreeMap::new(),
            segment: Segment::default(),
            steps: 0,
            active: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// The same, with segments of at most `steps` steps.
    pub fn with_segments_of(self, steps: usize) -> Planner {
        Planner { limit: steps.max(1), ..self }
    }

    /// The same, of what happened until `time` alone, in nanoseconds.
    pub fn until(self, time: u64) -> Planner {
        Planner { until: time, ..self }
    }

    /// What the recording, as far as it was read, says of the recorded machine.
    pub fn recorded(&self) -> &Recorded {
        &self.recorded
    }

    /// What did not go into the plan, or cannot be checked, and how often.
    pub fn set_aside(&self) -> &BTreeMap<&'static str, u64> {
        &self.set_aside
    }

    /// The recording.
    pub fn recording(&self) -> &Recording {
        &self.recording
    }

    /// The process of a task.
    pub fn process_of(&self, task: u32) -> Option<u32> {
        self.tasks.get(&task).map(|task| task.process)
    }

    /// The next segment; `None` at the end.
    ///
    /// # Errors
    ///
    /// What the recording said cannot be understood.
    pub fn next_segment(&mut self) -> Result<Option<Segment>, ReadError> {
        while self.steps < self.limit {
            let event = match self.held.take() {
                Some(event) => event,
                None => match self.recording.next_event()? {
                    Some(event) if event.time <= self.until => event,
                    _ => break,
                },
            };
            let frozen = matches!(event.kind, Kind::Snapshot { why: Why::Freeze, .. } | Kind::Frozen { .. });
            if !frozen && !self.segment.frozen.is_empty() {
                self.held = Some(event);
                break;
            }
            self.segment.events += 1;
            self.recorded.note(&event);
            self.event(event)?;
        }
        Ok(self.finish())
    }

    /// Hands out what has gathered.
    fn finish(&mut self) -> Option<Segment> {
        let mut segment = std::mem::take(&mut self.segment);
        if segment.events == 0 {
            return None;
        }
        self.steps = 0;
        self.active.sort_unstable();
        for number in self.active.drain(..) {
            let Some(task) = self.tasks.get_mut(&number) else { continue };
            segment.tasks.push(TaskSteps {
                task: number,
                first: task.first,
                steps: std::mem::take(&mut task.steps),
                runs: !task.made_here,
            });
        }
        // Everything planned so far is done before the next segment begins.
        let open = self.tasks.values().filter(|task| task.open_fault.is_some()).count();
        (0..open).for_each(|_| self.aside(aside::NO_END));
        self.tasks.retain(|_, task| task.process != 0);
        for task in self.tasks.values_mut() {
            task.known.clear();
            (task.first, task.made_here, task.open_fault) = (task.next, false, None);
        }
        for space in self.spaces.values_mut() {
            space.order.forget();
        }
        Some(segment)
    }

    fn aside(&mut self, why: &'static str) {
        *self.set_aside.entry(why).or_default() += 1;
    }

    fn event(&mut self, event: Event) -> Result<(), ReadError> {
        let Event { line, task, .. } = event;
        if matches!(event.kind, Kind::Frozen { .. } | Kind::TornDown { .. }) {
            return Ok(());
        }
        if !matches!(event.kind, Kind::Snapshot { .. }) {
            self.meet(task, line);
            self.close_fault(task, &event.kind);
        }
        match event.kind {
            Kind::Fault { in_exec: true, .. } => self.aside(aside::IN_EXEC),
            Kind::Fault { address, code, .. } => {
                self.fault(line, task, address, code, event.cost.after.is_some())
            }
            Kind::Call(call) => self.call(line, task, *call),
            Kind::Clone { child, process, flags } => self.clone(line, task, child, process, flags),
            Kind::Exec { snapshot } => {
                let snapshot = match snapshot {
                    Some(id) => self.recording.snapshot(id)?,
                    None => None,
                };
                self.exec(line, task, snapshot);
            }
            Kind::Exit { .. } => self.exit(line, task),
            Kind::Snapshot { id, why, process } => {
                if let Some(snapshot) = self.recording.snapshot(id)? {
                    self.snapshot(line, task, why, process, snapshot);
                }
            }
            Kind::Signal { .. } | Kind::Frozen { .. } | Kind::TornDown { .. } => {}
        }
        Ok(())
    }

    /// A task that no clone has announced: the first, or one that ran before the recording began.
    fn meet(&mut self, task: u32, line: u32) {
        if self.tasks.contains_key(&task) {
            return;
        }
        self.tasks.insert(task, Task { process: task, ..Task::default() });
        self.processes.entry(task).or_default().push(task);
        if self.recording.format() == Format::Strace {
            self.exec(line, task, None);
        }
    }

    /// The end of a fault that no page ended: a signal, if the task's next event is one.
    fn close_fault(&mut self, number: u32, next: &Kind) {
        let Some(task) = self.tasks.get_mut(&number) else { return };
        let Some(index) = task.open_fault.take() else { return };
        let step = index.checked_sub(task.first).and_then(|at| task.steps.get_mut(at as usize));
        match (next, step) {
            (Kind::Signal { signal, code }, Some(step)) => {
                if let What::Fault { ends, .. } = &mut step.what {
                    *ends = Ends::Signal(*signal, *code);
                }
            }
            _ => self.aside(aside::NO_END),
        }
    }

    /// The stamp that the task's next step will have.
    fn stamp(&self, task: u32) -> Stamp {
        Stamp { task, index: self.tasks.get(&task).map_or(0, |task| task.next) }
    }

    /// Adds a step of `task`, which waits for what is in `scratch`.
    fn push(&mut self, task: u32, line: u32, what: What) {
        let from = self.segment.waits.len() as u32;
        let mut scratch = std::mem::take(&mut self.scratch);
        for stamp in scratch.drain(..) {
            self.wait(task, stamp);
        }
        self.scratch = scratch;
        let waits = from..self.segment.waits.len() as u32;
        let Some(own) = self.tasks.get_mut(&task) else { return };
        if own.steps.is_empty() {
            self.active.push(task);
        }
        own.next += 1;
        own.steps.push(Step { line, waits, what });
        self.steps += 1;
    }

    /// `task` must wait for `other`, unless that is certain already.
    fn wait(&mut self, task: u32, other: Stamp) {
        if other == Stamp::START || other.task == task {
            return;
        }
        // What was planned in an earlier segment is done; a task that is forgotten was, too.
        if self.tasks.get(&other.task).is_none_or(|other_task| other.index < other_task.first) {
            return;
        }
        let Some(own) = self.tasks.get_mut(&task) else { return };
        match own.known.iter_mut().find(|known| known.task == other.task) {
            Some(known) if known.index >= other.index => return,
            Some(known) => known.index = other.index,
            None => own.known.push(other),
        }
        self.segment.waits.push(other);
    }

    fn space_of(&self, task: u32) -> Option<u32> {
        self.tasks.get(&task)?.space
    }

    fn fault(&mut self, line: u32, task: u32, address: u64, code: FaultCode, resolved: bool) {
        if !resolved && !code.user() {
            return self.aside(aside::FIXED_UP);
        }
        let number = self.space_of(task);
        let Some(space) = number.and_then(|number| self.spaces.get_mut(&number)) else {
            return self.aside(aside::NO_SPACE);
        };
        let stamp = Stamp { task, index: self.tasks.get(&task).map_or(0, |task| task.next) };
        space.touch(address, code.write(), stamp, &mut self.families, &mut self.scratch);
        let ends = if resolved { Ends::Resolved } else { Ends::Interrupted };
        self.push(task, line, What::Fault { address, code, ends });
        if !resolved && let Some(own) = self.tasks.get_mut(&task) {
            own.open_fault = Some(stamp.index);
        }
    }

    fn clone(&mut self, line: u32, task: u32, child: u32, process: u32, flags: u64) {
        if self.tasks.contains_key(&child) {
            return;
        }
        let shares = flags & CLONE_VM != 0;
        let stamp = self.stamp(task);
        let parent = self.space_of(task);
        let space = match parent {
            Some(number) if !shares => {
                self.gather_whole(number, task);
                let copy = self.spaces.get(&number).map(|space| space.fork(&mut self.families));
                if let Some(space) = self.spaces.get_mut(&number) {
                    space.order.note_whole(stamp);
                }
                copy.map(|copy| self.add_space(copy))
            }
            shared => shared,
        };
        self.push(task, line, What::Clone { child, shares });
        // What the parent waited for, the child need not wait for again.
        let mut known = self.tasks.get(&task).map(|task| task.known.clone()).unwrap_or_default();
        known.push(stamp);
        self.tasks.insert(child, Task { process, space, made_here: true, known, ..Task::default() });
        self.processes.entry(process).or_default().push(child);
        if let Some(space) = space.and_then(|space| self.spaces.get_mut(&space)) {
            space.members.push(child);
        }
    }

    fn add_space(&mut self, space: Space) -> u32 {
        let number = self.next_space;
        self.next_space += 1;
        self.spaces.insert(number, Box::new(space));
        number
    }

    /// The task leaves its address space, which goes with its last.
    fn leave(&mut self, task: u32) {
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

    fn exec(&mut self, line: u32, task: u32, snapshot: Option<Snapshot>) {
        self.gather_last_whole(task);
        self.leave(task);
        let mut space = Space { members: vec![task], ..Space::default() };
        let start = match snapshot {
            Some(snapshot) => {
                self.show(&mut space, &snapshot);
                Some(Start::Shown(snapshot))
            }
            // Only text that shows every call from the start on can be followed without.
            None if self.recording.format() == Format::Strace => {
                space.told = Some(told::Told::default());
                Some(Start::Unknown)
            }
            None => None,
        };
        let Some(start) = start else { return self.scratch.clear() };
        let number = self.add_space(space);
        if let Some(own) = self.tasks.get_mut(&task) {
            own.space = Some(number);
        }
        self.push(task, line, What::Exec(Box::new(start)));
    }

    /// The VMAs of a snapshot.
    fn show(&mut self, space: &mut Space, snapshot: &Snapshot) {
        for shown in &snapshot.areas {
            let file = self.file_of(&shown.name);
            let flags = shown.flags.iter().flatten().fold(0, |sum, code| sum | flag::of_code(*code));
            let written = shown.sizes.is_some_and(|sizes| sizes[6] > 0) && !shown.shared;
            if written {
                self.families = self.families.wrapping_add(1).max(1);
            }
            let area = Area {
                end: shown.end,
                prot: shown.prot,
                shared: shown.shared,
                file,
                offset: if file.is_some() { shown.offset } else { shown.start },
                flags,
                tag: 0,
                family: if written { self.families } else { 0 },
                alone: true,
                family_by: Stamp::START,
                last: Stamp::START,
            };
            space.areas.put(shown.start, area);
        }
    }

    /// The number of what a list calls `name`; none for anonymous memory.
    fn file_of(&mut self, name: &str) -> Option<u32> {
        let name = name.strip_suffix(" (deleted)").unwrap_or(name);
        if matches!(name, "" | "-" | "[heap]" | "[stack]") || name.starts_with("[anon:") {
            return None;
        }
        if let Some(&id) = self.names.get(name) {
            return Some(id);
        }
        let id = self.names.len() as u32 + 1;
        self.names.insert(name.to_owned(), id);
        let known = self
            .recording
            .files()
            .iter()
            .find(|file| file.path.strip_suffix(" (deleted)").unwrap_or(&file.path) == name);
        let size = known.and_then(|file| file.size);
        self.segment.files.push(PlanFile { id, path: name.to_owned(), size });
        Some(id)
    }

    /// The last step that concerned all of the task's space, into `scratch`: what lets go of the space waits for it.
    fn gather_last_whole(&mut self, task: u32) {
        let space = self.space_of(task).and_then(|number| self.spaces.get(&number));
        self.scratch.extend(space.map(|space| space.order.whole));
    }

    fn exit(&mut self, line: u32, task: u32) {
        self.gather_last_whole(task);
        self.push(task, line, What::Exit);
        self.leave(task);
        let Some(own) = self.tasks.get_mut(&task) else { return };
        let process = std::mem::take(&mut own.process);
        if let Some(tasks) = self.processes.get_mut(&process) {
            tasks.retain(|&other| other != task);
            if tasks.is_empty() {
                self.processes.remove(&process);
            }
        }
    }

    fn snapshot(&mut self, line: u32, task: u32, why: Why, process: u32, snapshot: Snapshot) {
        match why {
            Why::Exec => {}
            Why::MidExec => self.aside(aside::MID_EXEC),
            Why::Freeze => {
                let member = self.processes.get(&process).and_then(|tasks| tasks.first().copied());
                match member.filter(|&task| self.is_shown(task)) {
                    Some(task) => self.segment.frozen.push(Frozen { line, task, snapshot }),
                    None => self.aside(aside::UNKNOWN_SPACE),
                }
            }
            Why::Exit if self.is_shown(task) => {
                let Some(number) = self.space_of(task) else { return };
                self.gather_whole(number, task);
                let stamp = self.stamp(task);
                if let Some(space) = self.spaces.get_mut(&number) {
                    space.order.note_whole(stamp);
                }
                self.push(task, line, What::Compare(Box::new(snapshot)));
            }
            Why::Exit => self.aside(aside::UNKNOWN_SPACE),
        }
    }

    /// The task's address space is known from its start.
    fn is_shown(&self, task: u32) -> bool {
        let space = self.space_of(task).and_then(|number| self.spaces.get(&number));
        space.is_some_and(|space| space.told.is_none())
    }

    /// Everything done so far in the space: for whom all of it matters.
    fn gather_whole(&mut self, number: u32, task: u32) {
        let Some(space) = self.spaces.get(&number) else { return };
        self.scratch.push(space.order.whole);
        self.scratch.extend(&space.order.departed);
        for &member in space.members.iter().filter(|&&member| member != task) {
            if let Some(index) = self.tasks.get(&member).and_then(|member| member.next.checked_sub(1)) {
                self.scratch.push(Stamp { task: member, index });
            }
        }
    }

    fn call(&mut self, line: u32, task: u32, call: Call) {
        if let Some(why) = self.is_elsewhere(&call) {
            return self.aside(why);
        }
        if call.returned == Returned::Never {
            return;
        }
        let Some(number) = self.space_of(task) else { return self.aside(aside::NO_SPACE) };
        let file = self.mapped_file(&call);
        let bytes = self.segments.get(&call.args[0]).copied().unwrap_or(PAGE);
        let stamp = self.stamp(task);
        self.gather_target(&call, number, task);
        let Some(space) = self.spaces.get(&number) else { return };
        let reach = calls::reach(&call, space, bytes);
        if reach == Reach::Whole {
            self.gather_whole(number, task);
        }
        let Some(mut space) = self.spaces.remove(&number) else { return };
        let unsure = self.assume(&mut space, task, line, &call, &reach);
        let stamp = Stamp { index: stamp.index + unsure.1, ..stamp };
        let first_brk = call.name == CallName::Brk && space.heap.is_none();
        let heap = call.returned.value().filter(|_| first_brk);
        let beside = space.gather(&reach, &mut self.scratch);
        let mut doing = Doing { call: &call, file, segment: bytes, stamp, families: &mut self.families };
        space.apply(&mut doing);
        space.note(&reach, beside, stamp);
        self.spaces.insert(number, space);
        if unsure.0 {
            self.aside(aside::UNSURE);
        }
        let planned = PlannedCall { call, file, segment: bytes, heap, unsure: unsure.0 };
        self.push(task, line, What::Call(Box::new(planned)));
    }

    /// A call that reads or writes another address space waits for all that was done there, and is waited for.
    fn gather_target(&mut self, call: &Call, number: u32, task: u32) {
        let target = call.transfer.as_ref().and_then(|transfer| transfer.process);
        let Some(target) = target.and_then(|process| self.space_of(process)) else { return };
        if target != number {
            self.gather_whole(target, task);
            let stamp = self.stamp(task);
            if let Some(space) = self.spaces.get_mut(&target) {
                space.order.note_whole(stamp);
            }
        }
    }

    /// In a space of unknown start: maps what the call found there. Whether its answer rests on such memory, and how many
    /// steps were added.
    fn assume(&mut self, space: &mut Space, task: u32, line: u32, call: &Call, reach: &Reach) -> (bool, u32) {
        let Some(told) = &mut space.told else { return (false, 0) };
        let ranges = match reach {
            Reach::Vmas(ranges) => ranges.clone(),
            Reach::Pages(range) => [range.clone(), 0..0],
            Reach::Whole => return (call.transfer.is_none(), 0),
        };
        let replaces =
            matches!(call.name, CallName::Mmap | CallName::Munmap | CallName::Brk | CallName::Shmat);
        let succeeded = call.returned.value().is_some();
        let source = if replaces { 0..0 } else { ranges[0].clone() };
        let missing = told.missing(&source);
        let unsure = !missing.is_empty() || (!succeeded && !told.missing(&ranges[0]).is_empty());
        if succeeded {
            ranges.into_iter().for_each(|range| told.add(range));
        }
        let assumed = if succeeded { missing } else { Vec::new() };
        let count = assumed.len() as u32;
        for range in assumed {
            self.push(task, line, What::Assume(range));
        }
        (unsure, count)
    }

    /// What a call maps, by its number in the plan.
    fn mapped_file(&mut self, call: &Call) -> Option<u32> {
        match call.name {
            CallName::Shmget => {
                if let Some(id) = call.returned.value() {
                    let size = self.segments.entry(id).or_default();
                    *size = (*size).max(call.args[1]);
                }
                None
            }
            // There was no such descriptor.
            CallName::Mmap if call.returned == Returned::Error(9) => None,
            CallName::Mmap | CallName::Shmat => {
                let anonymous = call.name == CallName::Mmap && call.args[3] & 0x20 != 0;
                let shared = matches!(call.args[3] & 0xf, 1 | 3);
                let path = call.file.and_then(|id| self.recording.file(id)).map(|file| file.path.clone());
                match (path, anonymous, shared) {
                    (_, true, false) => None,
                    (Some(path), ..) => self.file_of(&path),
                    (None, true, true) => self.file_of("/dev/zero"),
                    (None, ..) if call.name == CallName::Shmat => {
                        self.file_of(&format!("/SYSV{}", call.args[0]))
                    }
                    (None, ..) => self.file_of(&format!("descriptor {}", call.args[4] as i64)),
                }
            }
            _ => None,
        }
    }

    /// Why the engine is not asked about a call.
    fn is_elsewhere(&mut self, call: &Call) -> Option<&'static str> {
        Some(match call.name {
            CallName::Prctl if call.args[0] == 0x5356_4d41 => aside::NAMES,
            CallName::Prctl => aside::PRCTL,
            CallName::Ftruncate | CallName::Truncate | CallName::Fallocate => aside::FILES,
            CallName::MemfdCreate | CallName::MemfdSecret => aside::FILES,
            CallName::SetMempolicy | CallName::MigratePages | CallName::MovePages => aside::NUMA,
            CallName::PkeyAlloc | CallName::PkeyFree => aside::KEYS,
            CallName::Shmget | CallName::Shmctl => {
                let _ = self.mapped_file(call);
                aside::SHM
            }
            CallName::Clone | CallName::Clone3 | CallName::Fork | CallName::Vfork => aside::TASKS,
            CallName::Execve | CallName::Execveat => aside::TASKS,
            CallName::ProcessMadvise | CallName::ProcessMrelease | CallName::Userfaultfd => aside::OTHERS,
            CallName::ProcessVmReadv | CallName::ProcessVmWritev if call.transfer.is_none() => aside::OTHERS,
            // Its effect until then stays, and must be followed.
            CallName::Mremap => return None,
            _ if matches!(call.returned, Returned::Error(512..=516)) => aside::RESTARTED,
            _ => return None,
        })
    }
}
