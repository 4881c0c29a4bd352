//! Facts about a recording, as far as a planner has read it.

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

    /// Returns true if the part read so far shows bytes of memory. A machine without memory contents cannot
    /// compare them.
    pub fn shows_bytes(&self) -> bool {
        self.shows_bytes
    }

    /// Returns true if a program allocated a protection key, or set the key of pages, including key 0. Only a
    /// machine with protection keys gives the same results.
    pub fn uses_keys(&self) -> bool {
        self.uses_keys
    }

    /// Returns true if a process_vm_writev has written to an address that the recording does not contain.
    pub fn has_unseen_writes(&self) -> bool {
        self.unseen_writes
    }

    /// Returns true if the part read so far contains a call of mseal. A text by a version of strace that does
    /// not know mseal contains none.
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
