//! What each kind of event adds to the plan.

use super::area::{Area, PAGE, flag};
use super::aside;
use super::bytes::Partial;
use super::calls::{self, Doing, MREMAP_FIXED, Reach, Space};
use super::mapped::{in_whole_pages, refused_late};
use super::order::Stamp;
use super::step::{Ends, Frozen, PlannedCall, Start, What};
use super::told::Told;
use super::unknown;
use super::{Fault, Planner, Task};
use crate::operation::{prctl, uffdio};
use crate::{Call, CallName, Format, Returned, Snapshot, Why};
use std::ops::Range;

const CLONE_VM: u64 = 0x100;
const EPERM: u16 = 1;
const EFAULT: u16 = 14;
const EINVAL: u16 = 22;
const ESRCH: u16 = 3;
const ENOMEM: u16 = 12;
const EACCES: u16 = 13;
const EIDRM: u16 = 43;
const MADV_DONTNEED: u64 = 4;
const MADV_DONTNEED_LOCKED: u64 = 24;
/// Most tasks whose steps a new task knows to be done.
const INHERITED: usize = 64;

impl Planner {
    pub(super) fn fault(&mut self, task: u32, fault: Fault) {
        let Fault { line, address, code, resolved, looked } = fault;
        let refused = !resolved && !code.user();
        if refused && !looked {
            return self.aside(aside::FIXED_UP);
        }
        let number = self.space_of(task).filter(|number| self.spaces.contains_key(number));
        let Some(number) = number else { return self.aside(self.no_space(task)) };
        self.limit_fault(line, task, number);
        self.fault_in_file(line, task, number, address, resolved);
        let Some(space) = self.spaces.get_mut(&number) else { return };
        let stamp = Stamp { task, index: self.tasks.get(&task).map_or(0, |task| task.next) };
        space.touch(address, code.write(), stamp, &mut self.families, &mut self.scratch);
        let ends = match (resolved, refused) {
            (true, _) => Ends::Resolved,
            (_, true) => Ends::Refused,
            _ => Ends::Interrupted,
        };
        self.push(task, line, What::Fault { address, code, ends });
        if ends == Ends::Interrupted
            && let Some(own) = self.tasks.get_mut(&task)
        {
            own.open_fault = Some(stamp.index);
            self.open_faults += 1;
        }
    }

