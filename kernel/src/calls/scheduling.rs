//! Which thread runs where, and how often.

use super::identity::of;
use super::{Answer, Calls};
use crate::arch::cpu::{self, current};
use crate::arch::trap::Frame;
use crate::arch::user::{self, UserPtr};
use crate::task::ids::CAP_SYS_NICE;
use crate::task::process::{self, Process};
use crate::task::{Thread, scheduler};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use freehold::error::Errno;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[
    (__NR_sched_yield, sched_yield),
    (__NR_sched_getaffinity, getaffinity),
    (__NR_sched_setaffinity, setaffinity),
    (__NR_sched_getscheduler, |frame| thread(frame.rdi).map(|_| SCHED_NORMAL.into())),
    (__NR_sched_setscheduler, setscheduler),
    (__NR_sched_getparam, getparam),
    (__NR_sched_setparam, |frame| thread(frame.rdi).map(|_| 0)),
    (__NR_sched_get_priority_max, |frame| priority(frame.rdi, 99)),
    (__NR_sched_get_priority_min, |frame| priority(frame.rdi, 1)),
    (__NR_sched_rr_get_interval, rr_get_interval),
    (__NR_getpriority, getpriority),
    (__NR_setpriority, setpriority),
    (__NR_getcpu, getcpu),
];

fn sched_yield(_: &mut Frame) -> Answer {
    scheduler::give_way();
    Ok(0)
}

/// The thread with this number; 0: the calling one.
fn thread(tid: u64) -> Result<Arc<Thread>, Errno> {
    match tid as i32 {
        0 => Ok(Thread::hold_current()),
        tid @ 1.. => process::find_thread(tid as u32).map(|(_, thread)| thread).ok_or(Errno::ESRCH),
        _ => Err(Errno::EINVAL),
    }
}

/// The processors that there are, by bit.
fn all_cpus() -> u64 {
    u64::MAX >> (64 - cpu::count())
}

fn getaffinity(frame: &mut Frame) -> Answer {
    let [tid, bytes, out, ..] = frame.args();
    if bytes < 8 || !bytes.is_multiple_of(8) {
        return Err(Errno::EINVAL);
    }
    let mask = thread(tid)?.affinity.load(Relaxed) & all_cpus();
    UserPtr::<u64>::new(out).write(&mask)?;
    Ok(8)
}

fn setaffinity(frame: &mut Frame) -> Answer {
    let [tid, bytes, at, ..] = frame.args();
    let mut mask = [0; 8];
    user::copy_in(at, &mut mask[..(bytes as usize).min(8)])?;
    let mask = u64::from_ne_bytes(mask) & all_cpus();
    let thread = thread(tid)?;
    check_owner(thread.process())?;
    if mask == 0 {
        return Err(Errno::EINVAL);
    }
    thread.affinity.store(mask, Relaxed);
    scheduler::renew_place(&thread);
    Ok(0)
}

fn setscheduler(frame: &mut Frame) -> Answer {
    let [tid, policy, at, ..] = frame.args();
    let level = UserPtr::<u32>::new(at).read()?;
    thread(tid)?;
    match policy as u32 {
        SCHED_NORMAL | SCHED_BATCH | SCHED_IDLE if level == 0 => Ok(0),
        SCHED_FIFO | SCHED_RR if (1..=99).contains(&level) => match may_be_nicer() {
            true => Ok(0),
            false => Err(Errno::EPERM),
        },
        _ => Err(Errno::EINVAL),
    }
}

fn getparam(frame: &mut Frame) -> Answer {
    let [tid, out, ..] = frame.args();
    thread(tid)?;
    UserPtr::<u32>::new(out).write(&0)?;
    Ok(0)
}

fn priority(policy: u64, real_time: u64) -> Answer {
    match policy as u32 {
        SCHED_FIFO | SCHED_RR => Ok(real_time),
        SCHED_NORMAL | SCHED_BATCH | SCHED_IDLE => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}

fn rr_get_interval(frame: &mut Frame) -> Answer {
    let [tid, out, ..] = frame.args();
    thread(tid)?;
    UserPtr::<[u64; 2]>::new(out).write(&[0, scheduler::SLICE_NS])?;
    Ok(0)
}

/// EPERM: the process is another user's.
fn check_owner(process: &Process) -> Result<(), Errno> {
    // One lock at a time: both may be the same process's.
    let own = current().process().ids.lock().clone();
    let other = process.ids.lock().clone();
    if own.may_schedule(&other) { Ok(()) } else { Err(Errno::EPERM) }
}

fn may_be_nicer() -> bool {
    current().process().ids.lock().may(CAP_SYS_NICE)
}

/// The processes that `which` and `who` name.
fn meant(which: u64, who: u64) -> Result<Vec<Arc<Process>>, Errno> {
    let who = who as u32;
    let here = current().process();
    let found: Vec<_> = match which as u32 {
        PRIO_PROCESS => alloc::vec![of(who)?],
        PRIO_PGRP => {
            let group = if who == 0 { here.group.load(Relaxed) } else { who };
            process::all().into_iter().filter(|process| process.group.load(Relaxed) == group).collect()
        }
        PRIO_USER => {
            let user = if who == 0 { here.ids.lock().user.real } else { who };
            process::all().into_iter().filter(|process| process.ids.lock().user.real == user).collect()
        }
        _ => return Err(Errno::EINVAL),
    };
    if found.is_empty() { Err(Errno::ESRCH) } else { Ok(found) }
}

fn getpriority(frame: &mut Frame) -> Answer {
    let [which, who, ..] = frame.args();
    let nice = meant(which, who)?.iter().map(|process| process.nice.load(Relaxed)).min();
    // From 1 to 40, so that it is no error: the library takes it from 20.
    Ok(u64::from(40 - nice.unwrap_or(20)))
}

fn setpriority(frame: &mut Frame) -> Answer {
    let [which, who, nice, ..] = frame.args();
    for process in meant(which, who)? {
        check_owner(&process)?;
        set_nice(&process, nice as u32)?;
    }
    Ok(0)
}

/// EACCES: less than it is, for one who may not.
fn set_nice(process: &Process, nice: u32) -> Result<(), Errno> {
    let nice = ((nice as i32).clamp(-20, 19) + 20) as u32;
    if nice < process.nice.load(Relaxed) && !may_be_nicer() {
        return Err(Errno::EACCES);
    }
    process.nice.store(nice, Relaxed);
    Ok(())
}

fn getcpu(frame: &mut Frame) -> Answer {
    let [cpu, node, ..] = frame.args();
    if let Some(cpu) = UserPtr::<u32>::optional(cpu) {
        cpu.write(&(cpu::number() as u32))?;
    }
    if let Some(node) = UserPtr::<u32>::optional(node) {
        node.write(&0)?;
    }
    Ok(0)
}
