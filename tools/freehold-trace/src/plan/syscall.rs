//! Plans a system call: decides if the call can be checked, adds its steps and their waits to the plan, and
//! applies the call to the model of its address space.
//!
//! Input: a recorded call, its task and its line. Output: steps in `Planner::builder`, and a changed model
//! ([`Space`]). [`Planner::call`] is the entry:
//!
//! 1. Calls that change only the personality, the limits or the files are passed to `personality.rs`,
//!    `limited.rs` and `file_calls.rs`.
//! 2. A call that the replay cannot check is *set aside*: `reason_not_planned` returns the reason, the call
//!    is counted under this reason (`aside.rs`), and no step is added.
//! 3. `call_data` looks up the file, the segment and the page size of the call.
//! 4. `plan_call` gathers the waits, adds the steps that unknown memory needs (`Planner::assume`,
//!    `unknown.rs`), applies the call to the model (`calls.rs`), and adds the step of the call itself.
//!
//! A model is taken out of `Processes::spaces` while a call is planned, and every path must insert the model
//! again. Steps are pushed in this order: steps that clear or assume memory, the step of the call, and steps
//! for memory that the call removed or moved. The model gets the stamp of the last of these steps. A new call
//! that the replay cannot check needs an arm in `reason_not_planned`. The tests are in `tests.rs` and
//! `unknown_tests.rs`.

use super::area::PAGE;
use super::aside;
use super::calls;
use super::descriptors::Access;
use super::files::in_whole_pages;
use super::order::Stamp;
use super::planner::Planner;
use super::pools::Pool;
use super::space::{AppliedCall, Reach, Space, replaces};
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

/// The place of a call in the recording.
#[derive(Clone, Copy)]
struct Position {
    /// Line of the recording.
    line: u32,
    /// The task that makes the call.
    task: u32,
    /// The number of the task's address space.
    space: u32,
}

/// A call, with the data from the recording's tables of files, segments and userfaultfds. The data does not
/// depend on the contents of the address space.
struct CallData {
    /// The recorded call, with the length rounded up to the page size of the file.
    call: Call,
    /// The file that the call maps, by its number in the plan.
    file: Option<u32>,
    /// The access mode of the file, if known.
    access: Option<Access>,
    /// Size in bytes of the segment that shmat attaches.
    segment: u64,
    /// The userfaultfd with which the call registers memory, by its number in the plan.
    userfaultfd: Option<u32>,
    /// True if the call maps or attaches huge pages of a pool.
    huge: bool,
    /// The range that the kernel unmapped although it refused the call (`refused.rs`).
    emptied: Option<Range<u64>>,
}

