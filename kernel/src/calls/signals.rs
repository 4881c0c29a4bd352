//! Signals: what a program sets is kept. Handlers do not run yet; a fatal signal ends its process.

use super::{Answer, Calls, errno};
use crate::arch::cpu::current;
use crate::arch::trap::Frame;
use crate::arch::user::UserPtr;
use crate::task::exit::{self, Status};
use crate::task::process;
use freehold::error::Errno;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[
    (__NR_rt_sigaction, sigaction),
    (__NR_rt_sigprocmask, sigprocmask),
    (__NR_sigaltstack, sigaltstack),
    (__NR_kill, kill),
    (__NR_tgkill, tgkill),
];

/// Those that nobody can block, catch or ignore.
const ALWAYS: u64 = 1 << (SIGKILL - 1) | 1 << (SIGSTOP - 1);

fn sigaction(frame: &mut Frame) -> Answer {
    let [signal, new, old, bytes, ..] = frame.args();
    if bytes != 8 || !(1..=64).contains(&signal) || new != 0 && ALWAYS >> (signal - 1) & 1 != 0 {
        return Err(Errno::EINVAL);
    }
    let new = UserPtr::<[u64; 4]>::optional(new).map(UserPtr::read).transpose()?;
    let mut actions = current().process().actions.lock();
    let before = actions[signal as usize];
    if let Some(new) = new {
        actions[signal as usize] = new;
    }
    drop(actions);
    if let Some(old) = UserPtr::<[u64; 4]>::optional(old) {
        old.write(&before)?;
    }
    Ok(0)
}

fn sigprocmask(frame: &mut Frame) -> Answer {
    let [how, new, old, bytes, ..] = frame.args();
    if bytes != 8 {
        return Err(Errno::EINVAL);
    }
    let thread = current();
    let before = thread.blocked.get();
    if let Some(new) = UserPtr::<u64>::optional(new) {
        let mask = new.read()?;
        let blocked = match how as u32 {
            SIG_BLOCK => before | mask,
            SIG_UNBLOCK => before & !mask,
            SIG_SETMASK => mask,
            _ => return Err(Errno::EINVAL),
        };
        thread.blocked.set(blocked & !ALWAYS);
    }
    if let Some(old) = UserPtr::<u64>::optional(old) {
        old.write(&before)?;
    }
    Ok(0)
}

fn sigaltstack(frame: &mut Frame) -> Answer {
    let [new, old, ..] = frame.args();
    let thread = current();
    let before = thread.alternate_stack.get();
    if let Some(new) = UserPtr::<[u64; 3]>::optional(new) {
        thread.alternate_stack.set(new.read()?);
    }
    if let Some(old) = UserPtr::<[u64; 3]>::optional(old) {
        old.write(&before)?;
    }
    Ok(0)
}

fn kill(frame: &mut Frame) -> Answer {
    let [pid, signal, ..] = frame.args();
    send(pid, signal)
}

fn tgkill(frame: &mut Frame) -> Answer {
    let [pid, _, signal, ..] = frame.args();
    send(pid, signal)
}

fn send(pid: u64, signal: u64) -> Answer {
    if signal > 64 {
        return Err(Errno::EINVAL);
    }
    let pid = u32::try_from(pid).ok().filter(|pid| *pid as i32 > 0).ok_or(errno::ENOSYS)?;
    let process = process::find(pid).ok_or(Errno::ESRCH)?;
    let ignored = matches!(signal as u32, 0 | SIGCHLD | SIGURG | SIGWINCH | SIGCONT);
    if !ignored {
        exit::end_process(&process, Status::by_signal(signal as u8));
    }
    Ok(0)
}
