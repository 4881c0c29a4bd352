//! Adds the steps of each kind of event, except system calls, to the plan.
//!
//! Events: page faults, creation of tasks, execs, exits and snapshots. `run.rs` decides when an event is
//! planned, and calls the function of its kind here. Each function gathers the steps that the event must
//! wait for (`touch.rs`), changes the model of the address space, and pushes one or more steps.
//!
//! Calls are in `syscall.rs` and `file_calls.rs`. An event whose address space is unknown is counted as set
//! aside. A function must gather before it pushes a step: gathered waits belong to the next step that is
//! pushed. A function that gathers waits and pushes no step must clear the waits. A new kind of event needs
//! an arm in `Planner::event` (`run.rs`).

use super::address_set::AddressSet;
use super::area::{Area, flag};
use super::aside;
use super::planner::Planner;
use super::processes::{Fault, New, Task};
use super::space::{CLONE_VM, Reach, Space};
use super::step::{Ends, Frozen, Start, StepKind, Unsure};
use crate::{Format, Snapshot, Why};

/// Maximum length of a list of waits that a new task inherits.
const INHERITED: usize = 64;

impl Planner {
    /// Plans a page fault: the step accesses the address. A fault is set aside if its address space is
    /// unknown, or if page faults were disabled when the kernel took the fault.
    pub(super) fn fault(&mut self, task: u32, fault: Fault) {
        let Fault { line, address, code, resolved, looked, .. } = fault;
        let refused = !resolved && !code.user();
        if refused && !looked {
            return self.aside(aside::FIXED_UP);
        }
        let number = self.space_of(task).filter(|number| self.processes.spaces.contains_key(number));
        let Some(number) = number else { return self.aside(self.processes.no_space(task)) };
        self.limit_fault(line, task, number);
        self.fault_in_file(line, task, number, address, resolved);
        let stamp = self.stamp(task);
        let doubtful =
            self.kins.store_in_kin(&mut self.processes, &mut self.builder.waits, number, stamp, &fault);
        if self.processes.spaces.get(&number).is_some_and(|space| space.has_pool_page(address)) {
            self.use_pool(stamp);
        }
        let Some(space) = self.processes.spaces.get_mut(&number) else { return };
        space.touch(address, code.write(), stamp, &mut self.processes.families, &mut self.builder.waits);
        let ends = match (resolved, refused) {
            (true, _) => Ends::Resolved,
            (_, true) => Ends::Refused,
            _ => Ends::Interrupted,
        };
        self.push(task, line, StepKind::Fault { address, code, ends });
        doubtful.into_iter().for_each(|block| self.push(task, line, StepKind::Unsure(Unsure::Size(block))));
        if ends == Ends::Interrupted
            && let Some(own) = self.processes.tasks.get_mut(&task)
        {
            own.open_fault = Some(stamp.index);
            self.builder.open_faults += 1;
        }
    }

    /// Plans the creation of a task, which gets a copy of the address space or shares it.
    pub(super) fn clone(&mut self, line: u32, task: u32, new: New) {
        let New { child, process, flags, unsure } = new;
        if self.processes.tasks.contains_key(&child) {
            return;
        }
        let shares = flags & CLONE_VM != 0;
        let stamp = self.stamp(task);
        let parent = self.space_of(task);
        let space = match parent {
            Some(number) if !shares => {
                self.gather_whole(number, task);
                let copy =
                    self.processes.spaces.get(&number).map(|space| space.fork(&mut self.processes.families));
                if let Some(space) = self.processes.spaces.get_mut(&number) {
                    space.order.note_whole(stamp);
                }
                let child = copy.map(|copy| self.processes.add_space(copy));
                if let Some(child) = child {
                    self.removals.forked(number, child);
                    self.kins.join_kin(&mut self.processes, number, child);
                }
                child
            }
            shared => shared,
        };
        if !shares {
            self.use_segments(task);
        }
        self.inherit_limits(task, process, flags);
        let copied = parent.filter(|_| !shares).and_then(|number| self.processes.spaces.get(&number));
        let copies_registrations = copied.is_some_and(|space| space.copies_registrations());
        self.push(task, line, StepKind::Clone { child, process, shares, copies_registrations, unsure });
        // The child has waited for every step for which its parent has waited. A child does not get a long
        // list of these waits, because waiting again is cheaper than copying the list.
        self.files.descriptors.clone_task(task, child, flags);
        let known =
            self.processes.tasks.get(&task).map(|task| &task.known).filter(|known| known.len() <= INHERITED);
        let mut known = known.cloned().unwrap_or_default();
        known.insert(stamp.task, stamp.index);
        let parent = self.processes.tasks.get(&task);
        let (lost, read_implies_exec) =
            parent.map_or((false, false), |parent| (parent.lost, parent.read_implies_exec));
        let own = Task { process, space, made_here: true, known, lost, read_implies_exec, ..Task::default() };
        self.processes.tasks.insert(child, own);
        self.processes.members.entry(process).or_default().push(child);
        if let Some(space) = space.and_then(|space| self.processes.spaces.get_mut(&space)) {
            space.members.push(child);
        }
    }

