//! The signal calls: masks, handlers, sending, waiting. They check the arguments and call `process/signal`,
//! which keeps all state of signals and describes its locks. A sleeping call ends when its thread has a
//! signal to deliver; `signal/deliver.rs` delivers the signal after the call. The programs `signals.c` and
//! `jobs.c` test the calls.

use crate::arch::{clock, frame::Frame, preempt::preempt_point};
use crate::calls::answer::{Answer, Calls};
use crate::calls::time::after_timeout;
use crate::platform::user::UserPtr;
use crate::process::signal::{self, ALWAYS, Action, Info, MAX_SIGNAL, bit};
use crate::process::{self, Process, itimers, ring};
use crate::sched::wait::{self, Key, Sleep};
use crate::sched::{Thread, current};
use alloc::sync::Arc;
use core::sync::atomic::Ordering::Relaxed;
use freehold::error::Errno;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[
    (__NR_rt_sigaction, sigaction),
    (__NR_rt_sigprocmask, sigprocmask),
    (__NR_rt_sigreturn, sigreturn),
    (__NR_rt_sigpending, sigpending),
    (__NR_rt_sigsuspend, sigsuspend),
    (__NR_rt_sigtimedwait, sigtimedwait),
    (__NR_rt_sigqueueinfo, sigqueueinfo),
    (__NR_rt_tgsigqueueinfo, tgsigqueueinfo),
    (__NR_sigaltstack, sigaltstack),
    (__NR_kill, kill),
    (__NR_tkill, tkill),
    (__NR_tgkill, tgkill),
    (__NR_pause, pause),
];

/// Fails with EINVAL if the size of a set of signals is not 8 bytes.
fn check_size(bytes: u64) -> Result<(), Errno> {
    if bytes == 8 { Ok(()) } else { Err(Errno::EINVAL) }
}

fn sigaction(frame: &mut Frame) -> Answer {
    let [number, new, old, bytes, ..] = frame.args();
    check_size(bytes)?;
    let number = u32::try_from(number).ok().filter(|n| (1..=MAX_SIGNAL).contains(n)).ok_or(Errno::EINVAL)?;
    if new != 0 && ALWAYS & bit(number) != 0 {
        return Err(Errno::EINVAL);
    }
    let new = UserPtr::<Action>::optional(new).map(UserPtr::read).transpose()?;
    let process = current().process();
    let mut signals = process.signals.lock();
    let actions = process.actions();
    let mut all = actions.lock();
    let before = all[number as usize];
    if let Some(new) = new {
        all[number as usize] = Action { mask: new.mask & !ALWAYS, ..new };
    }
    drop(all);
    if new.is_some_and(|new| new.ignores(number)) {
        signal::discard(process, &mut signals, bit(number));
    }
    drop(signals);
    if before.ignores(number) && new.is_some_and(|new| !new.ignores(number)) {
        itimers::arm_ignored(&process.timers, number);
    }
    if let Some(old) = UserPtr::<Action>::optional(old) {
        old.write(&before)?;
    }
    Ok(0)
}

fn sigprocmask(frame: &mut Frame) -> Answer {
    let [how, new, old, bytes, ..] = frame.args();
    check_size(bytes)?;
    let before = current().blocked();
    if let Some(new) = UserPtr::<u64>::optional(new) {
        let mask = new.read()?;
        signal::set_blocked(match how as u32 {
            SIG_BLOCK => before | mask,
            SIG_UNBLOCK => before & !mask,
            SIG_SETMASK => mask,
            _ => return Err(Errno::EINVAL),
        });
    }
    if let Some(old) = UserPtr::<u64>::optional(old) {
        old.write(&before)?;
    }
    Ok(0)
}

fn sigreturn(frame: &mut Frame) -> Answer {
    Ok(signal::frame::pop(frame))
}

fn sigpending(frame: &mut Frame) -> Answer {
    let [out, bytes, ..] = frame.args();
    if bytes > 8 {
        return Err(Errno::EINVAL);
    }
    let pending = signal::pending() & current().blocked();
    crate::platform::user::copy_out(out, &pending.to_ne_bytes()[..bytes as usize])?;
    Ok(0)
}

/// Sleeps until a signal arrives or the deadline passes.
fn sleep_for_signal(deadline: u64) {
    let word = 0u32;
    wait::enqueue(Key::kernel(&raw const word as u64), u32::MAX).sleep(Sleep::Interruptible, deadline);
}

fn sigsuspend(frame: &mut Frame) -> Answer {
    let [mask, bytes, ..] = frame.args();
    check_size(bytes)?;
    let mask = UserPtr::<u64>::new(mask).read()?;
    signal::set_blocked_for_call(mask);
    sleep_for_signal(u64::MAX);
    Err(Errno::EINTR)
}

fn pause(_: &mut Frame) -> Answer {
    sleep_for_signal(u64::MAX);
    Err(Errno::EINTR)
}

fn sigtimedwait(frame: &mut Frame) -> Answer {
    let [set, out, timeout, bytes, ..] = frame.args();
    check_size(bytes)?;
    let set = UserPtr::<u64>::new(set).read()? & !ALWAYS;
    let deadline = after_timeout(timeout)?;
    let await_these = |these| {
        let thread = current();
        let signals = thread.process().signals.lock();
        thread.awaited.store(these, Relaxed);
        signal::refresh(thread, &signals);
    };
    let mut found = ring::take(set);
    if found.is_none() && clock::now_ns() < deadline {
        await_these(set);
        sleep_for_signal(deadline);
        await_these(0);
        found = ring::take(set);
    }
    let Some(info) = found else {
        return Err(if clock::now_ns() >= deadline { Errno::EAGAIN } else { Errno::EINTR });
    };
    if let Some(out) = UserPtr::<[u64; 16]>::optional(out) {
        out.write(&info.words())?;
    }
    Ok(info.signal.into())
}

