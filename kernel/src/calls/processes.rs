//! Threads and processes.

use super::files::path;
use super::{Answer, Calls, errno, nothing};
use crate::arch::cpu::{self, current};
use crate::arch::trap::Frame;
use crate::arch::user::{self, UserPtr};
use crate::files::tree;
use crate::task::clone::{self, Request};
use crate::task::exec::{self, Strings};
use crate::task::exit::{self, Status, Which};
use crate::task::{scheduler, wait};
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use freehold::error::Errno;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[
    (__NR_fork, fork),
    (__NR_vfork, vfork),
    (__NR_clone, clone_call),
    (__NR_clone3, clone3),
    (__NR_execve, execve),
    (__NR_exit, exit_call),
    (__NR_exit_group, exit_group),
    (__NR_wait4, wait4),
    (__NR_getpid, getpid),
    (__NR_gettid, gettid),
    (__NR_getppid, getppid),
    (__NR_getpgrp, getpid),
    (__NR_getpgid, getpid),
    (__NR_getsid, getpid),
    (__NR_setpgid, nothing),
    (__NR_setsid, getpid),
    (__NR_getuid, nothing),
    (__NR_geteuid, nothing),
    (__NR_getgid, nothing),
    (__NR_getegid, nothing),
    (__NR_set_tid_address, set_tid_address),
    (__NR_arch_prctl, arch_prctl),
    (__NR_sched_yield, sched_yield),
    (__NR_sched_getaffinity, sched_getaffinity),
    (__NR_sched_setaffinity, sched_setaffinity),
    (__NR_getcpu, getcpu),
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
    let exit_signal = flags as u32 & CSIGNAL;
    let flags = flags & !u64::from(CSIGNAL);
    clone::clone(frame, &Request { flags, parent_tid, child_tid, stack, tls, exit_signal })
}

fn clone3(frame: &mut Frame) -> Answer {
    let [at, bytes, ..] = frame.args();
    if bytes < 64 {
        return Err(Errno::EINVAL);
    }
    let [flags, _pidfd, child_tid, parent_tid, exit_signal, stack, stack_bytes, tls] =
        UserPtr::<[u64; 8]>::new(at).read()?;
    let stack = stack.wrapping_add(stack_bytes);
    let exit_signal = exit_signal as u32;
    clone::clone(frame, &Request { flags, parent_tid, child_tid, stack, tls, exit_signal })
}

fn execve(frame: &mut Frame) -> Answer {
    let [at, arguments, environment, ..] = frame.args();
    let path = path(at)?;
    let mut room = exec::MOST_ARGUMENTS;
    let strings = Strings {
        arguments: read_strings(arguments, &mut room)?,
        environment: read_strings(environment, &mut room)?,
    };
    let thread = current();
    let process = thread.process();
    let here = process.directory.lock().clone();
    let node = tree::lookup(&here, &path, true)?;
    let (space, begin) = exec::load(&node, &path, &strings)?;
    exit::end_others()?;
    *process.name.lock() = path;
    let before = process.exe.lock().replace(node);
    drop(before);
    *process.space.lock() = Some(space.clone());
    drop(thread.set_space(Some(space)));
    wait::wake(clone::vfork_key(process), usize::MAX);
    process.files.close_marked();
    let caught = |action: &mut [u64; 4]| {
        if action[0] > 1 {
            *action = [0; 4]
        }
    };
    process.actions.lock().iter_mut().for_each(caught);
    thread.clear_tid.set(0);
    thread.robust_list.set((0, 0));
    thread.fs_base.set(0);
    thread.gs_base.set(0);
    scheduler::load_bases(thread);
    *frame = begin;
    Ok(0)
}

/// An array of strings that ends with a null pointer.
fn read_strings(at: u64, room: &mut usize) -> Result<Vec<Vec<u8>>, Errno> {
    let mut strings = Vec::new();
    if at == 0 {
        return Ok(strings);
    }
    loop {
        let place = UserPtr::<u64>::new(at).add(strings.len() as u64).read()?;
        if place == 0 {
            return Ok(strings);
        }
        let text = user::read_string(place, *room)?.ok_or(errno::E2BIG)?;
        *room = room.checked_sub(text.len() + 9).ok_or(errno::E2BIG)?;
        strings.push(text);
    }
}

