//! epoll: a set of open files, and the events to report for each. `calls/poll.rs` has the calls and sleeps on
//! the keys that [`Epoll::look`] returns.
//!
//! With EPOLLET a file is reported only at an *edge*: if the file has become ready for a further event since
//! the set last examined it, or if the file's count of [`changes`](crate::files::File::changes) has changed.
//! A closed file leaves the set when the set is next examined. The set keeps no file open. A spin lock guards
//! the set; the lock is not held while `File::ready` of a file runs, because the file may be another epoll.
//!
//! An epoll may watch another epoll. The limits are those of Linux:
//!
//! - The epolls form no cycle, and a chain in which each epoll watches the next has at most [`MAX_NESTED`]
//!   epolls. Recursion over nested epolls therefore has a bounded depth.
//! - [`MAX_PATHS`] limits the number of chains that lead from a file to an epoll that no epoll watches.
//!
//! A sleeping lock, [`NESTING`], is held while these limits are checked and a set changes accordingly. One look
//! computes the readiness of each epoll at most once ([`Looked`]), so its cost is the number of watched
//! descriptors, and not their product over the levels.
//!
//! The programs `files.c` and `faults.c` of the tests check sets, cycles, limits and edges.

use crate::arch::lock::SpinLock;
use crate::errno;
use crate::files::{File, NO_INODE, READABLE, Stat, open::Open};
use crate::sched::charge::{self, Charge};
use crate::sched::checkpoint;
use crate::sched::mutex::Mutex;
use crate::sched::wait::{self, Key};
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::ops::Bound::{Excluded, Unbounded};
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
    _charge: Charge,
}

/// Bytes of kernel memory for a file of a set: the element of the set, and that of the file's list.
const COST: usize = 2 * (size_of::<Place>() + size_of::<Interest>());

/// The place of a file in a set: the descriptor and the address of the open file. The address is necessary
/// because the descriptor of a closed file may be in use again.
type Place = (u64, usize);

/// The files of a set.
type Interests = BTreeMap<Place, Interest>;

/// Open files by their addresses.
type Opens = BTreeMap<usize, Arc<Open>>;

/// The file of an epoll.
pub struct Epoll {
    /// The set.
    interests: SpinLock<Interests>,
}

/// Held while an epoll starts to watch another epoll, or an epoll that is itself watched starts to watch a
/// file, so that the limits hold after concurrent additions.
static NESTING: Mutex = Mutex::new();
/// Maximum length of a chain in which each epoll watches the next.
const MAX_NESTED: usize = 5;
/// Maximum number of chains from a file to epolls that no epoll watches, by the number of epolls in the chain
/// minus one. Any number of epolls may watch a file directly.
const MAX_PATHS: [u32; MAX_NESTED] = [u32::MAX, 500, 100, 50, 10];
/// Maximum number of files of a set that are taken in one section of the set's lock.
const PART: usize = 64;

/// A report: the events, and the program's word for the file.
pub type Told = (u32, u64);

/// The epolls whose readiness one look has computed, by their addresses.
#[derive(Default)]
pub struct Looked(BTreeMap<usize, bool>);

impl Looked {
    /// Returns the events for which a file is ready.
    ///
    /// # Errors
    ///
    /// ENOMEM; EINTR if the calling thread has to end.
    pub fn ready(&mut self, open: &Open) -> Result<u32, Errno> {
        let Some(epoll) = Epoll::of(open) else { return Ok(open.ready()) };
        let at = core::ptr::from_ref(epoll) as usize;
        let is_ready = match self.0.get(&at) {
            Some(known) => *known,
            None => {
                charge::admit()?;
                let is_ready = epoll.is_ready(self)?;
                self.0.insert(at, is_ready);
                is_ready
            }
        };
        Ok(if is_ready { READABLE } else { 0 })
    }
}

impl Epoll {
    pub fn new() -> Self {
        Epoll { interests: SpinLock::new(BTreeMap::new()) }
    }

    /// Returns the epoll of an open file, if the file is an epoll.
    pub fn of(open: &Open) -> Option<&Self> {
        open.file.as_any()?.downcast_ref()
    }

    /// Returns the key that is woken when the set changes.
    fn key(&self) -> Key {
        Key::kernel(&raw const self.interests as u64)
    }

    /// Returns the place of a file in a set.
    fn place(descriptor: u64, open: &Arc<Open>) -> Place {
        (descriptor, address(open))
    }

