//! The calls on descriptors of processes, and the lookup of the process behind a descriptor.
//! `process/pidfd.rs` has the file. A pidfd refers to its process even after the parent has waited for the
//! process, so a call that needs a live process checks that the process lives. The programs `processes.c` and
//! `corners.c` test the calls.

use crate::arch::frame::Frame;
use crate::calls::answer::{Answer, Calls};
use crate::calls::{descriptors::file, signals};
use crate::files::open::Open;
use crate::process::pidfd::{self, PidFile};
use crate::process::{self, Process};
use crate::sched::current;
use crate::sched::wait::{self, Sleep, Woken};
use alloc::sync::Arc;
use freehold::error::Errno;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[
    (__NR_pidfd_open, pidfd_open),
    (__NR_pidfd_send_signal, pidfd_send_signal),
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

/// Performs process_mrelease: waits until a killed process has ended. The process frees its memory itself.
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
