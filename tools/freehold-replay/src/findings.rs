//! What a worker finds while it replays: tallies, times, differences.

use super::outcome::{Difference, Tally};
use freehold_trace::CallName;
use std::collections::BTreeMap;
use std::time::Duration;

/// Differences that are kept with everything about them.
const KEPT: usize = 20;

/// Kinds of step that are no system call, numbered behind the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Other {
    Fault,
    Clone,
    Fork,
    Exec,
    Exit,
}

const OTHERS: [(Other, &str); 5] = [
    (Other::Fault, "fault"),
    (Other::Clone, "clone"),
    (Other::Fork, "fork"),
    (Other::Exec, "exec"),
    (Other::Exit, "exit"),
];

/// What one worker found.
#[derive(Clone, Debug, Default)]
pub(super) struct Findings {
    pub(super) calls: Tally,
    pub(super) faults: Tally,
    pub(super) snapshots: Tally,
    /// VMAs of files in snapshots, and those with the same pages.
    pub(super) file_vmas: Tally,
    /// Places that the kernel chose.
    pub(super) placed: Tally,
    /// Faults that did not get as far as the engine: the page was there.
    pub(super) already_there: u64,
    /// The first differences, by line.
    pub(super) differences: Vec<Difference>,
    pub(super) difference_count: u64,
    /// By kind: how many, and their time in nanoseconds.
    times: Vec<(u64, u64)>,
    /// What was not compared, and how often.
    pub(super) aside: BTreeMap<&'static str, u64>,
    /// Spent on comparing snapshots.
    pub(super) checking: Duration,
}

impl Findings {
    /// Nothing yet.
    pub(super) fn new() -> Findings {
        Findings { times: vec![(0, 0); CallName::ALL.len() + OTHERS.len()], ..Findings::default() }
    }

    /// A call took so long.
    pub(super) fn time_call(&mut self, name: CallName, ns: u64) {
        self.time(name as usize, ns);
    }

    /// Something else did.
    pub(super) fn time_other(&mut self, other: Other, ns: u64) {
        self.time(CallName::ALL.len() + other as usize, ns);
    }

    fn time(&mut self, kind: usize, ns: u64) {
        let sum = &mut self.times[kind];
        sum.0 += 1;
        sum.1 += ns;
    }

    /// So much is not compared.
    pub(super) fn set_aside(&mut self, why: &'static str, count: u64) {
        if count > 0 {
            *self.aside.entry(why).or_default() += count;
        }
    }

    /// Something came out differently.
    pub(super) fn differ(&mut self, difference: impl FnOnce() -> Difference) {
        self.difference_count += 1;
        if self.differences.len() < KEPT {
            self.differences.push(difference());
        }
    }

    /// Adds what another worker found.
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

    /// Kinds that occurred: name, how many, time in nanoseconds.
    pub(super) fn kinds(&self) -> impl Iterator<Item = (&'static str, u64, u64)> {
        let names = CallName::ALL.iter().map(|name| name.as_str()).chain(OTHERS.map(|(_, name)| name));
        names.zip(&self.times).filter(|(_, sum)| sum.0 > 0).map(|(name, sum)| (name, sum.0, sum.1))
    }
}

impl Tally {
    /// One more, which was as on Linux or not.
    pub(super) fn count(&mut self, as_linux: bool) {
        self.all += 1;
        self.as_linux += u64::from(as_linux);
    }
}
