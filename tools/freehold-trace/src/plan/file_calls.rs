//! Adds the steps of calls on files to the plan: calls that open, copy and close descriptors, set lengths and
//! seals, or punch holes.
//!
//! This file also keeps the known lengths of files up to date when calls and faults show a length. The data
//! is in `descriptors.rs` and `lengths.rs`. `syscall.rs` passes calls on files to `Planner::file_call`;
//! `events.rs` and `syscall.rs` report faults and other calls that depend on a length.
//!
//! A length is *doubtful* if something unrecorded may have changed it, such as a write or a truncation by
//! path. Each change of a length must become a step (a call, `StepKind::Length` or `StepKind::Doubt`).
//! Without that step, the replay could raise a SIGBUS that Linux did not raise. The tests are in `tests.rs`
//! (`truncation_and_faults_of_other_address_spaces_keep_their_order` and others).

use super::area::{Area, PAGE, page_of};
use super::aside;
use super::descriptors::Open;
use super::planner::Planner;
use super::space::{Reach, Space};
use super::step::{PlannedCall, StepKind};
use crate::descriptor::{self, Descriptor};
use crate::operation::{fallocate, fcntl, open};
use crate::{Call, CallName, Format, Returned};
use std::collections::BTreeSet;
use std::ops::Range;

const EPERM: u16 = 1;
/// `MADV_POPULATE_READ` and `_WRITE`.
const POPULATES: [u64; 2] = [22, 23];

/// The effect of a call on a file.
enum Change {
    /// The file has this length in bytes from now on.
    Length(u64),
    /// Pages of the file are removed, and the length stays.
    Pages,
    /// Neither pages nor the length change.
    Nothing,
    /// The file's length is unknown from now on.
    Unknown,
}

impl Planner {
    /// Returns true if this is a call on files, and the recording contains the calls that open, copy and
    /// close descriptors.
    pub(super) fn is_of_files(&self, call: &Call) -> bool {
        let name = call.name;
        self.recording.follows_descriptors()
            && (name.is_of_descriptors()
                || matches!(name, CallName::MemfdCreate | CallName::Ftruncate | CallName::Fallocate))
    }

    /// Plans a call on a file, or notes its effect on descriptors.
    pub(super) fn file_call(&mut self, line: u32, task: u32, call: Call) {
        match (call.name, call.returned) {
            (CallName::Fcntl, _) if matches!(call.args[1] as u32, fcntl::ADD_SEALS | fcntl::GET_SEALS) => {
                self.change(line, task, call, Change::Nothing);
            }
            (name, Returned::Value(value)) if name.is_of_descriptors() => {
                if empties(&call, value) {
                    self.files.lengths.doubt(false);
                }
                self.files.descriptors.called(task, &call, value);
                self.end_userfaultfds(line, task);
                self.opened_again(task, &call, value);
            }
            (name, _) if name.is_of_descriptors() => {}
            (CallName::MemfdCreate, Returned::Value(descriptor)) => {
                let file = self.files.memfd(&self.recording, call.args[1], call.file);
                let access = Some(self.files.descriptors.access(true, true));
                let open = Open { access, file: Some(file), memfd: true, ..Open::default() };
                self.files.descriptors.set(task, descriptor, Some(open));
                self.files.lengths.begin(file);
            }
            (CallName::Ftruncate, _) => {
                let change = Change::Length(call.args[1]);
                self.change(line, task, call, change);
            }
            (CallName::Fallocate, _) => {
                let change = self.allocated(task, &call);
                self.change(line, task, call, change);
            }
            _ => self.aside(aside::FILES),
        }
    }

    /// Notes an open of a memfd by its name in /proc. Only strace output shows such an open.
    fn opened_again(&mut self, task: u32, call: &Call, descriptor: u64) {
        let file = call.file.and_then(|record| self.files.records.get(&record).copied());
        let open = self.files.descriptors.get(task, descriptor);
        if let (Some(file), Some(open)) = (file.filter(|file| self.files.lengths.is_of_memfd(*file)), open) {
            let open = Open { file: Some(file), memfd: true, ..open };
            self.files.descriptors.set(task, descriptor, Some(open));
        }
    }

