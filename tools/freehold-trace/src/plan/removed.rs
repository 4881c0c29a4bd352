//! Removals of System V segments, and where they belong among the steps.
//!
//! shmctl(IPC_RMID) marks a segment: it goes with the last mapping of it. That shows in the answers of two
//! calls: an shmat of what is gone is refused, and so is a remap_file_pages over all that was left of it. A
//! recording has the removal at its entry; it took effect at some time until its return:
//!
//! ```text
//! shmctl(IPC_RMID)       |-------------|          of one thread
//! remap_file_pages           |-------------|      of another: whose came first, its answer tells
//! ```
//!
//! Where two such calls overlap, the removal is planned before the other exactly if that was refused. Where
//! they do not, the order is known, and the engine has to give the recorded answer. A remap_file_pages that
//! was refused with EIDRM is one that the removal fell into: what was mapped had gone, and the segment went
//! before it was mapped anew. The effect is the same, and the removal is planned before it; but a call that
//! is one step has no such answer, so that is not compared.

use super::area::{flag, page_of};
use super::aside;
use super::step::What;
use super::{Planner, Space, Stamp};
use crate::{Call, CallName, Cost, Returned};
use rustc_hash::FxHashMap as HashMap;
use std::collections::HashSet;
use std::ops::Range;

const IPC_RMID: u32 = 0;
/// shmctl ignores it, as the system call has but one form.
const IPC_64: u32 = 0x100;
const EINVAL: u16 = 22;
const EIDRM: u16 = 43;
/// So long after a removal has returned, no call that began before it is still under way: then the memory
/// goes, even if nobody asks.
const SLACK: u64 = 1_000_000_000;

/// When a call may have taken effect, in nanoseconds: from its entry to its return.
#[derive(Clone, Copy, Debug)]
pub(super) struct When {
    from: u64,
    to: u64,
}

impl When {
    pub(super) fn of(time: u64, cost: &Cost) -> When {
        let (before, after) = (cost.before.unwrap_or(0), cost.after.unwrap_or(0));
        When { from: time.saturating_sub(before), to: time.saturating_add(after) }
    }
}

/// The removals of a recording.
#[derive(Debug, Default)]
pub(super) struct Removals {
    /// By segment.
    known: HashMap<u64, Removal>,
    /// Of segments that were attached, those that have no place among the steps yet.
    open: Vec<u64>,
    /// Calls that were refused, perhaps for a removal that the recording has behind them.
    held: Vec<Held>,
    /// Segments by their numbers in the plan.
    ids: HashMap<u32, u64>,
    /// Segments that somebody has attached who is not recorded.
    outside: HashSet<u64>,
    /// Events were lost: what is attached where is not known any more, so nothing is removed.
    doubted: bool,
}

#[derive(Debug)]
struct Removal {
    line: u32,
    /// It had returned by then.
    until: u64,
    /// Address spaces that may have the segment attached.
    spaces: Vec<u32>,
    /// It has its place among the steps.
    placed: bool,
}

#[derive(Debug)]
struct Held {
    line: u32,
    task: u32,
    call: Call,
    segment: u64,
    until: u64,
}

impl Removals {
    /// A segment is this number in the plan.
    pub(super) fn name(&mut self, file: u32, segment: u64) {
        self.ids.insert(file, segment);
    }

    /// A call waits for its place.
    pub(super) fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Space `child` is a copy of `parent`.
    pub(super) fn forked(&mut self, parent: u32, child: u32) {
        for id in &self.open {
            let removal = self.known.get_mut(id).filter(|removal| removal.spaces.contains(&parent));
            removal.into_iter().for_each(|removal| removal.spaces.push(child));
        }
    }

    /// What is known of what is attached where may be wrong from now on.
    pub(super) fn doubt(&mut self) {
        self.doubted = true;
        self.open.clear();
        self.known.retain(|_, removal| removal.placed);
    }
}

impl Planner {
    /// A call, in its place: behind a removal that has refused it, even if the recording has that later.
    pub(super) fn call_in_turn(&mut self, line: u32, task: u32, call: Call, when: When) {
        if let Some(segment) = self.waits_for_removal(task, &call) {
            self.removals.held.push(Held { line, task, call, segment, until: when.to });
            return;
        }
        let removed = removed_by(&call);
        self.made_anew(task, &call, when);
        self.place_removals(task, Some(&call), when);
        self.call(line, task, call);
        if let Some(segment) = removed {
            self.note_removal(line, task, segment, when);
        }
    }

