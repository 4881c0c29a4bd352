//! Removals of System V segments, and their order among the steps.
//!
//! shmctl(IPC_RMID) marks a segment, which is then freed with its last mapping. The results of two calls show
//! the removal: an shmat of a freed segment is refused, and so is a remap_file_pages over the last mapping of
//! a marked segment. A recording has the removal at the entry of shmctl. The removal took effect at some time
//! before the return of shmctl:
//!
//! ```text
//! shmctl(IPC_RMID)       |-------------|          of one thread
//! remap_file_pages           |-------------|      of another: its result shows which came first
//! ```
//!
//! If shmctl overlaps a shmat or a remap_file_pages, the removal is planned before that call exactly if that
//! call was refused. If the calls do not overlap, their order is known, and the engine must give the recorded
//! result.
//!
//! A remap_file_pages that was refused with EIDRM overlapped the removal: the call had unmapped the segment,
//! and the segment was freed before the call mapped it again. The removal is planned before the call; this
//! order has the same effect. The result is not compared, because a call that runs in one step never returns
//! EIDRM.
//!
//! [`Removals`] is a part of the planner and has the data. `removed.rs` decides the place of a removal;
//! `run.rs` holds a refused call that may belong to a removal later in the recording. To *place* a removal is
//! to decide after which step it happens. The tests are in `removed_tests.rs`.

use crate::{Call, CallName, Cost};
use rustc_hash::FxHashMap as HashMap;
use std::collections::HashSet;

const IPC_RMID: u32 = 0;
/// A flag that shmctl ignores, because the system call has only one form.
const IPC_64: u32 = 0x100;
/// Time in nanoseconds. When a removal begins, each earlier removal that returned longer ago than this time
/// is placed, even if no later call depends on it. Every call that began before the return of the earlier
/// removal should have returned by then.
pub(super) const SLACK: u64 = 1_000_000_000;

/// The period in which a call may have taken effect, in nanoseconds: from its entry to its return.
#[derive(Clone, Copy, Debug)]
pub(super) struct When {
    /// The entry of the call.
    pub(super) from: u64,
    /// The return of the call.
    pub(super) to: u64,
}

impl When {
    /// Returns the period of the call at `time`.
    pub(super) fn of(time: u64, cost: &Cost) -> When {
        let (before, after) = (cost.before.unwrap_or(0), cost.after.unwrap_or(0));
        When { from: time.saturating_sub(before), to: time.saturating_add(after) }
    }
}

/// The removals of a recording.
#[derive(Debug, Default)]
pub(super) struct Removals {
    /// Removals by the identifier of the segment.
    pub(super) known: HashMap<u64, Removal>,
    /// Identifiers of removed segments that were attached. Their removals are not placed yet.
    pub(super) open: Vec<u64>,
    /// Calls that are held back. Linux refused them, perhaps because of a removal that is recorded later.
    pub(super) held: Vec<PendingCall>,
    /// Identifiers of segments that a process outside the recording has attached.
    pub(super) outside: HashSet<u64>,
    /// True after a loss of events. The attachments of segments are then unknown, so no segment is removed.
    pub(super) doubted: bool,
}

/// A removal: a shmctl that marked a segment.
#[derive(Debug)]
pub(super) struct Removal {
    /// Line of the recording.
    pub(super) line: u32,
    /// The time at which the call returned, in nanoseconds.
    pub(super) until: u64,
    /// Numbers of the address spaces that may have the segment attached.
    pub(super) spaces: Vec<u32>,
    /// True if the place of the removal among the steps is decided.
    pub(super) placed: bool,
}

/// A call that is held back.
#[derive(Debug)]
pub(super) struct PendingCall {
    /// Line of the recording.
    pub(super) line: u32,
    /// The task that made the call.
    pub(super) task: u32,
    /// The call.
    pub(super) call: Call,
    /// The identifier of the segment whose removal would explain the refusal.
    pub(super) segment: u64,
    /// The time at which the call returned, in nanoseconds.
    pub(super) until: u64,
}

impl Removals {
    /// Returns true if a call is held.
    pub(super) fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Notes that address space `child` is a copy of `parent`.
    pub(super) fn forked(&mut self, parent: u32, child: u32) {
        for id in &self.open {
            let removal = self.known.get_mut(id).filter(|removal| removal.spaces.contains(&parent));
            removal.into_iter().for_each(|removal| removal.spaces.push(child));
        }
    }

    /// Marks the known attachments as doubtful, after a loss of events. Removals that are not placed yet are
    /// dropped.
    pub(super) fn doubt(&mut self) {
        self.doubted = true;
        self.open.clear();
        self.known.retain(|_, removal| removal.placed);
    }
}

/// Returns the identifier of the segment that the call has marked as removed.
pub(super) fn removed_by(call: &Call) -> Option<u64> {
    let removes = call.name == CallName::Shmctl && call.args[1] as u32 & !IPC_64 == IPC_RMID;
    (removes && call.returned.value().is_some()).then_some(call.args[0])
}
