//! Counts of the events that a plan leaves out, and of losses of events.
//!
//! [`Losses`] is a part of the planner. Each kind of event that is set aside has one text as its reason
//! (`aside.rs`); the report of a replay prints the counts.

use std::collections::BTreeMap;

/// Counts events that are not planned or cannot be checked, by reason.
#[derive(Default)]
pub(super) struct Losses {
    /// Number of losses that have not ended and whose tasks are unknown.
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
