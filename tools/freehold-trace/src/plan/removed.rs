//! Decides at which step of the plan a removed System V segment is freed.
//!
//! The recording shows only that the removal took effect between the entry and the return of shmctl;
//! `removals.rs` explains how the results of other calls narrow that time, and keeps the removals. `run.rs`
//! calls `place_removals` before each call, fork, exec and exit. The removal becomes a step of the task whose
//! call requires it ([`StepKind::Remove`]); if the removal is placed too early or too late, a call on the
//! segment gets another result than on Linux. The tests (`removed_tests.rs`) have the cases in which two
//! calls overlap.

use super::area::{flag, page_of};
use super::aside;
use super::files::key;
use super::planner::Planner;
use super::removals::When;
use super::step::StepKind;
use crate::{Call, CallName, Returned};
use std::ops::Range;

const EINVAL: u16 = 22;
const EIDRM: u16 = 43;

impl Planner {
    /// Plans the removals that took effect before a call, an exec, a fork or an exit of `task`.
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
                // This call attached the segment before the removal took effect.
                let removal = self.removals.known.get_mut(&id);
                removal.into_iter().for_each(|removal| removal.spaces.push(space));
                if !self.removals.open.contains(&id) {
                    self.removals.open.push(id);
                }
            }
        }
    }

    /// Gathers the waits of a fork, an exec or an exit of the task, which copies or detaches the task's
    /// segments. `Lengths::uses` keeps the order between such a step and the removals of these segments.
    pub(super) fn use_segments(&mut self, task: u32) {
        if self.files.segment_ids.is_empty() {
            return;
        }
        let stamp = self.stamp(task);
        let space = self.space_of(task).and_then(|number| self.processes.spaces.get(&number));
        let attached = space.into_iter().flat_map(|space| space.areas.iter());
        let attached = attached.filter(|(_, area)| area.flags & flag::SEGMENT != 0);
        for file in attached.filter_map(|(_, area)| area.file) {
            self.files.lengths.uses(file, stamp, &mut self.builder.waits);
        }
    }

    /// Returns true if the call is a shmat of a removed segment, and only processes outside the recording
    /// have attached the segment. Counts such a shmat as set aside.
    pub(super) fn is_from_outside(&mut self, call: &Call) -> bool {
        let from_outside = call.name == CallName::Shmat && self.removals.outside.contains(&call.args[0]);
        if from_outside {
            self.aside(aside::OUTSIDE);
        }
        from_outside
    }

    /// Returns true if a removal took effect during the call (EIDRM), and counts the result of the call as
    /// set aside.
    pub(super) fn is_cut_in_two(&mut self, call: &Call) -> bool {
        let cut = call.name == CallName::RemapFilePages && call.returned == Returned::Error(EIDRM);
        if cut {
            self.aside(aside::IN_TWO);
        }
        cut
    }

    /// Places the removal as the next step of `task`. As a step of another task, the removal would have the
    /// same effect.
    pub(super) fn place(&mut self, segment: u64, task: u32) {
        self.removals.open.retain(|id| *id != segment);
        let Some(&known) = self.files.segments.get(&segment) else { return };
        let Some(removal) = self.removals.known.get_mut(&segment) else { return };
        removal.placed = true;
        let line = removal.line;
        let file = self.files.segment_file(segment, known, None);
        let stamp = self.stamp(task);
        self.files.lengths.changes(file, None, stamp, &mut self.builder.waits);
        self.files.lengths.keep_order(file);
        self.change_in_pool(file, stamp);
        self.push(task, line, StepKind::Remove { file });
    }

    /// Notes that shmget returned, or shmat accepted, the identifier of a removed segment. After shmget, the
    /// identifier belongs to a new segment. If shmat succeeded, a process outside the recording has kept the
    /// old segment attached.
    pub(super) fn note_new_segment(&mut self, task: u32, call: &Call, when: When) {
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
        self.files.names.remove(&key(id));
        if made {
            self.files.segments.remove(&id);
        } else {
            self.removals.outside.insert(id);
        }
    }

    /// Returns the identifier of the segment whose removal would explain why the call was refused. Returns
    /// `None` if there is no such segment, or if its removal was already read.
    pub(super) fn waits_for_removal(&self, task: u32, call: &Call) -> Option<u64> {
        let refused = matches!(call.returned, Returned::Error(EINVAL | EIDRM));
        if !refused
            || self.removals.doubted
            || self.files.segment_ids.is_empty() && self.files.segments.is_empty()
        {
            return None;
        }
        let space = self.space_of(task)?;
        let id = match call.name {
            CallName::Shmat => call.args[0],
            CallName::RemapFilePages => {
                let (_, area) = self.processes.spaces.get(&space)?.areas.find(page_of(call.args[0]))?;
                *self.files.segment_ids.get(&area.file?)?
            }
            _ => return None,
        };
        let followed = self.files.segments.contains_key(&id) && !self.removals.known.contains_key(&id);
        (followed && self.is_refused_by(id, space, call)).then_some(id)
    }

    /// Returns true if the segment's removal would explain why the call was refused.
    fn is_refused_by(&self, id: u64, space: u32, call: &Call) -> bool {
        match (call.name, call.returned) {
            (CallName::Shmat, Returned::Error(EINVAL | EIDRM)) => {
                call.args[0] == id && !self.is_attached(id, None)
            }
            (CallName::RemapFilePages, Returned::Error(EINVAL | EIDRM)) => {
                let at = page_of(call.args[0]);
                let range = at..at.saturating_add(page_of(call.args[1]));
                let file = self.files.names.get(&key(id)).copied();
                let found = self.processes.spaces.get(&space).and_then(|space| space.areas.find(at));
                let of_it = found.is_some_and(|(_, area)| area.file == file && area.file.is_some());
                of_it && !self.is_attached(id, Some((space, range)))
            }
            _ => false,
        }
    }

    /// Returns true if the segment is attached anywhere. Mappings inside the range `but` of an address space
    /// do not count.
    fn is_attached(&self, id: u64, but: Option<(u32, Range<u64>)>) -> bool {
        let Some(&file) = self.files.names.get(&key(id)) else { return false };
        self.processes.spaces.iter().any(|(number, space)| {
            let left_out = but.as_ref().filter(|(space, _)| space == number).map(|(_, range)| range);
            space.areas.iter().any(|(start, area)| {
                area.file == Some(file)
                    && left_out.is_none_or(|range| start < range.start || area.end > range.end)
            })
        })
    }
}

#[cfg(test)]
#[path = "removed_tests.rs"]
mod tests;
