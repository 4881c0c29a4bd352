//! The calls for timers that send signals. `process/itimers.rs` has the timers and their locks; this file
//! converts times and structures. The lock of the process's timers is held only while the table is searched
//! or changed. Timers of run time (ITIMER_VIRTUAL, ITIMER_PROF) are accepted and never expire. The programs
//! `signals.c` and `jobs.c` test the calls. A timer with another receiver needs a variant of `Notify`
//! (`process/itimers.rs`).

use crate::arch::{clock, frame::Frame};
use crate::calls::answer::{Answer, Calls};
use crate::calls::time::{SECOND, deadline, duration};
use crate::platform::user::UserPtr;
use crate::process::itimers::{self, Notify, Timer};
use crate::process::{ring::ring, signal::MAX_SIGNAL};
use crate::sched::current;
use alloc::sync::Arc;
use freehold::error::Errno;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[
    (__NR_alarm, alarm),
    (__NR_setitimer, setitimer),
    (__NR_getitimer, getitimer),
    (__NR_timer_create, create),
    (__NR_timer_settime, settime),
    (__NR_timer_gettime, gettime),
    (__NR_timer_getoverrun, getoverrun),
    (__NR_timer_delete, delete),
];

/// Returns ITIMER_REAL of the calling process.
fn real() -> Arc<Timer> {
    let process = current().process();
    process.timers.lock().real(process.pid, ring)
}

fn alarm(frame: &mut Frame) -> Answer {
    let [seconds, ..] = frame.args();
    let timer = real();
    let [left, _] = timer.get();
    let next = match seconds as u32 {
        0 => 0,
        seconds => clock::now_ns() + u64::from(seconds) * SECOND,
    };
    timer.set(next, 0);
    // Rounds like Linux: up from half a second, and never to zero.
    Ok(if left == 0 { 0 } else { ((left + SECOND / 2) / SECOND).max(1) })
}

/// Returns the `struct itimerval` of a timer with this remaining time and interval.
fn itimerval([left, interval]: [u64; 2]) -> [u64; 4] {
    let part = |ns: u64| [ns / SECOND, ns % SECOND / 1000];
    let ([a, b], [c, d]) = (part(interval), part(left));
    // The remaining time of an armed timer is never shown as zero.
    [a, b, c, if left != 0 && c == 0 { d.max(1) } else { d }]
}

fn setitimer(frame: &mut Frame) -> Answer {
    let [which, new, old, ..] = frame.args();
    let which = which as u32;
    if which > ITIMER_PROF {
        return Err(Errno::EINVAL);
    }
    let [a, b, c, d] = UserPtr::<[u64; 4]>::optional(new).map(UserPtr::read).transpose()?.unwrap_or([0; 4]);
    let micros = |seconds: u64, us: u64| match us < 1_000_000 && seconds <= i64::MAX as u64 {
        true => Ok(seconds.saturating_mul(SECOND).saturating_add(us * 1000)),
        false => Err(Errno::EINVAL),
    };
    let (interval, value) = (micros(a, b)?, micros(c, d)?);
    let before = match which {
        ITIMER_REAL => {
            let timer = real();
            let before = timer.get();
            let next = if value == 0 { 0 } else { clock::now_ns().saturating_add(value) };
            timer.set(next, interval);
            before
        }
        // The kernel does not watch the run time of processes, so these timers never expire.
        _ => [0; 2],
    };
    if let Some(old) = UserPtr::<[u64; 4]>::optional(old) {
        old.write(&itimerval(before))?;
    }
    Ok(0)
}

fn getitimer(frame: &mut Frame) -> Answer {
    let [which, out, ..] = frame.args();
    let now = match which as u32 {
        ITIMER_REAL => real().get(),
        ITIMER_VIRTUAL | ITIMER_PROF => [0; 2],
        _ => return Err(Errno::EINVAL),
    };
    UserPtr::<[u64; 4]>::new(out).write(&itimerval(now))?;
    Ok(0)
}

