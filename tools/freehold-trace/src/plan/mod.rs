//! From a recording to a plan: every task's steps in order, and between tasks just the order that addresses
//! and forks force.
//!
//! The order in which events took effect on Linux is one exact order. It is that of the recording, except
//! where tasks of one address space overlap (`effect.rs`). What may be done in another order, or at once, is
//! what would come out the same:
//!
//! | step | waits for earlier steps of other tasks in the same address space that |
//! | --- | --- |
//! | a fault | last changed what is mapped at its page (of a huge page: anywhere in it; of a file: in the pages around it that may come along); a write to private memory: also the first write that gave the VMA its family of anonymous pages |
//! | a call that changes VMAs, a first write | changed, or looked at, any VMA that it overlaps or touches; faulted where it changes |
//! | a call that takes or brings pages | changed what is mapped there; faulted there |
//! | fork, a snapshot, mlockall, a change of resource limits, the end of a userfaultfd | did anything |
//! | a call that changes what a limit in force counts | is such a call |
//! | a call that removes a System V segment | in any address space: attached or detached it; a step that does so later waits for it, and each for the one before |
//! | a store to a huge page that a fork has shared, and what takes that page from an address space | in any address space of the same kin: did either; see `kin.rs` |
//! | a step that may use a pool of huge pages of known size | in any address space: is such a step; see `pools.rs` |
//! | a call that makes a file shorter or longer | in any address space: faulted in that file, or compared what is there |
//!
//! and everybody waits for the last fork, snapshot, mlockall, change of limits or end of a userfaultfd. To
//! know which VMAs a call touches, the planner keeps a sequential model of each address space (`area.rs`,
//! `calls.rs`), without pages.
//!
//! A plan comes in [segments](Segment) of bounded size, so its memory does not grow with the recording. A
//! segment also ends where the recorded program was frozen: the address spaces are compared then, while
//! nobody runs.

mod area;
pub mod aside;
mod bytes;
mod calls;
mod descriptors;
mod effect;
mod events;
mod files;
mod kin;
mod lengths;
mod limited;
mod mapped;
mod mremap;
mod order;
mod personality;
mod pools;
mod queries;
mod recorded;
mod refused;
mod registered;
mod removed;
mod step;
mod syscall;
mod told;
mod touch;
mod unknown;
mod vmas;

#[cfg(test)]
mod tests;

pub use area::Purpose;
pub use order::Stamp;
pub use recorded::{Recorded, kind_name, show_call};
pub use step::{Access, Ends, Frozen, PlanFile, PlannedCall, Segment, Start, Step, TaskSteps, Unsure, What};
pub use vmas::{Vma, Vmas};

use crate::{CallName, Event, FaultCode, Format, Kind, ReadError, Recording, Returned, Snapshot, Why};
use calls::Space;
use descriptors::Descriptors;
use effect::{Beside, Waiting, event_span};
use kin::Kins;
use lengths::Lengths;
use limited::Limited;
use registered::Userfaultfds;
use removed::{Removals, When};
use rustc_hash::FxHashMap as HashMap;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::Range;

const SIGSEGV: u8 = 11;
const SI_KERNEL: i32 = 128;
/// Steps of a segment, at most.
pub const SEGMENT: usize = 1 << 20;
/// And so many more, where the end of a fault is still to come.
const SLACK: usize = 1 << 10;
/// A segment also ends when its steps wait for so many times as many others as it may have steps.
const WAITS: usize = 8;
/// Or when the snapshots in it have so many lines.
const LINES: usize = 1 << 21;

