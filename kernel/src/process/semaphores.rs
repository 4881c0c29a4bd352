//! The System V semaphores: sets of counters that threads raise and lower together. `calls/semaphores.rs` has the
//! calls.
//!
//! The spin lock of [`ALL`] guards the table of sets, and each set has a spin lock for its counters. The lock of a
//! set may be taken under the lock of the table. An operation is tried as a whole under the lock of its set; if it
//! must wait, its thread sleeps on the key of the set, and tries again after each change. Sets stay until they are
//! removed, so they are charged to all files together (`sched/charge.rs`).
//!
//! An operation with SEM_UNDO records its opposite in the set, by process and semaphore. `process/exit.rs` calls
//! [`undo`], which looks through all sets and applies what the process has recorded. The threads of a process record together, whether they were
//! made with CLONE_SYSVSEM or not. The program `semaphores.c` of the tests checks this file.

use crate::arch::{lock::SpinLock, preempt::preempt_point};
use crate::errno;
use crate::process::Process;
use crate::process::segments::{PLACES, PRIVATE, seconds};
use crate::sched::charge::{self, Charge};
use crate::sched::current;
use crate::sched::wait::{self, Key, Sleep, Woken};
use alloc::collections::btree_map::{BTreeMap, Entry};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Bound;
use core::sync::atomic::Ordering::Relaxed;
use freehold::error::Errno;

/// Maximum value of a semaphore, and maximum change that is undone.
pub const MAX_VALUE: i32 = 32767;
/// Maximum number of semaphores in a set.
pub const MAX_COUNT: usize = 32000;
/// Maximum number of sets.
pub const MAX_SETS: usize = 32000;
/// Maximum number of semaphores in all sets.
pub const MAX_ALL: u64 = 1_024_000_000;
/// Bytes of kernel memory for a recorded change.
const UNDO_COST: usize = 48;
/// Bytes of kernel memory for a semaphore.
const VALUE_COST: usize = size_of::<u16>() + size_of::<u32>();

/// An operation on one semaphore.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// The semaphore's number in its set.
    pub number: u16,
    /// The change of the value; 0 waits until the value is 0.
    pub change: i16,
    /// True if the operation fails rather than waits.
    pub nonblock: bool,
    /// True if the end of the process undoes the change.
    pub undoes: bool,
}

/// A set of semaphores.
pub struct Set {
    pub id: u32,
    pub key: u32,
    /// Number of semaphores.
    pub count: usize,
    /// User and group of the process that made the set.
    pub maker: [u32; 2],
    pub state: SpinLock<State>,
}

/// The part of a set that changes.
pub struct State {
    pub values: Vec<u16>,
    /// The processes that changed the semaphores last.
    pub pids: Vec<u32>,
    /// Number of threads that wait for a semaphore, by its number and whether they wait for 0.
    waiting: BTreeMap<(u16, bool), u64>,
    /// Recorded changes that the end of a process applies, by process and semaphore. None is 0.
    undo: BTreeMap<(u32, u16), i16>,
    pub is_removed: bool,
    /// Permissions, as in `sem_perm.mode`.
    pub mode: u32,
    /// User and group of the owner.
    pub owner: [u32; 2],
    /// Times of the last operation and of the last change, in seconds since 1970.
    pub times: [u64; 2],
    charge: Charge,
}

/// All sets.
pub struct Table {
    /// The sets by the places of their identifiers.
    pub sets: BTreeMap<u32, Arc<Set>>,
    /// The identifiers of the sets that have a key.
    pub keys: BTreeMap<u32, u32>,
    /// The identifier of the newest set.
    last: u32,
    /// Number of semaphores in all sets.
    pub semaphores: u64,
}

pub static ALL: SpinLock<Table> =
    SpinLock::new(Table { sets: BTreeMap::new(), keys: BTreeMap::new(), last: u32::MAX, semaphores: 0 });

/// Returns the set with this identifier.
///
/// # Errors
///
/// EINVAL if there is none.
pub fn find(id: u32) -> Result<Arc<Set>, Errno> {
    let set = ALL.lock().sets.get(&(id % PLACES)).cloned();
    set.filter(|set| set.id == id).ok_or(Errno::EINVAL)
}