    /// Marks a file as doubtful if the call may have removed pages of it. Used for recordings without the
    /// calls that open and close descriptors. In such a recording, the file is the last file that was mapped
    /// with this descriptor.
    pub(super) fn doubt(&mut self, line: u32, task: u32, call: &Call) {
        let takes = match call.name {
            CallName::Ftruncate => true,
            CallName::Fallocate => call.args[1] & fallocate::HOLE == fallocate::HOLE,
            _ => false,
        };
        let file = self.file_at(task, call).filter(|_| takes && call.returned.value().is_some());
        let (Some(file), Some(_)) = (file, self.space_of(task)) else { return };
        let stamp = self.stamp(task);
        self.files.lengths.changes(file, None, stamp, &mut self.builder.waits);
        self.push(task, line, StepKind::Doubt { file });
    }

    /// Marks all files as doubtful after a call on an unknown file: their known lengths may be wrong, and
    /// pages may have been removed.
    fn doubt_files(&mut self, line: u32, task: u32) {
        if self.recording.format() == Format::Strace || self.space_of(task).is_none() {
            return;
        }
        self.files.lengths.doubt(true);
        let areas = self.processes.spaces.values().flat_map(|space| space.areas.iter());
        let mapped: BTreeSet<u32> = areas.filter_map(|(_, area)| area.file).collect();
        for file in mapped {
            let (stamp, before) = (self.stamp(task), self.files.lengths.get(file));
            self.files.lengths.changes(file, before, stamp, &mut self.builder.waits);
            self.files.lengths.doubt_one(file);
            self.push(task, line, StepKind::Doubt { file });
        }
    }

    /// Returns the effect of a fallocate on the file.
    fn allocated(&self, task: u32, call: &Call) -> Change {
        let [_, mode, offset, len, ..] = call.args;
        let now = self.file_at(task, call).and_then(|file| self.files.lengths.get(file));
        match mode {
            _ if call.returned.value().is_none() => Change::Nothing,
            0 => now.map_or(Change::Unknown, |now| Change::Length(now.max(offset.saturating_add(len)))),
            fallocate::KEEP_SIZE => Change::Nothing,
            fallocate::HOLE => Change::Pages,
            _ => Change::Unknown,
        }
    }

    /// Returns the number of the file behind the descriptor in the call's first argument, if the file already
    /// has a number in the plan.
    fn file_at(&self, task: u32, call: &Call) -> Option<u32> {
        let open = self.files.descriptors.get(task, call.args[0]).and_then(|open| open.file);
        open.or_else(|| self.files.records.get(&call.file?).copied())
    }

    /// Plans a call that changes a file, if the file is known. A call that Linux refused is replayed only on
    /// a memfd, because the recording contains all seals of a memfd.
    fn change(&mut self, line: u32, task: u32, call: Call, change: Change) {
        let open = self.files.descriptors.get(task, call.args[0]);
        let Some(file) = self.file_at(task, &call) else {
            if call.returned.value().is_some()
                && !matches!(change, Change::Nothing)
                && open.is_none_or(|open| !open.new)
            {
                self.doubt_files(line, task);
            }
            match (open, change, call.returned) {
                (Some(open), Change::Length(bytes), Returned::Value(_)) => {
                    let open = Open { length: Some(bytes), ..open };
                    self.files.descriptors.set(task, call.args[0], Some(open));
                }
                // The file is not mapped anywhere, so no step is needed.
                (Some(open), ..) => {
                    self.files.descriptors.set(task, call.args[0], Some(Open { length: None, ..open }))
                }
                _ => self.aside(aside::FILES),
            }
            return;
        };
        let done = call.returned.value().is_some();
        // Only seals explain this result, and the seals of a memfd are known.
        let told = matches!(call.returned, Returned::Error(EPERM)) || call.name == CallName::Fcntl;
        let known = told && open.is_some_and(|open| open.memfd);
        if self.space_of(task).is_none() || !done && !known {
            return self.aside(aside::FILES);
        }
        let (stamp, before) = (self.stamp(task), self.files.lengths.get(file));
        match change {
            Change::Length(_) | Change::Unknown if self.files.lengths.is_blurred(file) => {
                return self.aside(aside::FILES);
            }
            Change::Unknown => return self.forget_length(line, task, file),
            Change::Length(bytes) if done => {
                self.files.lengths.changes(file, Some(bytes), stamp, &mut self.builder.waits);
            }
            Change::Pages if done => self.files.lengths.changes(file, before, stamp, &mut self.builder.waits),
            _ => self.files.lengths.uses(file, stamp, &mut self.builder.waits),
        }
        self.change_in_pool(file, stamp);
        let planned = PlannedCall { file: Some(file), ..PlannedCall::new(call) };
        self.push(task, line, StepKind::Call(Box::new(planned)));
    }

