//! The descriptors of each process, as far as a recording shows them: which file a descriptor refers to, and
//! how the file was opened.
//!
//! Threads share a table of descriptors (`CLONE_FILES`), and a fork copies the table. A table does not
//! contain unknown descriptors: those opened before the recording began, and those received from another
//! process. A table also does not contain descriptors opened before an execve, since no recording shows which
//! descriptors the execve closes.
//!
//! [`Descriptors`] is a part of [`Files`](super::files::Files). `events.rs` reports forks, execs and exits,
//! and `file_calls.rs` reports calls; `crate::descriptor` says what a call does to descriptors. A descriptor
//! that is wrongly kept here gives a mapping the wrong file or access mode, which the replay reports as a
//! difference. Forget a descriptor in case of doubt: the answers that depend on it are then not checked. The
//! tests about descriptors and memfds are in `tests.rs`.

use crate::Call;
use crate::descriptor::{self, Descriptor};
use crate::operation::open;
use rustc_hash::FxHashMap as HashMap;
use std::collections::BTreeMap;
use std::sync::Arc;

const CLONE_FILES: u64 = 0x400;
/// Maximum number of descriptors that are remembered for a process.
const MAX_DESCRIPTORS: usize = 1 << 16;

/// The access mode of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// True if the file is open for reading.
    pub read: bool,
    /// True if the file is open for writing.
    pub write: bool,
    /// The number of the recorded open, if known. Copies of a descriptor share this number. A file that is
    /// opened twice has two numbers, and mappings with different numbers never merge.
    pub open: Option<u32>,
}

/// The known properties of an open file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Open {
    /// The access mode.
    pub(super) access: Option<Access>,
    /// The file's number in the plan, once it has one.
    pub(super) file: Option<u32>,
    /// True for a memfd that a recorded memfd_create made. In the plan, no other file has the number of this
    /// memfd.
    pub(super) memfd: bool,
    /// The number of the userfaultfd in the plan, if the descriptor is one.
    pub(super) userfaultfd: Option<u32>,
    /// True if the open may have created the file (`O_CREAT`, `O_TMPFILE`). The planner then expects that no
    /// task has mapped the file yet.
    pub(super) new: bool,
    /// The length in bytes that an ftruncate gave the file before the file had a number in the plan.
    pub(super) length: Option<u64>,
}

/// Known descriptors by number. Tables are shared until one of them changes, so that a fork copies nothing.
type Table = Arc<BTreeMap<i32, Open>>;

/// The tables of all tasks.
#[derive(Debug, Default)]
pub(super) struct Descriptors {
    /// The tables by number, each with the number of tasks that use it.
    tables: HashMap<u32, (u32, Table)>,
    /// The number of each task's table.
    of: HashMap<u32, u32>,
    /// The number of the newest table.
    next: u32,
    /// Userfaultfds of which a descriptor was closed. Other descriptors of the same userfaultfd may still be
    /// open.
    left: Vec<u32>,
    /// Number of files opened so far.
    opens: u32,
}

impl Descriptors {
    /// Notes that `task` has created `child` with these flags of clone.
    pub(super) fn clone_task(&mut self, task: u32, child: u32, flags: u64) {
        let number = self.number(task);
        let (tasks, table) = self.tables.entry(number).or_default();
        if flags & CLONE_FILES != 0 {
            *tasks += 1;
            self.of.insert(child, number);
        } else {
            let table = table.clone();
            self.begin(child, table);
        }
    }

    /// Notes the exit of a task.
    pub(super) fn exit(&mut self, task: u32) {
        let Some(number) = self.of.remove(&task) else { return };
        let Some((tasks, _)) = self.tables.get_mut(&number) else { return };
        *tasks -= 1;
        if *tasks == 0
            && let Some((_, table)) = self.tables.remove(&number)
        {
            self.left.extend(table.values().filter_map(|open| open.userfaultfd));
        }
    }

    /// Notes an execve of a task: its descriptors are unknown from now on.
    pub(super) fn exec(&mut self, task: u32) {
        self.exit(task);
        self.begin(task, Table::default());
    }

