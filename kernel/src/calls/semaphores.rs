//! The calls for System V semaphores. `process/semaphores.rs` has the sets. No lock is held while a program's memory
//! is read or written. Limits are Linux's and cannot be changed. The program `semaphores.c` of the tests checks the
//! calls.

use crate::arch::frame::Frame;
use crate::calls::answer::{Answer, Calls};
use crate::calls::time::after_timeout;
use crate::errno;
use crate::platform::user::UserPtr;
use crate::process::segments::{PLACES, PRIVATE, seconds};
use crate::process::semaphores::{self, ALL, MAX_ALL, MAX_COUNT, MAX_SETS, MAX_VALUE, Operation, Set};
use crate::sched::{charge, checkpoint, current};
use alloc::sync::Arc;
use alloc::vec::Vec;
use freehold::error::Errno;
use linux_raw_sys::general::*;

pub const CALLS: Calls =
    &[(__NR_semget, semget), (__NR_semop, semop), (__NR_semtimedop, semtimedop), (__NR_semctl, semctl)];

/// The flags of semget and of operations.
const CREATE: u32 = 0o1000;
const EXCLUSIVE: u32 = 0o2000;
const NOWAIT: u16 = 0o4000;
const UNDO: u16 = 0x1000;
/// Maximum number of operations in a call.
const MAX_OPERATIONS: u64 = 500;

fn semget(frame: &mut Frame) -> Answer {
    let [key, count, flags, ..] = frame.args();
    let (key, count, flags) = (key as u32, count as u32 as usize, flags as u32);
    if count > MAX_COUNT {
        return Err(Errno::EINVAL);
    }
    // Another call may make the set in between.
    loop {
        let found = ALL.lock().keys.get(&key).copied();
        if let Some(set) = found.and_then(|id| semaphores::find(id).ok()) {
            return match flags & (CREATE | EXCLUSIVE) == CREATE | EXCLUSIVE {
                true => Err(Errno::EEXIST),
                false if count > set.count => Err(Errno::EINVAL),
                false => Ok(set.id.into()),
            };
        }
        if key != PRIVATE && flags & CREATE == 0 {
            return Err(Errno::ENOENT);
        }
        if count == 0 {
            return Err(Errno::EINVAL);
        }
        match semaphores::make(key, count, flags & 0o777) {
            Err(Errno::EEXIST) => checkpoint()?,
            made => return made.map(u64::from),
        }
    }
}

fn semop(frame: &mut Frame) -> Answer {
    operate(frame, u64::MAX)
}

fn semtimedop(frame: &mut Frame) -> Answer {
    let [_, _, _, timeout, ..] = frame.args();
    operate(frame, after_timeout(timeout)?)
}

/// Performs the operations that the first three arguments list.
fn operate(frame: &mut Frame, deadline: u64) -> Answer {
    let [id, at, count, ..] = frame.args();
    let count = count & 0xffff_ffff;
    if count < 1 || (id as i32) < 0 {
        return Err(Errno::EINVAL);
    }
    if count > MAX_OPERATIONS {
        return Err(errno::E2BIG);
    }
    let mut operations = Vec::new();
    charge::reserve(&mut operations, count as usize)?;
    for n in 0..count {
        let [number, change, flags] = UserPtr::<[u16; 3]>::new(at).add(n).read()?;
        let (nonblock, undoes) = (flags & NOWAIT != 0, flags & UNDO != 0);
        operations.push(Operation { number, change: change as i16, nonblock, undoes });
    }
    let set = semaphores::find(id as u32)?;
    if operations.iter().any(|one| usize::from(one.number) >= set.count) {
        return Err(errno::EFBIG);
    }
    set.operate(&operations, deadline).map(|()| 0)
}

/// The commands of semctl.
const RMID: u32 = 0;
const SET: u32 = 1;
const STAT: u32 = 2;
const INFO: u32 = 3;
const GET_PID: u32 = 11;
const GET_VALUE: u32 = 12;
const GET_ALL: u32 = 13;
const WAITING_FOR_MORE: u32 = 14;
const WAITING_FOR_ZERO: u32 = 15;
const SET_VALUE: u32 = 16;
const SET_ALL: u32 = 17;
const STAT_BY_INDEX: u32 = 18;
const SEM_INFO: u32 = 19;
const STAT_ANY: u32 = 20;