/// Makes the plan of a recording, segment by segment.
pub struct Planner {
    recording: Recording,
    /// Steps of a segment, at most.
    limit: usize,
    /// Calls that change which addresses are free keep their order.
    keeps_layout: bool,
    /// Why nothing more can be read.
    cut_off: Option<ReadError>,
    /// Only what happened up to this time goes into the plan, in nanoseconds.
    until: u64,
    /// An event that belongs to the next segment.
    held: Option<Event>,
    /// Events that take effect later than the last one planned.
    waiting: Vec<Waiting>,
    tasks: HashMap<u32, Task>,
    spaces: HashMap<u32, Box<Space>>,
    next_space: u32,
    /// Live tasks by process.
    processes: HashMap<u32, Vec<u32>>,
    /// Numbers of what is mapped, by path.
    names: HashMap<String, u32>,
    /// How many there are.
    files: u32,
    /// The same, by the numbers that the recording has for files; and which of them are such.
    records: HashMap<u32, u32>,
    recorded_files: HashSet<u32>,
    /// Memfds whose name is not known yet.
    nameless: HashMap<u32, PlanFile>,
    descriptors: Descriptors,
    userfaultfds: Userfaultfds,
    limits: Limited,
    lengths: Lengths,
    /// Files of the recording, by path, and how many of them are in here.
    paths: HashMap<String, usize>,
    paths_known: usize,
    /// System V segments, by number.
    segments: HashMap<u64, SystemV>,
    removals: Removals,
    /// Losses of events of nobody known that have not ended.
    losses: u32,
    /// Which of them are files of huge pages, and how large those are, in bytes.
    huge: HashMap<u32, u64>,
    families: u32,
    kins: Kins,
    /// The last step that used a pool of huge pages.
    pool: Stamp,
    recorded: Recorded,
    set_aside: BTreeMap<&'static str, u64>,
    /// A call has occurred of which the recording shows the bytes that it moved.
    shows_bytes: bool,
    uses_keys: bool,
    unseen_writes: bool,
    shows_seals: bool,
    segment: Segment,
    steps: usize,
    /// Faults in it of which the end is still to come.
    open_faults: usize,
    /// Lines of the snapshots in it.
    lines: usize,
    /// Tasks with steps in this segment.
    active: Vec<u32>,
    scratch: Vec<Stamp>,
}

/// A segment of System V shared memory.
#[derive(Clone, Copy, Default)]
struct SystemV {
    /// The key that shmget found it by, which is in its name; none where no shmget is recorded.
    key: Option<u32>,
    bytes: u64,
    /// Bytes of its pages, if those are huge.
    huge: Option<u64>,
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
    known: HashMap<u32, u32>,
    steps: Vec<Step>,
    /// The step that is a fault of which the end is still to come.
    open_fault: Option<u32>,
    /// Faults that the kernel has taken in the execve that the task is in.
    in_exec: Vec<Fault>,
    /// Events were lost since its address space began: what that is like now is not known.
    lost: bool,
    /// Its last events that brought or took pages while other tasks ran in the address space.
    beside: VecDeque<Beside>,
    /// Number of ends of address spaces of its kin that it waited for in this segment.
    exits_known: usize,
    /// An address space of its process was torn down since its own began.
    torn_down: bool,
    /// Its personality lets it execute memory that it maps to be read.
    read_implies_exec: bool,
    /// It ends in an execve, perhaps in the new address space.
    dies_in_exec: bool,
}

/// A recorded fault.
struct Fault {
    line: u32,
    address: u64,
    code: FaultCode,
    resolved: bool,
    /// The kernel has looked for a VMA. Where page faults are disabled, it does not.
    looked: bool,
    /// When it ended.
    to: u64,
}

/// A new task.
struct New {
    child: u32,
    process: u32,
    flags: u64,
    /// Pages that its copy of the address space may or may not have.
    unsure: Vec<Range<u64>>,
}

