//! Waits for mmap locks: which operation waited, and which operation of another task held the lock.
//!
//! The recorder reports the wait and the hold time of the first acquisition of each operation. `Locks`
//! collects these acquisitions while `mod.rs` reads the recording, `holders.rs` finds the holder for each
//! wait, and `Locks::finish` sums up. Every acquisition is counted once: as taken at once, as a wait with a
//! known holder, or as a wait without one. The sums over these three groups therefore equal the sum of the
//! recorded times. `mod_tests.rs` checks the holders of small recordings, and `tests/analysis.rs` checks the
//! sums. The waits of a replay have the same form; `lock_waits.rs` collects them.

use super::holders::{Acquisition, Hold, Holds};
use super::label;
use crate::picture::life::Life;
use freehold_trace::{Call, CallName, Event, Kind};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Acquisitions that took less than this time, in nanoseconds, count as taken at once. The two reports of the
/// recorder around an acquisition already take several hundred nanoseconds.
pub const AT_ONCE_NS: u64 = 1_000;
/// Smallest number of waits behind one hold that make a convoy.
pub const CONVOY: u64 = 3;
/// Largest number of convoys in the result.
const MAX_CONVOYS: usize = 20;

/// Bounds of [`Locks::finish`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Acquisitions that took less than this time, in nanoseconds, count as taken at once.
    pub at_once_ns: u64,
    /// Largest number of single waits in the result.
    pub longest: usize,
}

/// The bounds for a recording.
pub(super) const RECORDED: Bounds = Bounds { at_once_ns: AT_ONCE_NS, longest: 400 };

/// The waits for mmap locks on the recorded machine, or in a replay. Times are in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Waits {
    /// All recorded acquisitions: the sum of `at_once`, of `groups` and of `without_holder`.
    pub all: Sum,
    /// Acquisitions that took less than [`AT_ONCE_NS`]. In a replay there are none: every acquisition that
    /// had to wait counts as a wait.
    pub at_once: Sum,
    /// Waits whose holder is known, by both operations; the largest total first.
    pub groups: Vec<Group>,
    /// Waits for which no other task's hold is recorded at that time, by operation; the largest total first.
    pub without_holder: Vec<Unexplained>,
    /// The longest waits, the longest first: at most 400, and in a replay at most 40.
    pub longest: Vec<Wait>,
    /// Holds behind which at least three operations waited; the largest total first, at most 20.
    pub convoys: Vec<Convoy>,
    /// Further acquisitions within operations. Their waits and holds are not recorded.
    pub not_recorded: u64,
}

/// A number of acquisitions, and their waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sum {
    /// Number of acquisitions.
    pub count: u64,
    /// Sum of the waits.
    pub total_ns: u64,
    /// The longest wait.
    pub longest_ns: u64,
}

impl Sum {
    /// Adds one wait.
    fn add(&mut self, ns: u64) {
        self.count += 1;
        self.total_ns = self.total_ns.saturating_add(ns);
        self.longest_ns = self.longest_ns.max(ns);
    }
}

/// The waits of one operation for another operation, in one process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    /// The process: the serial number of its first thread.
    pub process: u32,
    /// Name of the process's command.
    pub command: String,
    /// The operation that waited.
    pub waiter: String,
    /// The tasks that waited, ascending.
    pub waiter_tasks: Vec<u32>,
    /// The operation that held the lock.
    pub holder: String,
    /// The tasks that held the lock, ascending.
    pub holder_tasks: Vec<u32>,
    /// The waits.
    #[serde(flatten)]
    pub sum: Sum,
}

/// The waits of one operation without a known holder.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Unexplained {
    /// The operation.
    pub waiter: String,
    /// The waits.
    #[serde(flatten)]
    pub sum: Sum,
}

/// One wait.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Wait {
    /// Line of the operation in the recording.
    pub line: u32,
    /// The task that waited.
    pub task: u32,
    /// Its process.
    pub process: u32,
    /// The operation that waited.
    pub waiter: String,
    /// Beginning of the wait. In a recording, the time is without freezes; in a replay, it is the time for
    /// which steps have run.
    pub from_ns: u64,
    /// Length of the wait.
    pub ns: u64,
    /// The operation that held the lock; null if it is not known.
    pub holder: Option<Holder>,
}