    /// Calls that wait for a removal which has not come until `time`, or the next event of `task`, are
    /// planned where they are.
    pub(super) fn release(&mut self, task: u32, time: u64) {
        if self.removals.held.is_empty() {
            return;
        }
        let over = |held: &mut Held| held.until < time || held.task == task;
        let held: Vec<Held> = self.removals.held.extract_if(.., over).collect();
        held.into_iter().for_each(|held| self.call(held.line, held.task, held.call));
    }

    /// The same for all of them.
    pub(super) fn release_all(&mut self) {
        self.release(0, u64::MAX);
    }

    /// Before a call, an exec, a fork or an exit of `task`: removals that come before it get their place.
    pub(super) fn place_removals(&mut self, task: u32, call: Option<&Call>, when: When) {
        let attached = call.filter(|call| call.name == CallName::Shmat).map(|call| call.args[0]);
        let unplaced = |id: &u64| self.removals.known.get(id).is_some_and(|removal| !removal.placed);
        let attached = attached.filter(unplaced);
        if self.removals.open.is_empty() && attached.is_none() {
            return;
        }
        let Some(space) = self.space_of(task) else { return };
        let others = self.removals.open.iter().copied().filter(|id| Some(*id) != attached);
        let concerned = |id: &u64| self.removals.known.get(id).is_some_and(|own| own.spaces.contains(&space));
        let concerned: Vec<u64> = others.filter(concerned).chain(attached).collect();
        for id in concerned {
            let overlaps = self.removals.known.get(&id).is_some_and(|removal| when.from <= removal.until);
            if !overlaps || call.is_some_and(|call| self.is_refused_by(id, space, call)) {
                self.place(id, task);
            } else if Some(id) == attached {
                // What it attaches, the removal finds attached.
                let removal = self.removals.known.get_mut(&id);
                removal.into_iter().for_each(|removal| removal.spaces.push(space));
                if !self.removals.open.contains(&id) {
                    self.removals.open.push(id);
                }
            }
        }
    }

    /// A fork, an exec or an exit lets go of, or copies, what the task has attached: `Lengths` keeps the
    /// order of that and of removals.
    pub(super) fn use_segments(&mut self, task: u32) {
        if self.removals.ids.is_empty() {
            return;
        }
        let stamp = self.stamp(task);
        let space = self.space_of(task).and_then(|number| self.spaces.get(&number));
        let attached = space.into_iter().flat_map(|space| space.areas.iter());
        let attached = attached.filter(|(_, area)| area.flags & flag::SEGMENT != 0);
        for file in attached.filter_map(|(_, area)| area.file) {
            self.lengths.uses(file, stamp, &mut self.scratch);
        }
    }

    /// An shmat that succeeds although the segment should be gone: somebody has it who is not recorded.
    pub(super) fn is_from_outside(&mut self, call: &Call) -> bool {
        let from_outside = call.name == CallName::Shmat && self.removals.outside.contains(&call.args[0]);
        if from_outside {
            self.aside(aside::OUTSIDE);
        }
        from_outside
    }

    /// A removal fell into the call.
    pub(super) fn is_cut_in_two(&mut self, call: &Call) -> bool {
        let cut = call.name == CallName::RemapFilePages && call.returned == Returned::Error(EIDRM);
        if cut {
            self.aside(aside::IN_TWO);
        }
        cut
    }

    fn note_removal(&mut self, line: u32, task: u32, segment: u64, when: When) {
        let followed = self.segments.contains_key(&segment) && !self.removals.outside.contains(&segment);
        if self.removals.doubted || !followed || self.removals.known.contains_key(&segment) {
            return;
        }
        let old = |id: &u64| self.removals.known.get(id).is_some_and(|own| own.until + SLACK < when.from);
        let old: Vec<u64> = self.removals.open.iter().copied().filter(old).collect();
        old.into_iter().for_each(|id| self.place(id, task));
        let file = self.names.get(&key(segment)).copied();
        let has = |space: &Space| space.areas.iter().any(|(_, area)| area.file == file);
        let spaces = self.spaces.iter().filter(|(_, space)| file.is_some() && has(space));
        let spaces = spaces.map(|(number, _)| *number).collect();
        self.removals.known.insert(segment, Removal { line, until: when.to, spaces, placed: false });
        if file.is_some() {
            self.removals.open.push(segment);
        }
        let is_for = |held: &mut Held| held.segment == segment;
        let held: Vec<Held> = self.removals.held.extract_if(.., is_for).collect();
        for held in held {
            // It was refused while this removal was under way.
            if self.removals.known.get(&segment).is_some_and(|removal| !removal.placed) {
                self.place(segment, held.task);
            }
            self.call(held.line, held.task, held.call);
        }
    }

