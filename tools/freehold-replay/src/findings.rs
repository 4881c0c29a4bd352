//! Results that a worker collects during a replay: tallies, times, differences, and reasons why something was
//! not compared.
//!
//! Each worker has its own [`Findings`], so that no lock is needed; `perform.rs` and `compare.rs` add to it.
//! After the run, `lib.rs` combines the results of all workers with [`Findings::merge`] and converts them to
//! the public form (`outcome.rs`). A new result therefore needs a field here, a line in [`Findings::merge`],
//! and a field in the `Outcome`. A new kind of step with a time of its own needs a variant of [`Other`] and
//! its name in [`OTHERS`].

use super::lock_waits::StepLocks;
use super::outcome::{Difference, Tally};
use freehold_trace::CallName;
use std::collections::BTreeMap;
use std::time::Duration;

/// Maximum number of differences that are kept; the others are only counted.
const KEPT: usize = 20;

/// Kinds of step that are not system calls. These kinds are numbered after the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Other {
    Fault,
    Clone,
    Fork,
    Exec,
    Exit,
}

/// The names of these kinds in reports, in the order of [`Other`].
const OTHERS: [(Other, &str); 5] = [
    (Other::Fault, "fault"),
    (Other::Clone, "clone"),
    (Other::Fork, "fork"),
    (Other::Exec, "exec"),
    (Other::Exit, "exit"),
];

/// Results of one worker.
#[derive(Clone, Debug, Default)]
pub(super) struct Findings {
    pub(super) calls: Tally,
    pub(super) faults: Tally,
    pub(super) snapshots: Tally,
    /// VMAs of files in snapshots; `as_linux` counts those with exactly the same pages.
    pub(super) file_vmas: Tally,
    /// Calls for which the kernel chose an address; `as_linux` counts those for which the engine chose the
    /// same address.
    pub(super) placed: Tally,
    /// Faults that did not reach the engine because the page was already present.
    pub(super) already_there: u64,
    /// The first differences, ordered by line.
    pub(super) differences: Vec<Difference>,
    pub(super) difference_count: u64,
    /// Number and total time in nanoseconds, by kind of step.
    times: Vec<(u64, u64)>,
    /// Reasons why something was not compared, with counts.
    pub(super) aside: BTreeMap<&'static str, u64>,
    /// Time spent on comparing snapshots.
    pub(super) checking: Duration,
    /// Waits for mmap locks, and holds, in the current segment.
    pub(super) locks: StepLocks,
}

impl Findings {
    /// Creates empty findings.
    pub(super) fn new() -> Findings {
        Findings { times: vec![(0, 0); CallName::ALL.len() + OTHERS.len()], ..Findings::default() }
    }

    /// Adds a call that took `ns` nanoseconds.
    pub(super) fn time_call(&mut self, name: CallName, ns: u64) {
        self.time(name as usize, ns);
    }

    /// Adds a step of another kind that took `ns` nanoseconds.
    pub(super) fn time_other(&mut self, other: Other, ns: u64) {
        self.time(CallName::ALL.len() + other as usize, ns);
    }

    fn time(&mut self, kind: usize, ns: u64) {
        let sum = &mut self.times[kind];
        sum.0 += 1;
        sum.1 += ns;
    }

    /// Counts `count` things that are not compared for the reason `why`.
    pub(super) fn set_aside(&mut self, why: &'static str, count: u64) {
        if count > 0 {
            *self.aside.entry(why).or_default() += count;
        }
    }

    /// Adds a difference.
    pub(super) fn differ(&mut self, difference: impl FnOnce() -> Difference) {
        self.difference_count += 1;
        if self.differences.len() < KEPT {
            self.differences.push(difference());
        }
    }

    /// Adds the results of another worker.
    pub(super) fn merge(&mut self, other: Findings) {
        for (sum, part) in [
            (&mut self.calls, other.calls),
            (&mut self.faults, other.faults),
            (&mut self.snapshots, other.snapshots),
            (&mut self.file_vmas, other.file_vmas),
            (&mut self.placed, other.placed),
        ] {
            sum.all += part.all;
            sum.as_linux += part.as_linux;
        }
        self.already_there += other.already_there;
        self.difference_count += other.difference_count;
        self.differences.extend(other.differences);
        self.differences.sort_by_key(|difference| difference.line);
        self.differences.truncate(KEPT);
        self.checking += other.checking;
        for (why, count) in other.aside {
            self.set_aside(why, count);
        }
        for (sum, part) in self.times.iter_mut().zip(other.times) {
            sum.0 += part.0;
            sum.1 += part.1;
        }
    }

    /// Returns the kinds that occurred: name, number, time in nanoseconds.
    pub(super) fn kinds(&self) -> impl Iterator<Item = (&'static str, u64, u64)> {
        let names = CallName::ALL.iter().map(|name| name.as_str()).chain(OTHERS.map(|(_, name)| name));
        names.zip(&self.times).filter(|(_, sum)| sum.0 > 0).map(|(name, sum)| (name, sum.0, sum.1))
    }
}

impl Tally {
    /// Counts one more check. `as_linux` says if the answer matched Linux's.
    pub(super) fn count(&mut self, as_linux: bool) {
        self.all += 1;
        self.as_linux += u64::from(as_linux);
    }
}
