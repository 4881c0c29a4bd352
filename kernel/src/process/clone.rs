//! Makes threads and processes, for fork, vfork, clone and clone3. The new thread runs only after it is
//! complete: its process gets a parent under [`FAMILY`](process::FAMILY), the thread is added to its process,
//! and then the thread is queued.
//!
//! `calls/processes.rs` has the calls and decodes their arguments into a [`Request`]. The order of the steps
//! matters, because signals and other processes can find the process as soon as it is in the list of all
//! processes, and the thread as soon as it is added. The programs `processes.c`, `jobs.c` and `threads.c` of the
//! tests check the calls.
//!
//! A signal to a group reaches the caller or the new process, as if the call came after or before the signal.
//! `kill` visits the caller before the new process. If it has visited the caller before the new process is in the
//! list, the caller finds the signal and begins again. Otherwise `kill` finds the new process, and its first
//! thread takes the signal.
//!
//! A field that a new thread copies from its creator is set in `new_thread`. A field that a new process
//! copies is set in `Process::copy` (`process/mod.rs`).

use crate::arch::clock;
use crate::arch::frame::{Frame, UserAddr};
use crate::files::table::Descriptors;
use crate::memory::stacks;
use crate::platform::user::UserPtr;
use crate::process::{self, Process, observer::observer, pidfd, signal::Action, trace};
use crate::sched::{Thread, charge, current, scheduler, work};
use alloc::sync::Arc;
use core::sync::atomic::Ordering::Relaxed;
use freehold::error::Errno;
use linux_raw_sys::general::{
    CAP_SYS_ADMIN, CAP_SYS_RESOURCE, CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID, CLONE_CLEAR_SIGHAND,
    CLONE_FILES, CLONE_FS, CLONE_NEWCGROUP, CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID,
    CLONE_NEWUSER, CLONE_NEWUTS, CLONE_PARENT, CLONE_PARENT_SETTID, CLONE_PIDFD, CLONE_SETTLS, CLONE_SIGHAND,
    CLONE_THREAD, CLONE_UNTRACED, CLONE_VFORK, CLONE_VM, RLIMIT_NPROC,
};

/// The arguments of clone and clone3.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request {
    pub flags: u64,
    /// Address at which to store the descriptor of the new process (CLONE_PIDFD).
    pub pidfd: u64,
    /// Address in the caller's memory at which to store the thread's number (CLONE_PARENT_SETTID).
    pub parent_tid: u64,
    /// Address in the new thread's memory at which to store the thread's number (CLONE_CHILD_SETTID), and to
    /// store 0 when the thread ends (CLONE_CHILD_CLEARTID).
    pub child_tid: u64,
    /// The stack pointer of the new thread, which may be any value; 0 to use the caller's.
    pub stack: u64,
    /// The base of fs (CLONE_SETTLS).
    pub tls: u64,
    /// The signal that the parent gets at the end of a new process; 0 for none.
    pub exit_signal: u32,
}

/// Flags that request new namespaces.
const NAMESPACES: u32 =
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;

impl Request {
    /// Returns true if the flag is set.
    fn has(&self, flag: u32) -> bool {
        self.flags & u64::from(flag) != 0
    }

    /// Returns the fs base of the new thread.
    ///
    /// # Errors
    ///
    /// EPERM if the requested base is beyond the end of a program's addresses.
    fn fs_base(&self) -> Result<UserAddr, Errno> {
        match self.has(CLONE_SETTLS) {
            true => UserAddr::new(self.tls).ok_or(Errno::EPERM),
            false => Ok(current().fs_base.get()),
        }
    }
}

