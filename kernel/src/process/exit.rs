//! The end of threads and processes: the order in which an ending thread releases what it has, and the
//! notification of the parent.
//!
//! [`FAMILY`](process::FAMILY) is held while children get another parent and while a status becomes visible
//! to the parent. Files and memory are freed without a lock. `process/reap.rs` has the parent's side.
//!
//! A thread ends only in [`exit_thread`], on its own kernel stack: a fatal signal or exit_group only sets the
//! bit `work::KILL` of the other threads. An ended process is a zombie until its parent waits for it. A
//! zombie keeps its status and its counters, but no memory and no files. The ending threads release memory
//! and files, because the last reference to a process may be dropped in an interrupt.
//!
//! Code that releases a further resource belongs in [`exit_thread`] or `become_zombie`, and not in a `Drop`
//! of `Thread` or `Process`. The programs `processes.c`, `jobs.c` and `corners.c` of the tests check ends,
//! heirs and statuses.

use crate::arch::{halt, preempt::preempt_point, report::say};
use crate::platform::user::UserPtr;
use crate::process::futex::{self, Word};
use crate::process::signal::{self, IGNORE, Info, job};
use crate::process::{
    self, Process, dump, names::short_name, observer::observer, segments, semaphores, status::Status, trace,
};
use crate::sched::wait::{self, Sleep, Woken};
use crate::sched::{Thread, current, scheduler, work};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use freehold::error::Errno;
use linux_raw_sys::general::{SA_NOCLDWAIT, SIGCHLD, SIGKILL};

/// Ends the process of the calling thread with all its threads.
pub fn exit_group(status: Status) -> ! {
    current().process().end(status);
    exit_thread()
}

/// Ends the process of the calling thread because memory is used up. Reports the end once.
pub fn out_of_memory() -> ! {
    let process = current().process();
    if process.ending.lock().is_none() {
        let name = short_name(process);
        say!("process {} ({}): killed, memory is used up", process.pid, name.escape_ascii());
    }
    exit_group(Status::by_signal(SIGKILL as u8))
}

/// Ends all other threads of the calling process, for exec, and waits until they are no longer in the list of
/// threads.
///
/// # Errors
///
/// EINTR if the calling thread is killed.
pub fn end_others() -> Result<(), Errno> {
    let here = current();
    let process = here.process();
    let is_alone = || {
        let threads = process.threads.lock();
        let others = threads.iter().filter(|thread| thread.tid() != here.tid());
        others.inspect(|thread| thread.give_work(work::KILL)).count() == 0
    };
    loop {
        let waiting = wait::enqueue(process.thread_key(), u32::MAX);
        if is_alone() {
            waiting.cancel();
            return Ok(());
        }
        if waiting.sleep(Sleep::Killable, u64::MAX) == Woken::Signal {
            return Err(Errno::EINTR);
        }
    }
}

/// Ends the calling thread, which has to end.
pub fn exit_thread() -> ! {
    exit_thread_with(Status::by_exit(0))
}

/// Ends the calling thread. `status` is its status, unless the whole process ends. The last thread of a process
/// ends the process.
pub fn exit_thread_with(status: Status) -> ! {
    let here = current();
    dump::hold(here);
    let status = || here.process().ending.lock().unwrap_or(status);
    trace::stop_before_end(here, status());
    trace::tracee_ends(here, status());
    futex::release_robust(here);
    clear_tid(here);
    here.files.close_all();
    here.leave_place();
    let last = {
        let process = here.process();
        let mut threads = process.threads.lock();
        let gone =
            threads.iter().position(|thread| thread.tid() == here.tid()).map(|at| threads.swap_remove(at));
        let last = threads.is_empty();
        drop(threads);
        leave_signals(process, here);
        drop(gone);
        wait::wake(process.thread_key(), usize::MAX);
        last
    };
    if last {
        trace::tracer_ends(here.process());
        let timers = core::mem::take(&mut *here.process().timers.lock());
        timers.disarm();
        let space = here.process().space.lock().take();
        if let Some(space) = space {
            here.process().usage.program_ends(&space);
        }
        wait::wake(here.process().vfork_key(), usize::MAX);
    }
    (observer().exit)(last);
    // Drops the thread's reference to the address space. The last thread's reference frees the memory.
    (observer().leave)(here.set_space(None));
    // Acquire and release: the thread that ends the process sees everything that the other threads did.
    if here.process().unended.fetch_sub(1, AcqRel) == 1 {
        become_zombie(here.process());
    }
    end()
}