impl Planner {
    /// Plans a call, or counts the call as set aside. This is the entry of the file.
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
        if let Some(why) = self.reason_not_planned(&call, userfaultfd) {
            self.note_unplanned(line, task, &call);
            return self.aside(why);
        }
        if call.returned == Returned::Never {
            return;
        }
        let Some(space) = self.space_of(task) else { return self.aside(self.processes.no_space(task)) };
        if self.passes_over_move(space, &call) {
            return self.aside(aside::USERFAULTFD);
        }
        let at = Position { line, task, space };
        self.limit_call(line, task, space, &call);
        if let Some(about) = self.call_data(at, call, userfaultfd) {
            self.plan_call(at, about);
        }
    }

    /// Notes the effects that a call has on later calls although the call itself is set aside.
    fn note_unplanned(&mut self, line: u32, task: u32, call: &Call) {
        self.note_userfaultfd(task, call);
        self.doubt(line, task, call);
        if call.name == CallName::Truncate {
            self.files.lengths.doubt(false);
        }
        if call.name == CallName::Prctl {
            self.forget_heap(task, call);
        }
    }

    /// Returns the call with its data. Returns `None` if the call is set aside because the pool had too few
    /// huge pages.
    fn call_data(&mut self, at: Position, call: Call, userfaultfd: Option<u32>) -> Option<CallData> {
        let Position { line, task, space } = at;
        let call = self.as_personality_has_it(task, call);
        let file = self.files.mapped_file(&self.recording, task, &call);
        self.length_before(line, task, &call, file);
        self.lengths_before(line, task, space, &call, file);
        let access = self.files.access(task, &call);
        let segment = self.files.segments.get(&call.args[0]).map_or(PAGE, |segment| segment.bytes);
        // Lengths of mappings are rounded up to the file's own page size.
        let page = self.files.maps_huge_pages(&call, file);
        let call = match page {
            Some(page)
                if call.returned == Returned::Error(ENOMEM) && !Pool::is_known(&self.recording, page) =>
            {
                self.unmap_replaced(at, in_whole_pages(call, page));
                self.aside(aside::POOL);
                return None;
            }
            Some(page) => in_whole_pages(call, page),
            None => call,
        };
        let emptied = page.and_then(|page| refused::has_emptied(&call, page));
        let attaches = self.files.segments.get(&call.args[0]).filter(|_| call.name == CallName::Shmat);
        let huge = page.is_some() || attaches.is_some_and(|segment| segment.huge.is_some());
        Some(CallData { call, file, access, segment, userfaultfd, huge, emptied })
    }

    /// Plans a call, with the steps before it that clear or assume memory, and the steps after it that remove
    /// or move memory.
    fn plan_call(&mut self, at: Position, about: CallData) {
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
        let partly = space.known_ranges.is_some();
        let files = self.followed(&space, &reach, about.file);
        // The waits are gathered before `assume` adds steps, because the first step that is pushed gets these
        // waits. Later steps of the task run after that step, so they need no waits of their own.
        let beside = space.gather(&reach, &mut self.builder.waits);
        let (unsure, before, mut after) = self.assume(&mut space, at, &about.call, &reach);
        if unsure && unknown::is_skipped_if_unsure(&about.call) {
            // The result is unsure, but the kernel certainly unmapped this range.
            if let Some(range) = &about.emptied {
                space.note_unmapped(range, about.call.beside.is_empty());
                space.note(&reach, beside, stamp);
            }
            self.processes.spaces.insert(at.space, space);
            return self.skip_unsure_call(at, about.emptied);
        }
        after.extend(about.emptied.clone().map(StepKind::Clear));
        after.extend(self.executable_heap(at.task, &about.call, &reach));
        // The model gets the stamp of the last step that belongs to the call, so that later steps wait for
        // all steps of the call.
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

    /// Sets aside a refused call whose result depends on unknown memory. If Linux unmapped the range
    /// `emptied` although the call was refused, a step of the plan unmaps the range.
    fn skip_unsure_call(&mut self, at: Position, emptied: Option<Range<u64>>) {
        emptied.into_iter().for_each(|range| self.push(at.task, at.line, StepKind::Clear(range)));
        self.builder.waits.clear();
        self.aside(aside::UNSURE);
    }

    /// Applies the call to the model of the address space.
    fn apply(&mut self, space: &mut Space, about: &CallData, reach: &Reach, stamp: Stamp) {
        let CallData { call, segment, .. } = about;
        self.builder.waits.extend(space.keep_order(call, stamp, self.keeps_layout));
        let mut applied = AppliedCall {
            call,
            zeroes: self.files.is_zeroes(about.file),
            file: self.files.own_memory(call, about.file),
            access: about.access,
            segment: *segment,
            userfaultfd: about.userfaultfd,
            stamp,
            families: &mut self.processes.families,
        };
        space.apply(&mut applied);
        if about.huge {
            space.note_huge(call, *segment, stamp);
        }
        about.emptied.iter().for_each(|range| space.areas.unmap(range));
        // Called after the effect of the call: memory cannot grow into a range that the call has just mapped.
        space.forget_growth();
        let unknown_segment = call.name == CallName::Shmat && self.is_unknown_segment(call.args[0]);
        if let Some(at) = call.returned.value().filter(|_| unknown_segment) {
            space.mark_unknown_from(at.saturating_add(PAGE));
        }
        space.forget_written(call, reach);
    }

    /// Returns the call with the data that the plan adds. Data from the model of the task's address space is
    /// missing; `plan_call` adds it. `unsure` is true if the result depends on unknown memory.
    fn planned(&mut self, space: u32, about: CallData, unsure: bool) -> PlannedCall {
        let CallData { call, file, access, segment, userfaultfd, .. } = about;
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

    /// Unmaps the old mappings in the range of a failed mmap of huge pages with `MAP_FIXED`: Linux had
    /// removed these mappings before it found too few pages in the pool.
    fn unmap_replaced(&mut self, at: Position, call: Call) {
        let range = span(call.args[0], call.args[1]);
        if !replaces(&call) {
            return;
        }
        let Some(mut space) = self.processes.spaces.remove(&at.space) else { return };
        let reach = Reach::Vmas([range.clone(), 0..0]);
        let beside = space.gather(&reach, &mut self.builder.waits);
        space.areas.unmap(&range);
        space.mark_unknown(&range);
        space.note(&reach, beside, self.stamp(at.task));
        self.processes.spaces.insert(at.space, space);
        self.push(at.task, at.line, StepKind::Clear(range));
    }

    /// Returns true if strace output may lack the new address of a refused mremap. strace prints the last
    /// argument only with MREMAP_FIXED. Without that flag, the argument may still be the reason of the
    /// refusal: with MREMAP_DONTUNMAP the argument is a hint, and for huge pages the argument must be
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

    /// Returns true if the recording does not show that the System V segment `id` exists. strace output need
    /// not contain the shmget.
    fn is_unknown_segment(&self, id: u64) -> bool {
        self.recording.format() == Format::Strace && !self.files.segments.contains_key(&id)
    }

    /// Forgets the heap if prctl(PR_SET_MM) has moved it. The next brk shows the new heap.
    fn forget_heap(&mut self, task: u32, call: &Call) {
        let parts = [prctl::MM_START_BRK, prctl::MM_BRK, prctl::MM_MAP];
        let moves = call.args[0] == prctl::SET_MM && parts.contains(&call.args[1]);
        let number = self.space_of(task);
        let space = number.and_then(|number| self.processes.spaces.get_mut(&number));
        if let Some(space) = space.filter(|_| moves && call.returned.value().is_some()) {
            space.heap = None;
        }
    }

    /// Adds steps that make unknown memory agree with the result of the call: the steps clear addresses that
    /// were free, and map *assumed* memory. Does nothing if no address is unknown. Returns three values: true
    /// if the result of the call is unsure, the number of steps added before the call, and the steps to add
    /// after the call.
    fn assume(
        &mut self,
        space: &mut Space,
        at: Position,
        call: &Call,
        reach: &Reach,
    ) -> (bool, u32, Vec<StepKind>) {
        if space.known_ranges.is_none() {
            return (false, 0, Vec::new());
        }
        let ranges = match reach {
            Reach::Vmas(ranges) => ranges.clone(),
            Reach::Pages(range) => [range.clone(), 0..0],
            Reach::Whole => {
                space.learn_locks(call, &[0..0, 0..0]);
                return (call.transfer.is_none(), 0, Vec::new());
            }
        };
        let unknown::Conclusions { mut unsure, cleared, assumed, moved } =
            space.learn_from_call(call, &ranges);
        unsure |= space.learn_from_overlaps(call, &ranges);
        space.learn_locks(call, &ranges);
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

    /// Returns the reason why a call is set aside, a text of `aside.rs`. Returns `None` for a call that is
    /// planned. Also notes three facts for later: the first use of protection keys, a process_vm_writev whose
    /// addresses are not recorded, and the properties of a System V segment.
    fn reason_not_planned(&mut self, call: &Call, userfaultfd: Option<u32>) -> Option<&'static str> {
        Some(match call.name {
            CallName::Prctl if call.args[0] == prctl::SET_VMA => aside::NAMES,
            CallName::Prctl if is_unsupported_prctl(call) => aside::PRCTL,
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
            // A kernel that handles failing memory returns EINVAL only for arguments with which the call has
            // no effect.
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
                self.uses_keys |= depends_on_pkeys(call);
                if self.uses_keys || call.name == CallName::PkeyMprotect {
                    return None;
                }
                aside::KEYS
            }
            CallName::Shmget | CallName::Shmctl => {
                let _ = self.files.mapped_file(&self.recording, 0, call);
                aside::SHM
            }
            // The engine does not check the permissions of segments, and the result of a shmat that overlaps
            // a removal is not compared.
            CallName::Shmat if matches!(call.returned, Returned::Error(EACCES | EIDRM)) => aside::SHM,
            CallName::Shmat if call.returned.value().is_none() && self.is_unknown_segment(call.args[0]) => {
                aside::SHM
            }
            CallName::Clone | CallName::Clone3 | CallName::Fork | CallName::Vfork => aside::TASKS,
            CallName::Execve | CallName::Execveat => aside::TASKS,
            CallName::ProcessMadvise
                if call.transfer.as_ref().is_some_and(|about| about.process.is_some()) =>
            {
                return None;
            }
            // The ranges are not recorded. The call removed pages of the caller only: Linux does not accept
            // this advice for another process.
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
            // An interrupted mremap is planned: its effect before the interruption remains, and the model
            // must apply it.
            CallName::Mremap => return None,
            _ if matches!(call.returned, Returned::Error(512..=516)) => aside::RESTARTED,
            _ => return None,
        })
    }
}

