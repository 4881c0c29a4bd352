//! Signals: their contents, the pending ones, and the choice of the thread that takes a signal.
//!
//! | file | what |
//! | --- | --- |
//! | [`types`] | [`Info`], [`Action`], [`Pending`] |
//! | here | [`send`] and [`force`] |
//! | [`deliver`] | delivery of a thread's signals on the way back to its program |
//! | [`frame`] | the frame of a signal handler on its stack, and the return from it |
//! | [`restart`] | calls that a signal has interrupted, and whether they restart |
//! | [`job`] | job control, and the notification of parents |
//!
//! Code that sends a signal calls [`send`]; code that handles a fault of the calling thread calls [`force`].
//! The programs `signals.c` and `jobs.c` of the tests check this folder.
//!
//! # Locks
//!
//! [`Process::signals`] guards the pending signals of the process *and of each of its threads*, and changes
//! of the threads' masks. A sender can therefore choose a thread by its mask, and no mask changes before the
//! signal is queued. A thread that holds this lock may take the locks of the actions, of a thread's own
//! pending signals, of the list of threads and of the scheduler's queues. No thread holds the signal locks of
//! two processes.

pub mod deliver;
pub mod frame;
pub mod job;
pub mod restart;
pub mod types;

use crate::process::{Process, status::Status, trace};
use crate::sched::{Thread, current, wait, work};
use alloc::sync::Arc;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use linux_raw_sys::general::*;

pub use types::*;

/// Sends a signal to a process, or to one of its threads. Never sleeps, so an interrupt may send a signal.
/// Returns false if the signal was not added, because it is already pending or the queue is full.
pub fn send(process: &Arc<Process>, thread: Option<&Arc<Thread>>, info: Info) -> bool {
    let signal = info.signal;
    let mut signals = process.signals.lock();
    let mut resumed = false;
    if bit(signal) & STOPS != 0 {
        discard(process, &mut signals, bit(SIGCONT));
    } else if signal == SIGCONT {
        discard(process, &mut signals, STOPS);
        resumed = signals.job.resume();
        // A seized thread reports this before it takes the signal.
        trace::has_continued(process);
    }
    let sent = queue(process, &mut signals, thread, info);
    drop(signals);
    if sent {
        process.signals_sent.fetch_add(1, Relaxed);
        wait::wake(process.signal_key(), usize::MAX);
    }
    if resumed {
        job::has_resumed(process);
    }
    sent
}

/// Queues a signal, unless it is ignored. Chooses the thread that takes the signal from the threads that do
/// not block it. If the signal ends the process, makes all threads end at once. The caller holds the lock of
/// the signals.
fn queue(process: &Arc<Process>, signals: &mut Signals, thread: Option<&Arc<Thread>>, info: Info) -> bool {
    let (signal, action) = (info.signal, process.action(info.signal));
    let threads = process.threads.lock();
    // A process that ignores a signal may still wait for it with rt_sigtimedwait, if it blocks the signal.
    let Some(first) = thread.or(threads.first()) else {
        drop(threads);
        return queue_without_threads(process, signals, info);
    };
    let is_blocked = |thread: &Thread, but: Set| thread.blocked() & !but & bit(signal) != 0;
    // A tracer is notified of every signal.
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
    let most = process.limits.lock().soft(RLIMIT_SIGPENDING);
    let added = match thread {
        Some(thread) => thread.pending.lock().add(info, most, &process.account),
        None => signals.pending.add(info, most, &process.account),
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

/// Queues a signal for a process that has no thread yet or no thread any more. The first thread takes the signal:
/// see `process/clone.rs`.
fn queue_without_threads(process: &Arc<Process>, signals: &mut Signals, info: Info) -> bool {
    if process.status.lock().is_some() || process.action(info.signal).ignores(info.signal) {
        return true;
    }
    if info.signal == SIGKILL {
        process.end(Status::by_signal(SIGKILL as u8));
    }
    let most = process.limits.lock().soft(RLIMIT_SIGPENDING);
    signals.pending.add(info, most, &process.account)
}

/// Returns the set of signals that are pending for the calling thread or its process.
pub fn pending() -> Set {
    let here = current();
    let signals = here.process().signals.lock();
    signals.pending.set | here.pending.lock().set
}

/// Discards the signals in `of` that are pending for the process or its threads.
pub fn discard(process: &Process, signals: &mut Signals, of: Set) {
    signals.pending.discard(of);
    process.threads.lock().iter().for_each(|thread| thread.pending.lock().discard(of));
}

/// Raises a signal that an instruction of the calling thread caused. If the signal is blocked or ignored, it
/// ends the process.
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
    pending.add(info, u64::MAX, &process.account);
    drop(pending);
    here.work.fetch_or(work::SIGNAL, AcqRel);
    drop(signals);
}

/// Raises a signal like [`force`], but removes its handler first, so that the signal ends the process.
pub fn force_default(info: Info) {
    current().process().actions().lock()[info.signal as usize].handler = DEFAULT;
    force(info);
}

/// Replaces the mask of the calling thread. Signals that become blocked are passed on to other threads.
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

/// Sets the bit `work::SIGNAL` of the calling thread if it has a signal to deliver or has to stop; otherwise
/// clears the bit. The caller holds the lock of the signals.
pub fn refresh(here: &Thread, signals: &Signals) {
    let blocked = here.blocked() & !here.awaited.load(Relaxed);
    let ready = (here.pending.lock().set | signals.pending.set) & !blocked;
    match ready != 0 || signals.job.is_stopping() {
        true => here.work.fetch_or(work::SIGNAL, AcqRel),
        false => here.work.fetch_and(!work::SIGNAL, AcqRel),
    };
}

/// Makes threads other than `here` look for these signals of the process, which `here` no longer takes.
pub fn pass_on(process: &Process, here: &Thread, of: Set) {
    for thread in process.threads.lock().iter() {
        if !core::ptr::eq(&raw const **thread, here) && of & !thread.blocked() != 0 {
            thread.give_work(work::SIGNAL);
        }
    }
}

/// Sets the mask of the calling thread for the duration of a call: rt_sigsuspend, ppoll, pselect6 or
/// epoll_pwait. If a signal with a handler ends the call, the mask stays until the handler returns.
pub fn set_blocked_for_call(blocked: Set) {
    let here = current();
    if here.saved_mask.get().is_none() {
        here.saved_mask.set(Some(here.blocked()));
    }
    set_blocked(blocked);
    here.work.fetch_or(work::MASK, AcqRel);
}

/// Sends the calling thread a signal that its own call caused: SIGPIPE, SIGXFSZ.
pub fn to_itself(signal: u32) {
    send(current().process(), Some(&Thread::hold_current()), Info::from_here(signal, 0));
}

impl Info {
    /// Returns the information of a signal that the calling thread sends by kill or tgkill.
    pub fn from_here(signal: u32, code: i32) -> Self {
        let process = current().process();
        let sender = u64::from(process.pid) | u64::from(process.ids.lock().user.real) << 32;
        Info { signal, code, fields: [sender, 0, 0, 0], ..Info::default() }
    }
}