    /// Adds a file to the set of `set`, which is an epoll.
    ///
    /// # Errors
    ///
    /// EEXIST if the set contains the file; ELOOP if epolls would form a cycle or a chain that is too long;
    /// EINVAL if too many chains of epolls would lead from a file; ENOMEM; EINTR if the calling thread has to
    /// end.
    pub fn add(
        set: &Arc<Open>,
        descriptor: u64,
        open: &Arc<Open>,
        events: u32,
        data: u64,
    ) -> Result<(), Errno> {
        let epoll = Self::of(set).ok_or(Errno::EINVAL)?;
        let place = Self::place(descriptor, open);
        charge::admit()?;
        let interest = Interest {
            open: Arc::downgrade(open),
            events,
            data,
            told: (0, u64::MAX),
            is_over: false,
            _charge: Charge::new(COST),
        };
        if Self::of(open).is_none() && !is_watched(set) {
            return epoll.insert(set, open, place, interest);
        }
        let _turn = NESTING.lock()?;
        let mut files = Opens::new();
        let below = nested(open, &mut files)?;
        let (above, meets_open) = levels_above(set, open)?;
        if meets_open || above + below > MAX_NESTED {
            return Err(errno::ELOOP);
        }
        epoll.insert(set, open, place, interest)?;
        let fit = files.values().try_for_each(|file| count_paths(file, 0, &mut [0; MAX_NESTED]));
        if fit.is_err() {
            let _ = epoll.remove(set, descriptor, open);
        }
        fit
    }