/// Makes a set of `count` semaphores and returns its identifier.
///
/// # Errors
///
/// ENOSPC if there are too many sets or semaphores; ENOMEM.
pub fn make(key: u32, count: usize, mode: u32) -> Result<u32, Errno> {
    charge::admit_to_files().map_err(|_| Errno::ENOMEM)?;
    let (values, pids) = (charge::filled(0, count)?, charge::filled(0, count)?);
    let ids = *current().process().ids.lock();
    let maker = [ids.user.effective, ids.group.effective];
    let mut state = Some(State {
        values,
        pids,
        waiting: BTreeMap::new(),
        undo: BTreeMap::new(),
        is_removed: false,
        mode,
        owner: maker,
        times: [0, seconds()],
        charge: Charge::of_files(size_of::<Set>() + count * VALUE_COST),
    });
    // A section of the lock passes a few used places, because a program chooses how many there are.
    loop {
        preempt_point();
        let mut all = ALL.lock();
        if all.sets.len() >= MAX_SETS || all.semaphores + count as u64 > MAX_ALL {
            return Err(Errno::ENOSPC);
        }
        if key != PRIVATE && all.keys.contains_key(&key) {
            return Err(Errno::EEXIST);
        }
        let from = all.last;
        let next = |n: u32| from.wrapping_add(n) & i32::MAX as u32;
        let Some(id) = (1..=64).map(next).find(|id| !all.sets.contains_key(&(id % PLACES))) else {
            all.last = next(64);
            continue;
        };
        let Some(state) = state.take() else { unreachable!("the loop ends with its set") };
        all.last = id;
        all.semaphores += count as u64;
        let set = Set { id, key, count, maker, state: SpinLock::new(state) };
        all.sets.insert(id % PLACES, Arc::new(set));
        if key != PRIVATE {
            all.keys.insert(key, id);
        }
        return Ok(id);
    }
}

impl Set {
    /// Returns the key on which threads sleep until the set changes.
    fn key(&self) -> Key {
        Key::kernel(&raw const self.state as u64)
    }

    /// Wakes the threads that wait for a change.
    pub fn wake(&self) {
        wait::wake(self.key(), usize::MAX);
    }

    /// Removes the set. Threads that wait for it fail with EIDRM.
    pub fn remove(&self) {
        let mut all = ALL.lock();
        let gone = all.sets.remove(&(self.id % PLACES));
        if gone.is_some() {
            all.semaphores -= self.count as u64;
            if self.key != PRIVATE {
                all.keys.remove(&self.key);
            }
        }
        self.state.lock().is_removed = true;
        drop(all);
        self.forget_changes(0..=u16::MAX);
        self.wake();
    }

    /// Forgets the recorded changes of these semaphores.
    pub fn forget_changes(&self, numbers: core::ops::RangeInclusive<u16>) {
        let mut from = Bound::Unbounded;
        loop {
            preempt_point();
            let mut state = self.state.lock();
            let Some(key) = state.undo.range((from, Bound::Unbounded)).next().map(|(key, _)| *key) else {
                return;
            };
            if numbers.contains(&key.1) {
                state.undo.remove(&key);
                state.recharge();
            }
            from = Bound::Excluded(key);
        }
    }

    /// Performs operations as a whole. Waits until `deadline` if one of them must wait.
    ///
    /// # Errors
    ///
    /// EAGAIN if an operation would have to wait and has IPC_NOWAIT, or after the deadline; ERANGE if a value
    /// becomes too large; EIDRM if the set is removed; EINTR if a signal arrives; ENOMEM.
    pub fn operate(&self, operations: &[Operation], deadline: u64) -> Result<(), Errno> {
        let process = current().process();
        if operations.iter().any(|one| one.undoes) {
            // Recorded changes count as files, too.
            charge::admit_to_files().map_err(|_| Errno::ENOMEM)?;
            // Relaxed: the last thread of the process reads the flag after all others have ended.
            process.has_undo.store(true, Relaxed);
        }
        loop {
            let waiting = wait::enqueue(self.key(), u32::MAX);
            let mut state = self.state.lock();
            let tried =
                if state.is_removed { Err(errno::EIDRM) } else { state.attempt(operations, process.pid) };
            let blocked = match tried {
                Ok(Some(one)) if !one.nonblock => (one.number, one.change == 0),
                result => {
                    drop(state);
                    waiting.cancel();
                    return self.end(operations, result);
                }
            };
            *state.waiting.entry(blocked).or_insert(0) += 1;
            drop(state);
            let woken = waiting.sleep(Sleep::Interruptible, deadline);
            let mut state = self.state.lock();
            match state.waiting.get_mut(&blocked) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(state.waiting.remove(&blocked)),
            }
            let is_removed = state.is_removed;
            drop(state);
            match woken {
                _ if is_removed => return Err(errno::EIDRM),
                Woken::Waker => {}
                Woken::Signal => return Err(Errno::EINTR),
                Woken::Time => return Err(Errno::EAGAIN),
            }
        }
    }

    /// Ends a call of [`operate`](Self::operate) that does not wait: `result` is that of the attempt.
    fn end(&self, operations: &[Operation], result: Result<Option<Operation>, Errno>) -> Result<(), Errno> {
        if result?.is_some() {
            return Err(Errno::EAGAIN);
        }
        if operations.iter().any(|one| one.change != 0) {
            self.wake();
        }
        Ok(())
    }
}

