//! Time.

use super::{Answer, Calls};
use crate::arch::clock;
use crate::arch::trap::Frame;
use crate::arch::user::UserPtr;
use crate::task::futex;
use freehold::error::Errno;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[
    (__NR_clock_gettime, clock_gettime),
    (__NR_clock_getres, clock_getres),
    (__NR_gettimeofday, gettimeofday),
    (__NR_nanosleep, nanosleep),
    (__NR_clock_nanosleep, clock_nanosleep),
];

const SECOND: u64 = 1_000_000_000;

/// What a clock shows. The machine's start is the year 1970: there is no clock yet that knows more.
fn now(_clock: u32) -> u64 {
    clock::now_ns()
}

/// The time that a `struct timespec` says, in nanoseconds.
///
/// # Errors
///
/// EFAULT, EINVAL.
pub fn duration(at: u64) -> Result<u64, Errno> {
    let [seconds, ns] = UserPtr::<[u64; 2]>::new(at).read()?;
    if ns >= SECOND || seconds > i64::MAX as u64 {
        return Err(Errno::EINVAL);
    }
    Ok(seconds.saturating_mul(SECOND).saturating_add(ns))
}

/// The time that a `struct timespec` says by a clock, in nanoseconds since the start; null: never.
///
/// # Errors
///
/// As [`duration`].
pub fn deadline(at: u64, clock: u32) -> Result<u64, Errno> {
    match at {
        0 => Ok(u64::MAX),
        at => {
            let ahead = duration(at)?.saturating_sub(now(clock));
            Ok(clock::now_ns().saturating_add(ahead))
        }
    }
}

fn clock_gettime(frame: &mut Frame) -> Answer {
    let [clock, out, ..] = frame.args();
    let now = now(clock as u32);
    UserPtr::<[u64; 2]>::new(out).write(&[now / SECOND, now % SECOND])?;
    Ok(0)
}

fn clock_getres(frame: &mut Frame) -> Answer {
    let [_, out, ..] = frame.args();
    if let Some(out) = UserPtr::<[u64; 2]>::optional(out) {
        out.write(&[0, 1])?;
    }
    Ok(0)
}

fn gettimeofday(frame: &mut Frame) -> Answer {
    let [out, ..] = frame.args();
    let now = now(CLOCK_REALTIME);
    UserPtr::<[u64; 2]>::new(out).write(&[now / SECOND, now % SECOND / 1000])?;
    Ok(0)
}

fn nanosleep(frame: &mut Frame) -> Answer {
    let [wanted, ..] = frame.args();
    futex::sleep_until(clock::now_ns().saturating_add(duration(wanted)?)).map(|()| 0)
}

fn clock_nanosleep(frame: &mut Frame) -> Answer {
    let [clock, flags, wanted, ..] = frame.args();
    let end = match flags as u32 & TIMER_ABSTIME {
        0 => clock::now_ns().saturating_add(duration(wanted)?),
        _ => deadline(wanted, clock as u32)?,
    };
    futex::sleep_until(end).map(|()| 0)
}
