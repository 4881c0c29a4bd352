//! Calls that read or write the memory of another address space.
//!
//! The calls are process_vm_readv, process_vm_writev and process_madvise. The memory of the caller and of the
//! other process may be unknown, so this file determines how much of the result a replay can compare
//! ([`Partial`]). This file also makes the call wait for all steps in the other address space. `syscall.rs`
//! uses these functions for each such call, and stores their results in the `PlannedCall`. The bytes
//! themselves are in `bytes.rs`. `freehold-replay/tests/strace.rs` replays such calls
//! (`transferred_bytes_match_strace_output`).

use super::address_set::AddressSet;
use super::planner::Planner;
use crate::addresses::{PAGE, span};
use crate::{Call, CallName, Returned};
use std::ops::Range;

/// The degree to which a call with several ranges depends on unknown memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Partial {
    /// All of the memory is known.
    No,
    /// The call did less than requested, perhaps because of unknown memory: its result is unsure, and is not
    /// compared.
    Unsure,
    /// The call may move another number of bytes in the replay. The replay does not report such a result as a
    /// difference.
    Doubtful,
}

impl Planner {
    /// Returns the degree to which the result of a call depends on unknown memory. The memory may be in the
    /// caller's address space, whose number is `number`, or in the other process.
    pub(super) fn partial(&self, call: &Call, number: u32) -> Partial {
        let Some(about) = &call.transfer else { return Partial::No };
        let ranges_of = |space: Option<u32>| {
            space.and_then(|number| self.processes.spaces.get(&number)?.known_ranges.as_ref())
        };
        let asked = about.remote.iter().fold(0u64, |sum, (_, len)| sum.saturating_add(*len));
        let short = call.returned != Returned::Value(asked);
        if call.name == CallName::ProcessMadvise {
            let is_known = |set: &AddressSet| {
                about.remote.iter().all(|&(at, len)| set.missing(&span(at, len)).is_empty())
            };
            let known = ranges_of(Some(number)).is_none_or(is_known);
            return if short && !known { Partial::Unsure } else { Partial::No };
        }
        // strace shows the bytes of a local range instead of its address. Such a range has address 0 here.
        let known = |set: &AddressSet, &(at, len): &(u64, u64)| {
            at == 0 || set.missing(&span(at, len.saturating_add(at % PAGE))).is_empty()
        };
        let is_known = |space: Option<u32>, pieces: &[(u64, u64)]| {
            ranges_of(space).is_none_or(|set| pieces.iter().all(|piece| known(set, piece)))
        };
        let other = about.process.and_then(|process| self.space_of(process));
        match is_known(other, &about.remote) && (!short || is_known(Some(number), &about.local)) {
            true => Partial::No,
            false => Partial::Doubtful,
        }
    }

    /// Orders a call that reads or writes another address space: the call waits for all earlier steps in that
    /// space, and later steps in that space wait for the call.
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

    /// Notes the bytes that a call moved from or to another address space. Returns two lists of ranges in
    /// that address space: assumed memory, and the read bytes that earlier recorded calls had written.
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