/// The operation that held a lock.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Holder {
    /// Line of the operation in the recording.
    pub line: u32,
    /// The task.
    pub task: u32,
    /// The operation.
    pub operation: String,
    /// Beginning of the hold, like that of a wait.
    pub from_ns: u64,
    /// Length of the hold.
    pub ns: u64,
}

/// Several waits behind one hold.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Convoy {
    /// The process.
    pub process: u32,
    /// Name of the process's command.
    pub command: String,
    /// The operation that held the lock.
    pub holder: Holder,
    /// Number of operations that waited, by name.
    pub waiters: BTreeMap<String, u64>,
    /// Their waits.
    #[serde(flatten)]
    pub sum: Sum,
}

/// The tasks that waited, the tasks that held the lock, and the waits of a group.
type Members = (BTreeSet<u32>, BTreeSet<u32>, Sum);

/// The acquisitions that are read so far.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    /// Names of operations; acquisitions have indices into this list.
    names: Vec<String>,
    numbers: HashMap<String, u16>,
    pub(crate) acquisitions: Vec<Acquisition>,
    pub(crate) holds: Vec<Hold>,
    not_recorded: u64,
}

impl Locks {
    /// Adds the acquisition of an event. `life` has already followed the event.
    pub(super) fn event(&mut self, event: &Event, life: &Life, frozen: u64) {
        let cost = &event.cost;
        self.not_recorded += u64::from(cost.more_locks);
        let (wait, write) = match (cost.write_wait, cost.read_wait) {
            (Some(wait), _) => (wait, true),
            (None, Some(wait)) => (wait, false),
            (None, None) => return,
        };
        let Some(name) = label::operation(&event.kind) else { return };
        let operation = self.number(&name);
        let Event { line, task, time, .. } = *event;
        let before = cost.before.unwrap_or(0);
        // For a write the event's time is that of the acquisition. A read happened at some time between the
        // entry and the return.
        let (from, taken) = match write {
            true => (time.saturating_sub(wait), time),
            false => (time.saturating_sub(before), time.saturating_sub(before).saturating_add(wait)),
        };
        let held = cost.held.unwrap_or(0);
        let end = taken.saturating_add(held);
        let latest = if write { end } else { end.max(time.saturating_add(cost.after.unwrap_or(0))) };
        let space = life.space(task).filter(|_| takes_own_lock(&event.kind));
        let process = life.process(task).unwrap_or(0);
        let by = Acquisition {
            space,
            process,
            task,
            line,
            operation,
            write,
            from,
            wait,
            until: latest - held,
            frozen,
        };
        self.acquisitions.push(by);
        let Some(space) = space.filter(|_| cost.held.is_some()) else { return };
        let hold = Hold { space, task, line, operation, write, from: taken, until: latest, ns: held, frozen };
        self.holds.push(hold);
        if let Some(ns) = cost.downgraded {
            let until = end.saturating_add(ns);
            self.holds.push(Hold { write: false, from: end, until, ns, ..hold });
        }
    }