    pub(super) fn clone(&mut self, line: u32, task: u32, child: u32, process: u32, flags: u64) {
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
                child.into_iter().for_each(|child| self.removals.forked(number, child));
                child
            }
            shared => shared,
        };
        if !shares {
            self.use_segments(task);
        }
        self.inherit_limits(task, process);
        self.push(task, line, What::Clone { child, shares });
        // What the parent waited for, the child need not wait for again; with many, that is cheaper than to
        // remember them.
        self.descriptors.clone_task(task, child, flags);
        let known = self.tasks.get(&task).map(|task| &task.known).filter(|known| known.len() <= INHERITED);
        let mut known = known.cloned().unwrap_or_default();
        known.insert(stamp.task, stamp.index);
        let lost = self.tasks.get(&task).is_some_and(|task| task.lost);
        self.tasks.insert(child, Task { process, space, made_here: true, known, lost, ..Task::default() });
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
        let old = self.space_of(task).and_then(|number| self.spaces.get(&number));
        let future = old.map_or(0, |old| old.future & flag::MERGEABLE);
        self.leave(task);
        if let Some(own) = self.tasks.get_mut(&task) {
            own.lost = false;
        }
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
            let mut flags = shown.flags.iter().flatten().fold(0, |sum, code| sum | flag::of_code(*code));
            if !shown.shared && self.is_zeroes(file) {
                flags |= flag::ZEROES;
            }
            let written = shown.sizes.is_some_and(|sizes| sizes[6] > 0) && !shown.shared;
            if written {
                self.families = self.families.wrapping_add(1).max(1);
            }
            let area = Area {
                end: shown.end,
                prot: shown.prot,
                shared: shown.shared,
                file,
                access: None,
                offset: if file.is_some() { shown.offset } else { shown.start },
                flags,
                tag: 0,
                userfaultfd: None,
                family: if written { self.families } else { 0 },
                alone: true,
                family_by: Stamp::START,
                last: Stamp::START,
            };
            // Who is like this from the start has inherited it.
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

    /// Why a snapshot is not compared.
    fn unknown_space(&self, task: u32) -> &'static str {
        if self.tasks.get(&task).is_some_and(|task| task.lost) { aside::LOST } else { aside::UNKNOWN_SPACE }
    }

    /// The task's address space is known from its start.
    fn is_shown(&self, task: u32) -> bool {
        let space = self.space_of(task).and_then(|number| self.spaces.get(&number));
        space.is_some_and(|space| space.told.is_none())
    }

    /// Everything done so far in the space: for whom all of it matters.
    pub(super) fn gather_whole(&mut self, number: u32, task: u32) {
        let Some(space) = self.spaces.get(&number) else { return };
        self.scratch.push(space.order.whole);
        self.scratch.extend(&space.order.departed);
        for member in space.order.active().filter(|&member| member != task) {
            // Who has left is among the departed.
            let stays = self.tasks.get(&member).filter(|member| member.space == Some(number));
            if let Some(index) = stays.and_then(|member| member.next.checked_sub(1)) {
                self.scratch.push(Stamp { task: member, index });
            }
        }
    }

    pub(super) fn call(&mut self, line: u32, task: u32, call: Call) {
        if call.name.is_of_limits() {
            return self.note_limits(task, &call);
        }
        if self.is_of_files(&call) {
            return self.file_call(line, task, call);
        }
        let userfaultfd = match call.name {
            CallName::Ioctl if uffdio::registers(call.args[1]) => self.userfaultfd_of(task, &call),
            _ => None,
        };
        if let Some(why) = self.is_elsewhere(&call, userfaultfd) {
            self.note_userfaultfd(task, &call);
            self.doubt(line, task, &call);
            if call.name == CallName::Truncate {
                self.lengths.doubt(false);
            }
            if call.name == CallName::Prctl {
                self.forget_heap(task, &call);
            }
            return self.aside(why);
        }
        if call.returned == Returned::Never {
            return;
        }
        let Some(number) = self.space_of(task) else { return self.aside(self.no_space(task)) };
        if self.passes_over_move(number, &call) {
            return self.aside(aside::USERFAULTFD);
        }
        self.limit_call(line, task, number, &call);
        let file = self.mapped_file(task, &call);
        self.length_before(line, task, &call, file);
        self.lengths_before(line, task, number, &call, file);
        let access = self.access(task, &call);
        let bytes = self.segments.get(&call.args[0]).map_or(PAGE, |segment| segment.bytes);
        // What is mapped counts in whole pages of its own size.
        let page = self.maps_huge_pages(&call, file);
        let call = match page {
            Some(page) if call.returned == Returned::Error(ENOMEM) && !self.knows_pool(page) => {
                self.replaced_by_nothing(number, task, line, in_whole_pages(call, page));
                return self.aside(aside::POOL);
            }
            Some(page) => in_whole_pages(call, page),
            None => call,
        };
        let unheard_of = call.name == CallName::Shmat && self.is_unheard_of(call.args[0]);
        let stamp = self.stamp(task);
        self.gather_target(&call, number, task);
        let Some(space) = self.spaces.get(&number) else { return };
        let reach = calls::reach(&call, space, bytes);
        if reach == Reach::Whole {
            self.gather_whole(number, task);
        }
        let Some(mut space) = self.spaces.remove(&number) else { return };
        let partly = space.told.is_some();
        let files = self.followed(&space, &reach, file);
        // What is assumed waits as the call itself.
        let beside = space.gather(&reach, &mut self.scratch);
        let (unsure, before, after) = self.assume(&mut space, task, line, &call, &reach);
        let emptied = page.and_then(|page| refused_late(&call, page));
        if unsure && unknown::leaves_alone(&call) {
            // What was there is gone, whatever it was.
            if let Some(range) = &emptied {
                space.empty(range, call.beside.is_empty());
                space.note(&reach, beside, stamp);
            }
            self.spaces.insert(number, space);
            emptied.into_iter().for_each(|range| self.push(task, line, What::Clear(range)));
            self.scratch.clear();
            return self.aside(aside::UNSURE);
        }
        let mut after = after;
        after.extend(emptied.clone().map(What::Clear));
        // Who waits for the call waits for what belongs to it.
        let stamp = Stamp { index: stamp.index + before + after.len() as u32, ..stamp };
        files.into_iter().for_each(|file| self.lengths.uses(file, stamp, &mut self.scratch));
        // A question that is answered otherwise than before: something has moved the heap.
        let moved = |(_, end)| call.args[0] == 0 && call.returned.value() != Some(end);
        let first_brk = call.name == CallName::Brk && space.heap.is_none_or(moved);
        if first_brk {
            space.heap = None;
        }
        let heap = call.returned.value().filter(|_| first_brk);
        self.scratch.extend(space.keep_order(&call, stamp, self.keeps_layout));
        let zeroes = self.is_zeroes(file);
        let mapped = self.own_memory(&call, file);
        let families = &mut self.families;
        let mut doing =
            Doing { call: &call, file: mapped, access, zeroes, segment: bytes, userfaultfd, stamp, families };
        space.apply(&mut doing);
        emptied.into_iter().for_each(|range| space.areas.unmap(&range));
        // Not before: what has just been mapped is no place to grow to.
        space.forget_growth();
        if let Some(at) = call.returned.value().filter(|_| unheard_of) {
            space.hide_from(at.saturating_add(PAGE));
        }
        space.forget_written(&call, &reach);
        space.note(&reach, beside, stamp);
        let known = userfaultfd.filter(|_| !space.doubts_userfaultfd);
        let features = known.and_then(|known| space.features.get(&known).copied());
        self.spaces.insert(number, space);
        let partial = self.partial(&call, number);
        let unsure = unsure || partial == Partial::Unsure;
        if unsure {
            self.aside(aside::UNSURE);
        }
        let unsure = unsure || self.is_from_outside(&call) || self.is_cut_in_two(&call);
        let (assumed, written) = self.moved(&call);
        let planned = PlannedCall {
            file,
            access,
            segment: bytes,
            userfaultfd,
            features,
            heap,
            assumed,
            written,
            partly,
            doubtful: partial == Partial::Doubtful,
            unsure,
            ..PlannedCall::new(call)
        };
        self.push(task, line, What::Call(Box::new(planned)));
        after.into_iter().for_each(|what| self.push(task, line, what));
    }

    /// An mmap of huge pages at a fixed place was refused for want of them, after what was there had gone.
    fn replaced_by_nothing(&mut self, number: u32, task: u32, line: u32, call: Call) {
        let range = calls::span(call.args[0], call.args[1]);
        if !calls::replaces(&call) {
            return;
        }
        let Some(mut space) = self.spaces.remove(&number) else { return };
        let reach = Reach::Vmas([range.clone(), 0..0]);
        let beside = space.gather(&reach, &mut self.scratch);
        space.areas.unmap(&range);
        space.untell(&range);
        space.note(&reach, beside, self.stamp(task));
        self.spaces.insert(number, space);
        self.push(task, line, What::Clear(range));
    }

    /// A text by strace leaves out mremap's last argument where it does not say where to. It may be why the
    /// call was refused all the same: with MREMAP_DONTUNMAP it is a hint, and of huge pages it has to be
    /// aligned.
    fn hides_new_address(&self, call: &Call) -> bool {
        let [at, _, new, flags, to, _] = call.args;
        let shown = flags & MREMAP_FIXED != 0 || to != 0;
        let wrong = !at.is_multiple_of(PAGE) || new == 0 || flags & !7 != 0;
        !shown
            && !wrong
            && matches!(call.returned, Returned::Error(EINVAL | EFAULT))
            && self.recording.format() == Format::Strace
    }

    /// Of this segment nothing is known, not even that there is none: a text by strace need not show shmget.
    fn is_unheard_of(&self, id: u64) -> bool {
        self.recording.format() == Format::Strace && !self.segments.contains_key(&id)
    }

    /// prctl(PR_SET_MM) has moved the heap: the next brk tells where to.
    fn forget_heap(&mut self, task: u32, call: &Call) {
        let parts = [prctl::MM_START_BRK, prctl::MM_BRK, prctl::MM_MAP];
        let moves = call.args[0] == prctl::SET_MM && parts.contains(&call.args[1]);
        let number = self.space_of(task);
        let space = number.and_then(|number| self.spaces.get_mut(&number));
        if let Some(space) = space.filter(|_| moves && call.returned.value().is_some()) {
            space.heap = None;
        }
    }

    /// A call that reads or writes another address space waits for all that was done there, and is waited
    /// for.
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

    /// What a call moved from or to another address space: where it shows that memory was mapped before the
    /// recording began, and where it read what recorded calls wrote.
    fn moved(&mut self, call: &Call) -> (Vec<Range<u64>>, Vec<Range<u64>>) {
        let Some(transfer) = &call.transfer else { return Default::default() };
        self.shows_bytes |= call.name != CallName::ProcessMadvise;
        let target = transfer.process.and_then(|process| self.space_of(process));
        let space = target.and_then(|number| self.spaces.get_mut(&number));
        let (Some(space), Returned::Value(count)) = (space, call.returned) else { return Default::default() };
        let assumed = space.note_mapped(transfer, count);
        match call.name {
            CallName::ProcessVmReadv => return (assumed, space.written_among(transfer)),
            CallName::ProcessVmWritev => space.note_written(transfer, count),
            _ => {}
        }
        (assumed, Vec::new())
    }

    /// In a space of unknown start: brings memory into line with what the call found there. Whether its
    /// answer rests on memory of which nothing is known, and how many steps were added.
    fn assume(
        &mut self,
        space: &mut Space,
        task: u32,
        line: u32,
        call: &Call,
        reach: &Reach,
    ) -> (bool, u32, Vec<What>) {
        if space.told.is_none() {
            return (false, 0, Vec::new());
        }
        let ranges = match reach {
            Reach::Vmas(ranges) => ranges.clone(),
            Reach::Pages(range) => [range.clone(), 0..0],
            Reach::Whole => {
                space.show_locks(call, &[0..0, 0..0]);
                return (call.transfer.is_none(), 0, Vec::new());
            }
        };
        let unknown::Shown { mut unsure, cleared, assumed, moved } = space.show_call(call, &ranges);
        unsure |= space.show_beside(call, &ranges);
        space.show_locks(call, &ranges);
        let count = (cleared.len() + assumed.len()) as u32;
        for range in cleared {
            self.push(task, line, What::Clear(range));
        }
        for range in assumed {
            self.push(task, line, What::Assume(range));
        }
        let after = moved.map_or(Vec::new(), |[from, to]| vec![What::Clear(from), What::Assume(to)]);
        let is_some =
            |what: &What| !matches!(what, What::Clear(range) | What::Assume(range) if range.is_empty());
        (unsure, count, after.into_iter().filter(is_some).collect())
    }

    /// Why the engine is not asked about a call.
    fn is_elsewhere(&mut self, call: &Call, userfaultfd: Option<u32>) -> Option<&'static str> {
        Some(match call.name {
            CallName::Prctl if call.args[0] == prctl::SET_VMA => aside::NAMES,
            CallName::Prctl if is_unknown_there(call) => aside::PRCTL,
            CallName::Prctl
                if matches!(call.args[0], prctl::SET_THP_DISABLE | prctl::GET_THP_DISABLE)
                    || matches!(call.args[0], prctl::SET_MDWE..=prctl::GET_MEMORY_MERGE) =>
            {
                return None;
            }
            CallName::Prctl => aside::PRCTL,
            CallName::Mbind
                if call.args[0].is_multiple_of(PAGE)
                    && matches!(call.returned, Returned::Error(EPERM | EINVAL)) =>
            {
                aside::POLICY
            }
            CallName::Mremap if self.hides_new_address(call) => aside::UNSHOWN,
            // Of a kernel that does, no such call fails so but for arguments that the plan can do without.
            CallName::Madvise
                if matches!(call.args[2], 100 | 101) && call.returned == Returned::Error(EINVAL) =>
            {
                aside::FAILURE
            }
            CallName::Ftruncate | CallName::Truncate | CallName::Fallocate => aside::FILES,
            CallName::MemfdCreate | CallName::MemfdSecret => aside::FILES,
            name if name.is_of_descriptors() => aside::FILES,
            CallName::SetMempolicy | CallName::MigratePages | CallName::MovePages => aside::NUMA,
            CallName::PkeyAlloc | CallName::PkeyFree => {
                self.uses_keys |= call.name == CallName::PkeyAlloc && call.returned.value().is_some();
                if self.uses_keys {
                    return None;
                }
                aside::KEYS
            }
            CallName::Shmget | CallName::Shmctl => {
                let _ = self.mapped_file(0, call);
                aside::SHM
            }
            // Who may attach a segment, and what a removal at the same time says, is not followed.
            CallName::Shmat if matches!(call.returned, Returned::Error(EACCES | EIDRM)) => aside::SHM,
            CallName::Shmat if call.returned.value().is_none() && self.is_unheard_of(call.args[0]) => {
                aside::SHM
            }
            CallName::Clone | CallName::Clone3 | CallName::Fork | CallName::Vfork => aside::TASKS,
            CallName::Execve | CallName::Execveat => aside::TASKS,
            CallName::ProcessMadvise
                if call.transfer.as_ref().is_some_and(|about| about.process.is_some()) =>
            {
                return None;
            }
            // Where it has taken pages, nobody knows; but that it has, by advice that nobody gives to others.
            CallName::ProcessMadvise
                if matches!(call.args[3], MADV_DONTNEED | MADV_DONTNEED_LOCKED)
                    && call.returned.value().is_some_and(|bytes| bytes > 0)
                    && self.recording.format() != Format::Strace =>
            {
                return None;
            }
            CallName::ProcessMadvise | CallName::ProcessMrelease => aside::OTHERS,
            CallName::Userfaultfd => aside::OTHERS,
            CallName::Ioctl if userfaultfd.is_none() => aside::OTHERS,
            CallName::ProcessVmReadv | CallName::ProcessVmWritev if call.transfer.is_none() => {
                self.unseen_writes |= call.name == CallName::ProcessVmWritev;
                aside::OTHERS
            }
            CallName::ProcessVmReadv | CallName::ProcessVmWritev
                if matches!(call.returned, Returned::Error(EPERM | ESRCH)) =>
            {
                aside::OTHERS
            }
            // Its effect until then stays, and must be followed.
            CallName::Mremap => return None,
            _ if matches!(call.returned, Returned::Error(512..=516)) => aside::RESTARTED,
            _ => return None,
        })
    }
}

/// Whether a prctl was refused although its arguments make sense: the recorded kernel is older than the
/// operation, or than a flag of it.
fn is_unknown_there(call: &Call) -> bool {
    let sound = match (call.args[0], &call.args[1..5]) {
        (prctl::SET_THP_DISABLE, [on, flags, 0, 0]) => *on != 0 && *flags == 2,
        (prctl::SET_MDWE, [bits, 0, 0, 0]) => matches!(bits, 1 | 3),
        (prctl::SET_MEMORY_MERGE, [_, 0, 0, 0]) => true,
        (prctl::GET_MDWE | prctl::GET_MEMORY_MERGE, [0, 0, 0, 0]) => true,
        _ => false,
    };
    sound && call.returned == Returned::Error(EINVAL)
}
