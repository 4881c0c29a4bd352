//! The calls that make, end and wait for threads and processes, and the calls that return the numbers of
//! threads and processes. They check the arguments; `process/clone.rs`, `process/exec.rs`, `process/exit.rs`
//! and `process/reap.rs` do the work. An exec changes the process in [`become_program`], which cannot fail:
//! everything that may fail happens earlier, on a new address space. [`become_program`] decides what an exec
//! resets and what stays. The programs `processes.c`, `jobs.c` and `canonical.c` test the calls. If an exec
//! resets a new field of a thread or process, add the reset to [`become_program`].

use crate::arch::frame::{Frame, UserAddr};
use crate::arch::{clock, features::VectorState, lock::SpinLock};
use crate::calls::answer::{Answer, Calls};
use crate::calls::files::{self, path};
use crate::calls::{descriptors, memory, pidfds, usage::of_ended};
use crate::files::tree::{self, Kind, Node};
use crate::platform::Space;
use crate::platform::user::{self, UserPtr};
use crate::process::clone::{self, Request};
use crate::process::exec::{self, Loaded, Strings, Texts};
use crate::process::reap::{self, Which};
use crate::process::signal::{self, Action, Info, MAX_SIGNAL, job};
use crate::process::{exit, renew, signal::frame::AlternateStack, status::Status, trace};
use crate::sched::{charge, checkpoint, current, scheduler, wait};
use crate::{errno, record};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use freehold::error::Errno;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[
    (__NR_fork, fork),
    (__NR_vfork, vfork),
    (__NR_clone, clone_call),
    (__NR_clone3, clone3),
    (__NR_unshare, unshare),
    (__NR_execve, execve),
    (__NR_execveat, execveat),
    (__NR_exit, exit_call),
    (__NR_exit_group, exit_group),
    (__NR_wait4, wait4),
    (__NR_waitid, waitid),
    (__NR_getpid, getpid),
    (__NR_gettid, gettid),
    (__NR_getppid, getppid),
    (__NR_set_tid_address, set_tid_address),
    (__NR_arch_prctl, arch_prctl),
];

fn fork(frame: &mut Frame) -> Answer {
    clone::clone(frame, &Request { exit_signal: SIGCHLD, ..Request::default() })
}

fn vfork(frame: &mut Frame) -> Answer {
    let flags = u64::from(CLONE_VM | CLONE_VFORK);
    clone::clone(frame, &Request { flags, exit_signal: SIGCHLD, ..Request::default() })
}

fn clone_call(frame: &mut Frame) -> Answer {
    let [flags, stack, parent_tid, child_tid, tls, _] = frame.args();
    // Only clone3 has flags in the upper half.
    let (flags, exit_signal) = (u64::from(flags as u32 & !CSIGNAL), flags as u32 & CSIGNAL);
    let has = |flag: u32| flags & u64::from(flag) != 0;
    if has(CLONE_PIDFD) && has(CLONE_DETACHED) {
        return Err(Errno::EINVAL);
    }
    clone::clone(frame, &Request { flags, pidfd: parent_tid, parent_tid, child_tid, stack, tls, exit_signal })
}

fn clone3(frame: &mut Frame) -> Answer {
    let [at, bytes, ..] = frame.args();
    let fields: [u64; 11] = user::read_sized(at, bytes, 64)?;
    let [flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_bytes, tls, tids, tid_count, group] =
        fields;
    let has = |flag: u32| flags & u64::from(flag) != 0;
    let into_group = flags & CLONE_INTO_CGROUP != 0;
    if tid_count > MOST_TIDS || (tids == 0) != (tid_count == 0) || exit_signal > MAX_SIGNAL.into() {
        return Err(Errno::EINVAL);
    }
    if into_group && (group > i32::MAX as u64 || bytes < size_of_val(&fields) as u64) {
        return Err(Errno::EINVAL);
    }
    let known = u64::from(u32::MAX) | CLONE_CLEAR_SIGHAND | CLONE_INTO_CGROUP;
    if flags & !known != 0 || has(CLONE_DETACHED | CSIGNAL) || (stack == 0) != (stack_bytes == 0) {
        return Err(Errno::EINVAL);
    }
    if (has(CLONE_THREAD) || has(CLONE_PARENT)) && exit_signal != 0 {
        return Err(Errno::EINVAL);
    }
    if tid_count > 0 {
        return Err(refuse_tids(tids, tid_count));
    }
    if into_group {
        // No descriptor represents a control group.
        return Err(Errno::EBADF);
    }
    user::check(stack, stack_bytes as usize).map_err(|_| Errno::EINVAL)?;
    let stack = stack + stack_bytes;
    let exit_signal = exit_signal as u32;
    clone::clone(frame, &Request { flags, pidfd, parent_tid, child_tid, stack, tls, exit_signal })
}

