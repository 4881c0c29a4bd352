//! Which thread runs where, and how often.

use super::identity::of;
use super::{Answer, Calls, errno};
use crate::arch::cpu::{self, current};
use crate::arch::trap::Frame;
use crate::arch::user::{self, UserPtr};
use crate::files::proc::settings;
use crate::task::class::Class;
use crate::task::ids::CAP_SYS_NICE;
use crate::task::process::{self, Process};
use crate::task::{Thread, rseq, scheduler};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use freehold::PAGE_SIZE;
use freehold::error::Errno;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[
    (__NR_sched_yield, sched_yield),
    (__NR_sched_getaffinity, getaffinity),
    (__NR_sched_setaffinity, setaffinity),
    (__NR_sched_getscheduler, getscheduler),
    (__NR_sched_setscheduler, setscheduler),
    (__NR_sched_getparam, getparam),
    (__NR_sched_setparam, setparam),
    (__NR_sched_getattr, getattr),
    (__NR_sched_setattr, setattr),
    (__NR_sched_get_priority_max, |frame| priority(frame.rdi, 99)),
    (__NR_sched_get_priority_min, |frame| priority(frame.rdi, 1)),
    (__NR_sched_rr_get_interval, rr_get_interval),
    (__NR_getpriority, getpriority),
    (__NR_setpriority, setpriority),
    (__NR_getcpu, getcpu),
    (__NR_rseq, restartable),
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

fn getscheduler(frame: &mut Frame) -> Answer {
    let class = *thread(frame.rdi)?.class.lock();
    Ok((class.policy | if class.resets_on_fork { SCHED_RESET_ON_FORK } else { 0 }).into())
}

fn setscheduler(frame: &mut Frame) -> Answer {
    let [tid, policy, at, ..] = frame.args();
    let priority = UserPtr::<u32>::optional(at).ok_or(Errno::EINVAL)?.read()?;
    let policy = policy as u32;
    let resets_on_fork = policy & SCHED_RESET_ON_FORK != 0;
    let class = Class { policy: policy & !SCHED_RESET_ON_FORK, priority, resets_on_fork, times: [0; 3] };
    set_class(&*thread(tid)?, class, None)
}

fn getparam(frame: &mut Frame) -> Answer {
    let [tid, out, ..] = frame.args();
    let out = UserPtr::<u32>::optional(out).ok_or(Errno::EINVAL)?;
    let class = *thread(tid)?.class.lock();
    out.write(&class.priority).map(|()| 0)
}

fn setparam(frame: &mut Frame) -> Answer {
    let [tid, at, ..] = frame.args();
    let priority = UserPtr::<u32>::optional(at).ok_or(Errno::EINVAL)?.read()?;
    let thread = thread(tid)?;
    let class = *thread.class.lock();
    set_class(&thread, Class { priority, ..class }, None)
}

/// Both or nothing: `nice` is what the process of a thread that is not of real time gets, plus 20.
fn set_class(thread: &Thread, class: Class, nice: Option<u32>) -> Answer {
    check_class(thread, class, nice)?;
    *thread.class.lock() = class;
    if let Some(nice) = nice.filter(|_| !class.is_real_time()) {
        thread.process().nice.store(nice, Relaxed);
    }
    Ok(0)
}

/// # Errors
///
/// EINVAL; EPERM: the thread is another user's, or it or its children would come first without CAP_SYS_NICE.
fn check_class(thread: &Thread, class: Class, nice: Option<u32>) -> Result<(), Errno> {
    class.check()?;
    let before = *thread.class.lock();
    let is_first = match class.policy {
        SCHED_DEADLINE => true,
        SCHED_FIFO | SCHED_RR => class.policy != before.policy || class.priority > before.priority,
        _ => nice.is_some_and(|nice| nice < thread.process().nice.load(Relaxed)),
    };
    let is_idle_no_more = before.policy == SCHED_IDLE && class.policy != SCHED_IDLE;
    let children_are = before.resets_on_fork && !class.resets_on_fork;
    if (is_first || is_idle_no_more || children_are) && !may_be_nicer() {
        return Err(Errno::EPERM);
    }
    check_owner(thread.process())
}

/// Bytes of `struct sched_attr`: at least, and as it is known here.
const LEAST_ATTRIBUTES: u32 = 48;
const ATTRIBUTES: usize = 56;
const KEEP_POLICY: u64 = 8;
const KEEP_PARAMS: u64 = 0x10;
/// Bounds of utilisation, which only the larger structure has.
const BOUNDS: u64 = 0x60;
const ATTRIBUTE_FLAGS: u64 = 0x7f;

fn getattr(frame: &mut Frame) -> Answer {
    let [tid, out, bytes, flags, ..] = frame.args();
    let bytes = bytes as u32;
    if out == 0 || flags as u32 != 0 || !(LEAST_ATTRIBUTES..=PAGE_SIZE as u32).contains(&bytes) {
        return Err(Errno::EINVAL);
    }
    let thread = thread(tid)?;
    let class = *thread.class.lock();
    let nice = if class.is_real_time() { 0 } else { thread.process().nice.load(Relaxed).wrapping_sub(20) };
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let kept = bytes.min(ATTRIBUTES as u32);
    let [run, deadline, period] = class.times;
    let first = [pair(kept, class.policy), class.resets_on_fork.into(), pair(nice, class.priority)];
    let words = [first[0], first[1], first[2], run, deadline, period, 0];
    user::copy_out(out, &words.map(u64::to_ne_bytes).concat()[..kept as usize]).map(|()| 0)
}

fn setattr(frame: &mut Frame) -> Answer {
    let [tid, at, flags, ..] = frame.args();
    if at == 0 || flags as u32 != 0 || (tid as i32) < 0 {
        return Err(Errno::EINVAL);
    }
    let (words, bytes) = read_attributes(at)?;
    let word = |n: usize| u32::from_ne_bytes(words[4 * n..4 * n + 4].try_into().expect("four bytes"));
    let long = |n: usize| u64::from_ne_bytes(words[8 * n..8 * n + 8].try_into().expect("eight bytes"));
    let flags = long(1);
    if flags & BOUNDS != 0 && bytes < ATTRIBUTES || (word(1) as i32) < 0 {
        return Err(Errno::EINVAL);
    }
    let thread = thread(tid)?;
    if flags & !ATTRIBUTE_FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    let before = *thread.class.lock();
    let keeps_policy = flags & KEEP_POLICY != 0;
    let policy = if keeps_policy { before.policy } else { word(1) };
    let resets_on_fork = if keeps_policy { before.resets_on_fork } else { flags & 1 != 0 };
    if flags & KEEP_PARAMS != 0 {
        // As on Linux: the policy is looked at, and stays.
        check_class(&thread, Class { policy, resets_on_fork, ..before }, None)?;
        thread.class.lock().resets_on_fork = resets_on_fork;
        return Ok(0);
    }
    let times = if policy == SCHED_DEADLINE { [long(3), long(4), long(5)] } else { [0; 3] };
    set_class(&thread, Class { policy, priority: word(5), resets_on_fork, times }, Some(from_zero(word(4))))
}

/// A `struct sched_attr`, as far as it is known here, and how many bytes the program has of it.
///
/// # Errors
///
/// E2BIG: it says what is not known; the size that is known is written there.
fn read_attributes(at: u64) -> Result<([u8; ATTRIBUTES], usize), Errno> {
    let too_big = || UserPtr::<u32>::new(at).write(&(ATTRIBUTES as u32)).and(Err(errno::E2BIG));
    let bytes = match UserPtr::<u32>::new(at).read()? {
        0 => LEAST_ATTRIBUTES,
        bytes @ LEAST_ATTRIBUTES..=0x1000 => bytes,
        _ => return too_big(),
    } as usize;
    let mut words = [0; ATTRIBUTES];
    for n in ATTRIBUTES..bytes {
        if UserPtr::<u8>::new(at).add(n as u64).read()? != 0 {
            return too_big();
        }
    }
    user::copy_in(at, &mut words[..ATTRIBUTES.min(bytes)])?;
    Ok((words, bytes))
}

/// A nice value within its bounds, plus 20.
fn from_zero(nice: u32) -> u32 {
    ((nice as i32).clamp(-20, 19) + 20) as u32
}

fn priority(policy: u64, real_time: u64) -> Answer {
    match policy as u32 {
        SCHED_FIFO | SCHED_RR => Ok(real_time),
        SCHED_NORMAL | SCHED_BATCH | SCHED_IDLE | SCHED_DEADLINE => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}

fn rr_get_interval(frame: &mut Frame) -> Answer {
    let [tid, out, ..] = frame.args();
    let class = *thread(tid)?.class.lock();
    let ns = match class.policy {
        SCHED_FIFO | SCHED_DEADLINE => 0,
        SCHED_RR => settings::kept("kernel/sched_rr_timeslice_ms").saturating_mul(1_000_000),
        _ => scheduler::SLICE_NS,
    };
    UserPtr::<[u64; 2]>::new(out).write(&[ns / 1_000_000_000, ns % 1_000_000_000])?;
    Ok(0)
}

/// EPERM: the process is another user's.
fn check_owner(process: &Process) -> Result<(), Errno> {
    let (own, other) = process::ids_beside(process);
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
    // As on Linux: all of them are tried, and the last failure is told.
    let mut answer = Ok(0);
    for process in meant(which, who)? {
        let set = check_owner(&process).and_then(|()| set_nice(&process, nice as u32));
        answer = set.map_or_else(Err, |()| answer);
    }
    answer
}

/// EACCES: less than it is, for one who may not.
fn set_nice(process: &Process, nice: u32) -> Result<(), Errno> {
    let nice = from_zero(nice);
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

fn restartable(frame: &mut Frame) -> Answer {
    let [at, bytes, flags, signature, ..] = frame.args();
    let area = rseq::Area { at, bytes: bytes as u32, signature: signature as u32 };
    match flags as u32 {
        0 => rseq::register(area)?,
        rseq::UNREGISTER => rseq::unregister(area)?,
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}