/// Makes a thread in the calling process, or in a new process. Returns the number of the new thread; in the
/// new thread itself, the call returns 0. With CLONE_VFORK, returns only when the child has its own address
/// space or has ended.
///
/// # Errors
///
/// EINVAL, EAGAIN, ENOMEM, EFAULT, EPERM.
pub fn clone(frame: &mut Frame, request: &Request) -> Result<u64, Errno> {
    if request.has(CLONE_THREAD) && !(request.has(CLONE_SIGHAND) && request.has(CLONE_VM)) {
        return Err(Errno::EINVAL);
    }
    if request.has(CLONE_SIGHAND) && (!request.has(CLONE_VM) || request.flags & CLONE_CLEAR_SIGHAND != 0) {
        return Err(Errno::EINVAL);
    }
    // The kernel has only one namespace of each kind.
    if request.has(NAMESPACES) {
        return Err(Errno::EINVAL);
    }
    if request.has(CLONE_PIDFD) && request.has(CLONE_THREAD) {
        return Err(Errno::EINVAL);
    }
    if request.has(CLONE_PIDFD) && request.has(CLONE_PARENT_SETTID) && request.pidfd == request.parent_tid {
        return Err(Errno::EINVAL);
    }
    let here = current();
    // Ended processes count until their parents have waited for them.
    if stacks::all_in_use() || process::count() as u64 >= stacks::most() {
        return Err(Errno::EAGAIN);
    }
    charge::admit()?;
    if !request.has(CLONE_THREAD) {
        room_for_process(here.process())?;
    }
    let fs_base = request.fs_base()?;
    let began = clock::now_ns();
    let tid = process::new_tid();
    let (process, unborn) = match request.has(CLONE_THREAD) {
        true => (here.process().clone(), None),
        false => (new_process(tid, request)?, Some(Unborn(tid))),
    };
    // From here on, a signal to a group reaches the new process itself. One that was sent before is delivered
    // first, and may end the caller; then the call restarts.
    if unborn.is_some() && here.work.load(Relaxed) & (work::KILL | work::SIGNAL) != 0 {
        return Err(Errno::EINTR);
    }
    let space = match request.has(CLONE_VM) {
        true => here.space().clone(),
        false => here.space().fork().map_err(|error| error.errno())?,
    };
    if unborn.is_some() {
        *process.space.lock() = Some(space.clone());
    }
    let descriptors = here.files.fork(request.has(CLONE_FILES))?;
    let thread = new_thread(tid, &process, descriptors, space, frame, request, fs_base);
    let thread = thread.ok_or_else(charge::refused)?;
    // The memory of a killed process may be removed at any time (`victim.rs`).
    if here.is_killed() {
        return Err(Errno::EINTR);
    }
    put_pidfd(&process, request)?;
    core::mem::forget(unborn);
    if request.has(CLONE_PARENT_SETTID) {
        // As on Linux, a failure to write is ignored.
        let _ = UserPtr::<u32>::new(request.parent_tid).write(&tid);
    }
    if request.has(CLONE_CHILD_SETTID) {
        let space = if request.has(CLONE_VM) { here.space().clone() } else { child_space(&process) };
        let _ =
            space.write_memory(request.child_tid, &tid.to_ne_bytes(), freehold::remote::AccessMode::Plain);
    }
    if !request.has(CLONE_THREAD) {
        // The chosen parent may hand its children to an heir at any time. The family lock is therefore held
        // until the child is in the parent's list.
        let _family = process::FAMILY.lock();
        let parent = parent_for(request);
        process.set_parent(parent.clone());
        parent.children.lock().insert(process.pid, process.clone());
    }
    let thread = Arc::new(thread);
    process.add(thread.clone());
    // Signals that were sent before the thread was in the list also apply to this thread.
    if process.signals.lock().pending.set != 0 {
        thread.work.fetch_or(work::SIGNAL, Relaxed);
    }
    if process.ending.lock().is_some() {
        thread.work.fetch_or(work::KILL, Relaxed);
    }
    (observer().task)(tid, process.pid, request.flags, began);
    let event = trace::event_of_clone(request.has(CLONE_VFORK), request.exit_signal);
    let event = event.filter(|_| !request.has(CLONE_UNTRACED));
    if event.is_some() {
        trace::follow(&process, &thread);
    }
    scheduler::enqueue_new(thread);
    if let Some(event) = event {
        trace::stop_at(frame, event, tid);
    }
    if request.has(CLONE_VFORK) {
        wait_for_vfork(&process);
        trace::stop_at(frame, trace::EVENT_VFORK_DONE, tid);
    }
    Ok(tid.into())
}

/// Stores a descriptor of the new process, if CLONE_PIDFD is set.
fn put_pidfd(process: &Arc<Process>, request: &Request) -> Result<(), Errno> {
    if !request.has(CLONE_PIDFD) {
        return Ok(());
    }
    let files = &current().files;
    let number = files.add(pidfd::open(process, 0), 0, true)?;
    let written = UserPtr::<u32>::new(request.pidfd).write(&(number as u32));
    written.inspect_err(|_| {
        let _ = files.close(number);
    })
}

