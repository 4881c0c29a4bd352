//! Waiting for children and tracees, for wait4 and waitid. Each event of a child is reported once: the wait
//! that takes the event removes it. `process/exit.rs`, `process/signal/job.rs` and `process/trace.rs` publish
//! the events.
//!
//! A waiting thread sleeps on `Process::child_key` of its own process. Every event of a child or tracee wakes
//! this key. A wait first looks for a tracee, under the lock of the process's tracees. It releases this lock
//! before it takes the lock of the children. A wait that takes the end of a child also removes the child from
//! the list of processes, and adds the child's counters to the parent's.
//!
//! A new event needs a variant of [`Event`] and its status word. The programs `processes.c`, `jobs.c` and
//! `traced.c` of the tests check the waits.

use crate::errno;
use crate::process::{self, Process, signal::types::Report, status::Status};
use crate::sched::wait::{self, Sleep, Woken};
use crate::sched::{charge, current};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use freehold::error::Errno;
use linux_raw_sys::general::*;

/// The children that a call waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// All children.
    Any,
    /// The child with this number.
    Pid(u32),
    /// The children in this process group.
    Group(u32),
}

/// An event of a child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The child has ended.
    Ended(Status),
    /// The child has stopped by this signal.
    Stopped(u32),
    /// The child has continued.
    Continued,
    /// A tracee has stopped. The value has the signal in its lowest byte and, in the byte above, the event of
    /// ptrace or 0.
    Trapped(u32),
}

/// A child or a tracee, its number, and its event.
pub struct Found {
    pub id: u32,
    pub process: Arc<Process>,
    pub event: Event,
}

impl Event {
    /// Returns the word that `wait4` stores.
    pub fn word(self) -> u32 {
        match self {
            Event::Ended(status) => status.word(),
            Event::Stopped(signal) => signal << 8 | 0x7f,
            Event::Continued => 0xffff,
            Event::Trapped(word) => word << 8 | 0x7f,
        }
    }

    /// Returns `si_code` and `si_status`, as waitid stores them.
    pub fn code(self) -> (u32, u32) {
        match self {
            Event::Ended(status) => status.code_and_value(),
            Event::Stopped(signal) => (CLD_STOPPED, signal),
            Event::Continued => (CLD_CONTINUED, SIGCONT),
            Event::Trapped(word) => (CLD_TRAPPED, word),
        }
    }
}

/// Waits for an event of the selected children, with the `options` of waitid. Returns `None` if there is no
/// event and WNOHANG is set.
///
/// # Errors
///
/// ECHILD if no child is selected; EINTR if a signal interrupts the wait.
pub fn wait_child(which: Which, options: u32) -> Result<Option<Found>, Errno> {
    let process = current().process();
    loop {
        let waiting = wait::enqueue(process.child_key(), u32::MAX);
        let found = take_child(process, which, options);
        if options & WNOHANG != 0 || !matches!(found, Ok(None)) {
            waiting.cancel();
            return found;
        }
        if waiting.sleep(Sleep::Interruptible, u64::MAX) == Woken::Signal {
            return Err(Errno::EINTR);
        }
    }
}

/// The threads whose children belong to the calling thread, for __WNOTHREAD: the thread itself and, for the oldest
/// thread of a process, the threads that have ended.
struct Makers {
    here: u32,
    /// The numbers of all threads in their order, if the calling thread is the oldest one.
    live: Option<Vec<u32>>,
}

impl Makers {
    /// Makes the list for the calling thread, a thread of `process`. Without the list a wait would compare every
    /// child with every thread, and both may be many.
    ///
    /// # Errors
    ///
    /// ENOMEM.
    fn of_caller(process: &Process) -> Result<Self, Errno> {
        let here = current().tid();
        let mut live = Vec::new();
        loop {
            let count = process.threads.lock().len();
            charge::reserve(&mut live, count)?;
            let threads = process.threads.lock();
            if threads.len() <= live.capacity() {
                live.extend(threads.iter().map(|thread| thread.tid()));
                break;
            }
        }
        live.sort_unstable();
        Ok(Makers { here, live: (live.first() == Some(&here)).then_some(live) })
    }

    /// Returns true if the children of this thread belong to the calling thread.
    fn has(&self, maker: u32) -> bool {
        maker == self.here || self.live.as_ref().is_some_and(|live| live.binary_search(&maker).is_err())
    }
}

