//! The calls for the identity of a process: users, groups, capabilities, process groups, sessions, and the
//! options of prctl. The values are stored in [`Process`](crate::process::Process). Of users and capabilities
//! the kernel checks only the capabilities (`process/ids.rs`). A call that changes either also calls
//! `renew::renew`, because the engine has a copy of the result. The options of prctl about memory are in
//! `memory_options.rs`. The programs `corners.c`, `capabilities.c` and `processes.c` test the calls. A new
//! option of prctl needs its number and an arm in `prctl`.

use crate::arch::frame::Frame;
use crate::calls::answer::{Answer, Calls, nothing};
use crate::calls::memory_options;
use crate::platform::user::{self, UserPtr};
use crate::process::ids::{Capabilities, Ids, Numbers};
use crate::process::{self, Process, renew, signal};
use crate::sched::current;
use alloc::sync::Arc;
use core::sync::atomic::Ordering::Relaxed;
use freehold::error::Errno;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[
    (__NR_getuid, |_| Ok(user().real.into())),
    (__NR_geteuid, |_| Ok(user().effective.into())),
    (__NR_getgid, |_| Ok(group().real.into())),
    (__NR_getegid, |_| Ok(group().effective.into())),
    (__NR_setuid, |frame| set_all(frame, CAP_SETUID, &USERS)),
    (__NR_setgid, |frame| set_all(frame, CAP_SETGID, &GROUPS)),
    (__NR_setreuid, |frame| set([frame.rdi, frame.rsi, frame.rsi], &USERS)),
    (__NR_setregid, |frame| set([frame.rdi, frame.rsi, frame.rsi], &GROUPS)),
    (__NR_setresuid, |frame| set([frame.rdi, frame.rsi, frame.rdx], &USERS)),
    (__NR_setresgid, |frame| set([frame.rdi, frame.rsi, frame.rdx], &GROUPS)),
    (__NR_getresuid, |frame| put_three(frame, user())),
    (__NR_getresgid, |frame| put_three(frame, group())),
    (__NR_setfsuid, |_| Ok(user().effective.into())),
    (__NR_setfsgid, |_| Ok(group().effective.into())),
    (__NR_getgroups, nothing),
    (__NR_setgroups, nothing),
    (__NR_capget, capget),
    (__NR_capset, capset),
    (__NR_setpgid, setpgid),
    (__NR_getpgid, getpgid),
    (__NR_getpgrp, |_| Ok(current().process().group.load(Relaxed).into())),
    (__NR_setsid, setsid),
    (__NR_getsid, getsid),
    (__NR_prctl, prctl),
    (__NR_personality, personality),
];

/// Returns the user numbers of the calling process.
fn user() -> Numbers {
    current().process().ids.lock().user
}

/// Returns the group numbers of the calling process.
fn group() -> Numbers {
    current().process().ids.lock().group
}

/// Stores the real, the effective and the saved number at the three addresses in the arguments.
fn put_three(frame: &Frame, numbers: Numbers) -> Answer {
    UserPtr::<u32>::new(frame.rdi).write(&numbers.real)?;
    UserPtr::<u32>::new(frame.rsi).write(&numbers.effective)?;
    UserPtr::<u32>::new(frame.rdx).write(&numbers.saved)?;
    Ok(0)
}

/// The functions that get and set the numbers of the user, or those of the group.
type Which = (fn(&Ids) -> Numbers, fn(&mut Ids, Numbers));
const USERS: Which = (|ids| ids.user, Ids::set_user);
const GROUPS: Which = (|ids| ids.group, |ids, to| ids.group = to);

/// Performs setuid or setgid: sets all three numbers if the process has the capability, and only the
/// effective number otherwise.
fn set_all(frame: &Frame, capability: u32, which: &Which) -> Answer {
    let id = frame.rdi;
    let others = if current().process().ids.lock().may(capability) { id } else { u64::MAX };
    set([others, id, others], which)
}

/// Sets the real, the effective and the saved number; -1 leaves a number unchanged.
fn set(to: [u64; 3], (get, put): &Which) -> Answer {
    let process = current().process();
    let mut ids = process.ids.lock();
    let numbers = get(&ids);
    let [real, effective, saved] = to.map(|id| Some(id as u32).filter(|id| *id != u32::MAX));
    let numbers = Numbers {
        real: real.unwrap_or(numbers.real),
        effective: effective.unwrap_or(numbers.effective),
        saved: saved.unwrap_or(numbers.saved),
    };
    put(&mut ids, numbers);
    drop(ids);
    renew::renew(process);
    Ok(0)
}

