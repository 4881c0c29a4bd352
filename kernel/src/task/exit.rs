//! The end of threads and processes, and waiting for it.

use super::futex::{self, Word};
use super::process::{self, Process};
use super::wait::{self, Sleep, Woken};
use super::{Thread, clone, scheduler, work};
use crate::arch::cpu;
use crate::arch::halt;
use crate::arch::user::UserPtr;
use crate::calls::errno;
use crate::files::tree;
use alloc::sync::Arc;
use core::sync::atomic::Ordering::Relaxed;
use freehold::error::Errno;

/// How a process ended, as `wait4` tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status(u32);

impl Status {
    pub fn by_exit(code: u8) -> Self {
        Status(u32::from(code) << 8)
    }

    pub fn by_signal(signal: u8) -> Self {
        Status(signal.into())
    }

    /// The word that `wait4` stores.
    pub fn word(self) -> u32 {
        self.0
    }

    /// As a shell says it in one number.
    fn code(self) -> u8 {
        match self.0 & 0x7f {
            0 => (self.0 >> 8) as u8,
            signal => 128 + signal as u8,
        }
    }
}

/// Ends the process of the calling thread, and so all its threads.
pub fn exit_group(status: Status) -> ! {
    end_process(cpu::current().process(), status);
    exit_thread()
}

/// Every thread of the process ends, as soon as it comes by. Called by `kill`, too.
pub fn end_process(process: &Process, status: Status) {
    process.ending.lock().get_or_insert(status);
    for thread in process.threads.lock().iter() {
        thread.give_work(work::KILL);
    }
}

/// Ends all other threads of the process, as exec does; returns when they have.
///
/// # Errors
///
/// EINTR: the calling thread has to end itself.
pub fn end_others() -> Result<(), Errno> {
    let here = cpu::current();
    let process = here.process();
    let is_alone = || {
        let threads = process.threads.lock();
        let others = threads.iter().filter(|thread| thread.tid != here.tid);
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
    let here = cpu::current();
    futex::release_robust(here);
    clear_tid(here);
    let last = {
        let process = here.process();
        let mut threads = process.threads.lock();
        let gone = threads.iter().position(|thread| thread.tid == here.tid).map(|at| threads.swap_remove(at));
        let last = threads.is_empty();
        drop(threads);
        drop(gone);
        wait::wake(process.thread_key(), usize::MAX);
        last
    };
    if last {
        let space = here.process().space.lock().take();
        drop(space);
        wait::wake(clone::vfork_key(here.process()), usize::MAX);
        here.process().files.close_all();
    }
    // Its memory goes here, with the last thread's reference.
    drop(here.set_space(None));
    if last {
        become_zombie(here.process());
    }
    end()
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
    if let Some(first) = process::first() {
        let orphans = core::mem::take(&mut *process.children.lock());
        for orphan in &orphans {
            *orphan.parent.lock() = Some(first.clone());
        }
        first.children.lock().extend(orphans);
        wait::wake(first.child_key(), usize::MAX);
    }
    // What ends last may end in an interrupt, where no file may.
    *process.directory.lock() = tree::root();
    let exe = process.exe.lock().take();
    drop(exe);
    *process.status.lock() = Some(status);
    let parent = process.parent.lock().clone();
    if let Some(parent) = parent {
        wait::wake(parent.child_key(), usize::MAX);
    }
}

/// Which children `wait_child` waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    Any,
    Pid(u32),
}

/// Waits for a child of the calling process to end, and forgets it. None: with `hang` false, none has.
///
/// # Errors
///
/// ECHILD: there is no such child. EINTR.
pub fn wait_child(which: Which, hang: bool) -> Result<Option<(u32, Status)>, Errno> {
    let process = cpu::current().process();
    loop {
        let waiting = wait::enqueue(process.child_key(), u32::MAX);
        let found = take_child(process, which);
        if !hang || !matches!(found, Ok(None)) {
            waiting.cancel();
            return found;
        }
        if waiting.sleep(Sleep::Interruptible, u64::MAX) == Woken::Signal {
            return Err(Errno::EINTR);
        }
    }
}

fn take_child(process: &Process, which: Which) -> Result<Option<(u32, Status)>, Errno> {
    let mut children = process.children.lock();
    let is_meant = |child: &Arc<Process>| which == Which::Any || which == Which::Pid(child.pid);
    if !children.iter().any(is_meant) {
        return Err(errno::ECHILD);
    }
    let ended = |child: &Arc<Process>| is_meant(child) && child.status.lock().is_some();
    let Some(at) = children.iter().position(ended) else { return Ok(None) };
    let child = children.swap_remove(at);
    drop(children);
    process::forget(child.pid);
    let status = *child.status.lock();
    let _ = child.exit_signal.load(Relaxed);
    Ok(status.map(|status| (child.pid, status)))
}
