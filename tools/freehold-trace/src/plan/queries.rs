//! Facts about a recording, as far as a planner has read it: the functions that `freehold-replay` calls on a
//! [`Planner`] besides `next_segment`.
//!
//! Each answer holds only for the part of the recording that was read so far, so the replay asks again after
//! each segment. Nothing here changes the plan. A new fact needs a field of [`Planner`], which the planning
//! functions set, and a function here.

use super::planner::Planner;
use super::recorded::Recorded;
use crate::{ReadError, Recording};
use std::collections::BTreeMap;

impl Planner {
    /// Returns the recording's figures about the recorded machine.
    pub fn recorded(&self) -> &Recorded {
        &self.recorded
    }

    /// Returns the reasons why events were not planned or cannot be checked, each with its count.
    pub fn set_aside(&self) -> &BTreeMap<&'static str, u64> {
        &self.losses.set_aside
    }

    /// Returns true if the part of the recording that was read so far contains bytes of memory. Only a test
    /// machine whose memory has contents can compare the bytes.
    pub fn shows_bytes(&self) -> bool {
        self.shows_bytes
    }

    /// Returns true if a program allocated a protection key, or set the key of pages (key 0 included). Only a
    /// test machine with protection keys then gives the same results.
    pub fn uses_keys(&self) -> bool {
        self.uses_keys
    }

    /// Returns true if a process_vm_writev has written to an address that the recording does not contain.
    pub fn has_unseen_writes(&self) -> bool {
        self.unseen_writes
    }

    /// Returns true if the part of the recording that was read so far contains an mseal. The output of a
    /// strace that does not know mseal contains none.
    pub fn shows_seals(&self) -> bool {
        self.shows_seals
    }

    /// Returns the recording.
    pub fn recording(&self) -> &Recording {
        &self.recording
    }

    /// Returns the reason why the recording could not be read to its end. The plan contains the events before
    /// that place.
    pub fn cut_off(&self) -> Option<&ReadError> {
        self.cut_off.as_ref()
    }

    /// Takes the reason why the recording could not be read to its end.
    pub fn take_cut_off(&mut self) -> Option<ReadError> {
        self.cut_off.take()
    }
}
