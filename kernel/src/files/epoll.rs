//! epoll: a set of open files, and the events to report for each. `calls/poll.rs` has the calls and sleeps on
//! the keys that [`Epoll::look`] returns.
//!
//! With EPOLLET a file is reported only at an *edge*: if the file has become ready for a further event since
//! the set last examined it, or if the file's count of [`changes`](crate::files::File::changes) has changed.
//! A closed file leaves the set when the set is next examined. The set keeps no file open. A spin lock guards
//! the set; the lock is not held while `File::ready` of a file runs, because the file may be another epoll. A
//! sleeping lock, [`NESTING`], keeps epolls from watching each other in a cycle.
//!
//! The programs `files.c` and `faults.c` of the tests check sets, cycles and edges.

use crate::arch::lock::SpinLock;
use crate::errno;
use crate::files::{File, NO_INODE, READABLE, Stat, open::Open};
use crate::sched::mutex::{Mutex, MutexGuard};
use crate::sched::wait::{self, Key};
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use freehold::error::Errno;
use linux_raw_sys::general::{EPOLLERR, EPOLLET, EPOLLHUP, EPOLLONESHOT};

/// A file of the set, and the wanted events.
struct Interest {
    /// The file. The set does not keep it open.
    open: Weak<Open>,
    /// The wanted events and the flags EPOLLET and EPOLLONESHOT.
    events: u32,
    /// The program's word for the file. Each report contains this word.
    data: u64,
    /// The readiness and the count of changes when the file was last examined, for EPOLLET.
    told: (u32, u64),
    /// True if EPOLLONESHOT is set and an event was reported.
    is_over: bool,
}

/// The files of a set, by descriptor and by the address of the open file. The address is necessary because
/// the descriptor of a closed file may be in use again.
type Interests = BTreeMap<(u64, usize), Interest>;

/// The file of an epoll.
pub struct Epoll {
    /// The set.
    interests: SpinLock<Interests>,
    /// Epolls that have started to watch this one. Some of them may have stopped since.
    watchers: SpinLock<Vec<Weak<Open>>>,
}

/// Held while one epoll starts to watch another, so that two concurrent additions cannot form a cycle.
static NESTING: Mutex = Mutex::new();
/// Maximum length of a chain in which each epoll watches the next.
const MAX_NESTED: usize = 5;

/// A report: the events, and the program's word for the file.
pub type Told = (u32, u64);

impl Epoll {
    pub fn new() -> Self {
        Epoll { interests: SpinLock::new(BTreeMap::new()), watchers: SpinLock::new(Vec::new()) }
    }

    /// Returns the epoll of an open file, if the file is an epoll.
    pub fn of(open: &Open) -> Option<&Self> {
        open.file.as_any()?.downcast_ref()
    }