/// Performs timer_create. As on Linux, RLIMIT_SIGPENDING limits the number of timers, because each may have a
/// pending signal.
fn create(frame: &mut Frame) -> Answer {
    let [clock, event, out, ..] = frame.args();
    let clock = clock as u32;
    if !matches!(clock, CLOCK_REALTIME | CLOCK_MONOTONIC | CLOCK_BOOTTIME | CLOCK_TAI) {
        return Err(Errno::EINVAL);
    }
    let event = UserPtr::<[u64; 3]>::optional(event).map(UserPtr::read).transpose()?;
    // `struct sigevent`: value, signal and kind, thread.
    let notify = match event {
        None => None,
        Some([value, kinds, tid]) => {
            let (signal, kind) = (kinds as u32, (kinds >> 32) as u32);
            let valid = (1..=MAX_SIGNAL).contains(&signal);
            Some(match kind {
                SIGEV_NONE => Notify::Nobody,
                SIGEV_SIGNAL | SIGEV_THREAD if valid => Notify::Process(itimers::info(signal, value)),
                SIGEV_THREAD_ID if valid => {
                    let threads = current().process().threads.lock();
                    if !threads.iter().any(|thread| thread.tid() == tid as u32) {
                        return Err(Errno::EINVAL);
                    }
                    Notify::Thread(tid as u32, itimers::info(signal, value))
                }
                _ => return Err(Errno::EINVAL),
            })
        }
    };
    let process = current().process();
    if process.timers.lock().created_timers() as u64 >= process.limits.lock().soft(RLIMIT_SIGPENDING) {
        return Err(Errno::EAGAIN);
    }
    let by_default = |id: u32| Notify::Process(itimers::info(SIGALRM, id.into()));
    let id = process
        .timers
        .lock()
        .create((process.pid, ring), clock, |id| notify.unwrap_or_else(|| by_default(id)))?;
    UserPtr::<u32>::new(out).write(&id).map(|()| 0).inspect_err(|_| {
        // The timer was never armed.
        let gone = process.timers.lock().delete(id);
        drop(gone);
    })
}

/// Returns the timer with this number. Fails with EINVAL if there is none.
fn timer(id: u64) -> Result<Arc<Timer>, Errno> {
    current().process().timers.lock().get(id as u32).ok_or(Errno::EINVAL)
}

/// Returns the `struct itimerspec` of a timer with this remaining time and interval.
fn itimerspec([left, interval]: [u64; 2]) -> [u64; 4] {
    [interval / SECOND, interval % SECOND, left / SECOND, left % SECOND]
}

fn settime(frame: &mut Frame) -> Answer {
    let [id, flags, new, old, ..] = frame.args();
    if new == 0 {
        return Err(Errno::EINVAL);
    }
    let (interval, value) = (duration(new)?, duration(new.wrapping_add(16))?);
    let timer = timer(id)?;
    let before = timer.get();
    let next = match value {
        0 => 0,
        _ if flags as u32 & TIMER_ABSTIME != 0 => deadline(new.wrapping_add(16), timer.clock)?.max(1),
        value => clock::now_ns().saturating_add(value),
    };
    timer.set(next, interval);
    if let Some(old) = UserPtr::<[u64; 4]>::optional(old) {
        old.write(&itimerspec(before))?;
    }
    Ok(0)
}

fn gettime(frame: &mut Frame) -> Answer {
    let [id, out, ..] = frame.args();
    UserPtr::<[u64; 4]>::new(out).write(&itimerspec(timer(id)?.get()))?;
    Ok(0)
}

fn getoverrun(frame: &mut Frame) -> Answer {
    let [id, ..] = frame.args();
    Ok(timer(id)?.told_overrun().into())
}

fn delete(frame: &mut Frame) -> Answer {
    let [id, ..] = frame.args();
    let gone = current().process().timers.lock().delete(id as u32);
    gone.ok_or(Errno::EINVAL)?.set(0, 0);
    Ok(0)
}
