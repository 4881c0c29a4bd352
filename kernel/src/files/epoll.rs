//! epoll: a set of open files, and what is to be heard of each.
//!
//! An edge is a change of what a file is ready for, or of its count of [`changes`](super::File::changes)
//! since it was told last. A file that was closed leaves the set when it is looked at.

use super::open::Open;
use super::{File, READABLE, Stat};
use crate::arch::lock::SpinLock;
use crate::task::wait::{self, Key};
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use freehold::error::Errno;
use linux_raw_sys::general::{EPOLLERR, EPOLLET, EPOLLHUP, EPOLLONESHOT};

struct Interest {
    open: Weak<Open>,
    events: u32,
    data: u64,
    /// What was told last, of which an edge is a change: readiness and count.
    told: (u32, u64),
    /// EPOLLONESHOT, and it was told.
    is_over: bool,
}

/// Files by descriptor, and by address where a descriptor was used again.
type Interests = BTreeMap<(u64, usize), Interest>;

pub struct Epoll {
    interests: SpinLock<Interests>,
}

/// What is to be told: events, and the program's word for the file.
pub type Told = (u32, u64);

impl Epoll {
    pub fn new() -> Self {
        Epoll { interests: SpinLock::new(BTreeMap::new()) }
    }

    fn key(&self) -> Key {
        Key::kernel(&raw const self.interests as u64)
    }

    fn place(descriptor: u64, open: &Arc<Open>) -> (u64, usize) {
        (descriptor, Arc::as_ptr(open) as usize)
    }

    /// # Errors
    ///
    /// EEXIST.
    pub fn add(&self, descriptor: u64, open: &Arc<Open>, events: u32, data: u64) -> Result<(), Errno> {
        let mut interests = self.interests.lock();
        let place = Self::place(descriptor, open);
        if interests.get(&place).is_some_and(|interest| interest.open.strong_count() > 0) {
            return Err(Errno::EEXIST);
        }
        let open = Arc::downgrade(open);
        interests.insert(place, Interest { open, events, data, told: (0, u64::MAX), is_over: false });
        drop(interests);
        wait::wake(self.key(), usize::MAX);
        Ok(())
    }

    /// # Errors
    ///
    /// ENOENT.
    pub fn modify(&self, descriptor: u64, open: &Arc<Open>, events: u32, data: u64) -> Result<(), Errno> {
        let mut interests = self.interests.lock();
        let interest = interests.get_mut(&Self::place(descriptor, open)).ok_or(Errno::ENOENT)?;
        (interest.events, interest.data) = (events, data);
        (interest.told, interest.is_over) = ((0, u64::MAX), false);
        drop(interests);
        wait::wake(self.key(), usize::MAX);
        Ok(())
    }

    /// # Errors
    ///
    /// ENOENT.
    pub fn remove(&self, descriptor: u64, open: &Arc<Open>) -> Result<(), Errno> {
        let gone = self.interests.lock().remove(&Self::place(descriptor, open));
        gone.map(drop).ok_or(Errno::ENOENT)
    }

    /// Files of the set that are open.
    fn files(&self) -> Vec<((u64, usize), Arc<Open>)> {
        let mut files = Vec::new();
        self.interests.lock().retain(|place, interest| {
            let open = interest.open.upgrade();
            let is_open = open.is_some();
            files.extend(open.map(|open| (*place, open)));
            is_open
        });
        files
    }

    /// What is to be told now, up to `most`; `keys` gets the keys to sleep on. Returns when to look again,
    /// too.
    pub fn look(&self, most: usize, keys: &mut Vec<Key>) -> (Vec<Told>, u64) {
        let (mut told, mut again) = (Vec::new(), u64::MAX);
        keys.push(self.key());
        for (place, open) in self.files() {
            keys.extend(open.file.ready_key());
            again = again.min(open.file.ready_at());
            // No lock is held while the file is asked.
            let (ready, changes) = (open.ready(), open.file.changes());
            let mut interests = self.interests.lock();
            let Some(interest) = interests.get_mut(&place) else { continue };
            if told.len() < most
                && let Some(events) = interest.tell(ready, changes)
            {
                told.push((events, interest.data));
            }
        }
        (told, again)
    }
}

impl Interest {
    /// What is to be told of a file that is ready for this.
    fn tell(&mut self, ready: u32, changes: u64) -> Option<u32> {
        let ready = ready & (self.events | EPOLLERR | EPOLLHUP);
        if self.is_over {
            return None;
        }
        if self.events & EPOLLET != 0 {
            let (before, count) = self.told;
            self.told = (ready, changes);
            if ready & !before == 0 && changes == count {
                return None;
            }
        }
        self.is_over = ready != 0 && self.events & EPOLLONESHOT != 0;
        (ready != 0).then_some(ready)
    }
}

impl File for Epoll {
    fn stat(&self) -> Stat {
        Stat { inode: self.key().at, mode: 0o600, links: 1, ..Stat::default() }
    }

    fn ready(&self) -> u32 {
        let is_ready = self.files().iter().any(|(place, open)| {
            let ready = open.ready();
            let interests = self.interests.lock();
            let wanted = interests.get(place).filter(|interest| !interest.is_over);
            wanted.is_some_and(|interest| ready & (interest.events | EPOLLERR | EPOLLHUP) != 0)
        });
        if is_ready { READABLE } else { 0 }
    }

    /// Those that wait for the set do not know its files' keys.
    fn ready_at(&self) -> u64 {
        crate::arch::clock::now_ns() + 1_000_000
    }

    fn ready_key(&self) -> Option<Key> {
        Some(self.key())
    }

    fn as_any(&self) -> Option<&dyn core::any::Any> {
        Some(self)
    }
}