/// Adds the thread's counters to those of its process. Passes to other threads the pending signals of the
/// process that this thread would have taken.
fn leave_signals(process: &Process, here: &Thread) {
    scheduler::count_turn();
    process.usage.thread_ends(here);
    let signals = process.signals.lock();
    let pending = signals.pending.set & !here.blocked();
    if pending != 0 {
        signal::pass_on(process, here, pending);
    }
}

/// Stores 0 at the address in `clear_tid`, and wakes the thread that waits there for the end of `thread`.
fn clear_tid(thread: &Thread) {
    let at = thread.clear_tid.get();
    if at != 0 && UserPtr::<u32>::new(at).write(&0).is_ok() {
        Word { at, private: false }.wake(1, u32::MAX);
    }
}

/// Leaves the calling thread's stack for ever. The stack is freed with the last reference to the thread.
fn end() -> ! {
    scheduler::block();
    unreachable!("a thread that has ended continues to run")
}

/// Frees everything of the process except its status and its counters, which its parent may still read. The
/// end of process 1 ends the machine.
fn become_zombie(process: &Arc<Process>) {
    let status = process.ending.lock().unwrap_or(Status::by_exit(0));
    if process.pid == 1 {
        halt::exit(status.code());
    }
    tell_children(process);
    give_children_away(process);
    segments::forget();
    semaphores::undo(process);
    // The last reference to a process may be dropped in an interrupt, where no file may be freed.
    let exe = process.exe.lock().take();
    drop(exe);
    // What is left belongs to files that other processes have.
    process.account.end();
    tell(process, status);
}

/// Sends the children of a process the signals that they have requested for the end of their parent
/// (PR_SET_PDEATHSIG). The number of children is unlimited, so each child is found on its own.
fn tell_children(process: &Process) {
    let mut from = 0;
    let mut next = || {
        let children = process.children.lock();
        let (pid, child) = children.range(from..).next()?;
        from = pid + 1;
        Some(child.clone())
    };
    while let Some(child) = next() {
        preempt_point();
        let signal = child.parent_signal.load(Relaxed);
        if signal != 0 {
            signal::send(&child, None, Info::from_here(signal, 0));
        }
    }
}

/// Hands the children of a process to its heir.
fn give_children_away(process: &Process) {
    let family = process::FAMILY.lock();
    process.is_childless.store(true, Relaxed);
    let Some(heir) = process::heir_of(process) else { return };
    let mut orphans = core::mem::take(&mut *process.children.lock());
    let mut ended = BTreeMap::new();
    for (pid, orphan) in &orphans {
        orphan.set_parent(heir.clone());
        orphan.exit_signal.store(SIGCHLD, Relaxed);
        orphan.ended_traced.store(false, Relaxed);
        if orphan.status.lock().is_some() {
            ended.insert(*pid, orphan.clone());
        }
    }
    heir.children.lock().append(&mut orphans);
    drop(family);
    ended.values().for_each(|orphan| tell_parent(&heir, orphan, SIGCHLD));
    wait::wake(heir.child_key(), usize::MAX);
}

/// Makes the status of an ended process visible, and notifies its parent. If the parent ignores the end of
/// its children, removes the process from all lists.
fn tell(process: &Arc<Process>, status: Status) {
    // The lock is held until the status is set. An heir that gets the process later sees the status and is
    // notified.
    let family = process::FAMILY.lock();
    let Some(parent) = process.parent() else {
        *process.status.lock() = Some(status);
        return;
    };
    let signal = process.exit_signal.load(Relaxed);
    let action = parent.action(SIGCHLD);
    let forgets = signal == SIGCHLD && (action.handler == IGNORE || action.has(SA_NOCLDWAIT));
    let mut children = parent.children.lock();
    *process.status.lock() = Some(status);
    if forgets {
        children.remove(&process.pid);
        process::forget(process.pid);
    }
    drop(children);
    drop(family);
    tell_parent(&parent, process, signal);
    wait::wake(parent.child_key(), usize::MAX);
    wait::wake(process.end_key(), usize::MAX);
}

/// Sends the parent the signal for the end of a process.
fn tell_parent(parent: &Arc<Process>, process: &Process, signal: u32) {
    let status = *process.status.lock();
    if let (Some(status), 1..=signal::MAX_SIGNAL) = (status, signal) {
        let (code, value) = status.code_and_value();
        signal::send(parent, None, job::child_info(process, signal, code, value));
    }
}
