//! Processes by descriptor, and what a process has together with others.

use super::descriptors::file;
use super::signals;
use super::{Answer, Calls, errno};
use crate::arch::cpu::current;
use crate::arch::trap::Frame;
use crate::files::open::Open;
use crate::files::pidfd::{self, PidFile};
use crate::task::process::{self, Process};
use crate::task::trace;
use crate::task::wait::{self, Sleep, Woken};
use alloc::sync::Arc;
use freehold::error::Errno;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[
    (__NR_pidfd_open, pidfd_open),
    (__NR_pidfd_send_signal, pidfd_send_signal),
    (__NR_pidfd_getfd, pidfd_getfd),
    (__NR_process_mrelease, process_mrelease),
    (__NR_unshare, unshare),
    (__NR_setns, setns),
    (__NR_kcmp, kcmp),
];

/// The process that a descriptor stands for: a pidfd, or a folder of /proc.
///
/// # Errors
///
/// EBADF: it stands for none.
pub fn process_of(open: &Open) -> Result<Arc<Process>, Errno> {
    let file = open.file.as_any().and_then(|file| file.downcast_ref::<PidFile>());
    let by_folder = || open.file.process().and_then(process::find);
    file.map(|file| file.0.clone()).or_else(by_folder).ok_or(Errno::EBADF)
}

fn pidfd_open(frame: &mut Frame) -> Answer {
    let [pid, flags, ..] = frame.args();
    if pid as i32 <= 0 || flags as u32 & !O_NONBLOCK != 0 {
        return Err(Errno::EINVAL);
    }
    let Some(process) = process::find(pid as u32) else {
        return Err(process::find_thread(pid as u32).map_or(Errno::ESRCH, |_| Errno::EINVAL));
    };
    current().process().files.add(pidfd::open(&process, flags as u32), 0, true)
}

fn pidfd_send_signal(frame: &mut Frame) -> Answer {
    let [descriptor, signal, info, flags, ..] = frame.args();
    if flags as u32 != 0 {
        return Err(Errno::EINVAL);
    }
    let process = process_of(&*file(descriptor)?)?;
    if process::find(process.pid).is_none() {
        return Err(Errno::ESRCH);
    }
    signals::send_with(&process, signal, info).map(|()| 0)
}

fn pidfd_getfd(frame: &mut Frame) -> Answer {
    let [descriptor, wanted, flags, ..] = frame.args();
    if flags as u32 != 0 {
        return Err(Errno::EINVAL);
    }
    let process = process_of(&*file(descriptor)?)?;
    trace::check_traceable(&process)?;
    let open = process.files.get(wanted)?;
    current().process().files.add(open, 0, true)
}

/// A process that has been killed gives its memory back by itself: returns when it has.
fn process_mrelease(frame: &mut Frame) -> Answer {
    let [descriptor, flags, ..] = frame.args();
    if flags as u32 != 0 {
        return Err(Errno::EINVAL);
    }
    let process = process_of(&*file(descriptor)?)?;
    let has_ended = || process.status.lock().is_some();
    if has_ended() {
        return Err(Errno::ESRCH);
    }
    if process.ending.lock().is_none() {
        return Err(Errno::EINVAL);
    }
    loop {
        let waiting = wait::enqueue(process.end_key(), u32::MAX);
        if has_ended() {
            waiting.cancel();
            return Ok(0);
        }
        if waiting.sleep(Sleep::Killable, u64::MAX) == Woken::Signal {
            return Err(Errno::EINTR);
        }
    }
}

/// What a process may have for itself again. Namespaces there is one of each.
const UNSHARED: u32 = CLONE_FILES | CLONE_FS | CLONE_SYSVSEM | CLONE_THREAD | CLONE_SIGHAND | CLONE_VM;
/// What asks for a namespace.
const NAMESPACES: u32 = CLONE_NEWNS
    | CLONE_NEWCGROUP
    | CLONE_NEWUTS
    | CLONE_NEWIPC
    | CLONE_NEWUSER
    | CLONE_NEWPID
    | CLONE_NEWNET
    | CLONE_NEWTIME;

fn unshare(frame: &mut Frame) -> Answer {
    let [flags, ..] = frame.args();
    let (flags, process) = (flags as u32, current().process());
    if flags & !(UNSHARED | NAMESPACES) != 0 {
        return Err(Errno::EINVAL);
    }
    if flags & NAMESPACES & !CLONE_NEWUSER != 0 && !process.ids.lock().may(SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    // Threads share these, and go on doing so.
    let alone = process.threads.lock().len() == 1;
    if flags & NAMESPACES != 0 || !alone && flags & (CLONE_THREAD | CLONE_SIGHAND | CLONE_VM) != 0 {
        return Err(Errno::EINVAL);
    }
    if alone && flags & CLONE_FILES != 0 {
        process.files.unshare();
    }
    if alone && flags & CLONE_FS != 0 {
        process.unshare_place();
    }
    Ok(0)
}

const SYS_ADMIN: u32 = 21;

/// There are no other namespaces that one could go to.
fn setns(frame: &mut Frame) -> Answer {
    let [descriptor, ..] = frame.args();
    file(descriptor).and(Err(Errno::EINVAL))
}

/// Whether two processes have something together: 0, or which of the two comes first.
fn kcmp(frame: &mut Frame) -> Answer {
    let [one, other, kind, first, second, _] = frame.args();
    let find = |pid: u64| process::find_thread(pid as u32).map(|(process, _)| process).ok_or(Errno::ESRCH);
    let (one, other) = (find(one)?, find(other)?);
    trace::check_traceable(&one)?;
    trace::check_traceable(&other)?;
    let address = |process: &Arc<Process>, number: u64| match kind {
        KCMP_FILE => process.files.get(number).map(|open| Arc::as_ptr(&open).addr()),
        KCMP_VM => {
            let space = process.space.lock();
            Ok(space.as_ref().map_or(0, |space| (&raw const **space).addr()))
        }
        KCMP_FILES => Ok(process.files.address()),
        KCMP_FS => Ok(Arc::as_ptr(&process.place()).addr()),
        KCMP_SIGHAND => Ok(Arc::as_ptr(&process.actions()).addr()),
        KCMP_IO | KCMP_SYSVSEM => Ok(0),
        KCMP_EPOLL_TFD => Err(errno::ENOSYS),
        _ => Err(Errno::EINVAL),
    };
    let (a, b) = (address(&one, first)?, address(&other, second)?);
    Ok(match a.cmp(&b) {
        core::cmp::Ordering::Equal => 0,
        core::cmp::Ordering::Less => 1,
        core::cmp::Ordering::Greater => 2,
    })
}

const KCMP_FILE: u64 = 0;
const KCMP_VM: u64 = 1;
const KCMP_FILES: u64 = 2;
const KCMP_FS: u64 = 3;
const KCMP_SIGHAND: u64 = 4;
const KCMP_IO: u64 = 5;
const KCMP_SYSVSEM: u64 = 6;
const KCMP_EPOLL_TFD: u64 = 7;