    /// Returns the number of an operation's name.
    pub(crate) fn number(&mut self, name: &str) -> u16 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        // There are fewer names than calls and advices together.
        let number = self.names.len() as u16;
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        number
    }

    /// Finds the holder for each wait, and sums up. `process` returns the serial number and the command of a
    /// process.
    pub(crate) fn finish(self, process: &dyn Fn(usize) -> (u32, String), bounds: Bounds) -> Waits {
        let Locks { names, mut acquisitions, holds, not_recorded, .. } = self;
        let mut waits = Waits { not_recorded, ..Waits::default() };
        acquisitions.sort_by_key(|by| (by.space, by.from, by.line));
        let mut holds = Holds::new(holds);
        let mut groups: BTreeMap<(usize, u16, u16), Members> = BTreeMap::new();
        let mut unexplained: BTreeMap<u16, Sum> = BTreeMap::new();
        let mut behind: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let mut found: Vec<(usize, Option<usize>)> = Vec::new();
        for (index, by) in acquisitions.iter().enumerate() {
            waits.all.add(by.wait);
            if by.wait < bounds.at_once_ns {
                waits.at_once.add(by.wait);
                continue;
            }
            let holder = holds.holder_of(by);
            found.push((index, holder));
            let Some(holder) = holder else {
                unexplained.entry(by.operation).or_default().add(by.wait);
                continue;
            };
            behind.entry(holder).or_default().push(index);
            let hold = holds.get(holder);
            let (waiters, holders, sum) =
                groups.entry((by.process, by.operation, hold.operation)).or_default();
            waiters.insert(by.task);
            holders.insert(hold.task);
            sum.add(by.wait);
        }
        let named = Named { names: &names, process, holds: &holds, acquisitions: &acquisitions };
        waits.groups = groups.into_iter().map(|(key, group)| named.group(key, group)).collect();
        waits.groups.sort_by_key(|group| std::cmp::Reverse(group.sum.total_ns));
        let unexplained = unexplained.into_iter();
        waits.without_holder =
            unexplained.map(|(name, sum)| Unexplained { waiter: named.name(name), sum }).collect();
        waits.without_holder.sort_by_key(|waits| std::cmp::Reverse(waits.sum.total_ns));
        found.sort_by_key(|(index, _)| {
            let by = &acquisitions[*index];
            (std::cmp::Reverse(by.wait), by.line)
        });
        found.truncate(bounds.longest);
        waits.longest = found.into_iter().map(|(index, holder)| named.wait(index, holder)).collect();
        behind.retain(|_, waiters| waiters.len() as u64 >= CONVOY);
        waits.convoys = behind.iter().map(|(hold, waiters)| named.convoy(*hold, waiters)).collect();
        waits.convoys.sort_by_key(|convoy| std::cmp::Reverse(convoy.sum.total_ns));
        waits.convoys.truncate(MAX_CONVOYS);
        waits
    }
}

/// Returns false if the operation takes the lock of another address space, or of one that is being made.
fn takes_own_lock(kind: &Kind) -> bool {
    match kind {
        Kind::Fault { in_exec, .. } => !in_exec,
        Kind::Call(call) => is_about_itself(call),
        Kind::Exec { .. } => false,
        _ => true,
    }
}

/// Returns false for a call that works on another process, or may do so.
fn is_about_itself(call: &Call) -> bool {
    match call.name {
        CallName::ProcessMadvise => call.advises_itself(),
        CallName::MovePages | CallName::MigratePages => call.args[0] == 0,
        CallName::ProcessVmReadv | CallName::ProcessVmWritev | CallName::ProcessMrelease => false,
        CallName::Execve | CallName::Execveat => false,
        _ => true,
    }
}

/// Converts indices to the names and times of the result.
struct Named<'a> {
    names: &'a [String],
    process: &'a dyn Fn(usize) -> (u32, String),
    holds: &'a Holds,
    acquisitions: &'a [Acquisition],
}

impl Named<'_> {
    fn name(&self, operation: u16) -> String {
        self.names[usize::from(operation)].clone()
    }

    fn group(&self, (process, waiter, holder): (usize, u16, u16), (waiters, holders, sum): Members) -> Group {
        let (process, command) = (self.process)(process);
        Group {
            process,
            command,
            waiter: self.name(waiter),
            waiter_tasks: waiters.into_iter().collect(),
            holder: self.name(holder),
            holder_tasks: holders.into_iter().collect(),
            sum,
        }
    }

    fn wait(&self, index: usize, holder: Option<usize>) -> Wait {
        let by = &self.acquisitions[index];
        Wait {
            line: by.line,
            task: by.task,
            process: (self.process)(by.process).0,
            waiter: self.name(by.operation),
            from_ns: by.from.saturating_sub(by.frozen),
            ns: by.wait,
            holder: holder.map(|hold| self.holder(hold)),
        }
    }

    fn holder(&self, hold: usize) -> Holder {
        let hold = self.holds.get(hold);
        Holder {
            line: hold.line,
            task: hold.task,
            operation: self.name(hold.operation),
            from_ns: hold.from.saturating_sub(hold.frozen),
            ns: hold.ns,
        }
    }

    fn convoy(&self, hold: usize, waiters: &[usize]) -> Convoy {
        let mut convoy = Convoy {
            process: 0,
            command: String::new(),
            holder: self.holder(hold),
            waiters: BTreeMap::new(),
            sum: Sum::default(),
        };
        for index in waiters {
            let by = &self.acquisitions[*index];
            (convoy.process, convoy.command) = (self.process)(by.process);
            *convoy.waiters.entry(self.name(by.operation)).or_default() += 1;
            convoy.sum.add(by.wait);
        }
        convoy
    }
}
