//! The tasks of strace output: the PIDs in its lines, and the serial numbers of the recording.
//!
//! strace names a task by its PID, which the kernel may use again; a recording numbers tasks serially.
//! [`Tasks`] maps PIDs to living tasks, and holds for each task its begun call, and for each process its
//! descriptors and credentials.
//!
//! `mod.rs` calls [`Tasks::create`] at a clone, and calls [`Tasks::begin`] and [`Tasks::take_begun`] at the
//! lines of a call. [`Tasks::get`] hides tasks that an execve has ended ([`Task::gone`]). Use this function,
//! unless the last line of such a task matters. The sizes of all tables are limited (`MAX_TASKS`), because
//! the output may be hostile. The tests are in `tests.rs`.

use super::beside::Extent;
use super::credentials::Credentials;
use super::descriptors::Descriptors;
use crate::error::Bad;
use crate::{CallName, Kind};
use std::collections::{BTreeMap, BTreeSet};

/// `CLONE_VM`: the address space is shared.
const CLONE_VM: u64 = 0x100;
/// `CLONE_THREAD`: the new task belongs to the process of its creator.
const CLONE_THREAD: u64 = 0x10000;
/// Maximum number of tasks at a time.
const MAX_ALIVE: usize = 1 << 16;
/// Maximum number of tasks in total.
const MAX_TASKS: u32 = 1 << 24;
/// Maximum number of bytes of calls that have not returned.
const MAX_BEGUN: usize = 64 << 20;

/// The PID of the only task if the output has no column for PIDs.
pub(super) const NAMELESS: u32 = 0;

/// A task.
pub(super) struct Task {
    /// The serial number.
    pub(super) serial: u32,
    /// The process of the task: the serial number of its first task.
    pub(super) process: u32,
    /// The call that the task has begun, if any.
    pub(super) begun: Option<Begun>,
    /// True if an execve of another task has ended the task, and its last line has not been read.
    pub(super) gone: bool,
    /// True if the task has called exit.
    pub(super) leaving: bool,
}

/// A call that has begun and whose resumed line has not been read.
pub(super) struct Begun {
    /// The name.
    pub(super) name: CallName,
    /// The text so far.
    pub(super) text: Vec<u8>,
    /// The line of the beginning.
    pub(super) line: u32,
    /// The time of the beginning, in nanoseconds since the first line.
    pub(super) time: u64,
    /// The start and end of the addresses that the call may free.
    pub(super) frees: Option<(u64, u64)>,
    /// The extent of the call, once it was looked up. The inner value is `None` if the call has no extent or
    /// its end was not found.
    pub(super) extent: Option<Option<Extent>>,
    /// The PID of the task that the call has created, if that task's lines precede the call's return.
    pub(super) child: Option<u32>,
}

/// A process.
#[derive(Default)]
struct Process {
    /// Serial numbers of the living tasks.
    alive: BTreeSet<u32>,
    /// True if a task has called exit_group.
    leaving: bool,
    /// The number of the address space.
    space: u32,
    /// The open descriptors, as far as strace shows them.
    descriptors: Descriptors,
    /// The credentials that decide if the process may lock memory without limit.
    credentials: Credentials,
}

/// All tasks.
#[derive(Default)]
pub(super) struct Tasks {
    /// Living tasks, and ended tasks whose last line has not been read, by PID.
    by_pid: BTreeMap<u32, Task>,
    /// Processes by their serial number.
    processes: BTreeMap<u32, Process>,
    /// Number of tasks so far.
    serials: u32,
    /// Number of address spaces so far.
    spaces: u32,
    /// Number of bytes of the texts of all begun calls.
    begun_bytes: usize,
    /// PIDs of the tasks that have begun a clone whose child is not known yet.
    cloning: BTreeSet<u32>,
    /// PIDs of the tasks that have begun a call that may free addresses.
    freeing: BTreeSet<u32>,
    /// PIDs of all tasks that have begun a call.
    within: BTreeSet<u32>,
}

impl Tasks {
    /// Returns the task with this PID, unless the task has ended.
    pub(super) fn get(&self, pid: u32) -> Option<&Task> {
        self.by_pid.get(&pid).filter(|task| !task.gone)
    }

    /// Returns the same task as [`get`](Self::get), for changes.
    pub(super) fn get_mut(&mut self, pid: u32) -> Option<&mut Task> {
        self.by_pid.get_mut(&pid).filter(|task| !task.gone)
    }

