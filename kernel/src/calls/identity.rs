//! What a process is to others: users, groups, rights, process groups, sessions, and what prctl knows.

use super::{Answer, Calls, memory_options};
use crate::arch::cpu::current;
use crate::arch::trap::Frame;
use crate::arch::user::{self, UserPtr};
use crate::files::proc::settings;
use crate::task::ids::{ALL_RIGHTS, CAP_SETGID, CAP_SETPCAP, CAP_SETUID, Ids, Numbers};
use crate::task::process::{self, Process, USUAL_SLACK_NS};
use crate::task::{limits, signal};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use freehold::error::Errno;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[
    (__NR_getuid, |_| Ok(user().real.into())),
    (__NR_geteuid, |_| Ok(user().effective.into())),
    (__NR_getgid, |_| Ok(group().real.into())),
    (__NR_getegid, |_| Ok(group().effective.into())),
    (__NR_setuid, |frame| change_user(|user, may| user.set(frame.rdi as u32, may))),
    (__NR_setgid, |frame| change_group(|group, may| group.set(frame.rdi as u32, may))),
    (__NR_setreuid, |frame| change_user(|user, may| user.set_two(id(frame.rdi), id(frame.rsi), may))),
    (__NR_setregid, |frame| change_group(|group, may| group.set_two(id(frame.rdi), id(frame.rsi), may))),
    (__NR_setresuid, |frame| change_user(|user, may| user.set_all(three(frame), may))),
    (__NR_setresgid, |frame| change_group(|group, may| group.set_all(three(frame), may))),
    (__NR_getresuid, |frame| put_three(frame, user())),
    (__NR_getresgid, |frame| put_three(frame, group())),
    (__NR_setfsuid, setfsuid),
    (__NR_setfsgid, setfsgid),
    (__NR_getgroups, getgroups),
    (__NR_setgroups, setgroups),
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

fn user() -> Numbers {
    current().process().ids.lock().user
}

fn group() -> Numbers {
    current().process().ids.lock().group
}

/// -1: as it is.
fn id(argument: u64) -> Option<u32> {
    Some(argument as u32).filter(|id| *id != u32::MAX)
}

fn three(frame: &Frame) -> [Option<u32>; 3] {
    [id(frame.rdi), id(frame.rsi), id(frame.rdx)]
}

fn put_three(frame: &Frame, numbers: Numbers) -> Answer {
    UserPtr::<u32>::new(frame.rdi).write(&numbers.real)?;
    UserPtr::<u32>::new(frame.rsi).write(&numbers.effective)?;
    UserPtr::<u32>::new(frame.rdx).write(&numbers.saved)?;
    Ok(0)
}

fn change_user(f: impl FnOnce(&mut Numbers, bool) -> Result<(), Errno>) -> Answer {
    let process = current().process();
    let mut ids = process.ids.lock();
    let (before, may) = (ids.user, ids.may(CAP_SETUID));
    f(&mut ids.user, may)?;
    ids.user_changed(before);
    hide(before, ids.user);
    drop(ids);
    limits::renew(process);
    Ok(0)
}

/// A process that acts for another user from now on is not looked into, and hears of no parent's end. With its
/// ids locked: nobody sees the new ones before.
fn hide(before: Numbers, after: Numbers) {
    if (before.effective, before.files) != (after.effective, after.files) {
        let process = current().process();
        process.is_dumpable.store(dumpable_of_others(), Relaxed);
        process.parent_signal.store(0, Relaxed);
    }
}

/// PR_GET_DUMPABLE of a program that acts for another user.
pub fn dumpable_of_others() -> u32 {
    settings::kept("fs/suid_dumpable") as u32
}

fn change_group(f: impl FnOnce(&mut Numbers, bool) -> Result<(), Errno>) -> Answer {
    let mut ids = current().process().ids.lock();
    let (before, may) = (ids.group, ids.may(CAP_SETGID));
    f(&mut ids.group, may)?;
    hide(before, ids.group);
    Ok(0)
}

fn setfsuid(frame: &mut Frame) -> Answer {
    let [id, ..] = frame.args();
    let mut ids = current().process().ids.lock();
    let (before, may) = (ids.user, ids.may(CAP_SETUID));
    ids.user.set_files(id as u32, may);
    hide(before, ids.user);
    Ok(before.files.into())
}

fn setfsgid(frame: &mut Frame) -> Answer {
    let [id, ..] = frame.args();
    let mut ids = current().process().ids.lock();
    let (before, may) = (ids.group, ids.may(CAP_SETGID));
    ids.group.set_files(id as u32, may);
    hide(before, ids.group);
    Ok(before.files.into())
}

/// Most groups that a process may be in, besides its own.
const MOST_GROUPS: u64 = 65536;

fn getgroups(frame: &mut Frame) -> Answer {
    let [room, out, ..] = frame.args();
    let groups = current().process().ids.lock().groups.clone();
    if room as i32 != 0 {
        if (room as i32) < groups.len() as i32 {
            return Err(Errno::EINVAL);
        }
        let bytes: Vec<u8> = groups.iter().flat_map(|group| group.to_ne_bytes()).collect();
        user::copy_out(out, &bytes)?;
    }
    Ok(groups.len() as u64)
}

fn setgroups(frame: &mut Frame) -> Answer {
    let [count, at, ..] = frame.args();
    if !current().process().ids.lock().may(CAP_SETGID) {
        return Err(Errno::EPERM);
    }
    if count > MOST_GROUPS {
        return Err(Errno::EINVAL);
    }
    let groups: Result<Vec<u32>, Errno> = (0..count).map(|n| UserPtr::new(at).add(n).read()).collect();
    let groups = Arc::new(groups?);
    let before = core::mem::replace(&mut current().process().ids.lock().groups, groups);
    drop(before);
    Ok(0)
}

/// How many words of rights a header's version has; EINVAL tells the version that there is.
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
    let ids = of(pid)?.ids.lock().clone();
    for n in 0..words {
        let word = |rights: u64| (rights >> (32 * n)) as u32;
        let data = [word(ids.effective), word(ids.permitted), word(ids.inheritable)];
        UserPtr::<[u32; 3]>::new(out).add(n as u64).write(&data)?;
    }
    Ok(0)
}