    /// Adds a step that makes the length of the file unknown, because something unrecorded has extended the
    /// file.
    fn forget_length(&mut self, line: u32, task: u32, file: u32) {
        let stamp = self.stamp(task);
        self.files.lengths.changes(file, None, stamp, &mut self.builder.waits);
        self.push(task, line, StepKind::Length { file, bytes: None });
    }

    /// Marks the known properties of all files, segments and userfaultfds as doubtful, after a loss of
    /// events.
    pub(super) fn forget_files(&mut self) {
        self.files.descriptors.forget();
        self.processes
            .spaces
            .values_mut()
            .for_each(|space| space.doubts_userfaultfd |= space.has_userfaultfd);
        self.removals.doubt();
        self.files.lengths.doubt(true);
    }

    /// Notes that a fault may depend on the length of the file, and gathers the steps that changed the
    /// length. A fault that found a page beyond the known end shows that the file is longer.
    pub(super) fn fault_in_file(&mut self, line: u32, task: u32, space: u32, address: u64, resolved: bool) {
        let Some(space) = self.processes.spaces.get(&space).filter(|_| !self.files.lengths.is_empty()) else {
            return;
        };
        let page = page_of(address);
        let Some((start, area)) = space.areas.find(page) else { return };
        let (Some(file), offset) = (area.file, area.offset.saturating_add(page - start)) else { return };
        let beyond = self.files.lengths.get(file).is_some_and(|bytes| is_beyond(offset, bytes));
        if resolved && beyond || self.files.lengths.is_stale(file) {
            self.forget_length(line, task, file);
        }
        let stamp = self.stamp(task);
        self.files.lengths.uses(file, stamp, &mut self.builder.waits);
    }

    /// Plans the length that an ftruncate gave the file before the file had a number in the plan. Called
    /// before an mmap is planned.
    pub(super) fn length_before(&mut self, line: u32, task: u32, call: &Call, file: Option<u32>) {
        let Some(file) = file.filter(|_| call.name == CallName::Mmap && call.returned.value().is_some())
        else {
            return;
        };
        let Some(open) = self.files.descriptors.get(task, call.args[4]) else { return };
        let Some(bytes) = open.length else { return };
        self.files.descriptors.set(task, call.args[4], Some(Open { length: None, ..open }));
        if self.files.lengths.is_blurred(file) {
            return;
        }
        if self.files.lengths.follows(file) {
            // A later call on another descriptor has already set the length.
            return;
        }
        let stamp = self.stamp(task);
        self.files.lengths.changes(file, Some(bytes), stamp, &mut self.builder.waits);
        self.push(task, line, StepKind::Length { file, bytes: Some(bytes) });
    }