/// Returns the address space of a new process.
fn child_space(process: &Process) -> crate::platform::Space {
    process.space.lock().clone().expect("the process has a space")
}

/// Fails with EAGAIN if the limit on processes is reached (RLIMIT_NPROC).
fn room_for_process(here: &Process) -> Result<(), Errno> {
    let most = here.limits.lock().soft(RLIMIT_NPROC);
    let ids = *here.ids.lock();
    let is_bounded = ids.user.real != 0 && !ids.may(CAP_SYS_RESOURCE) && !ids.may(CAP_SYS_ADMIN);
    if is_bounded && process::count() as u64 >= most { Err(Errno::EAGAIN) } else { Ok(()) }
}

/// Returns the parent of the new process.
fn parent_for(request: &Request) -> Arc<Process> {
    let here = current().process();
    let above = here.parent();
    above.filter(|_| request.has(CLONE_PARENT)).unwrap_or_else(|| here.clone())
}

/// The number of a process that has no thread yet. Dropping it removes the process.
struct Unborn(u32);

impl Drop for Unborn {
    fn drop(&mut self) {
        process::forget(self.0);
    }
}

/// Makes a process without an address space and without threads. The process shares with the caller what the
/// flags request.
///
/// # Errors
///
/// ENOMEM.
fn new_process(pid: u32, request: &Request) -> Result<Arc<Process>, Errno> {
    let here = current().process();
    let process = Process::new(pid, Some(here))?;
    let (mut exit_signal, mut maker) = (request.exit_signal, current().tid());
    if request.has(CLONE_PARENT) {
        (exit_signal, maker) = (here.exit_signal.load(Relaxed), here.maker.load(Relaxed));
    }
    process.exit_signal.store(exit_signal, Relaxed);
    process.maker.store(maker, Relaxed);
    if request.has(CLONE_SIGHAND) {
        process.share_actions(here.actions());
    }
    if request.flags & CLONE_CLEAR_SIGHAND != 0 {
        let actions = process.actions();
        let mut actions = actions.lock();
        *actions = actions.map(Action::without_handler);
    }
    Ok(process)
}

/// Makes the new thread, which continues at the same instruction as the caller. Returns `None` if there is no
/// memory for a stack.
fn new_thread(
    tid: u32,
    process: &Arc<Process>,
    descriptors: Descriptors,
    space: crate::platform::Space,
    frame: &Frame,
    request: &Request,
    fs_base: UserAddr,
) -> Option<Thread> {
    let here = current();
    // Threads are added later, where nothing may fail. Other threads may be added before.
    charge::reserve(&mut process.threads.lock(), 64).ok()?;
    let mut begin = Frame { rax: 0, ..*frame };
    begin.make_whole();
    if here.trace.is_traced() {
        // The flag may be set because a tracer single-steps the caller.
        begin.rflags &= !trace::TRAP_FLAG;
    }
    if request.stack != 0 {
        begin.rsp = request.stack;
    }
    let place = if request.has(CLONE_FS) { here.place() } else { here.place().copy() };
    let vectors = Thread::user_vectors(frame);
    let thread = Thread::of_program(tid, process, descriptors, place, space, &begin, vectors)?;
    here.copy_vector_state_to(&thread);
    thread.fs_base.set(fs_base);
    thread.gs_base.set(here.gs_base.get());
    thread.blocked.store(here.blocked(), Relaxed);
    *thread.comm.lock() = *here.comm.lock();
    if !request.has(CLONE_VM) || request.has(CLONE_VFORK) {
        thread.alternate_stack.set(here.alternate_stack.get());
    }
    thread.affinity.store(here.affinity.load(Relaxed), Relaxed);
    thread.policy.set(here.policy.get());
    if request.has(CLONE_CHILD_CLEARTID) {
        thread.clear_tid.set(request.child_tid);
    }
    Some(thread)
}

/// Sleeps until the child has its own address space or has ended, or until the calling thread is killed.
fn wait_for_vfork(child: &Arc<Process>) {
    let space = current().space().clone();
    let shares = || {
        let other = child.space.lock();
        other.as_ref().is_some_and(|other| freehold::counted::Counted::ptr_eq(other, &space))
    };
    while shares() && !current().is_killed() {
        let waiting = crate::sched::wait::enqueue(child.vfork_key(), u32::MAX);
        if !shares() {
            waiting.cancel();
            return;
        }
        waiting.sleep(crate::sched::wait::Sleep::Killable, u64::MAX);
    }
}
