//! What a system call adds to the plan.

use super::area::PAGE;
use super::aside;
use super::calls;
use super::descriptors::Access;
use super::files::in_whole_pages;
use super::order::Stamp;
use super::planner::Planner;
use super::pools::Pool;
use super::space::{Doing, Reach, Space, replaces};
use super::step::{PlannedCall, StepKind};
use super::transfers::Partial;
use super::{refused, unknown};
use crate::addresses::{MREMAP_FIXED, span};
use crate::operation::{prctl, uffdio};
use crate::{Call, CallName, Format, Returned};
use std::ops::Range;

const EPERM: u16 = 1;
const EFAULT: u16 = 14;
const EINVAL: u16 = 22;
const ESRCH: u16 = 3;
const ENOMEM: u16 = 12;
const EACCES: u16 = 13;
const EIDRM: u16 = 43;
const MADV_DONTNEED: u64 = 4;
const MADV_DONTNEED_LOCKED: u64 = 24;

/// Where a call stands.
#[derive(Clone, Copy)]
struct At {
    line: u32,
    task: u32,
    /// The number of the task's address space.
    space: u32,
}

/// A call, and what is known of it apart from what its address space holds.
struct About {
    call: Call,
    /// What it maps, by its number in the plan.
    file: Option<u32>,
    /// How that was opened, where known.
    access: Option<Access>,
    /// Bytes of the segment that shmat attaches.
    segment: u64,
    userfaultfd: Option<u32>,
    /// It maps huge pages from a pool.
    huge: bool,
    /// What it took away, though it was refused.
    emptied: Option<Range<u64>>,
}