    /// Returns true if the PID belongs to a task, including an ended task whose last line has not been read.
    pub(super) fn knows(&self, pid: u32) -> bool {
        self.by_pid.contains_key(&pid)
    }

    /// Returns true if there was no task yet.
    pub(super) fn is_empty(&self) -> bool {
        self.serials == 0
    }

    /// Adds a task without a creator, in a process and an address space of its own.
    pub(super) fn first(&mut self, pid: u32) -> Result<(), Bad> {
        let serial = self.serial()?;
        self.spaces += 1;
        self.add(pid, serial, serial, Process { space: self.spaces, ..Process::default() })
    }

    /// Notes that `parent` creates a task. `pid` is the PID of the new task if strace follows it. Returns the
    /// event.
    pub(super) fn create(&mut self, parent: u32, pid: Option<u32>, flags: u64) -> Result<Kind, Bad> {
        let child = self.serial()?;
        let Some(process) = self.get(parent).map(|task| task.process) else {
            return Err(Bad::UnknownTask(parent));
        };
        let thread = flags & CLONE_THREAD != 0;
        let of = if thread { process } else { child };
        let own = self.processes.get(&process);
        let shared = own.map(|own| (own.space, own.descriptors.clone(), own.credentials));
        let (mut space, descriptors, credentials) = shared.unwrap_or_default();
        let credentials = credentials.of_child(flags);
        if flags & CLONE_VM == 0 {
            self.spaces += 1;
            space = self.spaces;
        }
        if let Some(pid) = pid {
            self.add(pid, child, of, Process { space, descriptors, credentials, ..Process::default() })?;
        }
        Ok(Kind::Clone { child, process: of, flags })
    }

    /// Adds a task to its process. If the process does not exist, adds the process as `new` first.
    fn add(&mut self, pid: u32, serial: u32, process: u32, new: Process) -> Result<(), Bad> {
        if self.by_pid.len() >= MAX_ALIVE {
            return Err(Bad::TooMany("tasks at a time", MAX_ALIVE as u64));
        }
        self.processes.entry(process).or_insert(new).alive.insert(serial);
        let task = Task { serial, process, begun: None, gone: false, leaving: false };
        self.by_pid.insert(pid, task);
        Ok(())
    }

    /// Returns the next serial number.
    fn serial(&mut self) -> Result<u32, Bad> {
        if self.serials >= MAX_TASKS {
            return Err(Bad::TooMany("tasks", u64::from(MAX_TASKS)));
        }
        self.serials += 1;
        Ok(self.serials)
    }

    /// Notes that the task begins a call.
    pub(super) fn begin(&mut self, pid: u32, begun: Begun, clones: bool) -> Result<(), Bad> {
        self.begun_bytes += begun.text.len();
        if self.begun_bytes > MAX_BEGUN {
            return Err(Bad::TooMany("bytes of calls that have not returned", MAX_BEGUN as u64));
        }
        if clones {
            self.cloning.insert(pid);
        }
        if begun.frees.is_some() {
            self.freeing.insert(pid);
        }
        self.within.insert(pid);
        if let Some(task) = self.get_mut(pid) {
            task.begun = Some(begun);
        }
        Ok(())
    }

    /// Removes and returns the begun call of a task.
    pub(super) fn take_begun(&mut self, pid: u32) -> Option<Begun> {
        let begun = self.by_pid.get_mut(&pid)?.begun.take()?;
        self.begun_bytes -= begun.text.len();
        self.cloning.remove(&pid);
        self.freeing.remove(&pid);
        self.within.remove(&pid);
        Some(begun)
    }

    /// Returns the tasks that have begun a clone whose child is not known yet, in the order in which the
    /// clones began.
    pub(super) fn cloning(&self) -> Vec<u32> {
        let began = |pid: &u32| self.get(*pid).and_then(|task| task.begun.as_ref()).map(|begun| begun.line);
        let mut found: Vec<u32> = self.cloning.iter().copied().collect();
        found.sort_by_key(began);
        found
    }

    /// Notes that the begun call of `pid` has created `child`, whose lines come before the return of the
    /// call.
    pub(super) fn made(&mut self, pid: u32, child: u32) {
        self.cloning.remove(&pid);
        if let Some(begun) = self.get_mut(pid).and_then(|task| task.begun.as_mut()) {
            begun.child = Some(child);
        }
    }

