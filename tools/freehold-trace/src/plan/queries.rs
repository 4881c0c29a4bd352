//! Facts about a recording, as far as a planner has read it.

use super::planner::Planner;
use super::recorded::Recorded;
use crate::{ReadError, Recording};
use std::collections::BTreeMap;

impl Planner {
    /// Returns what the recording says of the recorded machine.
    pub fn recorded(&self) -> &Recorded {
        &self.recorded
    }

    /// Returns the reasons for which events were left out of the plan or cannot be checked, each with its
    /// count.
    pub fn set_aside(&self) -> &BTreeMap<&'static str, u64> {
        &self.losses.set_aside
    }

    /// The recording, as far as it was read, shows bytes in memory: on a machine without contents they cannot
    /// be compared.
    pub fn shows_bytes(&self) -> bool {
        self.shows_bytes
    }

    /// Returns true if a program was given a protection key, or gave one to pages, be it key 0: only a
    /// machine that has them gives the same answers.
    pub fn uses_keys(&self) -> bool {
        self.uses_keys
    }

    /// Returns true if a process_vm_writev has written where the recording does not say.
    pub fn has_unseen_writes(&self) -> bool {
        self.unseen_writes
    }

    /// Returns whether the recording so far has a call of mseal. A text by a strace that does not know mseal
    /// has none.
    pub fn shows_seals(&self) -> bool {
        self.shows_seals
    }

    /// The recording.
    pub fn recording(&self) -> &Recording {
        &self.recording
    }

    /// Why the recording could not be read to its end; what was read before is planned.
    pub fn cut_off(&self) -> Option<&ReadError> {
        self.cut_off.as_ref()
    }

    /// The same, handed out.
    pub fn take_cut_off(&mut self) -> Option<ReadError> {
        self.cut_off.take()
    }
}