/// Reads the header of capget and capset. Returns the number of words in a set of capabilities, and the PID.
/// The number of words depends on the version in the header. If the version is unknown, stores the supported
/// one and fails with EINVAL.
fn capability_words(header: u64) -> Result<(usize, u32), Errno> {
    let [version, pid] = UserPtr::<[u32; 2]>::new(header).read()?;
    match version {
        _LINUX_CAPABILITY_VERSION_1 => Ok((1, pid)),
        _LINUX_CAPABILITY_VERSION_2 | _LINUX_CAPABILITY_VERSION_3 => Ok((2, pid)),
        _ => {
            UserPtr::<u32>::new(header).write(&_LINUX_CAPABILITY_VERSION_3)?;
            Err(Errno::EINVAL)
        }
    }
}

fn capget(frame: &mut Frame) -> Answer {
    let [header, out, ..] = frame.args();
    let (words, pid) = match capability_words(header) {
        Err(Errno::EINVAL) if out == 0 => return Ok(0),
        found => found?,
    };
    let sets = of(pid)?.ids.lock().capabilities;
    for n in 0..words {
        let word = |set: u64| (set >> (32 * n)) as u32;
        let row = [word(sets.effective), word(sets.permitted), word(sets.inheritable)];
        UserPtr::<[u32; 3]>::new(out).add(n as u64).write(&row)?;
    }
    Ok(0)
}

/// Performs capset. Unknown capabilities in the sets are ignored.
fn capset(frame: &mut Frame) -> Answer {
    let [header, at, ..] = frame.args();
    let (words, pid) = capability_words(header)?;
    let process = current().process();
    if pid != 0 && !Arc::ptr_eq(&of(pid).map_err(|_| Errno::EPERM)?, process) {
        return Err(Errno::EPERM);
    }
    let mut sets = [0; 3];
    for n in 0..words {
        let row = UserPtr::<[u32; 3]>::new(at).add(n as u64).read()?;
        for (set, word) in sets.iter_mut().zip(row) {
            *set |= u64::from(word) << (32 * n) & Capabilities::ALL;
        }
    }
    let [effective, permitted, inheritable] = sets;
    process.ids.lock().set_capabilities(Capabilities { effective, permitted, inheritable })?;
    renew::renew(process);
    Ok(0)
}

/// Returns the process with this PID, or the process of the thread with this number. For 0, returns the
/// calling process.
pub fn of(pid: u32) -> Result<Arc<Process>, Errno> {
    match pid {
        0 => Ok(current().process().clone()),
        pid => process::of_thread(pid).ok_or(Errno::ESRCH),
    }
}

fn setpgid(frame: &mut Frame) -> Answer {
    let [pid, group, ..] = frame.args();
    let group = if group as u32 == 0 { pid } else { group };
    if (group as i32) < 0 {
        return Err(Errno::EINVAL);
    }
    let here = current().process();
    let process = match pid as u32 {
        0 => here.clone(),
        pid => process::find(pid).ok_or(Errno::ESRCH)?,
    };
    let is_child = process.parent_pid() == here.pid && !Arc::ptr_eq(&process, here);
    if !is_child && !Arc::ptr_eq(&process, here) {
        return Err(Errno::ESRCH);
    }
    let session = here.session.load(Relaxed);
    if is_child && process.programs.load(Relaxed) != 0 {
        return Err(Errno::EACCES);
    }
    if process.session.load(Relaxed) != session || process.session.load(Relaxed) == process.pid {
        return Err(Errno::EPERM);
    }
    let group = if group as u32 == 0 { process.pid } else { group as u32 };
    let exists =
        |other: &Arc<Process>| other.group.load(Relaxed) == group && other.session.load(Relaxed) == session;
    if group != process.pid && !process::all().any(|other| exists(&other)) {
        return Err(Errno::EPERM);
    }
    process.group.store(group, Relaxed);
    Ok(0)
}

fn getpgid(frame: &mut Frame) -> Answer {
    let [pid, ..] = frame.args();
    Ok(of(pid as u32)?.group.load(Relaxed).into())
}

fn setsid(_: &mut Frame) -> Answer {
    let here = current().process();
    if process::all().any(|other| other.group.load(Relaxed) == here.pid) {
        return Err(Errno::EPERM);
    }
    here.session.store(here.pid, Relaxed);
    here.group.store(here.pid, Relaxed);
    Ok(here.pid.into())
}

fn getsid(frame: &mut Frame) -> Answer {
    let [pid, ..] = frame.args();
    Ok(of(pid as u32)?.session.load(Relaxed).into())
}