    /// Returns the other tasks in the address space of `pid` whose begun calls may free addresses between
    /// `from` and `to`.
    pub(super) fn freeing(&self, pid: u32, from: u64, to: u64) -> Vec<u32> {
        let Some(space) = self.space(pid) else { return Vec::new() };
        let frees = |other: &u32| {
            let begun = self.get(*other).and_then(|task| task.begun.as_ref());
            let range = begun.and_then(|begun| begun.frees);
            *other != pid
                && self.space(*other) == Some(space)
                && range.is_some_and(|(start, end)| start < to && from < end)
        };
        self.freeing.iter().copied().filter(frees).collect()
    }

    /// Returns the tasks of an address space that have begun a call.
    pub(super) fn within(&self, space: u32) -> impl Iterator<Item = u32> {
        self.within.iter().copied().filter(move |pid| self.space(*pid) == Some(space))
    }

    /// Returns the number of the address space of `pid`.
    pub(super) fn space(&self, pid: u32) -> Option<u32> {
        Some(self.processes.get(&self.get(pid)?.process)?.space)
    }

    /// Returns the known descriptors of `pid`'s process.
    pub(super) fn descriptors(&mut self, pid: u32) -> Option<&mut Descriptors> {
        let process = self.get(pid)?.process;
        Some(&mut self.processes.get_mut(&process)?.descriptors)
    }

    /// Returns the known credentials of `pid`'s process.
    pub(super) fn credentials(&mut self, pid: u32) -> Option<&mut Credentials> {
        let process = self.get(pid)?.process;
        Some(&mut self.processes.get_mut(&process)?.credentials)
    }

    /// Applies an execve: gives the process of `pid` a new address space. Returns the serial numbers of the
    /// other tasks of the process, which have ended.
    pub(super) fn exec(&mut self, pid: u32) -> Vec<u32> {
        let Some((serial, process)) = self.get(pid).map(|task| (task.serial, task.process)) else {
            return Vec::new();
        };
        self.spaces += 1;
        let Some(own) = self.processes.get_mut(&process) else { return Vec::new() };
        own.space = self.spaces;
        own.descriptors = Descriptors::default();
        let others: Vec<u32> = own.alive.iter().copied().filter(|other| *other != serial).collect();
        if others.is_empty() {
            return others;
        }
        own.alive = BTreeSet::from([serial]);
        let pids: Vec<u32> =
            self.by_pid.iter().filter(|(_, task)| task.process == process).map(|(pid, _)| *pid).collect();
        for other in pids.into_iter().filter(|other| *other != pid) {
            self.take_begun(other);
            if let Some(task) = self.by_pid.get_mut(&other) {
                task.gone = true;
            }
        }
        others
    }

    /// Gives task `old` the PID `pid`. Returns false if there is no such task.
    pub(super) fn rename(&mut self, old: u32, pid: u32) -> bool {
        let begun = self.take_begun(old);
        let Some(task) = self.by_pid.remove(&old) else { return false };
        self.by_pid.insert(pid, task);
        match begun {
            Some(begun) => self.begin(pid, begun, false).is_ok(),
            None => true,
        }
    }

    /// Removes a task that has exited, so that its PID can be used again. Returns its serial number, and true
    /// if the task was the last of its process. Returns `None` if the task is unknown or its exit was already
    /// reported.
    pub(super) fn exit(&mut self, pid: u32) -> Option<(u32, bool)> {
        self.take_begun(pid);
        let task = self.by_pid.remove(&pid)?;
        if task.gone {
            return None;
        }
        let process = self.processes.get_mut(&task.process)?;
        process.alive.remove(&task.serial);
        let last = process.alive.is_empty();
        if last {
            self.processes.remove(&task.process);
        }
        Some((task.serial, last))
    }

    /// Notes that the task is about to exit. If `all` is true, all tasks of its process are about to exit.
    pub(super) fn leave(&mut self, pid: u32, all: bool) {
        let Some(task) = self.get_mut(pid) else { return };
        task.leaving = true;
        let process = task.process;
        if let Some(process) = self.processes.get_mut(&process).filter(|_| all) {
            process.leaving = true;
        }
    }

    /// Returns the tasks that were about to exit when the output ended.
    pub(super) fn leaving(&self) -> Vec<u32> {
        let process_leaves =
            |task: &Task| self.processes.get(&task.process).is_some_and(|process| process.leaving);
        let leaves = |task: &Task| !task.gone && (task.leaving || process_leaves(task));
        self.by_pid.iter().filter(|(_, task)| leaves(task)).map(|(pid, _)| *pid).collect()
    }
}
