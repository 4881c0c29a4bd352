//! Which tasks there are: the numbers that the text gives them, and the serial numbers of the recording.

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
/// Most tasks at a time.
const MOST_ALIVE: usize = 1 << 16;
/// Most tasks in all.
const MOST: u32 = 1 << 24;
/// Most bytes of calls that have not returned.
const MOST_BEGUN: usize = 64 << 20;

/// The number of the task whose lines have none.
pub(super) const NAMELESS: u32 = 0;

/// A task.
pub(super) struct Task {
    /// Its serial number.
    pub(super) serial: u32,
    /// The process it belongs to.
    pub(super) process: u32,
    /// The call that it is in.
    pub(super) begun: Option<Begun>,
    /// It has ended, and its last line is still to come.
    pub(super) gone: bool,
    /// It has called exit.
    pub(super) leaving: bool,
}

/// A call that has not returned.
pub(super) struct Begun {
    /// Which.
    pub(super) name: CallName,
    /// Its text so far.
    pub(super) text: Vec<u8>,
    /// The line with it.
    pub(super) line: u32,
    /// When, in nanoseconds since the first line.
    pub(super) time: u64,
    /// The addresses that it may make free.
    pub(super) frees: Option<(u64, u64)>,
    /// What it concerns, once somebody has asked; and then none if that is not known.
    pub(super) extent: Option<Option<Extent>>,
    /// The task that it has made: that one's lines came first.
    pub(super) child: Option<u32>,
}

/// A process.
#[derive(Default)]
struct Process {
    alive: BTreeSet<u32>,
    /// Has called exit_group.
    leaving: bool,
    /// Number of its address space.
    space: u32,
    descriptors: Descriptors,
    credentials: Credentials,
}

/// All tasks.
#[derive(Default)]
pub(super) struct Tasks {
    by_pid: BTreeMap<u32, Task>,
    processes: BTreeMap<u32, Process>,
    /// How many tasks there have been.
    serials: u32,
    /// How many address spaces.
    spaces: u32,
    begun_bytes: usize,
    /// Tasks within a clone whose child is not known yet, and those within a call that may make addresses
    /// free.
    cloning: BTreeSet<u32>,
    freeing: BTreeSet<u32>,
    /// All within a call.
    within: BTreeSet<u32>,
}

impl Tasks {
    /// The task that the text calls `pid`, unless it has ended.
    pub(super) fn get(&self, pid: u32) -> Option<&Task> {
        self.by_pid.get(&pid).filter(|task| !task.gone)
    }

    /// The same, to be changed.
    pub(super) fn get_mut(&mut self, pid: u32) -> Option<&mut Task> {
        self.by_pid.get_mut(&pid).filter(|task| !task.gone)
    }

    /// The text's number `pid` belongs to a task; it may have ended with its last line still to come.
    pub(super) fn knows(&self, pid: u32) -> bool {
        self.by_pid.contains_key(&pid)
    }

    /// There has been none yet.
    pub(super) fn is_empty(&self) -> bool {
        self.serials == 0
    }

    /// The first task, which nobody creates.
    pub(super) fn first(&mut self, pid: u32) -> Result<(), Bad> {
        let serial = self.serial()?;
        self.spaces += 1;
        self.add(pid, serial, serial, Process { space: self.spaces, ..Process::default() })
    }

    /// `parent` creates a task, which the text calls `pid` if it follows it.
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

    /// Adds a task to its process, or to `new` if there is none.
    fn add(&mut self, pid: u32, serial: u32, process: u32, new: Process) -> Result<(), Bad> {
        if self.by_pid.len() >= MOST_ALIVE {
            return Err(Bad::TooMany("tasks at a time", MOST_ALIVE as u64));
        }
        self.processes.entry(process).or_insert(new).alive.insert(serial);
        let task = Task { serial, process, begun: None, gone: false, leaving: false };
        self.by_pid.insert(pid, task);
        Ok(())
    }

    fn serial(&mut self) -> Result<u32, Bad> {
        if self.serials >= MOST {
            return Err(Bad::TooMany("tasks", u64::from(MOST)));
        }
        self.serials += 1;
        Ok(self.serials)
    }

