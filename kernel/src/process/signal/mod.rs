//! Signals: what they carry, what is pending, and which thread gets them.
//!
//! | file | what |
//! | --- | --- |
//! | [`types`] | [`Info`], [`Action`], [`Pending`] |
//! | here | [`send`] and [`force`] |
//! | [`deliver`] | what a thread does about its signals on the way back to its program |
//! | [`frame`] | what a handler finds on its stack, and the way back from it |
//! | [`restart`] | calls that a signal has interrupted, and whether they begin again |
//! | [`job`] | processes that stop and go on, and what parents are told |
//!
//! # Locks
//!
//! [`Process::signals`] guards what is pending for the process *and for each of its threads*, and changes of
//! the threads' masks: so a sender sees a mask and decides in one step. In it the locks of the actions, of a
//! thread's own pending set, of the list of threads and of the scheduler's queues may be taken. No two
//! processes' are held at a time.

pub mod deliver;
pub mod frame;
pub mod job;
pub mod restart;
pub mod types;

use crate::process::{self, Process, status::Status};
use crate::sched::{Thread, current, work};
use alloc::sync::Arc;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use linux_raw_sys::general::*;

pub use types::*;

/// Sends a signal to a process, or to a thread of it. False: it was pending already.
pub fn send(process: &Arc<Process>, thread: Option<&Arc<Thread>>, info: Info) -> bool {
    let signal = info.signal;
    let mut signals = process.signals.lock();
    let mut resumed = false;
    if bit(signal) & STOPS != 0 {
        discard(process, &mut signals, bit(SIGCONT));
    } else if signal == SIGCONT {
        discard(process, &mut signals, STOPS);
        resumed = signals.job.resume();
    }
    let sent = queue(process, &mut signals, thread, info);
    drop(signals);
    if resumed {
        job::has_resumed(process);
    }
    sent
}

fn queue(process: &Arc<Process>, signals: &mut Signals, thread: Option<&Arc<Thread>>, info: Info) -> bool {
    let (signal, action) = (info.signal, process.action(info.signal));
    let threads = process.threads.lock();
    // A sender that ignores what it sends itself may wait for it all the same.
    let Some(first) = thread.or(threads.first()) else { return true };
    let is_blocked = |thread: &Thread, but: Set| thread.blocked() & !but & bit(signal) != 0;
    // A tracer hears of every signal.
    let traced = first.trace.is_traced() && signal != SIGKILL;
    if action.ignores(signal) && !is_blocked(first, 0) && !traced {
        return true;
    }
    let taker = match thread {
        Some(thread) => Some(thread).filter(|thread| !is_blocked(thread, thread.awaited.load(Relaxed))),
        None => threads
            .iter()
            .find(|thread| !is_blocked(thread, thread.awaited.load(Relaxed)) && !thread.is_killed()),
    };
    let added = match thread {
        Some(thread) => thread.pending.lock().add(info),
        None => signals.pending.add(info),
    };
    let Some(taker) = taker.cloned() else { return added };
    drop(threads);
    if signal == SIGKILL || action.ends(signal) && !is_blocked(&taker, 0) && !taker.trace.is_traced() {
        process.end(Status::by_signal(signal as u8));
    } else if added {
        taker.give_work(work::SIGNAL);
    }
    added
}

/// How many signals wait for processes and their threads.
pub fn queued() -> u64 {
    let of = |process: &Arc<Process>| {
        let signals = process.signals.lock();
        let threads = process.threads.lock();
        let own: usize = threads.iter().map(|thread| thread.pending.lock().queue.len()).sum();
        (signals.pending.queue.len() + own) as u64
    };
    process::all().iter().map(of).sum()
}

/// Nothing of these is pending any more, for the process and its threads.
pub fn discard(process: &Process, signals: &mut Signals, of: Set) {
    signals.pending.discard(of);
    process.threads.lock().iter().for_each(|thread| thread.pending.lock().discard(of));
}

/// An instruction of the calling thread deserves this signal, which comes though it is blocked or ignored:
/// then it ends the process.
pub fn force(info: Info) {
    let here = current();
    let process = here.process();
    let signals = process.signals.lock();
    let actions = process.actions();
    let mut actions = actions.lock();
    let action = &mut actions[info.signal as usize];
    if here.blocked() & bit(info.signal) != 0 || action.handler == IGNORE {
        action.handler = DEFAULT;
    }
    drop(actions);
    here.blocked.fetch_and(!bit(info.signal), Relaxed);
    let mut pending = here.pending.lock();
    pending.discard(bit(info.signal));
    pending.add(info);
    drop(pending);
    here.work.fetch_or(work::SIGNAL, AcqRel);
    drop(signals);
}

/// Forces a signal as [`force`] does, and removes its handler: the signal ends the process.
pub fn force_default(info: Info) {
    current().process().actions().lock()[info.signal as usize].handler = DEFAULT;
    force(info);
}

/// The calling thread blocks these signals, and no others, from now on.
pub fn set_blocked(blocked: Set) {
    let here = current();
    let process = here.process();
    let signals = process.signals.lock();
    let newly = blocked & !here.blocked();
    here.blocked.store(blocked & !ALWAYS, Relaxed);
    refresh(here, &signals);
    if signals.pending.set & newly != 0 {
        pass_on(process, here, signals.pending.set & newly);
    }
}

/// Says whether the calling thread has something to do for signals.
pub fn refresh(here: &Thread, signals: &Signals) {
    let blocked = here.blocked() & !here.awaited.load(Relaxed);
    let ready = (here.pending.lock().set | signals.pending.set) & !blocked;
    match ready != 0 || signals.job.is_stopping() {
        true => here.work.fetch_or(work::SIGNAL, AcqRel),
        false => here.work.fetch_and(!work::SIGNAL, AcqRel),
    };
}

/// Other threads than `here`, which does not take these signals of the process any more, come by for them.
pub fn pass_on(process: &Process, here: &Thread, of: Set) {
    for thread in process.threads.lock().iter() {
        if !core::ptr::eq(&raw const **thread, here) && of & !thread.blocked() != 0 {
            thread.give_work(work::SIGNAL);
        }
    }
}

/// The mask of the calling thread is this one until the call that says so is over, or, if a handler comes,
/// until that returns. For rt_sigsuspend, ppoll, pselect6 and epoll_pwait.
pub fn set_blocked_for_call(blocked: Set) {
    let here = current();
    if here.saved_mask.get().is_none() {
        here.saved_mask.set(Some(here.blocked()));
    }
    set_blocked(blocked);
    here.work.fetch_or(work::MASK, AcqRel);
}

/// What the calling thread does deserves this signal: SIGPIPE, SIGXFSZ.
pub fn to_itself(signal: u32) {
    send(current().process(), Some(&Thread::hold_current()), Info::from_here(signal, 0));
}

impl Info {
    /// From the calling thread, by kill or tgkill.
    pub fn from_here(signal: u32, code: i32) -> Self {
        let process = current().process();
        let sender = u64::from(process.pid) | u64::from(process.ids.lock().user.real) << 32;
        Info { signal, code, fields: [sender, 0, 0, 0], ..Info::default() }
    }
}