/// Performs unshare. Gives the calling thread descriptors, and a working directory and a mask of its own. There
/// are no namespaces to leave.
fn unshare(frame: &mut Frame) -> Answer {
    let [flags, ..] = frame.args();
    let has = |flag: u32| flags & u64::from(flag) != 0;
    let alone = CLONE_THREAD | CLONE_SIGHAND | CLONE_VM;
    if flags & !u64::from(alone | CLONE_FILES | CLONE_FS | CLONE_SYSVSEM) != 0 {
        return Err(Errno::EINVAL);
    }
    let (thread, process) = (current(), current().process());
    // The list of threads includes the caller, and the caller has a reference to the actions here.
    let has_threads = process.threads.lock().len() > 1;
    let shares_actions = Arc::strong_count(&process.actions()) > 2;
    if has(alone) && has_threads || has(CLONE_SIGHAND | CLONE_VM) && shares_actions {
        return Err(Errno::EINVAL);
    }
    if has(CLONE_FILES) {
        thread.files.unshare()?;
    }
    if has(CLONE_FS) {
        thread.unshare_place();
    }
    Ok(0)
}

/// Maximum number of namespaces in which a thread has a number.
const MOST_TIDS: u64 = 32;

/// Returns the error for a program that chooses the number of a new thread (`set_tid` of clone3): EPERM, as on
/// Linux for a program without the right to do so. An invalid request has Linux's error. There is one
/// namespace.
fn refuse_tids(at: u64, count: u64) -> Errno {
    match UserPtr::<i32>::new(at).read() {
        Err(error) => error,
        Ok(tid) if tid < 1 || count > 1 => Errno::EINVAL,
        Ok(_) => Errno::EPERM,
    }
}

fn execve(frame: &mut Frame) -> Answer {
    let [at, arguments, environment, ..] = frame.args();
    let path = path(at)?;
    let here = current().place().directory.lock().clone();
    let node = tree::lookup(&here, &path, true)?;
    execute(frame, node, path, arguments, environment)
}

fn execveat(frame: &mut Frame) -> Answer {
    let [descriptor, at, arguments, environment, flags, _] = frame.args();
    let flags = flags as u32;
    if flags & !(AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) != 0 {
        return Err(Errno::EINVAL);
    }
    let path = path(at)?;
    if path.is_empty() && flags & AT_EMPTY_PATH != 0 {
        let node = files::directory(descriptor)?;
        if matches!(node.kind, Kind::Link(_)) {
            return Err(errno::ELOOP);
        }
        let path = format!("/dev/fd/{}", descriptor as i32).into_bytes();
        return execute(frame, node, path, arguments, environment);
    }
    let follows = flags & AT_SYMLINK_NOFOLLOW == 0;
    let node = tree::lookup(&files::start(descriptor, &path)?, &path, follows)?;
    if matches!(node.kind, Kind::Link(_)) {
        return Err(errno::ELOOP);
    }
    execute(frame, node, path, arguments, environment)
}

/// Performs execve and execveat for a node that was found by `path`.
fn execute(frame: &mut Frame, node: Arc<Node>, path: Vec<u8>, arguments: u64, environment: u64) -> Answer {
    let node = exec::begin(node)?;
    let (process, limits) = (current().process(), current().process().limits.lock().clone());
    let room = exec::room_for_strings(limits.soft(RLIMIT_STACK));
    let mut room = room.checked_sub(path.len() + 1).ok_or(errno::E2BIG)?;
    let mut strings = Strings {
        arguments: read_strings(arguments, &mut room)?,
        environment: read_strings(environment, &mut room)?,
    };
    // As on Linux, a program always has a first argument.
    if strings.arguments.0.is_empty() {
        strings.arguments.0.push(Vec::new());
    }
    let here = current().place().directory.lock().clone();
    let node = exec::interpret(node, &path, &here, &mut strings)?;
    let program = exec::open(node, &here)?;
    let mut ids = *process.ids.lock();
    ids.execute();
    let loaded = exec::load(&program, &path, &strings, &limits, &ids);
    // As on Linux, a failure beyond this point kills the calling program.
    let Loaded { space, frame: begin, layout } =
        loaded.inspect_err(|_| signal::force_default(Info::kernel(SIGSEGV)))?;
    exit::end_others()?;
    let unshared = current().files.unshare();
    unshared.inspect_err(|_| signal::force_default(Info::kernel(SIGSEGV)))?;
    let node = program.into_file();
    let name = tree::path_of(&node);
    let before = process.exe.lock().replace(Arc::new(node));
    drop(before);
    let began = clock::now_ns();
    become_program(space, &path, name);
    let before = core::mem::replace(&mut *process.layout.lock(), layout);
    drop(before);
    record::exec(began);
    // A tracer still sees the number of the call.
    *frame = Frame { error: frame.error, ..begin };
    trace::has_executed(frame);
    Ok(0)
}