impl Planner {
    pub(super) fn call(&mut self, line: u32, task: u32, call: Call) {
        self.shows_seals |= call.name == CallName::Mseal;
        if call.name == CallName::Personality {
            return self.note_personality(task, &call);
        }
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
            self.note_elsewhere(line, task, &call);
            return self.aside(why);
        }
        if call.returned == Returned::Never {
            return;
        }
        let Some(space) = self.space_of(task) else { return self.aside(self.processes.no_space(task)) };
        if self.passes_over_move(space, &call) {
            return self.aside(aside::USERFAULTFD);
        }
        let at = At { line, task, space };
        self.limit_call(line, task, space, &call);
        if let Some(about) = self.about(at, call, userfaultfd) {
            self.plan_call(at, about);
        }
    }

    /// What a call changes that the engine is not asked about.
    fn note_elsewhere(&mut self, line: u32, task: u32, call: &Call) {
        self.note_userfaultfd(task, call);
        self.doubt(line, task, call);
        if call.name == CallName::Truncate {
            self.files.lengths.doubt(false);
        }
        if call.name == CallName::Prctl {
            self.forget_heap(task, call);
        }
    }

    /// What is known of a call; nothing if it is set aside, since it found no huge pages.
    fn about(&mut self, at: At, call: Call, userfaultfd: Option<u32>) -> Option<About> {
        let At { line, task, space } = at;
        let call = self.as_personality_has_it(task, call);
        let file = self.files.mapped_file(&self.recording, task, &call);
        self.length_before(line, task, &call, file);
        self.lengths_before(line, task, space, &call, file);
        let access = self.files.access(task, &call);
        let segment = self.files.segments.get(&call.args[0]).map_or(PAGE, |segment| segment.bytes);
        // What is mapped counts in whole pages of its own size.
        let page = self.files.maps_huge_pages(&call, file);
        let call = match page {
            Some(page)
                if call.returned == Returned::Error(ENOMEM) && !Pool::is_known(&self.recording, page) =>
            {
                self.replaced_by_nothing(at, in_whole_pages(call, page));
                self.aside(aside::POOL);
                return None;
            }
            Some(page) => in_whole_pages(call, page),
            None => call,
        };
        let emptied = page.and_then(|page| refused::has_emptied(&call, page));
        let attaches = self.files.segments.get(&call.args[0]).filter(|_| call.name == CallName::Shmat);
        let huge = page.is_some() || attaches.is_some_and(|segment| segment.huge.is_some());
        Some(About { call, file, access, segment, userfaultfd, huge, emptied })
    }

    /// Plans a call, with what must be there before it and what is gone after it.
    fn plan_call(&mut self, at: At, about: About) {
        let stamp = self.stamp(at.task);
        self.gather_target(&about.call, at.space, at.task);
        let Some(space) = self.processes.spaces.get(&at.space) else { return };
        let reach = calls::reach(&about.call, space, about.segment);
        if reach == Reach::Whole {
            self.gather_whole(at.space, at.task);
        }
        let Some(mut space) = self.processes.spaces.remove(&at.space) else { return };
        let own = self.processes.tasks.get_mut(&at.task);
        self.kins.call_in_kin(own, &mut self.builder.waits, &space, &reach, stamp);
        if space.uses_pool(&reach, about.huge) {
            self.use_pool(stamp);
        }
        let partly = space.told.is_some();
        let files = self.followed(&space, &reach, about.file);
        // What is assumed waits as the call itself.
        let beside = space.gather(&reach, &mut self.builder.waits);
        let (unsure, before, mut after) = self.assume(&mut space, at, &about.call, &reach);
        if unsure && unknown::leaves_alone(&about.call) {
            // What was there is gone, whatever it was.
            if let Some(range) = &about.emptied {
                space.empty(range, about.call.beside.is_empty());
                space.note(&reach, beside, stamp);
            }
            self.processes.spaces.insert(at.space, space);
            return self.leave_alone(at, about.emptied);
        }
        after.extend(about.emptied.clone().map(StepKind::Clear));
        after.extend(self.executable_heap(at.task, &about.call, &reach));
        // A step that waits for the call waits for what belongs to it.
        let stamp = Stamp { index: stamp.index + before + after.len() as u32, ..stamp };
        files.into_iter().for_each(|file| self.files.lengths.uses(file, stamp, &mut self.builder.waits));
        let heap = first_heap(&mut space, &about.call);
        let stays_registered = space.stays_registered(&about.call);
        self.apply(&mut space, &about, &reach, stamp);
        space.note(&reach, beside, stamp);
        let known = about.userfaultfd.filter(|_| !space.doubts_userfaultfd);
        let features = known.and_then(|known| space.features.get(&known).copied());
        self.processes.spaces.insert(at.space, space);
        let planned = self.planned(at.space, about, unsure);
        let planned = PlannedCall { features, stays_registered, heap, partly, ..planned };
        self.push(at.task, at.line, StepKind::Call(Box::new(planned)));
        after.into_iter().for_each(|what| self.push(at.task, at.line, what));
    }

    /// A call is not planned whose answer rests on memory of which nothing is known, but what it took away
    /// is.
    fn leave_alone(&mut self, at: At, emptied: Option<Range<u64>>) {
        emptied.into_iter().for_each(|range| self.push(at.task, at.line, StepKind::Clear(range)));
        self.builder.waits.clear();
        self.aside(aside::UNSURE);
    }

    /// Does to the model of the address space what the call did.
    fn apply(&mut self, space: &mut Space, about: &About, reach: &Reach, stamp: Stamp) {
        let About { call, segment, .. } = about;
        self.builder.waits.extend(space.keep_order(call, stamp, self.keeps_layout));
        let mut doing = Doing {
            call,
            zeroes: self.files.is_zeroes(about.file),
            file: self.files.own_memory(call, about.file),
            access: about.access,
            segment: *segment,
            userfaultfd: about.userfaultfd,
            stamp,
            families: &mut self.processes.families,
        };
        space.apply(&mut doing);
        if about.huge {
            space.note_huge(call, *segment, stamp);
        }
        about.emptied.iter().for_each(|range| space.areas.unmap(range));
        // Not before: what has just been mapped is no place to grow to.
        space.forget_growth();
        let unheard_of = call.name == CallName::Shmat && self.is_unheard_of(call.args[0]);
        if let Some(at) = call.returned.value().filter(|_| unheard_of) {
            space.hide_from(at.saturating_add(PAGE));
        }
        space.forget_written(call, reach);
    }

    /// The call with what the plan adds to it, apart from what only its address space tells. `unsure`: its
    /// answer rests on memory of which nothing is known.
    fn planned(&mut self, space: u32, about: About, unsure: bool) -> PlannedCall {
        let About { call, file, access, segment, userfaultfd, .. } = about;
        let partial = self.partial(&call, space);
        let unsure = unsure || partial == Partial::Unsure;
        if unsure {
            self.aside(aside::UNSURE);
        }
        let unsure = unsure || self.is_from_outside(&call) || self.is_cut_in_two(&call);
        let (assumed, written) = self.moved(&call);
        let doubtful = partial == Partial::Doubtful;
        PlannedCall {
            file,
            access,
            segment,
            userfaultfd,
            assumed,
            written,
            doubtful,
            unsure,
            ..PlannedCall::new(call)
        }
    }

    /// An mmap of huge pages at a fixed place was refused for want of them, after what was there had gone.
    fn replaced_by_nothing(&mut self, at: At, call: Call) {
        let range = span(call.args[0], call.args[1]);
        if !replaces(&call) {
            return;
        }
        let Some(mut space) = self.processes.spaces.remove(&at.space) else { return };
        let reach = Reach::Vmas([range.clone(), 0..0]);
        let beside = space.gather(&reach, &mut self.builder.waits);
        space.areas.unmap(&range);
        space.untell(&range);
        space.note(&reach, beside, self.stamp(at.task));
        self.processes.spaces.insert(at.space, space);
        self.push(at.task, at.line, StepKind::Clear(range));
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
        self.recording.format() == Format::Strace && !self.files.segments.contains_key(&id)
    }

    /// prctl(PR_SET_MM) has moved the heap: the next brk tells where to.
    fn forget_heap(&mut self, task: u32, call: &Call) {
        let parts = [prctl::MM_START_BRK, prctl::MM_BRK, prctl::MM_MAP];
        let moves = call.args[0] == prctl::SET_MM && parts.contains(&call.args[1]);
        let number = self.space_of(task);
        let space = number.and_then(|number| self.processes.spaces.get_mut(&number));
        if let Some(space) = space.filter(|_| moves && call.returned.value().is_some()) {
            space.heap = None;
        }
    }

    /// In a space of unknown start: brings memory into line with what the call found there. Whether its
    /// answer rests on memory of which nothing is known, and how many steps were added.
    fn assume(
        &mut self,
        space: &mut Space,
        at: At,
        call: &Call,
        reach: &Reach,
    ) -> (bool, u32, Vec<StepKind>) {
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
            self.push(at.task, at.line, StepKind::Clear(range));
        }
        for range in assumed {
            self.push(at.task, at.line, StepKind::Assume(range));
        }
        let after = moved.map_or(Vec::new(), |[from, to]| vec![StepKind::Clear(from), StepKind::Assume(to)]);
        let is_some = |what: &StepKind| !matches!(what, StepKind::Clear(range) | StepKind::Assume(range) if range.is_empty());
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
            CallName::PkeyAlloc | CallName::PkeyFree | CallName::PkeyMprotect => {
                self.uses_keys |= shows_keys(call);
                if self.uses_keys || call.name == CallName::PkeyMprotect {
                    return None;
                }
                aside::KEYS
            }
            CallName::Shmget | CallName::Shmctl => {
                let _ = self.files.mapped_file(&self.recording, 0, call);
                aside::SHM
            }
            // Which users may attach a segment, and what a removal at the same time says, is not followed.
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

/// Where the heap ends, if this is the first brk: a question that is answered otherwise than before is one,
/// since something has moved the heap.
fn first_heap(space: &mut Space, call: &Call) -> Option<u64> {
    let moved = |(_, end)| call.args[0] == 0 && call.returned.value() != Some(end);
    if call.name != CallName::Brk || !space.heap.is_none_or(moved) {
        return None;
    }
    space.heap = None;
    call.returned.value()
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

/// The answer is one that only a machine with protection keys gives: without, every key is refused as soon as
/// the range has been looked at, key 0 as well, before a seal is.
fn shows_keys(call: &Call) -> bool {
    let [start, len, _, key, ..] = call.args;
    let names_pages = || {
        let len = len.checked_next_multiple_of(PAGE).filter(|len| *len > 0);
        len.is_some_and(|len| start.checked_add(len).is_some())
    };
    match (call.name, call.returned) {
        (CallName::PkeyAlloc | CallName::PkeyFree, Returned::Value(_)) => true,
        (CallName::PkeyMprotect, Returned::Value(_) | Returned::Error(ENOMEM | EACCES | EPERM)) => {
            key as i32 != -1 && names_pages()
        }
        _ => false,
    }
}
