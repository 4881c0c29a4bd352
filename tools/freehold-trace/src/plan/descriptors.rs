//! What the descriptors of each process are, as far as a recording tells: how a file was opened, and which
//! file it is.
//!
//! Threads share a table of descriptors (`CLONE_FILES`), a fork copies it. What nothing is known of, because
//! it was opened before the recording began or came from another process, is not in a table; nor is what was
//! opened before an execve, since no recording tells which descriptors that closes.

use crate::Call;
use crate::descriptor::{self, Descriptor};
use crate::operation::open;
use rustc_hash::FxHashMap as HashMap;
use std::collections::BTreeMap;
use std::sync::Arc;

const CLONE_FILES: u64 = 0x400;
/// Most descriptors of a process that are remembered.
const MOST: usize = 1 << 16;

/// How a file was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
    /// By which of the recorded opens, as a number: descriptors that are copies of one another share the
    /// open file, and a file that is opened twice is two, whose mappings never become one. Nothing: that
    /// is not known.
    pub open: Option<u32>,
}

/// What is known of an open file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Open {
    /// How it was opened.
    pub(super) access: Option<Access>,
    /// Its number in the plan, once it has one.
    pub(super) file: Option<u32>,
    /// It is a memfd, whose number in the plan is that of no other file.
    pub(super) memfd: bool,
    /// It is a userfaultfd, by its number in the plan.
    pub(super) userfaultfd: Option<u32>,
    /// It was made when it was opened, perhaps: it is no file that was there before.
    pub(super) new: bool,
    /// The size that it was given when its number was not known yet.
    pub(super) length: Option<u64>,
}

type Table = Arc<BTreeMap<i32, Open>>;

/// The tables of all tasks.
#[derive(Debug, Default)]
pub(super) struct Descriptors {
    tables: HashMap<u32, (u32, Table)>,
    /// Which table a task has.
    of: HashMap<u32, u32>,
    next: u32,
    /// Userfaultfds of which a descriptor was closed.
    left: Vec<u32>,
    /// Files opened so far.
    opens: u32,
}

impl Descriptors {
    /// `task` makes `child`.
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

    /// The task is gone.
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

    /// The task begins another program.
    pub(super) fn exec(&mut self, task: u32) {
        self.exit(task);
        self.begin(task, Table::default());
    }

    /// Userfaultfds that no descriptor is of any more.
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

    /// Nothing is known any more.
    pub(super) fn forget(&mut self) {
        self.tables.values_mut().for_each(|(_, table)| *table = Table::default());
    }

    /// What is known of a descriptor.
    pub(super) fn get(&self, task: u32, descriptor: u64) -> Option<Open> {
        let (_, table) = self.tables.get(self.of.get(&task)?)?;
        table.get(&(descriptor as i32)).copied()
    }

    /// The descriptor is this from now on; nothing: none is known to be open.
    pub(super) fn set(&mut self, task: u32, descriptor: u64, open: Option<Open>) {
        let number = self.number(task);
        let (_, table) = self.tables.entry(number).or_default();
        let (descriptor, table) = (descriptor as i32, Arc::make_mut(table));
        let old = match open {
            Some(open) if table.len() < MOST => table.insert(descriptor, open),
            _ => table.remove(&descriptor),
        };
        self.left.extend(old.and_then(|old| old.userfaultfd));
    }

    /// A call that opens, copies or closes descriptors has succeeded with `value`.
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

    /// How a file is opened by a call that is none of the opens before.
    pub(super) fn access(&mut self, read: bool, write: bool) -> Access {
        self.opens = self.opens.wrapping_add(1);
        Access { read, write, open: Some(self.opens) }
    }

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

    fn unshare(&mut self, task: u32) {
        let number = self.number(task);
        let table = self.tables.get(&number).map(|(_, table)| table.clone()).unwrap_or_default();
        self.exit(task);
        self.begin(task, table);
    }

    fn number(&mut self, task: u32) -> u32 {
        match self.of.get(&task) {
            Some(number) => *number,
            None => self.begin(task, Table::default()),
        }
    }

    fn begin(&mut self, task: u32, table: Table) -> u32 {
        self.next += 1;
        self.tables.insert(self.next, (1, table));
        self.of.insert(task, self.next);
        self.next
    }
}