fn exit_call(frame: &mut Frame) -> Answer {
    let [code, ..] = frame.args();
    let process = current().process();
    if process.threads.lock().len() == 1 {
        process.ending.lock().get_or_insert(Status::by_exit(code as u8));
    }
    exit::exit_thread()
}

fn exit_group(frame: &mut Frame) -> Answer {
    let [code, ..] = frame.args();
    exit::exit_group(Status::by_exit(code as u8))
}

fn wait4(frame: &mut Frame) -> Answer {
    let [pid, status, options, usage, ..] = frame.args();
    let which = match pid as i32 {
        pid @ 1.. => Which::Pid(pid as u32),
        _ => Which::Any,
    };
    let Some((pid, ended)) = exit::wait_child(which, options & u64::from(WNOHANG) == 0)? else {
        return Ok(0);
    };
    if let Some(status) = UserPtr::<u32>::optional(status) {
        status.write(&ended.word())?;
    }
    if usage != 0 {
        user::zero_out(usage, 144)?;
    }
    Ok(pid.into())
}

fn getpid(_: &mut Frame) -> Answer {
    Ok(current().process().pid.into())
}

fn gettid(_: &mut Frame) -> Answer {
    Ok(current().tid.into())
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
        ARCH_SET_FS | ARCH_GET_FS => &thread.fs_base,
        ARCH_SET_GS | ARCH_GET_GS => &thread.gs_base,
        _ => return Err(Errno::EINVAL),
    };
    if matches!(what as u32, ARCH_GET_FS | ARCH_GET_GS) {
        UserPtr::<u64>::new(at).write(&base.get())?;
    } else if at >> 47 != 0 {
        return Err(Errno::EPERM);
    } else {
        base.set(at);
        scheduler::load_bases(thread);
    }
    Ok(0)
}

const ARCH_SET_GS: u32 = 0x1001;
const ARCH_SET_FS: u32 = 0x1002;
const ARCH_GET_FS: u32 = 0x1003;
const ARCH_GET_GS: u32 = 0x1004;

fn sched_yield(_: &mut Frame) -> Answer {
    scheduler::give_way();
    Ok(0)
}

/// The processors that there are, by bit.
fn all_cpus() -> u64 {
    u64::MAX >> (64 - cpu::count())
}

fn sched_getaffinity(frame: &mut Frame) -> Answer {
    let [_, bytes, out, ..] = frame.args();
    if bytes < 8 || !bytes.is_multiple_of(8) {
        return Err(Errno::EINVAL);
    }
    UserPtr::<u64>::new(out).write(&(current().affinity.load(Relaxed) & all_cpus()))?;
    Ok(8)
}

fn sched_setaffinity(frame: &mut Frame) -> Answer {
    let [tid, bytes, at, ..] = frame.args();
    let mut mask = [0; 8];
    user::copy_in(at, &mut mask[..(bytes as usize).min(8)])?;
    let mask = u64::from_ne_bytes(mask) & all_cpus();
    if mask == 0 {
        return Err(Errno::EINVAL);
    }
    let thread = current();
    if tid == 0 || tid == u64::from(thread.tid) {
        thread.affinity.store(mask, Relaxed);
        if mask >> cpu::number() & 1 == 0 {
            scheduler::move_away();
        }
    }
    Ok(0)
}

fn getcpu(frame: &mut Frame) -> Answer {
    let [cpu, node, ..] = frame.args();
    if let Some(cpu) = UserPtr::<u32>::optional(cpu) {
        cpu.write(&(cpu::number() as u32))?;
    }
    if let Some(node) = UserPtr::<u32>::optional(node) {
        node.write(&0)?;
    }
    Ok(0)
}