impl State {
    /// Performs the operations for a process, or none of them. Returns the operation that must wait. A call has at
    /// most SEMOPM operations, so this takes at most half a million instructions (`bounds.c` of the tests).
    fn attempt(&mut self, operations: &[Operation], pid: u32) -> Result<Option<Operation>, Errno> {
        for (done, one) in operations.iter().enumerate() {
            let applied = self.apply(one, pid);
            if applied == Ok(true) {
                continue;
            }
            operations[..done].iter().rev().for_each(|one| self.revert(one, pid));
            return applied.map(|_| Some(*one));
        }
        for one in operations {
            self.pids[usize::from(one.number)] = pid;
        }
        self.times[0] = seconds();
        self.recharge();
        Ok(None)
    }

    /// Performs one operation. Returns false if it must wait.
    fn apply(&mut self, one: &Operation, pid: u32) -> Result<bool, Errno> {
        let value = self.values[usize::from(one.number)];
        let new = i32::from(value) + i32::from(one.change);
        match one.change {
            0 => return Ok(value == 0),
            _ if new < 0 => return Ok(false),
            _ if new > MAX_VALUE => return Err(errno::ERANGE),
            _ => {}
        }
        if one.undoes && !self.record((pid, one.number), |recorded| recorded.checked_sub(one.change)) {
            return Err(errno::ERANGE);
        }
        self.values[usize::from(one.number)] = new as u16;
        Ok(true)
    }

    /// Replaces the change that the end of a process applies to a semaphore by what `f` returns for it. Returns
    /// false, and leaves the change as it is, if `f` returns `None`.
    fn record(&mut self, key: (u32, u16), f: impl FnOnce(i16) -> Option<i16>) -> bool {
        match self.undo.entry(key) {
            Entry::Occupied(mut recorded) => match f(*recorded.get()) {
                Some(0) => drop(recorded.remove()),
                Some(change) => *recorded.get_mut() = change,
                None => return false,
            },
            Entry::Vacant(place) => match f(0) {
                Some(0) => {}
                Some(change) => drop(place.insert(change)),
                None => return false,
            },
        }
        true
    }

    /// Takes back an operation that [`apply`](Self::apply) has performed.
    fn revert(&mut self, one: &Operation, pid: u32) {
        let value = &mut self.values[usize::from(one.number)];
        *value = value.wrapping_sub(one.change as u16);
        if one.undoes {
            self.record((pid, one.number), |recorded| Some(recorded.wrapping_add(one.change)));
        }
    }

    /// Returns how many threads wait until a semaphore is 0, or until it is larger.
    pub fn waiting(&self, number: u16, for_zero: bool) -> u64 {
        self.waiting.get(&(number, for_zero)).copied().unwrap_or(0)
    }

    /// Charges the recorded changes.
    fn recharge(&mut self) {
        let bytes = size_of::<Set>() + self.values.len() * VALUE_COST + self.undo.len() * UNDO_COST;
        self.charge.set(bytes);
    }
}

/// Applies what a process has recorded, at its end.
pub fn undo(process: &Process) {
    // Relaxed: see `operate`.
    if !process.has_undo.load(Relaxed) {
        return;
    }
    let mut from = 0;
    while let Some((place, set)) = next_from(from) {
        loop {
            preempt_point();
            let mut state = set.state.lock();
            let own = (process.pid, 0)..=(process.pid, u16::MAX);
            let Some((key, change)) = state.undo.range(own).next().map(|(key, change)| (*key, *change))
            else {
                break;
            };
            state.undo.remove(&key);
            let at = usize::from(key.1);
            let new = (i32::from(state.values[at]) + i32::from(change)).clamp(0, MAX_VALUE);
            (state.values[at], state.pids[at]) = (new as u16, process.pid);
            state.times[0] = seconds();
            state.recharge();
            drop(state);
            set.wake();
        }
        from = place + 1;
    }
}

/// Returns the set at the first place from `place` on, and its place.
fn next_from(place: u32) -> Option<(u32, Arc<Set>)> {
    ALL.lock().sets.range(place..).next().map(|(place, set)| (*place, set.clone()))
}

/// Writes /proc/sysvipc/sem, one line for each set.
pub fn write_report(out: &mut Vec<u8>) {
    out.extend_from_slice(
        b"       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime\n",
    );
    let mut from = 0;
    while let Some((place, set)) = next_from(from) {
        preempt_point();
        let state = set.state.lock();
        let (key, id, mode, count) = (set.key as i32, set.id, state.mode, set.count);
        let ([uid, gid], [cuid, cgid], [otime, ctime]) = (state.owner, set.maker, state.times);
        drop(state);
        let line = alloc::format!(
            "{key:>10} {id:>10}  {mode:>4o} {count:>10} {uid:>5} {gid:>5} {cuid:>5} {cgid:>5} {otime:>10} \
             {ctime:>10}\n"
        );
        out.extend_from_slice(line.as_bytes());
        from = place + 1;
    }
}