/// Replaces the program of the calling thread, which is the only thread of its process. Resets what belonged
/// to the old program; everything else stays.
fn become_program(space: Space, path: &[u8], name: Vec<u8>) {
    let thread = current();
    let process = thread.process();
    thread.set_tid(process.pid);
    *thread.comm.lock() = exec::short_name(path);
    *process.name.lock() = name;
    process.usage.program_ends(thread.space());
    let mut place = process.space.lock();
    let before = place.replace(space.clone());
    process.programs.fetch_add(1, Relaxed);
    drop(place);
    drop(before);
    drop(thread.set_space(Some(space)));
    wait::wake(process.vfork_key(), usize::MAX);
    thread.files.close_marked();
    process.is_dumpable.store(1, Relaxed);
    process.barriers.store(0, Relaxed);
    // exec clears this flag; only 32-bit programs keep it.
    process.personality.fetch_and(!memory::READ_IMPLIES_EXEC, Relaxed);
    process.ids.lock().execute();
    renew::renew(process);
    let timers = process.timers.lock().forget();
    timers.disarm();
    // Handlers belonged to the old program.
    let actions = process.actions().lock().map(Action::without_handler);
    process.share_actions(Arc::new(SpinLock::new(actions)));
    // As on Linux, the flags stay.
    thread.alternate_stack.set(AlternateStack { at: 0, bytes: 0, ..thread.alternate_stack.get() });
    thread.clear_tid.set(0);
    thread.robust_list.store(0, Relaxed);
    thread.fs_base.set(UserAddr::ZERO);
    thread.gs_base.set(UserAddr::ZERO);
    scheduler::load_bases(thread);
    VectorState::new().load();
}

/// Reads an array of strings that ends with a null pointer. Subtracts the size of the strings and their
/// pointers from `room`.
fn read_strings(at: u64, room: &mut usize) -> Result<Texts, Errno> {
    let mut strings = Texts::default();
    if at == 0 {
        return Ok(strings);
    }
    loop {
        checkpoint()?;
        let place = UserPtr::<u64>::new(at).add(strings.0.len() as u64).read()?;
        if place == 0 {
            return Ok(strings);
        }
        charge::admit()?;
        charge::reserve(&mut strings.0, 1)?;
        let text = user::read_string(place, exec::MAX_ARGUMENT.min(*room))?.ok_or(errno::E2BIG)?;
        *room = room.checked_sub(text.len() + 9).ok_or(errno::E2BIG)?;
        strings.0.push(text);
    }
}

fn exit_call(frame: &mut Frame) -> Answer {
    let [code, ..] = frame.args();
    let (process, status) = (current().process(), Status::by_exit(code as u8));
    if process.threads.lock().len() == 1 {
        process.ending.lock().get_or_insert(status);
    }
    exit::exit_thread_with(status)
}

fn exit_group(frame: &mut Frame) -> Answer {
    let [code, ..] = frame.args();
    exit::exit_group(Status::by_exit(code as u8))
}