    /// Adds a file to the set, which is that of `set`, without a check of the limits.
    fn insert(
        &self,
        set: &Arc<Open>,
        open: &Arc<Open>,
        place: Place,
        interest: Interest,
    ) -> Result<(), Errno> {
        let mut interests = self.interests.lock();
        if interests.get(&place).is_some_and(|interest| interest.open.strong_count() > 0) {
            return Err(Errno::EEXIST);
        }
        let mut watchers = open.watchers.lock();
        // Closed epolls are removed only when the list has to grow, so that an addition costs the same for any
        // number of watchers.
        if watchers.len() == watchers.capacity() {
            watchers.retain(|other| other.strong_count() > 0);
        }
        charge::reserve(&mut watchers, 1)?;
        watchers.push(Arc::downgrade(set));
        drop(watchers);
        interests.insert(place, interest);
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

    /// Removes a file from the set, which is the epoll of `set`.
    ///
    /// # Errors
    ///
    /// ENOENT if the set does not contain the file.
    pub fn remove(&self, set: &Arc<Open>, descriptor: u64, open: &Arc<Open>) -> Result<(), Errno> {
        let gone = self.interests.lock().remove(&Self::place(descriptor, open));
        gone.ok_or(Errno::ENOENT)?;
        let mut watchers = open.watchers.lock();
        if let Some(at) = watchers.iter().position(|other| other.as_ptr() == Arc::as_ptr(set)) {
            watchers.swap_remove(at);
        }
        Ok(())
    }

    /// Calls `f` with each open file of the set and its place, until `f` returns false, and removes the closed
    /// files. No lock is held during `f`.
    ///
    /// # Errors
    ///
    /// Errors of `f`; EINTR if the calling thread has to end.
    fn each_file(&self, mut f: impl FnMut(Place, Arc<Open>) -> Result<bool, Errno>) -> Result<(), Errno> {
        let mut from = Unbounded;
        loop {
            checkpoint()?;
            let mut interests = self.interests.lock();
            let part: Vec<_> =
                interests.range((from, Unbounded)).take(PART).map(|(place, _)| *place).collect();
            let mut files = Vec::new();
            for place in &part {
                match interests.get(place).and_then(|interest| interest.open.upgrade()) {
                    Some(open) => files.push((*place, open)),
                    None => drop(interests.remove(place)),
                }
            }
            drop(interests);
            for (place, open) in files {
                checkpoint()?;
                if !f(place, open)? {
                    return Ok(());
                }
            }
            match part.last() {
                Some(last) => from = Excluded(*last),
                None => return Ok(()),
            }
        }
    }

    /// Returns up to `most` reports, and the time in nanoseconds at which to call this function again if no
    /// key is woken. Adds to `keys` the keys on which the caller must sleep if there is no report.
    ///
    /// # Errors
    ///
    /// EINTR if the calling thread has to end.
    pub fn look(&self, most: usize, keys: &mut Vec<Key>) -> Result<(Vec<Told>, u64), Errno> {
        let (mut told, mut again, mut looked) = (Vec::new(), u64::MAX, Looked::default());
        keys.push(self.key());
        self.each_file(|place, open| {
            charge::reserve(keys, 1)?;
            keys.extend(open.file.ready_key());
            again = again.min(open.file.ready_at());
            // No lock is held while the file's readiness is computed.
            let (ready, changes) = (looked.ready(&open)?, open.file.changes());
            let mut interests = self.interests.lock();
            if let Some(interest) = interests.get_mut(&place)
                && let Some(events) = interest.tell(ready, changes)
            {
                charge::reserve(&mut told, 1)?;
                told.push((events, interest.data));
            }
            Ok(told.len() < most)
        })?;
        Ok((told, again))
    }

    /// Returns true if a file of the set is ready for a wanted event.
    fn is_ready(&self, looked: &mut Looked) -> Result<bool, Errno> {
        let mut is_ready = false;
        self.each_file(|place, open| {
            let ready = looked.ready(&open)?;
            let interests = self.interests.lock();
            let wanted = interests.get(&place).filter(|interest| !interest.is_over);
            is_ready = wanted.is_some_and(|interest| ready & (interest.events | EPOLLERR | EPOLLHUP) != 0);
            Ok(!is_ready)
        })?;
        Ok(is_ready)
    }
}

/// Returns the address of an open file.
fn address(open: &Arc<Open>) -> usize {
    Arc::as_ptr(open) as usize
}

/// Returns true if an epoll watches the file.
fn is_watched(open: &Open) -> bool {
    open.watchers.lock().iter().any(|watcher| watcher.strong_count() > 0)
}

/// Returns the number of epolls in the longest chain that begins with `first`, in which each epoll watches the
/// next; 0 if `first` is no epoll. Adds to `files` the files at the ends of all chains. The caller holds
/// [`NESTING`].
fn nested(first: &Arc<Open>, files: &mut Opens) -> Result<usize, Errno> {
    let mut layer = Opens::from([(address(first), first.clone())]);
    // Every chain is finite, because each link was checked when it was made.
    for count in 0.. {
        let mut next = Opens::new();
        let mut has_epoll = false;
        for (at, open) in layer {
            match Epoll::of(&open) {
                Some(epoll) => {
                    has_epoll = true;
                    epoll.each_file(|_, below| {
                        charge::admit()?;
                        next.insert(address(&below), below);
                        Ok(true)
                    })?;
                }
                None => drop(files.insert(at, open)),
            }
        }
        if !has_epoll {
            return Ok(count);
        }
        layer = next;
    }
    unreachable!()
}

/// Returns the number of epolls in the longest chain that ends with `last`, and true if a chain contains
/// `end`. The caller holds [`NESTING`].
fn levels_above(last: &Arc<Open>, end: &Arc<Open>) -> Result<(usize, bool), Errno> {
    let (mut count, mut meets_end) = (0, false);
    let mut layer = Opens::from([(address(last), last.clone())]);
    // Every chain is finite, because each link was checked when it was made.
    while !layer.is_empty() {
        count += 1;
        meets_end |= layer.contains_key(&address(end));
        let mut next = Opens::new();
        for open in layer.values() {
            each_watcher(open, |watcher| {
                charge::admit()?;
                next.insert(address(watcher), watcher.clone());
                Ok(())
            })?;
        }
        layer = next;
    }
    Ok((count, meets_end))
}

/// Calls `f` with each epoll that watches the file, once for each descriptor in the epoll's set. The list is
/// not locked during `f`.
fn each_watcher(open: &Open, mut f: impl FnMut(&Arc<Open>) -> Result<(), Errno>) -> Result<(), Errno> {
    for n in 0.. {
        checkpoint()?;
        let watcher = open.watchers.lock().get(n).cloned();
        match watcher.as_ref().map(Weak::upgrade) {
            Some(Some(watcher)) => f(&watcher)?,
            Some(None) => {}
            None => break,
        }
    }
    Ok(())
}

/// Counts the chains from `open` to epolls that no epoll watches, in `counts`, by the number of epolls below
/// the last one. `below` is the number of epolls in the chain so far. The caller holds [`NESTING`].
///
/// # Errors
///
/// EINVAL if a count exceeds [`MAX_PATHS`].
fn count_paths(open: &Open, below: usize, counts: &mut [u32; MAX_NESTED]) -> Result<(), Errno> {
    let most = *MAX_PATHS.get(below).ok_or(Errno::EINVAL)?;
    each_watcher(open, |watcher| {
        if is_watched(watcher) {
            return count_paths(watcher, below + 1, counts);
        }
        counts[below] += 1;
        if counts[below] > most { Err(Errno::EINVAL) } else { Ok(()) }
    })
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
        // The thread ends if the look fails.
        if self.is_ready(&mut Looked::default()).unwrap_or(false) { READABLE } else { 0 }
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
