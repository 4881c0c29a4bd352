//! Calls that read or write memory of another address space.

use super::planner::Planner;
use super::told::Told;
use crate::addresses::{PAGE, span};
use crate::{Call, CallName, Returned};
use std::ops::Range;

/// Whether a call about pieces of memory rests on some of which nothing is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Partial {
    /// All of it is known.
    No,
    /// It did less than it was asked for, for what may have been there: its answer tells nothing.
    Unsure,
    /// It may move another number of bytes here.
    Doubtful,
}

impl Planner {
    /// Of a call in a space of unknown start, and its other side.
    pub(super) fn partial(&self, call: &Call, number: u32) -> Partial {
        let Some(about) = &call.transfer else { return Partial::No };
        let told =
            |space: Option<u32>| space.and_then(|number| self.processes.spaces.get(&number)?.told.as_ref());
        let asked = about.remote.iter().fold(0u64, |sum, (_, len)| sum.saturating_add(*len));
        let short = call.returned != Returned::Value(asked);
        if call.name == CallName::ProcessMadvise {
            let is_known =
                |told: &Told| about.remote.iter().all(|&(at, len)| told.missing(&span(at, len)).is_empty());
            let known = told(Some(number)).is_none_or(is_known);
            return if short && !known { Partial::Unsure } else { Partial::No };
        }
        // Where a piece is that is shown by what it holds, the recording does not tell.
        let known = |told: &Told, &(at, len): &(u64, u64)| {
            at == 0 || told.missing(&span(at, len.saturating_add(at % PAGE))).is_empty()
        };
        let is_known = |space: Option<u32>, pieces: &[(u64, u64)]| {
            told(space).is_none_or(|told| pieces.iter().all(|piece| known(told, piece)))
        };
        let other = about.process.and_then(|process| self.space_of(process));
        match is_known(other, &about.remote) && (!short || is_known(Some(number), &about.local)) {
            true => Partial::No,
            false => Partial::Doubtful,
        }
    }

    /// A call that reads or writes another address space waits for all that was done there, and is waited
    /// for.
    pub(super) fn gather_target(&mut self, call: &Call, number: u32, task: u32) {
        let target = call.transfer.as_ref().and_then(|transfer| transfer.process);
        let Some(target) = target.and_then(|process| self.space_of(process)) else { return };
        if target != number {
            self.gather_whole(target, task);
            let stamp = self.stamp(task);
            if let Some(space) = self.processes.spaces.get_mut(&target) {
                space.order.note_whole(stamp);
            }
        }
    }

    /// What a call moved from or to another address space: where it shows that memory was mapped before the
    /// recording began, and where it read what recorded calls wrote.
    pub(super) fn moved(&mut self, call: &Call) -> (Vec<Range<u64>>, Vec<Range<u64>>) {
        let Some(transfer) = &call.transfer else { return Default::default() };
        self.shows_bytes |= call.name != CallName::ProcessMadvise;
        let target = transfer.process.and_then(|process| self.space_of(process));
        let space = target.and_then(|number| self.processes.spaces.get_mut(&number));
        let (Some(space), Returned::Value(count)) = (space, call.returned) else { return Default::default() };
        let assumed = space.note_mapped(transfer, count);
        match call.name {
            CallName::ProcessVmReadv => return (assumed, space.written_among(transfer)),
            CallName::ProcessVmWritev => space.note_written(transfer, count),
            _ => {}
        }
        (assumed, Vec::new())
    }
}
