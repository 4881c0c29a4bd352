//! What goes by the time that a process has run: ITIMER_VIRTUAL, ITIMER_PROF and RLIMIT_CPU. The tick looks,
//! so all are as exact as a turn. All time counts as the program's own, so both timers count the same.

use super::process::Process;
use super::signal::{self, Info};
use crate::arch::lock::SpinLock;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use linux_raw_sys::general::{RLIMIT_CPU, SIGKILL, SIGPROF, SIGVTALRM, SIGXCPU};

const SECOND: u64 = 1_000_000_000;

/// A timer: when it goes off next, by the time that the process has run, 0: never; and its interval.
#[derive(Clone, Copy, Default)]
struct Timer {
    next: u64,
    interval: u64,
}

#[derive(Default)]
pub struct CpuTimes {
    /// Whether the tick has anything to look at (Relaxed: a hint).
    is_used: AtomicBool,
    /// ITIMER_VIRTUAL and ITIMER_PROF.
    timers: SpinLock<[Timer; 2]>,
    /// The next SIGXCPU, as `Timer::next`.
    limit: SpinLock<u64>,
}

/// Timer 0: virtual, 1: prof. Sets it to go off in `value`; returns what was left and its interval.
pub fn set_timer(process: &Process, which: usize, value: u64, interval: u64) -> [u64; 2] {
    let ran = process.ran_ns();
    let before = get_timer(process, which);
    let next = if value == 0 { 0 } else { ran.saturating_add(value) };
    process.cpu_times.timers.lock()[which] = Timer { next, interval };
    process.cpu_times.is_used.store(true, Relaxed);
    before
}

/// What is left, 0 where it does not go off; and the interval.
pub fn get_timer(process: &Process, which: usize) -> [u64; 2] {
    let timer = process.cpu_times.timers.lock()[which];
    match timer.next {
        0 => [0, timer.interval],
        next => [next.saturating_sub(process.ran_ns()).max(1), timer.interval],
    }
}

/// RLIMIT_CPU has changed.
pub fn limit(process: &Process) {
    let soft = process.limits.lock().soft(RLIMIT_CPU);
    *process.cpu_times.limit.lock() = soft.max(1).saturating_mul(SECOND);
    process.cpu_times.is_used.store(true, Relaxed);
}

/// The tick has come to a thread of the process.
#[inline]
pub fn tick(process: &Arc<Process>) {
    if process.cpu_times.is_used.load(Relaxed) {
        look(process);
    }
}

#[cold]
fn look(process: &Arc<Process>) {
    let ran = process.ran_ns();
    for (which, signal) in [(0, SIGVTALRM), (1, SIGPROF)] {
        let mut timers = process.cpu_times.timers.lock();
        let timer = &mut timers[which];
        if timer.next == 0 || timer.next > ran {
            continue;
        }
        timer.next = match timer.interval {
            0 => 0,
            interval => timer.next + ((ran - timer.next) / interval + 1) * interval,
        };
        drop(timers);
        signal::send(process, None, Info::kernel(signal));
    }
    let [soft, hard] = process.limits.lock().get(RLIMIT_CPU.into()).unwrap_or([u64::MAX; 2]);
    let mut next = process.cpu_times.limit.lock();
    if soft == u64::MAX || ran < (*next).max(SECOND) {
        return;
    }
    *next = ran + SECOND;
    drop(next);
    let signal = if ran >= hard.saturating_mul(SECOND) { SIGKILL } else { SIGXCPU };
    signal::send(process, None, Info::kernel(signal));
}