    /// The task begins a call.
    pub(super) fn begin(&mut self, pid: u32, begun: Begun, clones: bool) -> Result<(), Bad> {
        self.begun_bytes += begun.text.len();
        if self.begun_bytes > MOST_BEGUN {
            return Err(Bad::TooMany("bytes of calls that have not returned", MOST_BEGUN as u64));
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

    /// The call that the task has begun, which ends now.
    pub(super) fn take_begun(&mut self, pid: u32) -> Option<Begun> {
        let begun = self.by_pid.get_mut(&pid)?.begun.take()?;
        self.begun_bytes -= begun.text.len();
        self.cloning.remove(&pid);
        self.freeing.remove(&pid);
        self.within.remove(&pid);
        Some(begun)
    }

    /// Tasks within a clone whose child is not known yet, the one that began first at the front.
    pub(super) fn cloning(&self) -> Vec<u32> {
        let began = |pid: &u32| self.get(*pid).and_then(|task| task.begun.as_ref()).map(|begun| begun.line);
        let mut found: Vec<u32> = self.cloning.iter().copied().collect();
        found.sort_by_key(began);
        found
    }

    /// The call of `pid` has made `child`, as that one's lines show.
    pub(super) fn made(&mut self, pid: u32, child: u32) {
        self.cloning.remove(&pid);
        if let Some(begun) = self.get_mut(pid).and_then(|task| task.begun.as_mut()) {
            begun.child = Some(child);
        }
    }

    /// Tasks of `pid`'s address space, without `pid` itself, that may be making addresses between `from` and
    /// `to` free.
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

    /// Tasks of an address space that are within a call.
    pub(super) fn within(&self, space: u32) -> impl Iterator<Item = u32> {
        self.within.iter().copied().filter(move |pid| self.space(*pid) == Some(space))
    }

    /// The number of the address space of `pid`.
    pub(super) fn space(&self, pid: u32) -> Option<u32> {
        Some(self.processes.get(&self.get(pid)?.process)?.space)
    }

    /// What the descriptors of `pid`'s process are known to be.
    pub(super) fn descriptors(&mut self, pid: u32) -> Option<&mut Descriptors> {
        let process = self.get(pid)?.process;
        Some(&mut self.processes.get_mut(&process)?.descriptors)
    }

    /// What is known of the credentials of `pid`'s process.
    pub(super) fn credentials(&mut self, pid: u32) -> Option<&mut Credentials> {
        let process = self.get(pid)?.process;
        Some(&mut self.processes.get_mut(&process)?.credentials)
    }

    /// `pid`'s process has a new address space; its other tasks, whose serial numbers are returned, have
    /// ended.
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

    /// Task `old` goes on under the number `pid`.
    pub(super) fn rename(&mut self, old: u32, pid: u32) -> bool {
        let begun = self.take_begun(old);
        let Some(task) = self.by_pid.remove(&old) else { return false };
        self.by_pid.insert(pid, task);
        match begun {
            Some(begun) => self.begin(pid, begun, false).is_ok(),
            None => true,
        }
    }

    /// The task has exited, and its number may be given to another. Its serial number, and whether it was the
    /// last of its process; none if that was known before.
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

    /// The tasks of `pid`'s process are about to exit; or only itself.
    pub(super) fn leave(&mut self, pid: u32, all: bool) {
        let Some(task) = self.get_mut(pid) else { return };
        task.leaving = true;
        let process = task.process;
        if let Some(process) = self.processes.get_mut(&process).filter(|_| all) {
            process.leaving = true;
        }
    }

    /// Tasks that were about to exit when the text ended.
    pub(super) fn leaving(&self) -> Vec<u32> {
        let process_leaves =
            |task: &Task| self.processes.get(&task.process).is_some_and(|process| process.leaving);
        let leaves = |task: &Task| !task.gone && (task.leaving || process_leaves(task));
        self.by_pid.iter().filter(|(_, task)| leaves(task)).map(|(pid, _)| *pid).collect()
    }
}