    /// Forgets doubtful lengths of the files in which the call may bring in pages. `mapped` is the file that
    /// the call maps. Also forgets a length if the call found pages beyond it, because the file is then
    /// longer. Must be called before the call is planned.
    pub(super) fn lengths_before(
        &mut self,
        line: u32,
        task: u32,
        space: u32,
        call: &Call,
        mapped: Option<u32>,
    ) {
        if self.files.lengths.is_empty() {
            return;
        }
        let [first, second, third, ..] = call.args;
        let populated = populated(call);
        let areas =
            self.processes.spaces.get(&space).into_iter().flat_map(|space| space.areas.within(&populated));
        let files: BTreeSet<u32> = areas.filter_map(|(_, area)| area.file).chain(mapped).collect();
        let stale: Vec<u32> = files.into_iter().filter(|file| self.files.lengths.is_stale(*file)).collect();
        stale.into_iter().for_each(|file| self.forget_length(line, task, file));
        let Some(value) = call.returned.value() else { return };
        let found: Vec<(u32, Range<u64>)> = match (call.name, &call.transfer) {
            (CallName::Mlock | CallName::Mlock2, _) => vec![(space, first..first.saturating_add(second))],
            (CallName::Madvise, _) if POPULATES.contains(&third) => {
                vec![(space, first..first.saturating_add(second))]
            }
            (CallName::Mincore, _) => vec![(space, third..third.saturating_add(second.div_ceil(PAGE)))],
            (CallName::ProcessVmReadv | CallName::ProcessVmWritev, Some(about)) => {
                let other = about.process.and_then(|process| self.space_of(process));
                let sides = [(Some(space), &about.local), (other, &about.remote)];
                let sides = sides.into_iter().filter_map(|(space, pieces)| Some((space?, pieces)));
                sides
                    .flat_map(|(space, pieces)| moved(pieces, value).map(move |range| (space, range)))
                    .collect()
            }
            _ => return,
        };
        let mut longer = Vec::new();
        for (space, range) in found {
            let Some(space) = self.processes.spaces.get(&space) else { continue };
            longer.extend(space.areas.within(&range).filter_map(|(start, area): (u64, &Area)| {
                let file = area.file?;
                let end = area.offset.saturating_add(area.end.min(range.end) - start);
                is_beyond(end - 1, self.files.lengths.get(file)?).then_some(file)
            }));
        }
        longer.into_iter().for_each(|file| self.forget_length(line, task, file));
    }

    /// Returns the followed files (`Lengths::follows`) that are mapped in the reach of a call. `mapped` is
    /// the file that the call maps.
    pub(super) fn followed(&self, space: &Space, reach: &Reach, mapped: Option<u32>) -> Vec<u32> {
        if self.files.lengths.is_empty() {
            return Vec::new();
        }
        let ranges: [Range<u64>; 2] = match reach {
            Reach::Vmas(ranges) => ranges.clone(),
            Reach::Pages(range) => [range.clone(), 0..0],
            Reach::Whole => [0..u64::MAX, 0..0],
        };
        let areas = ranges.iter().flat_map(|range| space.areas.within(range));
        let files = areas.filter_map(|(_, area)| area.file).chain(mapped);
        files.filter(|file| self.files.lengths.follows(*file)).collect()
    }
}

/// Returns the range in which a call may bring in pages, because the memory is locked or the call requests
/// pages. Includes mincore, whose result depends on the pages in the page cache.
fn populated(call: &Call) -> Range<u64> {
    match call.name {
        CallName::Mlock
        | CallName::Mlock2
        | CallName::Madvise
        | CallName::Mincore
        | CallName::Mprotect
        | CallName::PkeyMprotect
        | CallName::Mremap => call.args[0]..call.args[0].saturating_add(call.args[1]),
        CallName::Mlockall => 0..u64::MAX,
        _ => 0..0,
    }
}

/// Returns the moved part of each piece, if `bytes` bytes were moved in total.
fn moved(pieces: &[(u64, u64)], mut bytes: u64) -> impl Iterator<Item = Range<u64>> {
    pieces.iter().map(move |&(at, len)| {
        let here = len.min(bytes);
        bytes -= here;
        at..at.saturating_add(here)
    })
}

/// Returns true if the call, which returned `value`, may have truncated a file to zero bytes (`O_TRUNC`).
fn empties(call: &Call, value: u64) -> bool {
    match descriptor::done(call.name, &call.args, value) {
        Some(Descriptor::Opened(_, flags)) => flags.is_none_or(|flags| flags & open::TRUNC != 0),
        _ => false,
    }
}

/// Returns true if the page at `offset` is beyond the end of a file with `bytes` bytes.
fn is_beyond(offset: u64, bytes: u64) -> bool {
    offset / PAGE >= bytes.div_ceil(PAGE)
}
