//! The result of a replay: the numbers and differences that a report shows.
//!
//! `lib.rs` makes an [`Outcome`] from the results of the workers (`findings.rs`), and the files in `report/`
//! write it. In these types, `freehold` is the engine's value, and `linux` is the recorded value, which is
//! `None` if the recording does not contain it.
//!
//! The JSON report serialises some of these types: times are in nanoseconds, and a key that holds a time ends
//! in its unit. Renaming a serialised field changes the format of that report (`report/json.rs`). A new field
//! is also needed in the outcomes of `report/mod_tests.rs`.

use crate::analysis::waits::Waits;
use crate::locking::Design;
use crate::short::{Figures, Memory};
use serde::{Serialize, Serializer};
use std::time::Duration;

/// The outcome of replaying one recording once.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The recording's name.
    pub name: String,
    /// The recording is strace output. It has no faults and no snapshots, and the program ran at the speed of
    /// strace.
    pub calls_only: bool,
    /// The locking design of the replay.
    pub design: Design,
    /// Number of virtual CPUs.
    pub cpus: usize,
    /// Largest number of bytes of frames that were in use at a time, including the pages of files.
    pub peak: u64,
    /// The memory of a replay in limited memory, and what reclaim cost.
    pub memory: Option<(Memory, Figures)>,
    /// Memory had contents.
    pub backed: bool,
    /// Seed that determined the interleaving.
    pub seed: u64,
    /// System calls of memory management.
    pub calls: Tally,
    /// Page faults.
    pub faults: Tally,
    /// Snapshots of address spaces.
    pub snapshots: Tally,
    /// VMAs of files in the snapshots whose pages were compared. `as_linux` counts the VMAs with exactly the
    /// same pages. Any other VMA is a difference if it lacks a page that the recorded faults prove, or has a
    /// page that the recorded faults do not explain.
    pub file_vmas: Tally,
    /// Calls for which the kernel chose an address, and for which the engine chose an address in the same
    /// state.
    pub placed: Tally,
    /// The first differences, in the order of the recording.
    pub differences: Vec<Difference>,
    /// Number of all differences.
    pub difference_count: u64,
    /// Number of lines that could not be read completely.
    pub unread: u64,
    /// Error messages for the first of these lines.
    pub unread_lines: Vec<String>,
    /// Reason why the recording could not be read to its end.
    pub cut_off: Option<String>,
    /// Reasons why something was not checked, each with the number of events.
    pub set_aside: Vec<(String, u64)>,
    /// Locks that served the faults.
    pub rungs: Rungs,
    /// Times for which a task held the mmap lock for writing, in nanoseconds.
    pub exclusive_hold: Beside,
    /// Times for which a task waited for the mmap lock, in nanoseconds.
    pub mmap_lock_wait: Beside,
    /// The waits for mmap locks in the replay, with the steps that held them. Their number is that of
    /// `mmap_lock_wait`, apart from waits after the last step.
    pub waits: Waits,
    /// Time by kind of call, ordered by Linux's time, longest first. Page faults, forks, execs and exits are
    /// kinds too.
    pub kinds: Vec<KindTime>,
    /// TLB flushes of the engine, and the interrupts that Linux sent for its own flushes.
    pub flushes: FlushCount,
    /// Time for which the segments ran, without the time for reading and planning between segments.
    pub wall: Duration,
    /// Part of `wall` spent on comparing snapshots, summed over the CPUs.
    pub checking: Duration,
    /// Run time of the recorded program, without the time that it was frozen.
    pub recorded: Duration,
    /// Number of events that were read and planned, and the time that this took.
    pub planned: (u64, Duration),
}

impl Outcome {
    /// Returns the number of events that were not checked.
    pub fn not_checked(&self) -> u64 {
        self.set_aside.iter().map(|(_, events)| events).sum()
    }

    /// Returns true if everything that was checked matched Linux.
    pub fn is_as_linux(&self) -> bool {
        self.difference_count == 0
    }

    /// Returns true if the whole recording could be read.
    pub fn is_whole(&self) -> bool {
        self.unread == 0 && self.cut_off.is_none()
    }
}

/// Number of checks and number of matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of things that were checked.
    pub all: u64,
    /// Number of checked things that matched Linux.
    pub as_linux: u64,
}

/// One answer that differs from Linux's.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    /// Line of the recording.
    pub line: u32,
    /// The task.
    pub task: u32,
    /// The operation: the call with its arguments, the fault or the snapshot.
    pub what: String,
    /// Linux's answer.
    pub linux: String,
    /// The engine's answer.
    pub freehold: String,
    /// The engine's VMAs near the address, as `/proc/PID/maps` shows them.
    pub maps: Vec<String>,
}

/// Numbers of faults by the lock that served them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rungs {
    /// Served under the VMA lock.
    pub vma_lock: u64,
    /// Served under the mmap lock.
    pub mmap_lock: u64,
    /// Not served by the engine: the page was already present. A fault on a neighbouring page, or another
    /// thread, had brought in the page.
    pub already_there: u64,
}

/// A distribution for the engine and for Linux.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beside {
    /// The engine's distribution.
    pub freehold: Spread,
    /// The distribution of the recorded machine. `None` if it is not recorded.
    pub linux: Option<Spread>,
}

/// A distribution of nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Spread {
    /// Number of values.
    pub count: u64,
    /// The median.
    pub p50: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The longest.
    pub max: u64,
}

/// Time spent in one kind of call.
#[derive(Clone, Debug, Serialize)]
pub struct KindTime {
    /// Name of the call, or `fault`, `fork`, `exec`, `exit`.
    pub name: String,
    /// Number of calls.
    pub count: u64,
    /// Total time of the engine.
    #[serde(rename = "ns", serialize_with = "nanoseconds")]
    pub freehold: Duration,
    /// Time on the recorded machine, if recorded.
    #[serde(flatten, serialize_with = "of_linux")]
    pub linux: Option<LinuxTime>,
}

/// Time of one kind of call on the recorded machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinuxTime {
    /// Total time.
    pub all: Duration,
    /// Number of calls that the total covers. The recording need not contain the time of every call.
    pub count: u64,
}

/// TLB flushes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FlushCount {
    /// Number of flushes that the engine requested.
    #[serde(rename = "all")]
    pub freehold: u64,
    /// Number of those flushes that had to reach another CPU.
    pub remote: u64,
    /// Interrupts on the recorded machine, if the recording counts them. Serialised with the other facts
    /// about that machine.
    #[serde(skip)]
    pub linux: Option<u64>,
}

/// Serialises a time in nanoseconds.
pub(crate) fn nanoseconds<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Serialises the time and the count under two keys. Both values are null if the time is not recorded.
fn of_linux<S: Serializer>(time: &Option<LinuxTime>, to: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Keys {
        linux_ns: Option<u64>,
        linux_count: Option<u64>,
    }
    let linux_ns = time.map(|time| u64::try_from(time.all.as_nanos()).unwrap_or(u64::MAX));
    Keys { linux_ns, linux_count: time.map(|time| time.count) }.serialize(to)
}
