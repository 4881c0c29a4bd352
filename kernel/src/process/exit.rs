//! The end of threads and processes, and waiting for it.

use crate::arch::halt;
use crate::platform::user::UserPtr;
use crate::process::futex::{self, Word};
use crate::process::signal::{self, IGNORE, Info, job};
use crate::process::{self, Process, dump, observer::observer, status::Status, trace};
use crate::sched::wait::{self, Sleep, Woken};
use crate::sched::{Thread, current, scheduler, work};
use alloc::sync::Arc;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use freehold::error::Errno;
use linux_raw_sys::general::{SA_NOCLDWAIT, SIGCHLD};

/// Ends the process of the calling thread, and so all its threads.
pub fn exit_group(status: Status) -> ! {
    current().process().end(status);
    exit_thread()
}

/// Ends all other threads of the process, as exec does; returns when they have.
///
/// # Errors
///
/// EINTR: the calling thread has to end itself.
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

/// Ends the calling thread. The last of a process ends that.
pub fn exit_thread() -> ! {
    let here = current();
    dump::hold(here);
    trace::tracee_ends(here, here.process().ending.lock().unwrap_or(Status::by_exit(0)));
    futex::release_robust(here);
    clear_tid(here);
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
        here.process().timers.lock().end();
        let space = here.process().space.lock().take();
        if let Some(space) = space {
            here.process().usage.program_ends(&space);
        }
        wait::wake(here.process().vfork_key(), usize::MAX);
        here.process().files.close_all();
    }
    (observer().exit)(last);
    // The process's memory goes here, with the last thread's reference.
    (observer().leave)(here.set_space(None));
    // Release pairs with the acquire of others: all that threads did comes before the process's end.
    if here.process().unended.fetch_sub(1, AcqRel) == 1 {
        become_zombie(here.process());
    }
    end()
}

/// Signals of the process that the thread would have taken are for others now.
fn leave_signals(process: &Process, here: &Thread) {
    scheduler::count_turn();
    process.usage.thread_ends(here);
    let signals = process.signals.lock();
    let pending = signals.pending.set & !here.blocked();
    if pending != 0 {
        signal::pass_on(process, here, pending);
    }
}

/// Tells a thread that waits for this one's end by a futex.
fn clear_tid(thread: &Thread) {
    let at = thread.clear_tid.get();
    if at != 0 && UserPtr::<u32>::new(at).write(&0).is_ok() {
        Word { at, private: false }.wake(1, u32::MAX);
    }
}

/// The stack of the calling thread is left for good. The last reference to the thread frees it.
fn end() -> ! {
    scheduler::block();
    unreachable!("a thread that has ended runs")
}

/// Nothing is left of the process but its status, for its parent.
fn become_zombie(process: &Arc<Process>) {
    let status = process.ending.lock().unwrap_or(Status::by_exit(0));
    if process.pid == 1 {
        halt::exit(status.code());
    }
    for child in process::all() {
        let signal = child.parent_signal.load(Relaxed);
        if signal != 0 && child.parent_pid() == process.pid {
            signal::send(&child, None, Info::from_here(signal, 0));
        }
    }
    give_children_away(process);
    // What ends last may end in an interrupt, where no file may.
    process.leave_place();
    let exe = process.exe.lock().take();
    drop(exe);
    tell(process, status);
}

/// Its children become another's.
fn give_children_away(process: &Process) {
    let family = process::FAMILY.lock();
    process.is_childless.store(true, Relaxed);
    let Some(heir) = process::heir_of(process) else { return };
    let orphans = core::mem::take(&mut *process.children.lock());
    for orphan in &orphans {
        orphan.set_parent(heir.clone());
        orphan.exit_signal.store(SIGCHLD, Relaxed);
    }
    let ended = orphans.iter().filter(|orphan| orphan.status.lock().is_some()).cloned();
    let ended: alloc::vec::Vec<_> = ended.collect();
    heir.children.lock().extend(orphans);
    drop(family);
    ended.iter().for_each(|orphan| tell_parent(orphan, SIGCHLD));
    wait::wake(heir.child_key(), usize::MAX);
}

/// The parent may wait for it from now on, and gets the signal; one that does not care has it forgotten.
fn tell(process: &Arc<Process>, status: Status) {
    // Until the status is there: then an heir is told of it.
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
        children.retain(|child| child.pid != process.pid);
        process::forget(process.pid);
    }
    drop(children);
    drop(family);
    tell_parent(process, signal);
    wait::wake(parent.child_key(), usize::MAX);
    wait::wake(process.end_key(), usize::MAX);
}

fn tell_parent(process: &Process, signal: u32) {
    let parent = process.parent();
    let status = *process.status.lock();
    if let (Some(parent), Some(status), 1..=signal::MOST) = (parent, status, signal) {
        let (code, value) = status.code_and_value();
        signal::send(&parent, None, job::child_info(process, signal, code, value));
    }
}
