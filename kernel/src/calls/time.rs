//! The calls for clocks and sleeping, and the conversions of times that the other files of this folder use.
//! `arch/clock.rs` measures the time.
//!
//! Programs give times in seconds and nanoseconds. The kernel counts nanoseconds in 64 bits. A time that is
//! too long becomes `u64::MAX`, which means never. A sleep gets its end from `restart::deadline_after`, so
//! that a restarted sleep keeps the original end. CPU clocks include the current time slice of the calling
//! thread, but not the current time slices of other threads of its process.
//!
//! A new clock is an arm of [`now`]. The programs `signals.c` and `jobs.c` of the tests check sleeps.

use crate::arch::{clock, frame::Frame};
use crate::calls::answer::{Answer, Calls};
use crate::platform::user::UserPtr;
use crate::process::{futex, signal::restart::deadline_after};
use crate::sched::{current, scheduler};
use core::sync::atomic::Ordering::Relaxed;
use freehold::error::Errno;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[
    (__NR_clock_gettime, clock_gettime),
    (__NR_clock_settime, clock_settime),
    (__NR_clock_getres, clock_getres),
    (__NR_gettimeofday, gettimeofday),
    (__NR_settimeofday, settimeofday),
    (__NR_time, time),
    (__NR_nanosleep, nanosleep),
    (__NR_clock_nanosleep, clock_nanosleep),
];

/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;

/// Returns the time of a clock in nanoseconds.
///
/// # Errors
///
/// EINVAL if there is no such clock.
fn now(clock: u32) -> Result<u64, Errno> {
    match clock {
        CLOCK_REALTIME | CLOCK_REALTIME_COARSE | CLOCK_TAI => Ok(clock::epoch_ns() + clock::now_ns()),
        CLOCK_MONOTONIC | CLOCK_MONOTONIC_RAW | CLOCK_MONOTONIC_COARSE | CLOCK_BOOTTIME => {
            Ok(clock::now_ns())
        }
        CLOCK_PROCESS_CPUTIME_ID => {
            scheduler::count_turn();
            Ok(current().process().ran_ns())
        }
        CLOCK_THREAD_CPUTIME_ID => {
            scheduler::count_turn();
            Ok(current().ran_ns.load(Relaxed))
        }
        _ => Err(Errno::EINVAL),
    }
}

/// Returns the time in nanoseconds at which the timeout in the `struct timespec` at `at` ends. Returns
/// `u64::MAX`, which means never, if `at` is null. The timeout begins now, even in a restarted call.
pub fn after_timeout(at: u64) -> Result<u64, Errno> {
    match at {
        0 => Ok(u64::MAX),
        at => Ok(clock::now_ns().saturating_add(duration(at)?)),
    }
}

/// Returns the duration in a `struct timespec`, in nanoseconds.
///
/// # Errors
///
/// EFAULT if the structure cannot be read, EINVAL if it is invalid.
pub fn duration(at: u64) -> Result<u64, Errno> {
    let [seconds, ns] = UserPtr::<[u64; 2]>::new(at).read()?;
    if ns >= SECOND || seconds > i64::MAX as u64 {
        return Err(Errno::EINVAL);
    }
    Ok(seconds.saturating_mul(SECOND).saturating_add(ns))
}

/// Converts a time of this clock, given in a `struct timespec`, to nanoseconds since the start. Returns
/// `u64::MAX`, which means never, for a null pointer.
///
/// # Errors
///
/// Fails like [`duration`], and with EINVAL if there is no such clock.
pub fn deadline(at: u64, clock: u32) -> Result<u64, Errno> {
    match at {
        0 => Ok(u64::MAX),
        at => {
            let ahead = duration(at)?.saturating_sub(now(clock)?);
            Ok(clock::now_ns().saturating_add(ahead))
        }
    }
}

fn clock_gettime(frame: &mut Frame) -> Answer {
    let [clock, out, ..] = frame.args();
    let now = now(clock as u32)?;
    UserPtr::<[u64; 2]>::new(out).write(&[now / SECOND, now % SECOND])?;
    Ok(0)
}

fn clock_settime(frame: &mut Frame) -> Answer {
    let [clock, at, ..] = frame.args();
    if clock as u32 != CLOCK_REALTIME {
        return Err(Errno::EINVAL);
    }
    let to = duration(at)?;
    clock::set_epoch(to.saturating_sub(clock::now_ns()));
    Ok(0)
}

fn clock_getres(frame: &mut Frame) -> Answer {
    let [clock, out, ..] = frame.args();
    now(clock as u32)?;
    if let Some(out) = UserPtr::<[u64; 2]>::optional(out) {
        out.write(&[0, 1])?;
    }
    Ok(0)
}

fn gettimeofday(frame: &mut Frame) -> Answer {
    let [out, zone, ..] = frame.args();
    let now = now(CLOCK_REALTIME)?;
    if let Some(out) = UserPtr::<[u64; 2]>::optional(out) {
        out.write(&[now / SECOND, now % SECOND / 1000])?;
    }
    if let Some(zone) = UserPtr::<u64>::optional(zone) {
        zone.write(&0)?;
    }
    Ok(0)
}

fn settimeofday(frame: &mut Frame) -> Answer {
    let [at, ..] = frame.args();
    let Some(at) = UserPtr::<[u64; 2]>::optional(at) else { return Ok(0) };
    let [seconds, us] = at.read()?;
    if us >= 1_000_000 {
        return Err(Errno::EINVAL);
    }
    let to = seconds.saturating_mul(SECOND).saturating_add(us * 1000);
    clock::set_epoch(to.saturating_sub(clock::now_ns()));
    Ok(0)
}

fn time(frame: &mut Frame) -> Answer {
    let [out, ..] = frame.args();
    let seconds = now(CLOCK_REALTIME)? / SECOND;
    if let Some(out) = UserPtr::<u64>::optional(out) {
        out.write(&seconds)?;
    }
    Ok(seconds)
}

/// Sleeps for `ns` nanoseconds. If a signal interrupts the sleep and `left` is not null, stores the remaining
/// time at `left`.
fn sleep_for(ns: u64, left: u64) -> Answer {
    let end = deadline_after(ns);
    let result = futex::sleep_until(end);
    if let (Err(_), Some(out)) = (result, UserPtr::<[u64; 2]>::optional(left)) {
        let left = end.saturating_sub(clock::now_ns());
        out.write(&[left / SECOND, left % SECOND])?;
    }
    result.map(|()| 0)
}

fn nanosleep(frame: &mut Frame) -> Answer {
    let [wanted, left, ..] = frame.args();
    sleep_for(duration(wanted)?, left)
}

fn clock_nanosleep(frame: &mut Frame) -> Answer {
    let [clock, flags, wanted, left, ..] = frame.args();
    now(clock as u32)?;
    match flags as u32 & TIMER_ABSTIME {
        0 => sleep_for(duration(wanted)?, left),
        _ => futex::sleep_until(deadline(wanted, clock as u32)?).map(|()| 0),
    }
}