fn semctl(frame: &mut Frame) -> Answer {
    let [id, number, what, argument, ..] = frame.args();
    let (number, what) = (number as u32, what as u32);
    match what {
        INFO | SEM_INFO => return put_limits(argument, what == SEM_INFO),
        STAT_BY_INDEX | STAT_ANY => {
            let set = ALL.lock().sets.get(&(id as u32)).cloned().ok_or(Errno::EINVAL)?;
            return put_stat(&set, argument).map(|()| set.id.into());
        }
        RMID..=STAT | GET_PID..=SET_ALL => {}
        _ => return Err(Errno::EINVAL),
    }
    if (id as i32) < 0 {
        return Err(Errno::EINVAL);
    }
    let set = semaphores::find(id as u32)?;
    match what {
        RMID => set.remove(),
        SET => {
            let words = UserPtr::<[u32; 6]>::new(argument).read()?;
            let mut state = set.state.lock();
            state.owner = [words[1], words[2]];
            state.mode = state.mode & !0o777 | words[5] & 0o777;
            state.times[1] = seconds();
        }
        STAT => put_stat(&set, argument)?,
        GET_ALL => {
            let mut values = Vec::new();
            charge::reserve(&mut values, set.count)?;
            values.extend_from_slice(&set.state.lock().values);
            for (n, value) in (0..).zip(values) {
                checkpoint()?;
                UserPtr::<u16>::new(argument).add(n).write(&value)?;
            }
        }
        SET_ALL => set_all(&set, argument)?,
        _ => return of_semaphore(&set, number, what, argument),
    }
    Ok(0)
}

/// Performs a command on one semaphore.
fn of_semaphore(set: &Set, number: u32, what: u32, argument: u64) -> Answer {
    let at = number as usize;
    if at >= set.count {
        return Err(Errno::EINVAL);
    }
    let value = u16::try_from(argument as i32).ok().filter(|value| i32::from(*value) <= MAX_VALUE);
    let mut state = set.state.lock();
    match what {
        GET_PID => Ok(state.pids[at].into()),
        GET_VALUE => Ok(state.values[at].into()),
        WAITING_FOR_MORE => Ok(state.waiting(number as u16, false)),
        WAITING_FOR_ZERO => Ok(state.waiting(number as u16, true)),
        SET_VALUE => {
            (state.values[at], state.pids[at]) = (value.ok_or(errno::ERANGE)?, current().process().pid);
            state.times[1] = seconds();
            drop(state);
            set.forget_changes(number as u16..=number as u16);
            set.wake();
            Ok(0)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// Sets all values of a set.
fn set_all(set: &Set, at: u64) -> Result<(), Errno> {
    let mut values = charge::filled(0, set.count)?;
    let pids = charge::filled(current().process().pid, set.count)?;
    for (n, value) in (0..).zip(&mut values) {
        checkpoint()?;
        *value = UserPtr::<u16>::new(at).add(n).read()?;
        if i32::from(*value) > MAX_VALUE {
            return Err(errno::ERANGE);
        }
    }
    let mut state = set.state.lock();
    let before = (core::mem::replace(&mut state.values, values), core::mem::replace(&mut state.pids, pids));
    state.times[1] = seconds();
    drop(state);
    drop(before);
    set.forget_changes(0..=u16::MAX);
    set.wake();
    Ok(())
}

/// Writes the `struct semid_ds` of a set.
fn put_stat(set: &Arc<Set>, out: u64) -> Result<(), Errno> {
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let mut words = [0u64; 13];
    let state = set.state.lock();
    words[0] = pair(set.key, state.owner[0]);
    words[1] = pair(state.owner[1], set.maker[0]);
    words[2] = pair(set.maker[1], state.mode);
    words[3] = u64::from(set.id / PLACES);
    (words[6], words[8]) = (state.times[0], state.times[1]);
    words[10] = set.count as u64;
    drop(state);
    UserPtr::<[u64; 13]>::new(out).write(&words)
}

/// Writes `struct seminfo`: the limits or, with `sums`, the numbers of sets and semaphores in the places of two
/// limits. Returns the highest place in use.
fn put_limits(out: u64, sums: bool) -> Answer {
    let all = ALL.lock();
    let (sets, semaphores) = (all.sets.len() as u32, all.semaphores as u32);
    let highest = all.sets.last_key_value().map_or(0, |(place, _)| *place);
    drop(all);
    let [all, sets_limit, count] = [MAX_ALL as u32, MAX_SETS as u32, MAX_COUNT as u32];
    let most = MAX_OPERATIONS as u32;
    // The size of the record of a process, which no program uses, is Linux's.
    let [size, value] = if sums { [sets, semaphores] } else { [20, MAX_VALUE as u32] };
    let words = [all, sets_limit, all, all, count, most, most, size, MAX_VALUE as u32, value];
    UserPtr::<[u32; 10]>::new(out).write(&words)?;
    Ok(highest.into())
}
