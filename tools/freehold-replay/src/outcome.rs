//! What a replay found: the numbers and differences that a report shows. Serialised, as the report for
//! programs has them: times in nanoseconds, a key that is a time ends in its unit.

use crate::locking::Design;
use serde::{Serialize, Serializer};
use std::time::Duration;

/// The outcome of replaying one recording once.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The recording's name.
    pub name: String,
    /// The recording is a text by strace: it has no faults and no snapshots, and the program ran at strace's
    /// pace.
    pub calls_only: bool,
    /// The design that ran.
    pub design: Design,
    /// Virtual CPUs that ran it.
    pub cpus: usize,
    /// With contents.
    pub backed: bool,
    /// What varied the interleaving.
    pub seed: u64,
    /// System calls of memory management.
    pub calls: Tally,
    /// Page faults.
    pub faults: Tally,
    /// Snapshots of address spaces.
    pub snapshots: Tally,
    /// VMAs of files in the snapshots of which the pages were compared; as on Linux: with the very same
    /// pages. The others had what recorded faults prove, and no more than they explain, or there is a
    /// difference.
    pub file_vmas: Tally,
    /// Times at which the kernel chose a place, and the engine in the same state its own.
    pub placed: Tally,
    /// The first differences, in the order of the recording.
    pub differences: Vec<Difference>,
    /// How many there were.
    pub difference_count: u64,
    /// Lines of the recording that could not be read, or not in every part.
    pub unread: u64,
    /// What is wrong with the first of them.
    pub unread_lines: Vec<String>,
    /// Why the recording could not be read to its end.
    pub cut_off: Option<String>,
    /// What was not checked, and why: a reason and how many events it concerns.
    pub set_aside: Vec<(String, u64)>,
    /// Which rung served the faults here.
    pub rungs: Rungs,
    /// How long the mmap lock was held for writing, each time, in nanoseconds.
    pub exclusive_hold: Beside,
    /// How long a task waited for the mmap lock, each time, in nanoseconds.
    pub mmap_lock_wait: Beside,
    /// Time by kind of call, most time on Linux first; faults are a kind.
    pub kinds: Vec<KindTime>,
    /// Flushes of translations: all of ours, and the interrupts that Linux sent for them.
    pub flushes: FlushCount,
    /// From the first event to the last, reading, planning and waiting for the freezer not included.
    pub wall: Duration,
    /// Of `wall`, spent on comparing snapshots, summed over the CPUs.
    pub checking: Duration,
    /// How long the recorded program ran, without the time it was frozen.
    pub recorded: Duration,
    /// Reading and planning: events and time.
    pub planned: (u64, Duration),
}

impl Outcome {
    /// How many events were not checked.
    pub fn not_checked(&self) -> u64 {
        self.set_aside.iter().map(|(_, events)| events).sum()
    }

    /// Everything checked was as on Linux.
    pub fn is_as_linux(&self) -> bool {
        self.difference_count == 0
    }

    /// All of the recording could be read.
    pub fn is_whole(&self) -> bool {
        self.unread == 0 && self.cut_off.is_none()
    }
}

/// How many there were and how many were as on Linux.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// All that could be checked.
    pub all: u64,
    /// Those that came out as on Linux.
    pub as_linux: u64,
}

/// One answer that was not Linux's.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    /// Line of the recording.
    pub line: u32,
    /// The task.
    pub task: u32,
    /// What was done: the call with its arguments, the fault, the snapshot.
    pub what: String,
    /// Linux's answer.
    pub linux: String,
    /// The engine's.
    pub freehold: String,
    /// The engine's VMAs around it, as `/proc/PID/maps` shows them.
    pub maps: Vec<String>,
}

/// Which lock served the faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rungs {
    /// The VMA's lock alone.
    pub vma_lock: u64,
    /// The mmap lock.
    pub mmap_lock: u64,
    /// None: the page was there already (brought in with a neighbour, or by another thread).
    pub already_there: u64,
}

/// A distribution here and on Linux.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beside {
    /// Here.
    pub freehold: Spread,
    /// On the recorded machine; none where the recording does not say.
    pub linux: Option<Spread>,
}

/// A distribution of nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Spread {
    /// How many.
    pub count: u64,
    /// The median.
    pub p50: u64,
    /// 99 of 100 were no longer.
    pub p99: u64,
    /// The longest.
    pub max: u64,
}

/// The time that one kind of call took.
#[derive(Clone, Debug, Serialize)]
pub struct KindTime {
    /// The call, or `fault`, `fork`, `exec`, `exit`.
    pub name: String,
    /// How many.
    pub count: u64,
    /// All of them together, here.
    #[serde(rename = "ns", serialize_with = "nanoseconds")]
    pub freehold: Duration,
    /// On the recorded machine, where the recording says so.
    #[serde(flatten, serialize_with = "of_linux")]
    pub linux: Option<LinuxTime>,
}

/// The time of one kind of call on the recorded machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinuxTime {
    /// All of them together.
    pub all: Duration,
    /// Of so many: the recording need not say it of each.
    pub count: u64,
}

/// Flushes of translations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FlushCount {
    /// Flushes the engine asked for.
    #[serde(rename = "all")]
    pub freehold: u64,
    /// Of these, such that had to reach another CPU.
    pub remote: u64,
    /// Interrupts on the recorded machine, where the recording counts them. Serialised with what else is
    /// known of that machine.
    #[serde(skip)]
    pub linux: Option<u64>,
}

/// A time in nanoseconds.
pub(crate) fn nanoseconds<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Both keys, null where the recording does not say.
fn of_linux<S: Serializer>(time: &Option<LinuxTime>, to: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Keys {
        linux_ns: Option<u64>,
        linux_count: Option<u64>,
    }
    let linux_ns = time.map(|time| u64::try_from(time.all.as_nanos()).unwrap_or(u64::MAX));
    Keys { linux_ns, linux_count: time.map(|time| time.count) }.serialize(to)
}