/// The default of PR_GET_TIMERSLACK, as on Linux.
const USUAL_SLACK_NS: u64 = 50_000;
const PR_SET_PDEATHSIG: u32 = 1;
const PR_GET_PDEATHSIG: u32 = 2;
const PR_GET_DUMPABLE: u32 = 3;
const PR_SET_DUMPABLE: u32 = 4;
const PR_GET_KEEPCAPS: u32 = 7;
const PR_SET_KEEPCAPS: u32 = 8;
const PR_SET_NAME: u32 = 15;
const PR_GET_NAME: u32 = 16;
const PR_GET_SECCOMP: u32 = 21;
const PR_CAPBSET_READ: u32 = 23;
const PR_CAPBSET_DROP: u32 = 24;
const PR_SET_TIMERSLACK: u32 = 29;
const PR_GET_TIMERSLACK: u32 = 30;
const PR_GET_SECUREBITS: u32 = 27;
const PR_SET_SECUREBITS: u32 = 28;
const PR_SET_CHILD_SUBREAPER: u32 = 36;
const PR_GET_CHILD_SUBREAPER: u32 = 37;
const PR_SET_NO_NEW_PRIVS: u32 = 38;
const PR_GET_NO_NEW_PRIVS: u32 = 39;
const PR_CAP_AMBIENT: u32 = 47;

fn prctl(frame: &mut Frame) -> Answer {
    let [what, argument, second, third, fourth, _] = frame.args();
    if let Some(answer) = memory_options::answer([what, argument, second, third, fourth]) {
        return answer;
    }
    let (thread, process) = (current(), current().process());
    match what as u32 {
        PR_SET_PDEATHSIG if argument > signal::MAX_SIGNAL.into() => Err(Errno::EINVAL),
        PR_SET_PDEATHSIG => {
            process.parent_signal.store(argument as u32, Relaxed);
            Ok(0)
        }
        PR_GET_PDEATHSIG => {
            UserPtr::<u32>::new(argument).write(&process.parent_signal.load(Relaxed))?;
            Ok(0)
        }
        PR_GET_DUMPABLE => Ok(process.is_dumpable.load(Relaxed).into()),
        PR_SET_DUMPABLE if argument > 1 => Err(Errno::EINVAL),
        PR_SET_DUMPABLE => {
            process.is_dumpable.store(argument as u32, Relaxed);
            Ok(0)
        }
        PR_SET_NAME => {
            let mut name = [0; 16];
            if let Some(text) = user::read_string(argument, 15)? {
                name[..text.len()].copy_from_slice(&text);
            } else {
                user::copy_in(argument, &mut name[..15])?;
            }
            *thread.comm.lock() = name;
            Ok(0)
        }
        PR_GET_NAME => {
            let name = *thread.comm.lock();
            UserPtr::<[u8; 16]>::new(argument).write(&name)?;
            Ok(0)
        }
        PR_CAPBSET_READ | PR_CAPBSET_DROP if argument > 40 => Err(Errno::EINVAL),
        PR_CAPBSET_READ => Ok(1),
        // Accepted without an effect; timers have no slack.
        PR_CAPBSET_DROP | PR_SET_TIMERSLACK | PR_CAP_AMBIENT => Ok(0),
        PR_SET_KEEPCAPS if argument > 1 => Err(Errno::EINVAL),
        PR_SET_KEEPCAPS => {
            process.ids.lock().keeps_capabilities = argument != 0;
            Ok(0)
        }
        PR_GET_KEEPCAPS => Ok(process.ids.lock().keeps_capabilities.into()),
        PR_GET_TIMERSLACK => Ok(USUAL_SLACK_NS),
        PR_SET_CHILD_SUBREAPER => {
            process.is_subreaper.store((argument != 0).into(), Relaxed);
            Ok(0)
        }
        PR_GET_CHILD_SUBREAPER => {
            UserPtr::<u32>::new(argument).write(&process.is_subreaper.load(Relaxed))?;
            Ok(0)
        }
        PR_SET_NO_NEW_PRIVS if [argument, second, third, fourth] == [1, 0, 0, 0] => {
            process.no_new_privs.store(1, Relaxed);
            Ok(0)
        }
        PR_GET_NO_NEW_PRIVS if [argument, second, third, fourth] == [0; 4] => {
            Ok(process.no_new_privs.load(Relaxed).into())
        }
        PR_GET_SECCOMP | PR_GET_SECUREBITS | PR_SET_SECUREBITS => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}

/// Performs personality: stores the new value, unless it is all ones, and returns the old one.
fn personality(frame: &mut Frame) -> Answer {
    let [to, ..] = frame.args();
    let kept = &current().process().personality;
    match to as u32 {
        u32::MAX => Ok(kept.load(Relaxed).into()),
        to => Ok(kept.swap(to, Relaxed).into()),
    }
}
