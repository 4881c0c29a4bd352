//! Delivery of a thread's signals on the way back to its program: takes the next signal, lets the tracer
//! decide, and stops or ends the thread, or makes its frame begin in a handler. This code runs only on the
//! thread itself: `thread.rs` calls [`deliver`](deliver()) if the thread's work has a bit for signals or for
//! the mask of a call. `frame.rs` writes the handler's frame, and `restart.rs` decides about the interrupted
//! call. The lock of the process's signals is held only while the next signal is chosen. The programs
//! `signals.c` and `jobs.c` of the tests check delivery.

use crate::arch::{frame::Frame, report::say};
use crate::options;
use crate::process::signal::{
    ALWAYS, Action, DEFAULT, IGNORE, Info, Set, bit, force, force_default, frame, job, refresh, restart,
};
use crate::process::{dump, exit, ring, status::Status, trace};
use crate::sched::{Thread, current, work};
use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use linux_raw_sys::general::*;

/// The next step of delivery.
enum Next {
    /// No signal is left.
    Nothing,
    /// The process is stopped by this signal (job control).
    Stop(u32),
    /// The thread stops so that its tracer decides about the signal.
    Trap(Info),
    /// The signal ends the process.
    End(Info),
    /// The program continues in its handler.
    Handle(Info, Action),
}

/// Delivers all signals: stops or ends the thread, or makes `frame` begin in a handler. For several signals
/// with handlers, the frames nest: the handler of the last signal runs first.
#[cold]
pub fn deliver(frame: &mut Frame) {
    let here = current();
    let mut call = restart::interrupted(frame);
    // A mask that was set for a call ends with the call, unless a signal interrupted the call.
    if call.is_none() {
        restore_mask(here);
    }
    stopped(frame, &mut call, trace::stop_if_interrupted);
    let mut given = None;
    loop {
        match next(here, given.take()) {
            // The tracer may have interrupted the thread while it was stopped.
            Next::Nothing if stopped(frame, &mut call, trace::stop_if_interrupted) => {}
            Next::Nothing => break,
            Next::Trap(info) => {
                given = trapped(frame, info, &mut call);
            }
            Next::Stop(signal) if here.trace.is_traced() => {
                // The stop of the process ends when the tracer lets a thread continue. Only PTRACE_LISTEN
                // needs the stop while the thread is stopped.
                if !here.trace.is_seized() {
                    job::leave_to_tracer(here.process());
                }
                stopped(frame, &mut call, |frame| trace::stop_with_process(frame, signal));
                job::leave_to_tracer(here.process());
            }
            Next::Stop(_) => job::stop_here(),
            Next::End(info) => {
                let signal = info.signal;
                if options::is_verbose() {
                    let pid = here.process().pid;
                    say!("process {pid}: signal {signal} ends it at {:#x}", frame.rip);
                }
                dump::dump(frame, &info);
                exit::exit_group(Status::by_signal(signal as u8))
            }
            Next::Handle(info, action) => {
                restart::before_handler(frame, call.take(), &action);
                handle(here, frame, &info, &action);
            }
        }
        if here.is_killed() {
            exit::exit_thread();
        }
    }
    restart::without_handler(frame, call);
    restore_mask(here);
}

/// Restores the mask that [`set_blocked_for_call`](crate::process::signal::set_blocked_for_call) replaced.
fn restore_mask(here: &Thread) {
    here.work.fetch_and(!work::MASK, AcqRel);
    if let Some(mask) = here.saved_mask.take() {
        crate::process::signal::set_blocked(mask);
    }
}

/// Calls `stop`, in which the thread may stop for its tracer. If the tracer changes the program's rip or rax,
/// an interrupted call does not restart.
fn stopped<R>(frame: &mut Frame, call: &mut Option<u32>, stop: impl FnOnce(&mut Frame) -> R) -> R {
    let before = (frame.rip, frame.rax);
    let result = stop(frame);
    if (frame.rip, frame.rax) != before {
        *call = None;
    }
    result
}

/// Stops so that the tracer decides about a signal. Returns the signal with which the thread continues.
fn trapped(frame: &mut Frame, info: Info, call: &mut Option<u32>) -> Option<Info> {
    match stopped(frame, call, |frame| trace::stop(frame, info.signal, Some(info))) {
        0 => None,
        signal if signal == info.signal => Some(info),
        signal => Some(Info::from_here(signal, 0)),
    }
}

/// Takes the next signal and returns the step that it requires. `given` is a signal that the tracer has let
/// through.
fn next(here: &Thread, mut given: Option<Info>) -> Next {
    let process = here.process();
    let mut signals = process.signals.lock();
    loop {
        if let Some(signal) = signals.job.signal() {
            return Next::Stop(signal);
        }
        let wanted = !here.blocked();
        let is_given = given.is_some();
        let own = given.take().or_else(|| here.pending.lock().take(wanted));
        let Some(mut info) = own.or_else(|| signals.pending.take(wanted)) else {
            refresh(here, &signals);
            return Next::Nothing;
        };
        if !is_given {
            ring::tell(process, &mut info);
        }
        let signal = info.signal;
        if here.trace.is_traced() && !is_given && signal != SIGKILL {
            return Next::Trap(info);
        }
        let actions = process.actions();
        let mut actions = actions.lock();
        let action = actions[signal as usize];
        match action.handler {
            _ if action.ignores(signal) => {}
            DEFAULT if bit(signal) & crate::process::signal::STOPS != 0 => {
                drop(actions);
                job::begin(process, &mut signals, signal);
                return Next::Stop(signal);
            }
            DEFAULT | IGNORE => return Next::End(info),
            _ => {
                if action.has(SA_RESETHAND) {
                    actions[signal as usize].handler = DEFAULT;
                }
                return Next::Handle(info, action);
            }
        }
    }
}

/// Makes the frame begin in the handler, and blocks the signals that the action names until the handler
/// returns.
fn handle(here: &Thread, frame: &mut Frame, info: &Info, action: &Action) {
    let before = here.saved_mask.take().unwrap_or_else(|| here.blocked());
    here.work.fetch_and(!work::MASK, AcqRel);
    let begun = frame::push(frame, info, action, before);
    if begun.is_err() {
        // There is no stack for the handler, or no address for its return.
        return match info.signal {
            SIGSEGV => force_default(Info::kernel(SIGSEGV)),
            _ => force(Info::kernel(SIGSEGV)),
        };
    }
    crate::process::signal::set_blocked(here.blocked() | blocked_by(info.signal, action));
}

/// Returns the signals that are blocked while the handler of `signal` runs.
fn blocked_by(signal: u32, action: &Action) -> Set {
    let own = if action.has(SA_NODEFER) { 0 } else { bit(signal) };
    (action.mask | own) & !ALWAYS
}

impl Thread {
    /// Returns the signals that the thread blocks. Only the thread itself changes them, under the lock of its
    /// process's signals. Other threads may see an old mask unless they hold that lock.
    pub fn blocked(&self) -> Set {
        self.blocked.load(Relaxed)
    }
}
