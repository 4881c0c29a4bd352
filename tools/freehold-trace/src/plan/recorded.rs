//! Times on the recorded machine: how long calls, faults and waits for locks took there.
//!
//! The planner passes every event to [`Recorded::note`]; after the run, `freehold-replay` prints these times
//! next to those of the engine. Recordings of the kernel contain times of calls, faults and locks; strace
//! output contains only times of calls. The plan does not depend on these times. The file also formats the
//! kinds of events ([`kind_name`]) and calls ([`show_call`]) for reports; the replay uses the same names for
//! its own times. A new time needs a field of [`Recorded`], which [`Recorded::note`] fills.

use crate::{Call, CallName, Cost, Event, Kind};
use freehold_sync::stats::Histogram;
use std::collections::BTreeMap;

/// Times on the recorded machine.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// By kind of call: the number of calls with a recorded time, and the sum of these times in nanoseconds.
    /// Kinds without a recorded time are absent.
    pub kinds: BTreeMap<&'static str, (u64, u64)>,
    /// Hold times of the mmap lock for writing, in nanoseconds.
    pub exclusive_hold: Histogram,
    /// Wait times for the mmap lock, in nanoseconds.
    pub lock_wait: Histogram,
    /// Number of TLB-flush interrupts.
    pub interrupts: u64,
    /// Time from the first event to the last in nanoseconds, without the frozen periods.
    pub active: u64,
    /// True if the recording contains times of locks.
    pub has_locks: bool,
    /// Time for which the program was frozen so far, in nanoseconds.
    frozen: u64,
}

/// Returns the name of the event's kind in reports. Returns `None` for events that have no time of their own
/// in a report.
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
    /// Adds the times of an event.
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

    /// Adds the wait and hold times of the mmap lock.
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

/// Returns the time from the entry to the return, if any part of it is recorded.
fn total(cost: &Cost) -> Option<u64> {
    match (cost.before, cost.after) {
        (None, None) => None,
        (before, after) => Some(before.unwrap_or(0).saturating_add(after.unwrap_or(0))),
    }
}

/// Formats a call like strace, with numbers as arguments.
pub fn show_call(call: &Call) -> String {
    let args: Vec<String> =
        call.args[..call.name.arity().min(6)].iter().map(|arg| format!("{arg:#x}")).collect();
    format!("{}({})", call.name.as_str(), args.join(", "))
}
