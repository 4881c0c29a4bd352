//! The calls on descriptors of processes, and the lookup of the process behind a descriptor.
//! `process/pidfd.rs` has the file. A pidfd refers to its process even after the parent has waited for the
//! process, so a call that needs a live process checks that the process lives. The programs `processes.c` and
//! `corners.c` test the calls.

use crate::arch::{frame::Frame, preempt::preempt_point};
use crate::calls::answer::{Answer, Calls};
use crate::calls::{descriptors::file, signals};
use crate::files::open::Open;
use crate::process::pidfd::{self, PidFile};
use crate::process::{self, Process, victim};
use crate::sched::current;
use alloc::sync::Arc;
use core::sync::atomic::Ordering::Relaxed;
use freehold::error::Errno;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[
    (__NR_pidfd_open, pidfd_open),
    (__NR_pidfd_send_signal, pidfd_send_signal),
    (__NR_pidfd_getfd, pidfd_getfd),
    (__NR_process_mrelease, process_mrelease),
];

/// Returns the process that an open file represents.
///
/// # Errors
///
/// EBADF if the file represents no process.
pub fn process_of(open: &Open) -> Result<Arc<Process>, Errno> {
    let file = open.file.as_any().and_then(|file| file.downcast_ref::<PidFile>());
    let by_folder = || open.file.process().and_then(process::find);
    file.map(|file| file.0.clone()).or_else(by_folder).ok_or(Errno::EBADF)
}

/// Numbers that represent the calling thread and the calling process where a call expects a descriptor of a
/// process.
const SELF_THREAD: i32 = -10_000;
const SELF_PROCESS: i32 = -10_001;

/// Returns the process that a descriptor, `SELF_THREAD` or `SELF_PROCESS` represents.
///
/// # Errors
///
/// EBADF if the descriptor represents no process.
pub fn process_by(descriptor: u64) -> Result<Arc<Process>, Errno> {
    match descriptor as i32 {
        SELF_THREAD | SELF_PROCESS => Ok(current().process().clone()),
        _ => process_of(&*file(descriptor)?),
    }
}

/// Performs pidfd_open. With PIDFD_THREAD, only the first thread of a process can be opened.
fn pidfd_open(frame: &mut Frame) -> Answer {
    let [pid, flags, ..] = frame.args();
    let flags = flags as u32;
    if pid as i32 <= 0 || flags & !(O_NONBLOCK | PIDFD_THREAD) != 0 {
        return Err(Errno::EINVAL);
    }
    let Some(process) = process::find(pid as u32) else {
        let is_thread = process::find_thread(pid as u32).is_some();
        return Err(match is_thread {
            true if flags & PIDFD_THREAD != 0 => Errno::EINVAL,
            true => Errno::ENOENT,
            false => Errno::ESRCH,
        });
    };
    let flags = flags & O_NONBLOCK;
    current().files.add(pidfd::open(&process, flags), 0, true)
}

/// Opens a thread instead of a process.
const PIDFD_THREAD: u32 = O_EXCL;
/// Recipients of a signal: the thread, the process, or the process group that the descriptor represents.
const TO_THREAD: u32 = 1;
const TO_PROCESS: u32 = 2;
const TO_GROUP: u32 = 4;

fn pidfd_send_signal(frame: &mut Frame) -> Answer {
    let [descriptor, signal, info, flags, ..] = frame.args();
    let flags = flags as u32;
    if flags & !(TO_THREAD | TO_PROCESS | TO_GROUP) != 0 || flags.count_ones() > 1 {
        return Err(Errno::EINVAL);
    }
    let process = process_by(descriptor)?;
    if process.is_forgotten() {
        return Err(Errno::ESRCH);
    }
    let to = match descriptor as i32 {
        SELF_THREAD if flags == 0 => TO_THREAD,
        _ => flags,
    };
    match to {
        TO_THREAD => {
            let tid = if descriptor as i32 == SELF_THREAD { current().tid() } else { process.pid };
            let (_, thread) = process::find_task(tid).ok_or(Errno::ESRCH)?;
            // A signal to a first thread that has ended has no effect.
            if thread.is_some() {
                signals::send_with(&process, thread.as_ref(), signal, info)?;
            }
        }
        TO_GROUP => {
            let is_member = |other: &Arc<Process>| other.group.load(Relaxed) == process.pid;
            let mut answer = Err(Errno::ESRCH);
            for member in process::all_and_new().filter(is_member) {
                preempt_point();
                signals::send_with(&member, None, signal, info)?;
                answer = Ok(());
            }
            answer?;
        }
        _ => signals::send_with(&process, None, signal, info)?,
    }
    Ok(0)
}

/// Performs pidfd_getfd: copies a descriptor of another process.
fn pidfd_getfd(frame: &mut Frame) -> Answer {
    let [descriptor, target, flags, ..] = frame.args();
    if flags as u32 != 0 {
        return Err(Errno::EINVAL);
    }
    let process = process_of(&*file(descriptor)?)?;
    if process.status.lock().is_some() {
        return Err(Errno::ESRCH);
    }
    let open = process.thread(process.pid).ok_or(Errno::EBADF)?.files.get_any(target)?;
    current().files.add(open, 0, true)
}

/// Performs process_mrelease: frees the private memory of a killed process.
fn process_mrelease(frame: &mut Frame) -> Answer {
    let [descriptor, flags, ..] = frame.args();
    if flags as u32 != 0 {
        return Err(Errno::EINVAL);
    }
    let process = process_by(descriptor)?;
    victim::release(&process).map(|()| 0)
}