impl Planner {
    /// Plans what `recording` holds, from where it stands.
    pub fn new(recording: Recording) -> Planner {
        Planner {
            recording,
            limit: SEGMENT,
            until: u64::MAX,
            cut_off: None,
            keeps_layout: false,
            held: None,
            waiting: Vec::new(),
            tasks: HashMap::default(),
            spaces: HashMap::default(),
            next_space: 1,
            processes: HashMap::default(),
            names: HashMap::default(),
            files: 0,
            records: HashMap::default(),
            recorded_files: HashSet::default(),
            nameless: HashMap::default(),
            descriptors: Descriptors::default(),
            userfaultfds: Userfaultfds::default(),
            limits: Limited::default(),
            lengths: Lengths::default(),
            paths: HashMap::default(),
            paths_known: 0,
            segments: HashMap::default(),
            removals: Removals::default(),
            losses: 0,
            huge: HashMap::default(),
            families: 0,
            kins: Kins::default(),
            pool: Stamp::START,
            recorded: Recorded::default(),
            set_aside: BTreeMap::new(),
            shows_bytes: false,
            uses_keys: false,
            unseen_writes: false,
            shows_seals: false,
            segment: Segment::default(),
            steps: 0,
            open_faults: 0,
            lines: 0,
            active: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// The same, with segments of at most `steps` steps.
    pub fn with_segments_of(self, steps: usize) -> Planner {
        Planner { limit: steps.max(1), ..self }
    }

    /// The same, where calls that change which addresses are free, or are given some, keep the recording's
    /// order: so each finds free what was free on Linux.
    pub fn keeping_layout(self, keeps_layout: bool) -> Planner {
        Planner { keeps_layout, ..self }
    }

    /// The same, of what happened until `time` alone, in nanoseconds.
    pub fn until(self, time: u64) -> Planner {
        Planner { until: time, ..self }
    }

    /// The next segment; `None` at the end, and where the recording cannot be read any further.
    pub fn next_segment(&mut self) -> Option<Segment> {
        while !self.is_full() {
            let event = match self.held.take() {
                Some(event) => event,
                None if self.cut_off.is_some() => break,
                None => match self.recording.next_event() {
                    Ok(Some(event)) if event.time <= self.until => event,
                    Ok(_) => break,
                    Err(error) => {
                        self.cut_off = Some(error);
                        break;
                    }
                },
            };
            let frozen = matches!(event.kind, Kind::Snapshot { why: Why::Freeze, .. } | Kind::Frozen { .. });
            if !frozen && !self.segment.frozen.is_empty() {
                self.held = Some(event);
                break;
            }
            if let Err(error) = self.in_turn(event) {
                self.cut_off = Some(error);
            }
        }
        if !self.is_full() {
            // The recording is at its end, or the program is frozen: no call is under way.
            if let Err(error) = self.plan_waiting(u64::MAX) {
                self.cut_off.get_or_insert(error);
            }
            self.release_all();
        }
        self.finish()
    }

    /// What has gathered takes as much memory as a segment may.
    fn is_full(&self) -> bool {
        // The end of a fault is in the event behind it.
        let limit =
            if self.open_faults > 0 || self.removals.is_holding() { self.limit + SLACK } else { self.limit };
        self.steps >= limit || self.segment.waits.len() / WAITS >= self.limit || self.lines >= LINES
    }

    /// Hands out what has gathered.
    fn finish(&mut self) -> Option<Segment> {
        let mut segment = std::mem::take(&mut self.segment);
        if segment.events == 0 {
            return None;
        }
        (self.steps, self.lines) = (0, 0);
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
        (0..std::mem::take(&mut self.open_faults)).for_each(|_| self.aside(aside::NO_END));
        self.tasks.retain(|_, task| task.process != 0);
        for task in self.tasks.values_mut() {
            task.known = HashMap::default();
            task.exits_known = 0;
            (task.first, task.made_here, task.open_fault) = (task.next, false, None);
        }
        for space in self.spaces.values_mut() {
            space.order.forget();
        }
        self.lengths.forget_order();
        self.kins.forget_order();
        self.pool = Stamp::START;
        Some(segment)
    }

    fn aside(&mut self, why: &'static str) {
        *self.set_aside.entry(why).or_default() += 1;
    }

    fn event(&mut self, event: Event) -> Result<(), ReadError> {
        let Event { line, task, .. } = event;
        if let Kind::Lost { events } = event.kind {
            match task {
                0 => self.lose(events),
                task => self.lose_task(task, line),
            }
            return Ok(());
        }
        if let Kind::TornDown { process } = event.kind {
            self.tasks.get_mut(&task).into_iter().for_each(|own| own.torn_down = true);
            self.kins.torn_down(process);
            return Ok(());
        }
        if let Kind::Frozen { .. } = event.kind {
            return Ok(());
        }
        if !matches!(event.kind, Kind::Snapshot { .. }) {
            self.meet(task, line);
            self.close_fault(task, &event.kind);
        }
        self.release(task, event.time);
        let when = When::of(event.time, &event.cost);
        let (from, to) = event_span(event.time, &event.cost);
        match event.kind {
            Kind::Fault { address, code, in_exec } => {
                let looked = event.cost.read_wait.or(event.cost.write_wait).is_some();
                let fault = Fault { line, address, code, resolved: event.cost.after.is_some(), looked, to };
                match self.tasks.get_mut(&task).filter(|_| in_exec) {
                    Some(own) => own.in_exec.push(fault),
                    None => self.fault(task, fault),
                }
            }
            Kind::Call(call) => {
                if matches!(call.name, CallName::Execve | CallName::Execveat) {
                    self.failed_exec(task, call.returned);
                }
                self.call_in_turn(line, task, *call, when);
            }
            Kind::Limits(limits) => self.set_limits(task, (*limits).into()),
            Kind::Clone { child, process, flags } => {
                self.place_removals(task, None, when);
                let unsure = self.unsure_in_copy(task, event.time, &event.cost, flags);
                self.clone(line, task, New { child, process, flags, unsure });
                self.remember_fork(task, child, event.time, &event.cost);
            }
            Kind::Exec { snapshot } => {
                let snapshot = snapshot.map(|id| self.named(line, id)).transpose()?;
                self.forget_exec(task);
                self.place_removals(task, None, when);
                let leaves = self.leave_kin(line, task, from, false);
                self.exec(line, task, snapshot);
                self.left_kin(task, leaves);
            }
            Kind::Exit { .. } => {
                self.forget_exec(task);
                self.place_removals(task, None, when);
                let leaves = self.leave_kin(line, task, from, true);
                self.exit(line, task);
                self.left_kin(task, leaves);
            }
            // That of the exec's own line.
            Kind::Snapshot { why: Why::Exec, .. } => {}
            Kind::Snapshot { id, why, process } => {
                let snapshot = self.named(line, id)?;
                self.snapshot(line, task, why, process, snapshot);
            }
            Kind::Signal { signal: SIGSEGV, code: SI_KERNEL } => {
                // A kernel that has torn down the old address space ends the task so.
                let own = self.tasks.get_mut(&task).filter(|own| own.torn_down);
                own.into_iter().for_each(|own| own.dies_in_exec = true);
            }
            Kind::Signal { .. } | Kind::Frozen { .. } | Kind::TornDown { .. } | Kind::Lost { .. } => {}
        }
        Ok(())
    }

    /// An execve of `task` has failed: the program goes on with what the kernel has read of its memory,
    /// unless the call never returned.
    fn failed_exec(&mut self, task: u32, returned: Returned) {
        if returned == Returned::Never {
            self.tasks.get_mut(&task).into_iter().for_each(|own| own.dies_in_exec = true);
            return;
        }
        self.end_exec(task).into_iter().for_each(|fault| self.fault(task, fault));
    }

    /// The execve ends in another image, or in none: its faults are no part of the plan.
    fn forget_exec(&mut self, task: u32) {
        self.end_exec(task).iter().for_each(|_| self.aside(aside::IN_EXEC));
    }

    /// The faults of the kernel in the execve that is over now.
    fn end_exec(&mut self, task: u32) -> Vec<Fault> {
        self.tasks.get_mut(&task).map(|own| std::mem::take(&mut own.in_exec)).unwrap_or_default()
    }

    /// Snapshot `id`, which `line` names.
    fn named(&mut self, line: u32, id: u32) -> Result<Snapshot, ReadError> {
        let snapshot = self.recording.snapshot(id)?.ok_or_else(|| self.recording.no_snapshot(line, id))?;
        self.lines += snapshot.areas.len() + snapshot.pages.len();
        Ok(snapshot)
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
        self.open_faults -= 1;
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
        if let Some(space) = own.space.and_then(|space| self.spaces.get_mut(&space)) {
            space.order.note_step(task);
        }
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
        match own.known.entry(other.task) {
            Entry::Occupied(known) if *known.get() >= other.index => return,
            Entry::Occupied(mut known) => drop(known.insert(other.index)),
            Entry::Vacant(known) => drop(known.insert(other.index)),
        }
        self.segment.waits.push(other);
    }

    /// The task's address space, where it is known.
    fn space_of(&self, task: u32) -> Option<u32> {
        self.tasks.get(&task).filter(|task| !task.lost)?.space
    }

    /// Why nothing is known of the task's address space.
    fn no_space(&self, task: u32) -> &'static str {
        if self.tasks.get(&task).is_some_and(|task| task.lost) { aside::LOST } else { aside::NO_SPACE }
    }

    /// Events of this task were lost: of its address space it is not known from now on what it is like.
    fn lose_task(&mut self, task: u32, line: u32) {
        self.meet(task, line);
        self.aside(aside::LOSSES);
        self.forget_files();
        self.process_of(task).map(|process| self.limits.remove(&process));
        let space = self.tasks.get(&task).and_then(|task| task.space);
        let members = space.and_then(|space| self.spaces.get(&space)).map(|space| space.members.clone());
        for member in members.unwrap_or_else(|| vec![task]) {
            if let Some(member) = self.tasks.get_mut(&member) {
                member.lost = true;
            }
        }
    }

    /// Events were lost, nobody knows whose: of no address space is it known from now on what it is like,
    /// until an exec behind the last loss. A loss of 0 events is the end of one that began before.
    fn lose(&mut self, events: u64) {
        if events == 0 {
            self.losses = self.losses.saturating_sub(1);
        } else {
            self.aside(aside::LOSSES);
            // A text by strace loses what one line says, and goes on behind it.
            let ends = self.recording.format() != Format::Strace;
            self.losses = self.losses.saturating_add(ends.into());
        }
        self.forget_files();
        self.limits.clear();
        self.tasks.values_mut().for_each(|task| task.lost = true);
    }
}
