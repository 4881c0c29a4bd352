//! Job control: stopping and continuing processes, and notifying their parents.
//!
//! A signal that stops a process sets `Job::stop`. Every thread of the process then sleeps on the process's
//! key, and the last of them notifies the parent. SIGCONT ends the stop, even if it is ignored.
//!
//! The lock of the process's signals guards the state ([`Job`](super::types::Job)). This lock is released
//! before the parent is notified, because no thread holds the signal locks of two processes. The parent's
//! wait calls take the report (`process/reap.rs`). Traced threads stop in `process/trace.rs` instead. The
//! program `jobs.c` of the tests checks stops.

use crate::process::signal::{Info, Signals, send};
use crate::process::{Process, signal::types::Report};
use crate::sched::wait::{self, Key, Sleep, Woken};
use crate::sched::{current, work};
use alloc::sync::Arc;
use linux_raw_sys::general::*;

/// Returns the key on which the stopped threads sleep.
fn key(process: &Process) -> Key {
    Key::kernel(&raw const process.signals as u64)
}

/// Starts a stop of the process by this signal. The calling thread must then call [`stop_here`]; the other
/// threads do so when they deliver their signals.
pub(super) fn begin(process: &Process, signals: &mut Signals, signal: u32) {
    let job = &mut signals.job;
    job.stop = Some(signal);
    job.number += 1;
    job.stopped = 0;
    process.threads.lock().iter().for_each(|thread| thread.give_work(work::SIGNAL));
}

/// Sleeps while the process is stopped. Returns earlier if the thread is killed or a tracer attaches to it.
pub(super) fn stop_here() {
    let process = current().process();
    let mut counted = 0;
    loop {
        let mut last = None;
        let waiting = wait::enqueue(key(process), u32::MAX);
        let mut signals = process.signals.lock();
        let Some(signal) = signals.job.stop.filter(|_| !current().trace.is_traced()) else {
            drop(signals);
            waiting.cancel();
            return;
        };
        if signals.job.number != counted {
            counted = signals.job.number;
            signals.job.stopped += 1;
            if signals.job.stopped >= process.threads.lock().len() {
                signals.job.report = Some(Report::Stopped(signal));
                last = Some(signal);
            }
        }
        drop(signals);
        if let Some(signal) = last {
            tell_parent(process, CLD_STOPPED, signal);
        }
        if waiting.sleep(Sleep::Killable, u64::MAX) == Woken::Signal {
            return;
        }
    }
}

/// Wakes the stopped threads of a process, so that a thread with a new tracer stops for this tracer.
pub fn pass_to_tracer(process: &Process) {
    wait::wake(key(process), usize::MAX);
}

/// Ends a stop for a tracer, which stops the threads one by one instead. The parent is not notified. Returns
/// true if the process was stopped.
pub fn leave_to_tracer(process: &Process) -> bool {
    let mut signals = process.signals.lock();
    let was_stopped = signals.job.stop.take().is_some();
    if was_stopped {
        signals.job.report = None;
    }
    drop(signals);
    wait::wake(key(process), usize::MAX);
    was_stopped
}

/// Wakes the threads of a process that continues, and notifies its parent.
pub(super) fn has_resumed(process: &Arc<Process>) {
    wait::wake(key(process), usize::MAX);
    tell_parent(process, CLD_CONTINUED, SIGCONT);
}

/// Sends SIGCHLD to the parent, unless the parent's action has SA_NOCLDSTOP, and wakes the threads of the
/// parent that wait for children.
pub fn tell_parent(process: &Process, code: u32, status: u32) {
    let parent = process.parent();
    let Some(parent) = parent else { return };
    let action = parent.action(SIGCHLD);
    if !action.has(SA_NOCLDSTOP) {
        send(&parent, None, child_info(process, SIGCHLD, code, status));
    }
    wait::wake(parent.child_key(), usize::MAX);
}

/// Returns the `siginfo_t` of a signal about a child: its number, user, status and run time.
pub fn child_info(child: &Process, signal: u32, code: u32, status: u32) -> Info {
    let who = u64::from(child.pid) | u64::from(child.ids.lock().user.real) << 32;
    let ticks = child.ran_ns() / 10_000_000;
    Info { signal, code: code as i32, fields: [who, status.into(), ticks, 0], ..Info::default() }
}
