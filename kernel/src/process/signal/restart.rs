//! Calls that a signal has interrupted. An interrupted call answers EINTR. This module then decides whether
//! the program sees EINTR or the call restarts. The decision depends on the class of the call and on the
//! effect of the signal (signal(7)).
//!
//! To restart a call, the frame is set back to the instruction `syscall`. A new call that may sleep needs an
//! entry in [`class`] if it belongs to a class other than [`Class::Restarts`]. A call of the class
//! [`Class::KeepsTime`] gets the end of its timeout from [`deadline_after`], so that a restart does not
//! extend the timeout. If ppoll, select or pselect6 restarts, its whole timeout begins again; on Linux only
//! the remaining time is left. All state belongs to the calling thread, so there is no lock. The programs
//! `signals.c` and `jobs.c` of the tests check restarts.

use crate::arch::{clock, frame::Frame};
use crate::process::signal::Action;
use crate::sched::current;
use freehold::error::Errno;
use linux_raw_sys::general::*;

/// The condition under which a call restarts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    /// Restarts also if a handler without SA_RESTART ran.
    Always,
    /// Restarts if no handler ran, or if the handler has SA_RESTART.
    Restarts,
    /// Restarts if no handler ran.
    WithoutHandler,
    /// Restarts if no handler ran, with the remaining time of its timeout.
    KeepsTime,
    /// Never restarts.
    Never,
}

/// Returns the number of the call from which `frame` returns, if a signal has interrupted it.
pub fn interrupted(frame: &Frame) -> Option<u32> {
    let answer = -i64::from(Errno::EINTR.0) as u64;
    (frame.vector == Frame::SYSTEM_CALL && frame.rax == answer).then_some(frame.error as u32)
}

/// Returns the class of a call. `frame` has its arguments.
#[expect(non_upper_case_globals, reason = "calls have their names from Linux")]
fn class(call: u32, frame: &Frame) -> Class {
    match call {
        __NR_fork | __NR_vfork | __NR_clone | __NR_clone3 => Class::Always,
        __NR_nanosleep | __NR_clock_nanosleep => match call == __NR_clock_nanosleep && frame.rsi & 1 != 0 {
            true => Class::WithoutHandler,
            false => Class::KeepsTime,
        },
        // A wait with a timeout.
        __NR_futex if frame.r10 != 0 && matches!(frame.rsi as u32 & FUTEX_CMD_MASK as u32, FUTEX_WAIT) => {
            Class::KeepsTime
        }
        __NR_futex if frame.r10 != 0 => Class::WithoutHandler,
        __NR_poll => Class::KeepsTime,
        __NR_pause | __NR_rt_sigsuspend | __NR_ppoll | __NR_select | __NR_pselect6 => Class::WithoutHandler,
        __NR_rt_sigtimedwait | __NR_epoll_wait | __NR_epoll_pwait | __NR_epoll_pwait2 | __NR_msgsnd
        | __NR_msgrcv | __NR_semop | __NR_semtimedop | __NR_io_getevents | __NR_close => Class::Never,
        _ => Class::Restarts,
    }
}

/// Called before a handler's frame is written. Makes an interrupted call restart after the handler, if the
/// action and the class of the call allow it.
pub fn before_handler(frame: &mut Frame, call: Option<u32>, action: &Action) {
    current().restart.set(None);
    if let Some(call) = call
        && match class(call, frame) {
            Class::Always => true,
            Class::Restarts => action.has(SA_RESTART),
            _ => false,
        }
    {
        again(frame, call);
    }
}

/// Called if no further handler runs. Makes an interrupted call restart at once, if its class allows it.
pub fn without_handler(frame: &mut Frame, call: Option<u32>) {
    let Some(call) = call else { return };
    match class(call, frame) {
        Class::Never => {}
        Class::Always | Class::Restarts | Class::WithoutHandler => again(frame, call),
        Class::KeepsTime => {
            let here = current();
            here.restart.set(Some((call, here.deadline.get())));
            again(frame, __NR_restart_syscall);
        }
    }
}

/// Makes the call the program's next instruction: sets rip back by the two bytes of `syscall`.
fn again(frame: &mut Frame, call: u32) {
    frame.rip -= 2;
    frame.rax = call.into();
}

/// Returns the end of a timeout that begins now. For a restarted call, returns the original end.
pub fn deadline_after(ns: u64) -> u64 {
    let here = current();
    let deadline = here.resumed.take().unwrap_or_else(|| clock::now_ns().saturating_add(ns));
    here.deadline.set(deadline);
    deadline
}