/// Returns true if a wait includes this child. A child that the process traces is included whatever its signal is.
fn is_meant(child: &Process, which: Which, options: u32, makers: Option<&Makers>) -> bool {
    let by_which = match which {
        Which::Any => true,
        Which::Pid(pid) => child.pid == pid,
        Which::Group(group) => child.group.load(Relaxed) == group,
    };
    let is_clone = child.exit_signal.load(Relaxed) != SIGCHLD;
    let by_signal =
        options & __WALL != 0 || is_clone == (options & __WCLONE != 0) || child.ended_traced.load(Relaxed);
    by_which && by_signal && makers.is_none_or(|makers| makers.has(child.maker.load(Relaxed)))
}

/// Takes an event of the selected tracees. Returns `None` if no tracee is selected, and `Some(None)` if there
/// is no event.
fn take_tracee(process: &Process, which: Which, options: u32) -> Option<Option<Found>> {
    let mut tracees = process.tracees.lock();
    let by_which = |id: u32, of: &Process| match which {
        Which::Any => true,
        Which::Pid(pid) => id == pid,
        Which::Group(group) => of.group.load(Relaxed) == group,
    };
    if let Some(at) = tracees.ended.iter().position(|(id, of, _)| by_which(*id, of))
        && options & WEXITED != 0
    {
        let (id, of, status) = tracees.ended[at].clone();
        if options & WNOWAIT == 0 {
            tracees.ended.swap_remove(at);
        }
        return Some(Some(Found { id, process: of, event: Event::Ended(status) }));
    }
    let mut is_there = false;
    for (of, thread) in &tracees.live {
        if !by_which(thread.tid(), of) {
            continue;
        }
        is_there = true;
        if let Some(word) = thread.trace.take_report(options & WNOWAIT != 0) {
            let event = Event::Trapped(word);
            return Some(Some(Found { id: thread.tid(), process: of.clone(), event }));
        }
    }
    is_there.then_some(None)
}

/// Takes an event of the selected tracees or children. Returns `None` if there is no event. Fails with ECHILD
/// if no tracee and no child is selected, or if all children have ended and the call does not wait for ends;
/// with ENOMEM.
fn take_child(process: &Process, which: Which, options: u32) -> Result<Option<Found>, Errno> {
    let traced = take_tracee(process, which, options);
    if let Some(Some(found)) = traced {
        return Ok(Some(found));
    }
    let makers = if options & __WNOTHREAD != 0 { Some(Makers::of_caller(process)?) } else { None };
    let mut children = process.children.lock();
    let meant = || children.values().filter(|child| is_meant(child, which, options, makers.as_ref()));
    // A child that has ended has no other event.
    let may_have_event = |child: &Process| options & WEXITED != 0 || child.status.lock().is_none();
    if !meant().any(|child| may_have_event(child)) {
        return if traced.is_some() { Ok(None) } else { Err(errno::ECHILD) };
    }
    let Some((child, event)) = meant().find_map(|child| Some((child.clone(), event_of(child, options)?)))
    else {
        return Ok(None);
    };
    if options & WNOWAIT != 0 || !matches!(event, Event::Ended(_)) {
        return Ok(Some(Found { id: child.pid, process: child, event }));
    }
    children.remove(&child.pid);
    drop(children);
    count(process, &child);
    process::forget(child.pid);
    wait::wake(child.end_key(), usize::MAX);
    Ok(Some(Found { id: child.pid, process: child, event }))
}

/// Takes the event of a child, if there is one.
fn event_of(child: &Process, options: u32) -> Option<Event> {
    if let Some(status) = *child.status.lock() {
        return (options & WEXITED != 0).then_some(Event::Ended(status));
    }
    let mut signals = child.signals.lock();
    let event = match signals.job.report? {
        Report::Stopped(signal) if options & WUNTRACED != 0 => Event::Stopped(signal),
        Report::Continued if options & WCONTINUED != 0 => Event::Continued,
        _ => return None,
    };
    if options & WNOWAIT == 0 {
        signals.job.report = None;
    }
    Some(event)
}

/// Adds to the parent's counters for children what a child has used.
fn count(process: &Process, child: &Process) {
    let (usage, of_child) = (&process.usage, &child.usage);
    let ns = child.ran_ns() + of_child.children_ns.load(Relaxed);
    usage.children_ns.fetch_add(ns, Relaxed);
    for (kind, faults) in child.faults().into_iter().enumerate() {
        let all = faults + of_child.children_faults[kind].load(Relaxed);
        usage.children_faults[kind].fetch_add(all, Relaxed);
    }
    let most = of_child.most_pages.load(Relaxed).max(of_child.children_most_pages.load(Relaxed));
    usage.children_most_pages.fetch_max(most, Relaxed);
}