fn wait4(frame: &mut Frame) -> Answer {
    let [pid, status, options, usage, ..] = frame.args();
    let options = options as u32;
    if options & !(WNOHANG | WUNTRACED | WCONTINUED | __WNOTHREAD | __WCLONE | __WALL) != 0 {
        return Err(Errno::EINVAL);
    }
    let which = match pid as i32 {
        i32::MIN => return Err(Errno::ESRCH),
        -1 => Which::Any,
        0 => Which::Group(current().process().group.load(Relaxed)),
        pid @ 1.. => Which::Pid(pid as u32),
        pid => Which::Group(pid.unsigned_abs()),
    };
    let Some(found) = reap::wait_child(which, options | WEXITED)? else { return Ok(0) };
    if let Some(status) = UserPtr::<u32>::optional(status) {
        status.write(&found.event.word())?;
    }
    if let Some(usage) = UserPtr::<[u64; 18]>::optional(usage) {
        usage.write(&of_ended(&found.process))?;
    }
    Ok(found.id.into())
}

fn waitid(frame: &mut Frame) -> Answer {
    let [kind, id, out, options, usage, _] = frame.args();
    let options = options as u32;
    let known = WNOHANG | WNOWAIT | WEXITED | WSTOPPED | WCONTINUED | __WNOTHREAD | __WCLONE | __WALL;
    if options & !known != 0 || options & (WEXITED | WSTOPPED | WCONTINUED) == 0 {
        return Err(Errno::EINVAL);
    }
    let mut nonblock = false;
    let which = match (kind as u32, id as i32) {
        (P_ALL, _) => Which::Any,
        (P_PID, id @ 1..) => Which::Pid(id as u32),
        (P_PIDFD, descriptor @ 0..) => {
            let open = descriptors::file(descriptor as u64)?;
            let pid = pidfds::process_of(&open)?.pid;
            if open.flags.load(Relaxed) & O_NONBLOCK != 0 {
                nonblock = true;
            }
            Which::Pid(pid)
        }
        (P_PGID, 0) => Which::Group(current().process().group.load(Relaxed)),
        (P_PGID, id @ 1..) => Which::Group(id as u32),
        _ => return Err(Errno::EINVAL),
    };
    let found = reap::wait_child(which, if nonblock { options | WNOHANG } else { options })?;
    if found.is_none() && nonblock && options & WNOHANG == 0 {
        return Err(Errno::EAGAIN);
    }
    let info = found.as_ref().map_or(Info::default(), |found| {
        let (code, value) = found.event.code();
        let info = job::child_info(&found.process, SIGCHLD, code, value);
        let [who, rest @ ..] = info.fields;
        let [a, b, c] = rest;
        Info { fields: [who & !0xffff_ffff | u64::from(found.id), a, b, c], ..info }
    });
    if out != 0 {
        // Bytes after these words are left unchanged.
        UserPtr::<[u64; 4]>::new(out).write(&info.words()[..4].try_into().expect("four words"))?;
    }
    if let (Some(found), Some(usage)) = (&found, UserPtr::<[u64; 18]>::optional(usage)) {
        usage.write(&of_ended(&found.process))?;
    }
    Ok(0)
}

fn getpid(_: &mut Frame) -> Answer {
    Ok(current().process().pid.into())
}

fn gettid(_: &mut Frame) -> Answer {
    Ok(current().tid().into())
}

fn getppid(_: &mut Frame) -> Answer {
    Ok(current().process().parent_pid().into())
}

fn set_tid_address(frame: &mut Frame) -> Answer {
    let [at, ..] = frame.args();
    current().clear_tid.set(at);
    gettid(frame)
}

fn arch_prctl(frame: &mut Frame) -> Answer {
    let [what, at, ..] = frame.args();
    let thread = current();
    let base = match what as u32 {
        // CPUID always works and cannot be made to fault.
        ARCH_GET_CPUID => return Ok(1),
        ARCH_SET_CPUID => return Err(errno::ENODEV),
        ARCH_SET_FS | ARCH_GET_FS => &thread.fs_base,
        ARCH_SET_GS | ARCH_GET_GS => &thread.gs_base,
        _ => return Err(Errno::EINVAL),
    };
    if matches!(what as u32, ARCH_GET_FS | ARCH_GET_GS) {
        UserPtr::<u64>::new(at).write(&base.get().get())?;
    } else {
        base.set(UserAddr::new(at).ok_or(Errno::EPERM)?);
        scheduler::load_bases(thread);
    }
    Ok(0)
}

const ARCH_SET_GS: u32 = 0x1001;
const ARCH_SET_FS: u32 = 0x1002;
const ARCH_GET_FS: u32 = 0x1003;
const ARCH_GET_GS: u32 = 0x1004;
const ARCH_GET_CPUID: u32 = 0x1011;
const ARCH_SET_CPUID: u32 = 0x1012;