fn capset(frame: &mut Frame) -> Answer {
    let [header, at, ..] = frame.args();
    let (words, pid) = capability_words(header)?;
    let process = current().process();
    if pid != 0 && pid != process.pid && pid != current().tid() {
        return Err(Errno::EPERM);
    }
    let mut asked = [0u64; 3];
    for n in 0..words {
        let data = UserPtr::<[u32; 3]>::new(at).add(n as u64).read()?;
        asked.iter_mut().zip(data).for_each(|(all, word)| *all |= u64::from(word) << (32 * n));
    }
    let [effective, permitted, inheritable] = asked.map(|rights| rights & ALL_RIGHTS);
    let mut ids = process.ids.lock();
    let more = permitted & !ids.permitted != 0 || effective & !permitted != 0;
    let passes_more = inheritable & !(ids.inheritable | ids.bounding) != 0
        || !ids.may(CAP_SETPCAP) && inheritable & !(ids.inheritable | ids.permitted) != 0;
    if more || passes_more {
        return Err(Errno::EPERM);
    }
    let ambient = ids.ambient & permitted & inheritable;
    *ids = Ids { effective, permitted, inheritable, ambient, ..ids.clone() };
    drop(ids);
    limits::renew(process);
    Ok(0)
}

/// The process with this number, or a thread of which has it; 0: the calling one.
pub fn of(pid: u32) -> Result<Arc<Process>, Errno> {
    match pid {
        0 => Ok(current().process().clone()),
        pid => match process::find(pid) {
            Some(process) => Ok(process),
            None => process::find_thread(pid).map(|(process, _)| process).ok_or(Errno::ESRCH),
        },
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
    if is_child && process.has_executed.load(Relaxed) != 0 {
        return Err(Errno::EACCES);
    }
    if process.session.load(Relaxed) != session || process.session.load(Relaxed) == process.pid {
        return Err(Errno::EPERM);
    }
    let group = if group as u32 == 0 { process.pid } else { group as u32 };
    let exists =
        |other: &Arc<Process>| other.group.load(Relaxed) == group && other.session.load(Relaxed) == session;
    if group != process.pid && !process::all().iter().any(exists) {
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
    if process::all().iter().any(|other| other.group.load(Relaxed) == here.pid) {
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
        PR_SET_PDEATHSIG if argument > signal::MOST.into() => Err(Errno::EINVAL),
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
        PR_GET_KEEPCAPS => Ok(process.ids.lock().keeps_rights.into()),
        PR_SET_KEEPCAPS if argument > 1 => Err(Errno::EINVAL),
        PR_SET_KEEPCAPS => {
            process.ids.lock().keeps_rights = argument == 1;
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
        PR_CAPBSET_READ => Ok(process.ids.lock().bounding >> argument & 1),
        PR_CAPBSET_DROP | PR_SET_SECUREBITS if !process.ids.lock().may(CAP_SETPCAP) => Err(Errno::EPERM),
        PR_CAPBSET_DROP => {
            process.ids.lock().bounding &= !(1 << argument);
            Ok(0)
        }
        PR_GET_TIMERSLACK => Ok(process.slack_ns.load(Relaxed)),
        PR_SET_TIMERSLACK => {
            let slack = if argument as i64 > 0 { argument } else { USUAL_SLACK_NS };
            process.slack_ns.store(slack, Relaxed);
            Ok(0)
        }
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
        PR_CAP_AMBIENT => process.ids.lock().change_ambient([argument, second, third, fourth]),
        PR_GET_SECCOMP | PR_GET_SECUREBITS => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}

fn personality(frame: &mut Frame) -> Answer {
    let [to, ..] = frame.args();
    let kept = &current().process().personality;
    match to as u32 {
        u32::MAX => Ok(kept.load(Relaxed).into()),
        to => Ok(kept.swap(to, Relaxed).into()),
    }
}
