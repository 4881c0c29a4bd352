//! Counts of the events that a plan leaves out, and of losses of events.
//!
//! [`Losses`] is a part of the planner. Each kind of event that is set aside has one text as its reason
//! (`aside.rs`); the report of a replay prints the counts. A *loss* is a place in the recording where events
//! are missing or a line cannot be read (`Kind::Lost`); `run.rs` handles losses.
//! `process_is_unknown_after_a_loss_until_an_exec` (`tests.rs`) and the mutant `trace-loss-exec` check
//! losses.

use std::collections::BTreeMap;

/// Losses in progress, and counts of events that are not planned or not checked.
#[derive(Default)]
pub(super) struct Losses {
    /// Number of losses in progress for which the recording does not name the task.
    pub(super) under_way: u32,
    /// Counts by reason.
    pub(super) set_aside: BTreeMap<&'static str, u64>,
}

impl Losses {
    /// Counts an event as set aside (not planned, or not checked) for the reason `why`, a text of `aside.rs`.
    pub(super) fn aside(&mut self, why: &'static str) {
        *self.set_aside.entry(why).or_default() += 1;
    }
}
