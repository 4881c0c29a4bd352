//! What each kind of event adds to the plan, but system calls.

use super::area::{Area, flag};
use super::aside;
use super::calls::{CLONE_VM, Reach, Space};
use super::order::Stamp;
use super::step::{Ends, Frozen, Start, Unsure, What};
use super::told::Told;
use super::{Fault, New, Planner, Task};
use crate::{Format, Snapshot, Why};

/// Most tasks whose steps a new task knows to be done.
const INHERITED: usize = 64;

impl Planner {
    pub(super) fn fault(&mut self, task: u32, fault: Fault) {
        let Fault { line, address, code, resolved, looked, .. } = fault;
        let refused = !resolved && !code.user();
        if refused && !looked {
            return self.aside(aside::FIXED_UP);
        }
        let number = self.space_of(task).filter(|number| self.spaces.contains_key(number));
        let Some(number) = number else { return self.aside(self.no_space(task)) };
        self.limit_fault(line, task, number);
        self.fault_in_file(line, task, number, address, resolved);
        let stamp = self.stamp(task);
        let doubtful = self.store_in_kin(number, stamp, &fault);
        self.fault_in_pool(number, address, stamp);
        let Some(space) = self.spaces.get_mut(&number) else { return };
        space.touch(address, code.write(), stamp, &mut self.families, &mut self.scratch);
        let ends = match (resolved, refused) {
            (true, _) => Ends::Resolved,
            (_, true) => Ends::Refused,
            _ => Ends::Interrupted,
        };
        self.push(task, line, What::Fault { address, code, ends });
        doubtful.into_iter().for_each(|block| self.push(task, line, What::Unsure(Unsure::Size(block))));
        if ends == Ends::Interrupted
            && let Some(own) = self.tasks.get_mut(&task)
        {
            own.open_fault = Some(stamp.index);
            self.open_faults += 1;
        }
    }