    /// If `open` is an epoll, checks that the epoll `set` may watch it. The caller holds the returned guard
    /// until `set` watches `open`.
    ///
    /// # Errors
    ///
    /// ELOOP if the epolls would form a cycle, or a chain that is too long.
    pub fn nest(set: &Arc<Open>, open: &Arc<Open>) -> Result<Option<MutexGuard<'static>>, Errno> {
        let Some(watched) = Self::of(open) else { return Ok(None) };
        let turn = NESTING.lock()?;
        let (above, _) = chain(set, Self::watchers, open);
        let (below, is_circle) =
            chain(open, |epoll, _| epoll.files().into_iter().map(|(_, open)| open).collect(), set);
        if is_circle || above + below > MAX_NESTED {
            return Err(errno::ELOOP);
        }
        let mut watchers = watched.watchers.lock();
        watchers.retain(|other| other.strong_count() > 0 && other.as_ptr() != Arc::as_ptr(set));
        watchers.push(Arc::downgrade(set));
        drop(watchers);
        Ok(Some(turn))
    }

    /// Returns the epolls that watch this one, which is the epoll of `open`.
    fn watchers(&self, open: &Arc<Open>) -> Vec<Arc<Open>> {
        let mut watchers: Vec<_> = self.watchers.lock().iter().filter_map(Weak::upgrade).collect();
        watchers.retain(|other| {
            let interests = &Self::of(other).expect("an epoll watches").interests;
            interests.lock().keys().any(|(_, place)| *place == Arc::as_ptr(open) as usize)
        });
        watchers
    }

    /// Returns the key that is woken when the set changes.
    fn key(&self) -> Key {
        Key::kernel(&raw const self.interests as u64)
    }

    /// Returns the key of a file in the set.
    fn place(descriptor: u64, open: &Arc<Open>) -> (u64, usize) {
        (descriptor, Arc::as_ptr(open) as usize)
    }

    /// Adds a file to the set.
    ///
    /// # Errors
    ///
    /// EEXIST if the set contains the file.
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

    /// Changes the events and the word of a file in the set.
    ///
    /// # Errors
    ///
    /// ENOENT if the set does not contain the file.
    pub fn modify(&self, descriptor: u64, open: &Arc<Open>, events: u32, data: u64) -> Result<(), Errno> {
        let mut interests = self.interests.lock();
        let interest = interests.get_mut(&Self::place(descriptor, open)).ok_or(Errno::ENOENT)?;
        (interest.events, interest.data) = (events, data);
        (interest.told, interest.is_over) = ((0, u64::MAX), false);
        drop(interests);
        wait::wake(self.key(), usize::MAX);
        Ok(())
    }

    /// Removes a file from the set.
    ///
    /// # Errors
    ///
    /// ENOENT if the set does not contain the file.
    pub fn remove(&self, descriptor: u64, open: &Arc<Open>) -> Result<(), Errno> {
        let gone = self.interests.lock().remove(&Self::place(descriptor, open));
        gone.map(drop).ok_or(Errno::ENOENT)
    }

    /// Returns the open files of the set, and removes the closed ones.
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

    /// Returns up to `most` reports, and the time in nanoseconds at which to call this function again if no
    /// key is woken. Adds to `keys` the keys on which the caller must sleep.
    pub fn look(&self, most: usize, keys: &mut Vec<Key>) -> (Vec<Told>, u64) {
        let (mut told, mut again) = (Vec::new(), u64::MAX);
        keys.push(self.key());
        for (place, open) in self.files() {
            keys.extend(open.file.ready_key());
            again = again.min(open.file.ready_at());
            // No lock is held while the file's readiness is computed.
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

/// Returns the number of epolls in the longest chain that begins with `first`, and true if a chain contains
/// `end`. `next` returns the files that follow an epoll.
fn chain(
    first: &Arc<Open>,
    next: impl Fn(&Epoll, &Arc<Open>) -> Vec<Arc<Open>>,
    end: &Arc<Open>,
) -> (usize, bool) {
    let (mut count, mut meets_end) = (0, false);
    let mut layer = BTreeMap::from([(Arc::as_ptr(first) as usize, first.clone())]);
    // Every chain is finite, because each link was checked when it was made.
    while !layer.is_empty() {
        count += 1;
        meets_end |= layer.contains_key(&(Arc::as_ptr(end) as usize));
        let behind = layer.values().filter_map(|open| Some(next(Epoll::of(open)?, open))).flatten();
        let epolls = behind.filter(|open| Epoll::of(open).is_some());
        layer = epolls.map(|open| (Arc::as_ptr(&open) as usize, open)).collect();
    }
    (count, meets_end)
}

impl Interest {
    /// Returns the events to report, for a file with this readiness and this count of changes. With EPOLLET,
    /// stores both for the next call.
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
        Stat { inode: NO_INODE, mode: 0o600, links: 1, ..Stat::default() }
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

    /// Tasks that wait for this set do not sleep on the keys of its files, so they poll.
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
