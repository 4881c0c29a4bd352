//! Scheduling calls. Affinities decide on which CPUs a thread runs (`sched/scheduler.rs`). Scheduling classes
//! are ignored; nice values are stored in the process and returned, without an effect. All state is atomic.
//! The program `jobs.c` tests affinities.

use crate::arch::{cpu, frame::Frame};
use crate::calls::answer::{Answer, Calls};
use crate::calls::identity::of;
use crate::errno;
use crate::platform::user::{self, UserPtr};
use crate::process::{self, Process};
use crate::sched::{Thread, current, scheduler};
use alloc::sync::Arc;
use core::sync::atomic::Ordering::Relaxed;
use freehold::error::Errno;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[
    (__NR_sched_yield, sched_yield),
    (__NR_sched_getaffinity, getaffinity),
    (__NR_sched_setaffinity, setaffinity),
    (__NR_sched_getscheduler, |frame| thread(frame.rdi).map(|_| SCHED_NORMAL.into())),
    (__NR_sched_setscheduler, |frame| thread(frame.rdi).map(|_| 0)),
    (__NR_sched_getparam, getparam),
    (__NR_sched_setparam, |frame| thread(frame.rdi).map(|_| 0)),
    (__NR_sched_get_priority_max, |_| Ok(0)),
    (__NR_sched_get_priority_min, |_| Ok(0)),
    (__NR_getpriority, getpriority),
    (__NR_setpriority, setpriority),
    (__NR_getcpu, getcpu),
    // Every program with glibc calls rseq. This entry keeps the report from listing rseq as missing.
    (__NR_rseq, |_| Err(errno::ENOSYS)),
];

fn sched_yield(_: &mut Frame) -> Answer {
    scheduler::give_way();
    Ok(0)
}

/// Returns the thread with this number, or the calling thread for 0. Returns `None` for a first thread that has
/// ended and still has its number.
fn thread(tid: u64) -> Result<Option<Arc<Thread>>, Errno> {
    match tid as i32 {
        0 => Ok(Some(Thread::hold_current())),
        tid @ 1.. => process::find_task(tid as u32).map(|(_, thread)| thread).ok_or(Errno::ESRCH),
        _ => Err(Errno::EINVAL),
    }
}

/// Returns the mask of all CPUs.
fn all_cpus() -> u64 {
    u64::MAX >> (64 - cpu::count())
}

fn getaffinity(frame: &mut Frame) -> Answer {
    let [tid, bytes, out, ..] = frame.args();
    if bytes < 8 || !bytes.is_multiple_of(8) {
        return Err(Errno::EINVAL);
    }
    let mask = thread(tid)?.map_or(u64::MAX, |thread| thread.affinity.load(Relaxed)) & all_cpus();
    UserPtr::<u64>::new(out).write(&mask)?;
    Ok(8)
}

fn setaffinity(frame: &mut Frame) -> Answer {
    let [tid, bytes, at, ..] = frame.args();
    let mut mask = [0; 8];
    user::copy_in(at, &mut mask[..(bytes as usize).min(8)])?;
    let mask = u64::from_ne_bytes(mask) & all_cpus();
    let thread = thread(tid)?;
    if mask == 0 {
        return Err(Errno::EINVAL);
    }
    if let Some(thread) = thread {
        thread.affinity.store(mask, Relaxed);
        scheduler::renew_place(&thread);
    }
    Ok(0)
}

fn getparam(frame: &mut Frame) -> Answer {
    let [tid, out, ..] = frame.args();
    let out = UserPtr::<u32>::optional(out).ok_or(Errno::EINVAL)?;
    thread(tid)?;
    out.write(&0).map(|()| 0)
}

/// Returns the processes that the first two arguments of getpriority and setpriority select.
fn meant(which: u64, who: u64) -> Result<impl Iterator<Item = Arc<Process>>, Errno> {
    let who = who as u32;
    let here = current().process();
    let (one, group) = match which as u32 {
        PRIO_PROCESS => (Some(of(who)?.pid), None),
        PRIO_PGRP => (None, Some(if who == 0 { here.group.load(Relaxed) } else { who })),
        // All processes belong to the one user.
        PRIO_USER => (None, None),
        _ => return Err(Errno::EINVAL),
    };
    let mut found = process::all().filter(move |process| {
        one.is_none_or(|pid| process.pid == pid)
            && group.is_none_or(|group| process.group.load(Relaxed) == group)
    });
    let first = found.next().ok_or(Errno::ESRCH)?;
    Ok(core::iter::once(first).chain(found))
}

fn getpriority(frame: &mut Frame) -> Answer {
    let [which, who, ..] = frame.args();
    let nice = meant(which, who)?.map(|process| process.nice.load(Relaxed)).min();
    // The call answers 20 minus the nice value, 1 to 40, so that no answer looks like an error. The C library
    // converts the answer back.
    Ok(u64::from(40 - nice.unwrap_or(20)))
}

fn setpriority(frame: &mut Frame) -> Answer {
    let [which, who, nice, ..] = frame.args();
    let nice = ((nice as i32).clamp(-20, 19) + 20) as u32;
    meant(which, who)?.for_each(|process| process.nice.store(nice, Relaxed));
    Ok(0)
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