    pub(super) fn clone(&mut self, line: u32, task: u32, new: New) {
        let New { child, process, flags, unsure } = new;
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
                let child = copy.map(|copy| self.add_space(copy));
                if let Some(child) = child {
                    self.removals.forked(number, child);
                    self.join_kin(number, child);
                }
                child
            }
            shared => shared,
        };
        if !shares {
            self.use_segments(task);
        }
        self.inherit_limits(task, process, flags);
        let copied = parent.filter(|_| !shares).and_then(|number| self.spaces.get(&number));
        let copies_registrations = copied.is_some_and(|space| space.copies_registrations());
        self.push(task, line, What::Clone { child, shares, copies_registrations, unsure });
        // What the parent waited for, the child need not wait for again; with many, that is cheaper than to
        // remember them.
        self.descriptors.clone_task(task, child, flags);
        let known = self.tasks.get(&task).map(|task| &task.known).filter(|known| known.len() <= INHERITED);
        let mut known = known.cloned().unwrap_or_default();
        known.insert(stamp.task, stamp.index);
        let parent = self.tasks.get(&task);
        let (lost, read_implies_exec) =
            parent.map_or((false, false), |parent| (parent.lost, parent.read_implies_exec));
        let own = Task { process, space, made_here: true, known, lost, read_implies_exec, ..Task::default() };
        self.tasks.insert(child, own);
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

    pub(super) fn exec(&mut self, line: u32, task: u32, snapshot: Option<Snapshot>) {
        self.descriptors.exec(task);
        self.end_userfaultfds(line, task);
        self.gather_last_whole(task);
        self.use_segments(task);
        self.leave_pool(task);
        let old = self.space_of(task).and_then(|number| self.spaces.get(&number));
        let future = old.map_or(0, |old| old.future & flag::MERGEABLE);
        self.leave(task);
        if let Some(own) = self.tasks.get_mut(&task) {
            own.lost = self.losses > 0;
            (own.torn_down, own.dies_in_exec, own.read_implies_exec) = (false, false, false);
        }
        self.ask_for_huge_pages();
        let mut space = Space { members: vec![task], future, ..Space::default() };
        let start = match snapshot {
            Some(snapshot) => {
                self.show(&mut space, &snapshot);
                Some(Start::Shown(snapshot))
            }
            // Only text that shows every call from the start on can be followed without.
            None if self.recording.format() == Format::Strace => {
                space.told = Some(Told::default());
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
            let mut area = Area::shown(shown, file);
            if !shown.shared && self.is_zeroes(file) {
                area.flags |= flag::ZEROES;
            }
            if shown.sizes.is_some_and(|sizes| sizes[6] > 0) && !shown.shared {
                self.families = self.families.wrapping_add(1).max(1);
                area.family = self.families;
            }
            // A program that is like this from the start has inherited it.
            space.future |= area.flags & flag::MERGEABLE;
            space.areas.put(shown.start, area);
        }
    }

    /// The last step that concerned all of the task's space, into `scratch`: what lets go of the space waits
    /// for it.
    fn gather_last_whole(&mut self, task: u32) {
        let space = self.space_of(task).and_then(|number| self.spaces.get(&number));
        self.scratch.extend(space.map(|space| space.order.whole));
    }

    pub(super) fn exit(&mut self, line: u32, task: u32) {
        self.descriptors.exit(task);
        self.end_userfaultfds(line, task);
        self.gather_last_whole(task);
        self.use_segments(task);
        self.leave_pool(task);
        self.push(task, line, What::Exit);
        self.leave(task);
        let Some(own) = self.tasks.get_mut(&task) else { return };
        let process = std::mem::take(&mut own.process);
        if let Some(tasks) = self.processes.get_mut(&process) {
            tasks.retain(|&other| other != task);
            if tasks.is_empty() {
                self.processes.remove(&process);
                self.limits.remove(&process);
            }
        }
    }

    pub(super) fn snapshot(&mut self, line: u32, task: u32, why: Why, process: u32, snapshot: Snapshot) {
        match why {
            Why::Exec => {}
            Why::MidExec => self.aside(aside::MID_EXEC),
            Why::Freeze => {
                let member = self.processes.get(&process).and_then(|tasks| tasks.first().copied());
                match member.filter(|&task| self.is_shown(task)) {
                    Some(task) => self.segment.frozen.push(Frozen { line, task, snapshot }),
                    None => self.aside(self.unknown_space(task)),
                }
            }
            Why::Exit if self.dies_in_exec(task) => self.aside(aside::DIES_IN_EXEC),
            Why::Exit if self.is_shown(task) => {
                let Some(number) = self.space_of(task) else { return };
                self.gather_whole(number, task);
                let stamp = self.stamp(task);
                let files = self.spaces.get(&number).map(|space| self.followed(space, &Reach::Whole, None));
                for file in files.into_iter().flatten() {
                    self.lengths.uses(file, stamp, &mut self.scratch);
                }
                if let Some(space) = self.spaces.get_mut(&number) {
                    space.order.note_whole(stamp);
                }
                self.push(task, line, What::Compare(Box::new(snapshot)));
            }
            Why::Exit => self.aside(self.unknown_space(task)),
        }
    }

    /// Returns whether the task ends in an execve, perhaps with a part of the new image mapped.
    fn dies_in_exec(&self, task: u32) -> bool {
        let has_begun = |own: &Task| own.torn_down && !own.in_exec.is_empty();
        self.tasks.get(&task).is_some_and(|own| own.dies_in_exec || has_begun(own))
    }

    /// Why a snapshot is not compared.
    fn unknown_space(&self, task: u32) -> &'static str {
        if self.tasks.get(&task).is_some_and(|task| task.lost) { aside::LOST } else { aside::UNKNOWN_SPACE }
    }

    /// The task's address space is known from its start.
    fn is_shown(&self, task: u32) -> bool {
        let space = self.space_of(task).and_then(|number| self.spaces.get(&number));
        space.is_some_and(|space| space.told.is_none())
    }

    /// Everything done so far in the space: for steps to which all of it matters.
    pub(super) fn gather_whole(&mut self, number: u32, task: u32) {
        let Some(space) = self.spaces.get(&number) else { return };
        self.scratch.push(space.order.whole);
        self.scratch.extend(&space.order.departed);
        for member in space.order.active().filter(|&member| member != task) {
            // A task that has left is among the departed.
            let stays = self.tasks.get(&member).filter(|member| member.space == Some(number));
            if let Some(index) = stays.and_then(|member| member.next.checked_sub(1)) {
                self.scratch.push(Stamp { task: member, index });
            }
        }
    }
}
