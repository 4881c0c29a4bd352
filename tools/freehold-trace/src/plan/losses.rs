//! Events that a plan leaves out, and losses of events.

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
    /// Counts something that is not planned or cannot be checked for this reason.
    pub(super) fn aside(&mut self, why: &'static str) {
        *self.set_aside.entry(why).or_default() += 1;
    }
}