    /// Plans an exec: the task leaves its address space and gets the address space in the snapshot. Without a
    /// snapshot the new address space is unknown; for strace output the planner follows the new address space
    /// from its first call on.
    pub(super) fn exec(&mut self, line: u32, task: u32, snapshot: Option<Snapshot>) {
        self.files.descriptors.exec(task);
        self.end_userfaultfds(line, task);
        self.processes.gather_last_whole(task, &mut self.builder.waits);
        self.use_segments(task);
        self.leave_pool(task);
        let old = self.space_of(task).and_then(|number| self.processes.spaces.get(&number));
        let future = old.map_or(0, |old| old.future & flag::MERGEABLE);
        self.processes.leave(task);
        if let Some(own) = self.processes.tasks.get_mut(&task) {
            own.lost = self.losses.under_way > 0;
            (own.torn_down, own.dies_in_exec, own.read_implies_exec) = (false, false, false);
        }
        self.kins.ask_for_huge_pages(&self.recording);
        let mut space = Space { members: vec![task], future, ..Space::default() };
        let start = match snapshot {
            Some(snapshot) => {
                self.show(&mut space, &snapshot);
                Some(Start::Shown(snapshot))
            }
            // strace output shows every call from the start on, so the plan can follow the address space
            // without a snapshot.
            None if self.recording.format() == Format::Strace => {
                space.known_ranges = Some(AddressSet::default());
                Some(Start::Unknown)
            }
            None => None,
        };
        let Some(start) = start else { return self.builder.waits.clear() };
        let number = self.processes.add_space(space);
        if let Some(own) = self.processes.tasks.get_mut(&task) {
            own.space = Some(number);
        }
        self.push(task, line, StepKind::Exec(Box::new(start)));
    }

    /// Inserts the VMAs of a snapshot into the model.
    fn show(&mut self, space: &mut Space, snapshot: &Snapshot) {
        for shown in &snapshot.areas {
            let file = self.files.file_of(&self.recording, &shown.name);
            let mut area = Area::shown(shown, file);
            if !shown.shared && self.files.is_zeroes(file) {
                area.flags |= flag::ZEROES;
            }
            if shown.sizes.is_some_and(|sizes| sizes[6] > 0) && !shown.shared {
                self.processes.families = self.processes.families.wrapping_add(1).max(1);
                area.family = self.processes.families;
            }
            // If a new image has this flag, the process has inherited the setting of `PR_SET_MEMORY_MERGE`.
            space.future |= area.flags & flag::MERGEABLE;
            space.areas.put(shown.start, area);
        }
    }

    /// Plans the exit of a task.
    pub(super) fn exit(&mut self, line: u32, task: u32) {
        self.files.descriptors.exit(task);
        self.end_userfaultfds(line, task);
        self.processes.gather_last_whole(task, &mut self.builder.waits);
        self.use_segments(task);
        self.leave_pool(task);
        self.push(task, line, StepKind::Exit);
        self.processes.leave(task);
        let Some(own) = self.processes.tasks.get_mut(&task) else { return };
        let process = std::mem::take(&mut own.process);
        if let Some(tasks) = self.processes.members.get_mut(&process) {
            tasks.retain(|&other| other != task);
            if tasks.is_empty() {
                self.processes.members.remove(&process);
                self.processes.limits.remove(&process);
            }
        }
    }

    /// Plans the comparison with a snapshot. If the program was frozen, the comparison is at the end of the
    /// segment; at an exit, it is after all earlier steps in the address space.
    pub(super) fn snapshot(&mut self, line: u32, task: u32, why: Why, process: u32, snapshot: Snapshot) {
        match why {
            Why::Exec => {}
            Why::MidExec => self.aside(aside::MID_EXEC),
            Why::Freeze => {
                let member = self.processes.members.get(&process).and_then(|tasks| tasks.first().copied());
                match member.filter(|&task| self.processes.is_shown(task)) {
                    Some(task) => {
                        let samples = self.recording.sampled_every();
                        self.builder.segment.frozen.push(Frozen { line, task, snapshot, samples });
                    }
                    None => self.aside(self.processes.unknown_space(task)),
                }
            }
            Why::Exit if self.processes.dies_in_exec(task) => self.aside(aside::DIES_IN_EXEC),
            Why::Exit if self.processes.is_shown(task) => {
                let Some(number) = self.space_of(task) else { return };
                self.gather_whole(number, task);
                let stamp = self.stamp(task);
                let files =
                    self.processes.spaces.get(&number).map(|space| self.followed(space, &Reach::Whole, None));
                for file in files.into_iter().flatten() {
                    self.files.lengths.uses(file, stamp, &mut self.builder.waits);
                }
                if let Some(space) = self.processes.spaces.get_mut(&number) {
                    space.order.note_whole(stamp);
                }
                self.push(task, line, StepKind::Compare(Box::new(snapshot)));
            }
            Why::Exit => self.aside(self.processes.unknown_space(task)),
        }
    }
}