/// Returns the end of the heap if this is the first brk. A query (`brk(0)`) with an unexpected result also
/// counts as the first brk, because something unrecorded has moved the heap.
fn first_heap(space: &mut Space, call: &Call) -> Option<u64> {
    let moved = |(_, end)| call.args[0] == 0 && call.returned.value() != Some(end);
    if call.name != CallName::Brk || !space.heap.is_none_or(moved) {
        return None;
    }
    space.heap = None;
    call.returned.value()
}

/// Returns true if the recorded kernel does not support a prctl or one of its flags. The sign is that the
/// kernel refused the call although its arguments are valid.
fn is_unsupported_prctl(call: &Call) -> bool {
    let sound = match (call.args[0], &call.args[1..5]) {
        (prctl::SET_THP_DISABLE, [on, flags, 0, 0]) => *on != 0 && *flags == 2,
        (prctl::SET_MDWE, [bits, 0, 0, 0]) => matches!(bits, 1 | 3),
        (prctl::SET_MEMORY_MERGE, [_, 0, 0, 0]) => true,
        (prctl::GET_MDWE | prctl::GET_MEMORY_MERGE, [0, 0, 0, 0]) => true,
        _ => false,
    };
    sound && call.returned == Returned::Error(EINVAL)
}

/// Returns true if the result of the call shows that the recorded machine has protection keys. Without
/// protection keys the kernel refuses every key, including key 0, after it has checked the range and before
/// it checks seals.
fn depends_on_pkeys(call: &Call) -> bool {
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