    /// Returns the userfaultfds that lost their last descriptor since the previous call of this function.
    pub(super) fn ended(&mut self) -> Vec<u32> {
        let mut left = std::mem::take(&mut self.left);
        let is_open = |userfaultfd: u32| {
            let mut open = self.tables.values().flat_map(|(_, table)| table.values());
            open.any(|open| open.userfaultfd == Some(userfaultfd))
        };
        left.sort_unstable();
        left.dedup();
        left.retain(|userfaultfd| !is_open(*userfaultfd));
        left
    }

    /// Forgets all descriptors of all tasks, after a loss of events.
    pub(super) fn forget(&mut self) {
        self.tables.values_mut().for_each(|(_, table)| *table = Table::default());
    }

    /// Returns the known properties of a descriptor.
    pub(super) fn get(&self, task: u32, descriptor: u64) -> Option<Open> {
        let (_, table) = self.tables.get(self.of.get(&task)?)?;
        table.get(&(descriptor as i32)).copied()
    }

    /// Sets the properties of a descriptor. `None` means that the descriptor is closed or unknown.
    pub(super) fn set(&mut self, task: u32, descriptor: u64, open: Option<Open>) {
        let number = self.number(task);
        let (_, table) = self.tables.entry(number).or_default();
        let (descriptor, table) = (descriptor as i32, Arc::make_mut(table));
        let old = match open {
            Some(open) if table.len() < MAX_DESCRIPTORS => table.insert(descriptor, open),
            _ => table.remove(&descriptor),
        };
        self.left.extend(old.and_then(|old| old.userfaultfd));
    }

    /// Notes a call that opened, copied or closed descriptors, and returned `value`.
    pub(super) fn called(&mut self, task: u32, call: &Call, value: u64) {
        match descriptor::done(call.name, &call.args, value) {
            Some(Descriptor::Opened(new, Some(flags))) => self.open(task, new.into(), flags),
            Some(Descriptor::Opened(new, None)) => self.set(task, new.into(), None),
            Some(Descriptor::Copied(from, to)) => self.set(task, to.into(), self.get(task, from.into())),
            Some(Descriptor::Closed(number)) => self.set(task, number.into(), None),
            Some(Descriptor::ClosedRange { closed, unshares }) => {
                if unshares {
                    self.unshare(task);
                }
                if let Some((first, last)) = closed {
                    self.close(task, first, last);
                }
            }
            None => {}
        }
    }

    /// Notes a new descriptor of a file that was opened with these flags.
    fn open(&mut self, task: u32, descriptor: u64, flags: u64) {
        let access = match flags & 3 {
            _ if flags & open::PATH != 0 => None,
            0 => Some((true, false)),
            1 => Some((false, true)),
            2 => Some((true, true)),
            _ => None,
        };
        let access = access.map(|(read, write)| self.access(read, write));
        let new = flags & (open::CREAT | open::TMPFILE) != 0;
        self.set(task, descriptor, Some(Open { access, new, ..Open::default() }));
    }

    /// Returns the access mode of a new open, which gets the next number.
    pub(super) fn access(&mut self, read: bool, write: bool) -> Access {
        self.opens = self.opens.wrapping_add(1);
        Access { read, write, open: Some(self.opens) }
    }

    /// Notes that the descriptors from `first` to `last` were closed, both included.
    fn close(&mut self, task: u32, first: u32, last: u32) {
        let number = self.number(task);
        let (_, table) = self.tables.entry(number).or_default();
        let left = &mut self.left;
        Arc::make_mut(table).retain(|descriptor, open| {
            let stays = !(first..=last).contains(&(*descriptor as u32));
            left.extend(open.userfaultfd.filter(|_| !stays));
            stays
        });
    }

    /// Gives the task a copy of its table.
    fn unshare(&mut self, task: u32) {
        let number = self.number(task);
        let table = self.tables.get(&number).map(|(_, table)| table.clone()).unwrap_or_default();
        self.exit(task);
        self.begin(task, table);
    }

    /// Returns the number of the task's table. A new task gets an empty table.
    fn number(&mut self, task: u32) -> u32 {
        match self.of.get(&task) {
            Some(number) => *number,
            None => self.begin(task, Table::default()),
        }
    }

    /// Gives the task this table, and returns the number of the table.
    fn begin(&mut self, task: u32, table: Table) -> u32 {
        self.next += 1;
        self.tables.insert(self.next, (1, table));
        self.of.insert(task, self.next);
        self.next
    }
}