    /// The removal is the next step of `task`: any other could make it as well.
    fn place(&mut self, segment: u64, task: u32) {
        self.removals.open.retain(|id| *id != segment);
        let Some(&known) = self.segments.get(&segment) else { return };
        let Some(removal) = self.removals.known.get_mut(&segment) else { return };
        removal.placed = true;
        let line = removal.line;
        let file = self.segment_file(segment, known, None);
        let stamp: Stamp = self.stamp(task);
        self.lengths.changes(file, None, stamp, &mut self.scratch);
        self.lengths.keep_order(file);
        self.change_in_pool(file, stamp);
        self.push(task, line, What::Remove { file });
    }

    /// A number that shmget gives, or shmat takes, after its segment was removed: another segment has it now,
    /// or somebody who is not recorded kept the old one.
    fn made_anew(&mut self, task: u32, call: &Call, when: When) {
        let (made, id) = match (call.name, call.returned) {
            (CallName::Shmget, Returned::Value(id)) => (true, id),
            (CallName::Shmat, Returned::Value(_)) => (false, call.args[0]),
            _ => return,
        };
        if self.removals.known.get(&id).is_none_or(|removal| when.from <= removal.until) {
            return;
        }
        if !made && self.is_attached(id, None) {
            return;
        }
        if self.removals.open.contains(&id) {
            self.place(id, task);
        }
        self.removals.known.remove(&id);
        self.names.remove(&key(id));
        if made {
            self.segments.remove(&id);
        } else {
            self.removals.outside.insert(id);
        }
    }

    /// The segment for whose removal the refused call may have to wait: none was recorded yet, and it would
    /// explain the answer.
    fn waits_for_removal(&self, task: u32, call: &Call) -> Option<u64> {
        let refused = matches!(call.returned, Returned::Error(EINVAL | EIDRM));
        if !refused || self.removals.doubted || self.removals.ids.is_empty() && self.segments.is_empty() {
            return None;
        }
        let space = self.space_of(task)?;
        let id = match call.name {
            CallName::Shmat => call.args[0],
            CallName::RemapFilePages => {
                let (_, area) = self.spaces.get(&space)?.areas.find(page_of(call.args[0]))?;
                *self.removals.ids.get(&area.file?)?
            }
            _ => return None,
        };
        let followed = self.segments.contains_key(&id) && !self.removals.known.contains_key(&id);
        (followed && self.is_refused_by(id, space, call)).then_some(id)
    }

    /// Whether the segment's removal would explain why the call was refused.
    fn is_refused_by(&self, id: u64, space: u32, call: &Call) -> bool {
        match (call.name, call.returned) {
            (CallName::Shmat, Returned::Error(EINVAL | EIDRM)) => {
                call.args[0] == id && !self.is_attached(id, None)
            }
            (CallName::RemapFilePages, Returned::Error(EINVAL | EIDRM)) => {
                let at = page_of(call.args[0]);
                let range = at..at.saturating_add(page_of(call.args[1]));
                let file = self.names.get(&key(id)).copied();
                let found = self.spaces.get(&space).and_then(|space| space.areas.find(at));
                let of_it = found.is_some_and(|(_, area)| area.file == file && area.file.is_some());
                of_it && !self.is_attached(id, Some((space, range)))
            }
            _ => false,
        }
    }

    /// Whether the segment is attached anywhere, but for what lies in `but`.
    fn is_attached(&self, id: u64, but: Option<(u32, Range<u64>)>) -> bool {
        let Some(&file) = self.names.get(&key(id)) else { return false };
        self.spaces.iter().any(|(number, space)| {
            let left_out = but.as_ref().filter(|(space, _)| space == number).map(|(_, range)| range);
            space.areas.iter().any(|(start, area)| {
                area.file == Some(file)
                    && left_out.is_none_or(|range| start < range.start || area.end > range.end)
            })
        })
    }
}

/// By what the planner finds a segment's number.
pub(super) fn key(segment: u64) -> String {
    format!("segment {segment}")
}

/// The segment that the call has marked as removed.
fn removed_by(call: &Call) -> Option<u64> {
    let removes = call.name == CallName::Shmctl && call.args[1] as u32 & !IPC_64 == IPC_RMID;
    (removes && call.returned.value().is_some()).then_some(call.args[0])
}

#[cfg(test)]
#[path = "removed_tests.rs"]
mod tests;
