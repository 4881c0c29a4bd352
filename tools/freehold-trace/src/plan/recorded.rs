//! What the recording says of the machine it was made on: how long things took there.

use crate::{Call, CallName, Cost, Event, Kind};
use freehold_sync::stats::Histogram;
use std::collections::BTreeMap;

/// Times on the recorded machine.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// By kind of call: of how many the recording says how long they took, and the time of these in
    /// nanoseconds. Kinds of which it says nothing are not here.
    pub kinds: BTreeMap<&'static str, (u64, u64)>,
    /// How long the mmap lock was held for writing, each time, in nanoseconds.
    pub exclusive_hold: Histogram,
    /// How long it was waited for, each time.
    pub lock_wait: Histogram,
    /// Interrupts sent to flush translations.
    pub interrupts: u64,
    /// From the first event to the last, without the time frozen, in nanoseconds.
    pub active: u64,
    /// The recording tells times of locks.
    pub has_locks: bool,
    frozen: u64,
}

/// How a report calls the time of this event.
pub fn kind_name(kind: &Kind) -> Option<&'static str> {
    Some(match kind {
        Kind::Fault { .. } => "fault",
        Kind::Call(call) => match call.name {
            CallName::Exit | CallName::ExitGroup | CallName::Personality => return None,
            name if name.is_of_descriptors() || name.is_of_limits() => return None,
            name => name.as_str(),
        },
        // CLONE_VM
        Kind::Clone { flags, .. } if flags & 0x100 != 0 => "clone",
        Kind::Clone { .. } => "fork",
        Kind::Exec { .. } => "exec",
        _ => return None,
    })
}

impl Recorded {
    pub(super) fn note(&mut self, event: &Event) {
        let cost = &event.cost;
        self.active = self.active.max(event.time.saturating_sub(self.frozen));
        if let Kind::Frozen { ns } = event.kind {
            self.frozen = self.frozen.saturating_add(ns);
        }
        self.interrupts += u64::from(cost.interrupts);
        self.note_lock(cost);
        let Some(name) = kind_name(&event.kind) else { return };
        let fault = matches!(event.kind, Kind::Fault { .. });
        let ns = if fault { cost.after } else { total(cost) };
        let Some(ns) = ns else { return };
        let sum = self.kinds.entry(name).or_default();
        sum.0 += 1;
        sum.1 = sum.1.saturating_add(ns);
    }

    fn note_lock(&mut self, cost: &Cost) {
        for wait in [cost.write_wait, cost.read_wait].into_iter().flatten() {
            self.has_locks = true;
            self.lock_wait.record(wait);
        }
        if let (Some(_), Some(held)) = (cost.write_wait, cost.held) {
            self.exclusive_hold.record(held);
        }
    }
}

fn total(cost: &Cost) -> Option<u64> {
    match (cost.before, cost.after) {
        (None, None) => None,
        (before, after) => Some(before.unwrap_or(0).saturating_add(after.unwrap_or(0))),
    }
}

/// A call as strace would print it, shortened.
pub fn show_call(call: &Call) -> String {
    let args: Vec<String> =
        call.args[..call.name.arity().min(6)].iter().map(|arg| format!("{arg:#x}")).collect();
    format!("{}({})", call.name.as_str(), args.join(", "))
}
