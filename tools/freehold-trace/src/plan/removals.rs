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

use crate::{Call, CallName, Cost};
use rustc_hash::FxHashMap as HashMap;
use std::collections::HashSet;

const IPC_RMID: u32 = 0;
/// shmctl ignores it, as the system call has but one form.
const IPC_64: u32 = 0x100;
/// So long after a removal has returned, no call that began before it is still under way: then the memory
/// goes, even if nobody asks.
pub(super) const SLACK: u64 = 1_000_000_000;

/// When a call may have taken effect, in nanoseconds: from its entry to its return.
#[derive(Clone, Copy, Debug)]
pub(super) struct When {
    pub(super) from: u64,
    pub(super) to: u64,
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
    pub(super) known: HashMap<u64, Removal>,
    /// Of segments that were attached, those that have no place among the steps yet.
    pub(super) open: Vec<u64>,
    /// Calls that were refused, perhaps for a removal that the recording has behind them.
    pub(super) held: Vec<PendingCall>,
    /// Segments that somebody has attached who is not recorded.
    pub(super) outside: HashSet<u64>,
    /// Events were lost: what is attached where is not known any more, so nothing is removed.
    pub(super) doubted: bool,
}

#[derive(Debug)]
pub(super) struct Removal {
    pub(super) line: u32,
    /// It had returned by then.
    pub(super) until: u64,
    /// Address spaces that may have the segment attached.
    pub(super) spaces: Vec<u32>,
    /// It has its place among the steps.
    pub(super) placed: bool,
}

#[derive(Debug)]
pub(super) struct PendingCall {
    pub(super) line: u32,
    pub(super) task: u32,
    pub(super) call: Call,
    pub(super) segment: u64,
    pub(super) until: u64,
}

impl Removals {
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

/// The segment that the call has marked as removed.
pub(super) fn removed_by(call: &Call) -> Option<u64> {
    let removes = call.name == CallName::Shmctl && call.args[1] as u32 & !IPC_64 == IPC_RMID;
    (removes && call.returned.value().is_some()).then_some(call.args[0])
}