fn sigaltstack(frame: &mut Frame) -> Answer {
    let [new, old, ..] = frame.args();
    let before = current().alternate_stack.get().words(frame.rsp);
    if let Some(new) = UserPtr::<[u64; 3]>::optional(new) {
        let [at, flags, bytes] = new.read()?;
        signal::frame::set_alternate_stack(frame.rsp, at, flags as u32, bytes)?;
    }
    if let Some(old) = UserPtr::<[u64; 3]>::optional(old) {
        old.write(&before)?;
    }
    Ok(0)
}

/// Sends a signal. Signal 0 only checks the target. A call may send a signal to many processes, so this function
/// is a preemption point. It is no checkpoint, because a signal to a group must reach all members even if it ends
/// the sender.
fn send(process: &Arc<Process>, thread: Option<&Arc<Thread>>, info: Info) -> Result<(), Errno> {
    preempt_point();
    // A signal of `kill` (code 0) is sent even if too many signals are pending.
    if info.signal >= signal::REAL_TIME && info.code != 0 {
        let most = process.limits.lock().soft(RLIMIT_SIGPENDING);
        if signal::queued() >= most {
            return Err(Errno::EAGAIN);
        }
    }
    if info.signal != 0 {
        signal::send(process, thread, info);
    }
    Ok(())
}

/// Returns the number of a signal, which may be 0. Fails with EINVAL if there is no such signal.
fn number(signal: u64) -> Result<u32, Errno> {
    let signal = signal as u32;
    if signal <= MAX_SIGNAL { Ok(signal) } else { Err(Errno::EINVAL) }
}

fn kill(frame: &mut Frame) -> Answer {
    let [pid, signal, ..] = frame.args();
    let info = Info::from_here(number(signal)?, 0);
    let here = current().process();
    let group = match pid as i32 {
        pid @ 1.. => {
            send(&process::of_thread(pid as u32).ok_or(Errno::ESRCH)?, None, info)?;
            return Ok(0);
        }
        0 => Some(here.group.load(Relaxed)),
        -1 => None,
        pid => Some(pid.unsigned_abs()),
    };
    let is_meant = |process: &Arc<Process>| match group {
        Some(group) => process.group.load(Relaxed) == group,
        None => process.pid != 1 && process.pid != here.pid,
    };
    let mut answer = Err(Errno::ESRCH);
    for process in process::all_and_new().filter(is_meant) {
        preempt_point();
        match send(&process, None, info) {
            Ok(()) => answer = Ok(0),
            Err(_) => answer = answer.or(Err(Errno::EPERM)),
        }
    }
    answer
}

/// Sends a signal to the thread `tid`. If `pid` is given, the thread must belong to that process. A signal to a
/// first thread that has ended has no effect.
fn send_to_thread(pid: Option<u64>, tid: u64, info: impl FnOnce() -> Result<Info, Errno>) -> Answer {
    let is_number = |id: u64| id as i32 > 0;
    if !is_number(tid) || pid.is_some_and(|pid| !is_number(pid)) {
        return Err(Errno::EINVAL);
    }
    let (process, thread) = process::find_task(tid as u32).ok_or(Errno::ESRCH)?;
    if pid.is_some_and(|pid| process.pid != pid as u32) {
        return Err(Errno::ESRCH);
    }
    let info = info()?;
    if thread.is_some() {
        send(&process, thread.as_ref(), info)?;
    }
    Ok(0)
}

fn tkill(frame: &mut Frame) -> Answer {
    let [tid, signal, ..] = frame.args();
    send_to_thread(None, tid, || Ok(Info::from_here(number(signal)?, SI_TKILL)))
}

fn tgkill(frame: &mut Frame) -> Answer {
    let [pid, tid, signal, ..] = frame.args();
    send_to_thread(Some(pid), tid, || Ok(Info::from_here(number(signal)?, SI_TKILL)))
}

/// Reads the information that a program has composed for a signal to the process `pid`. Fails with EPERM if
/// only the kernel and tkill may use the code. A process may send itself a signal with any code.
fn info(signal: u64, at: u64, pid: u32) -> Result<Info, Errno> {
    let info = Info { signal: number(signal)?, ..Info::read(at)? };
    if (info.code >= 0 || info.code == SI_TKILL) && pid != current().process().pid {
        return Err(Errno::EPERM);
    }
    Ok(info)
}

/// Sends a signal, to one thread if `thread` is given, with the information at `at`. If `at` is null, sends it
/// with the information that kill sends.
pub fn send_with(
    process: &Arc<Process>,
    thread: Option<&Arc<Thread>>,
    signal: u64,
    at: u64,
) -> Result<(), Errno> {
    let sent = match at {
        0 => Info::from_here(number(signal)?, 0),
        _ if Info::read(at)?.signal != signal as u32 => return Err(Errno::EINVAL),
        _ => info(signal, at, process.pid)?,
    };
    send(process, thread, sent)
}

fn sigqueueinfo(frame: &mut Frame) -> Answer {
    let [pid, signal, at, ..] = frame.args();
    let info = info(signal, at, pid as u32)?;
    let process = process::of_thread(pid as u32).ok_or(Errno::ESRCH)?;
    send(&process, None, info).map(|()| 0)
}

fn tgsigqueueinfo(frame: &mut Frame) -> Answer {
    let [pid, tid, signal, at, ..] = frame.args();
    let info = info(signal, at, pid as u32)?;
    send_to_thread(Some(pid), tid, || Ok(info))
}

/// `si_code` of signals that tkill and tgkill send.
const SI_TKILL: i32 = -6;
