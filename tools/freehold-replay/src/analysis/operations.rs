//! The time of memory operations on the recorded machine, by operation.
//!
//! Like the table `time in` of the text report, but with a line for each advice of madvise.

use super::label;
use freehold_trace::{Event, Kind};
use serde::Serialize;
use std::collections::HashMap;

/// The time of one operation. It includes the waits for locks.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Operation {
    /// The operation.
    pub operation: String,
    /// Number of operations with a recorded time.
    pub count: u64,
    /// Sum of the times.
    pub total_ns: u64,
    /// The longest.
    pub longest_ns: u64,
    /// Part of the sum that is recorded as waits for mmap locks.
    pub waited_ns: u64,
}

/// The times that are read so far.
#[derive(Debug, Default)]
pub(super) struct Operations(HashMap<String, Operation>);

impl Operations {
    /// Adds the time of an event.
    pub(super) fn event(&mut self, event: &Event) {
        let Some(name) = label::operation(&event.kind) else { return };
        let cost = &event.cost;
        let before = match event.kind {
            Kind::Fault { .. } => None,
            _ => cost.before,
        };
        if before.or(cost.after).is_none() {
            return;
        }
        let ns = before.unwrap_or(0).saturating_add(cost.after.unwrap_or(0));
        if !self.0.contains_key(&*name) {
            self.0
                .insert(name.to_string(), Operation { operation: name.to_string(), ..Operation::default() });
        }
        let Some(sum) = self.0.get_mut(&*name) else { return };
        sum.count += 1;
        sum.total_ns = sum.total_ns.saturating_add(ns);
        sum.longest_ns = sum.longest_ns.max(ns);
        sum.waited_ns = sum.waited_ns.saturating_add(cost.write_wait.or(cost.read_wait).unwrap_or(0));
    }

    /// Returns the operations, the largest sum first.
    pub(super) fn finish(self) -> Vec<Operation> {
        let mut all: Vec<Operation> = self.0.into_values().collect();
        all.sort_by(|a, b| b.total_ns.cmp(&a.total_ns).then_with(|| a.operation.cmp(&b.operation)));
        all
    }
}
