//! Files by descriptor.

use super::{Answer, Calls, errno};
use crate::arch::clock;
use crate::arch::cpu::current;
use crate::arch::trap::Frame;
use crate::arch::user::UserPtr;
use crate::files::buffer::{Part, UserBuffer};
use crate::files::open::Open;
use crate::files::pipe;
use crate::task::wait::{self, Sleep, Woken};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use freehold::error::Errno;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[
    (__NR_read, read),
    (__NR_write, write),
    (__NR_pread64, pread),
    (__NR_pwrite64, pwrite),
    (__NR_readv, readv),
    (__NR_writev, writev),
    (__NR_lseek, lseek),
    (__NR_close, close),
    (__NR_dup, dup),
    (__NR_dup2, dup2),
    (__NR_dup3, dup3),
    (__NR_fcntl, fcntl),
    (__NR_ioctl, ioctl),
    (__NR_pipe, pipe),
    (__NR_pipe2, pipe2),
    (__NR_poll, poll),
    (__NR_ftruncate, ftruncate),
];

/// Most bytes of one call.
const MOST: u64 = 0x7fff_f000;

fn file(descriptor: u64) -> Result<Arc<Open>, Errno> {
    current().process().files.get(descriptor)
}

fn read(frame: &mut Frame) -> Answer {
    let [descriptor, at, len, ..] = frame.args();
    let parts = [[at, len.min(MOST)]];
    Ok(file(descriptor)?.read(None, &mut UserBuffer::new(&parts))? as u64)
}

fn write(frame: &mut Frame) -> Answer {
    let [descriptor, at, len, ..] = frame.args();
    let parts = [[at, len.min(MOST)]];
    Ok(file(descriptor)?.write(None, &mut UserBuffer::new(&parts))? as u64)
}

fn pread(frame: &mut Frame) -> Answer {
    let [descriptor, at, len, offset, ..] = frame.args();
    let parts = [[at, len.min(MOST)]];
    let open = file(descriptor)?;
    seekable(&open)?;
    Ok(open.read(Some(offset), &mut UserBuffer::new(&parts))? as u64)
}

fn pwrite(frame: &mut Frame) -> Answer {
    let [descriptor, at, len, offset, ..] = frame.args();
    let parts = [[at, len.min(MOST)]];
    let open = file(descriptor)?;
    seekable(&open)?;
    Ok(open.write(Some(offset), &mut UserBuffer::new(&parts))? as u64)
}

fn seekable(open: &Open) -> Result<(), Errno> {
    if open.file.can_seek() { Ok(()) } else { Err(errno::ESPIPE) }
}

/// The ranges that `struct iovec`s name.
pub fn parts(at: u64, count: u64) -> Result<Vec<Part>, Errno> {
    if count > UIO_MAXIOV.into() {
        return Err(Errno::EINVAL);
    }
    let (from, mut room) = (UserPtr::<Part>::new(at), MOST);
    let mut parts = Vec::new();
    for n in 0..count {
        let [base, len] = from.add(n).read()?;
        if len > i64::MAX as u64 {
            return Err(Errno::EINVAL);
        }
        parts.push([base, len.min(room)]);
        room -= len.min(room);
    }
    Ok(parts)
}

fn readv(frame: &mut Frame) -> Answer {
    let [descriptor, at, count, ..] = frame.args();
    let parts = parts(at, count)?;
    Ok(file(descriptor)?.read(None, &mut UserBuffer::new(&parts))? as u64)
}

fn writev(frame: &mut Frame) -> Answer {
    let [descriptor, at, count, ..] = frame.args();
    let parts = parts(at, count)?;
    Ok(file(descriptor)?.write(None, &mut UserBuffer::new(&parts))? as u64)
}

fn lseek(frame: &mut Frame) -> Answer {
    let [descriptor, offset, whence, ..] = frame.args();
    let open = file(descriptor)?;
    seekable(&open)?;
    let base = match whence as u32 {
        SEEK_SET => 0,
        SEEK_CUR => open.position(),
        SEEK_END => open.file.stat().size,
        _ => return Err(Errno::EINVAL),
    };
    let to = base.checked_add_signed(offset as i64).filter(|to| *to <= i64::MAX as u64);
    let to = to.ok_or(Errno::EINVAL)?;
    open.set_position(to);
    Ok(to)
}

fn close(frame: &mut Frame) -> Answer {
    let [descriptor, ..] = frame.args();
    current().process().files.close(descriptor).map(|()| 0)
}

fn dup(frame: &mut Frame) -> Answer {
    let [descriptor, ..] = frame.args();
    current().process().files.add(file(descriptor)?, 0, false)
}

fn dup2(frame: &mut Frame) -> Answer {
    let [from, to, ..] = frame.args();
    let open = file(from)?;
    if from != to {
        current().process().files.put(open, to, false)?;
    }
    Ok(to)
}

fn dup3(frame: &mut Frame) -> Answer {
    let [from, to, flags, ..] = frame.args();
    if from == to || flags & !u64::from(O_CLOEXEC) != 0 {
        return Err(Errno::EINVAL);
    }
    current().process().files.put(file(from)?, to, flags != 0)?;
    Ok(to)
}

fn fcntl(frame: &mut Frame) -> Answer {
    let [descriptor, what, argument, ..] = frame.args();
    let open = file(descriptor)?;
    let files = &current().process().files;
    match what as u32 {
        F_DUPFD => files.add(open, argument as usize, false),
        F_DUPFD_CLOEXEC => files.add(open, argument as usize, true),
        F_GETFD => files.close_on_exec(descriptor, None).map(u64::from),
        F_SETFD => files.close_on_exec(descriptor, Some(argument & 1 != 0)).map(|_| 0),
        F_GETFL => Ok(open.flags.load(Relaxed).into()),
        F_SETFL => {
            let change = O_APPEND | O_NONBLOCK;
            let step = |flags| Some(flags & !change | argument as u32 & change);
            let _ = open.flags.fetch_update(Relaxed, Relaxed, step);
            Ok(0)
        }
        _ => Err(Errno::EINVAL),
    }
}

fn ioctl(frame: &mut Frame) -> Answer {
    let [descriptor, request, argument, ..] = frame.args();
    file(descriptor)?.file.ioctl(request, argument)
}

fn pipe(frame: &mut Frame) -> Answer {
    let [out, ..] = frame.args();
    make_pipe(out, 0)
}

fn pipe2(frame: &mut Frame) -> Answer {
    let [out, flags, ..] = frame.args();
    make_pipe(out, flags as u32)
}

fn make_pipe(out: u64, flags: u32) -> Answer {
    let files = &current().process().files;
    let (reader, writer) = pipe::new();
    let (close, keep) = (flags & O_CLOEXEC != 0, flags & O_NONBLOCK);
    let reader = files.add(Open::new(Arc::new(reader), O_RDONLY | keep, b"pipe:"), 0, close)?;
    let writer = files.add(Open::new(Arc::new(writer), O_WRONLY | keep, b"pipe:"), 0, close)?;
    UserPtr::<[u32; 2]>::new(out).write(&[reader as u32, writer as u32])?;
    Ok(0)
}

fn poll(frame: &mut Frame) -> Answer {
    let [at, count, timeout, ..] = frame.args();
    if count > crate::files::table::MOST as u64 {
        return Err(Errno::EINVAL);
    }
    let deadline = match timeout as i32 {
        ms @ 0.. => clock::now_ns() + ms as u64 * 1_000_000,
        _ => u64::MAX,
    };
    loop {
        let (ready, keys) = look(at, count)?;
        let now = clock::now_ns();
        if ready > 0 || now >= deadline {
            return Ok(ready);
        }
        // One key is waited for; where there are several, their changes are looked for in turns.
        let soon = if keys.len() > 1 { deadline.min(now + 1_000_000) } else { deadline };
        let key = keys.first().copied().unwrap_or(wait::Key::kernel(&raw const deadline as u64));
        let waiting = wait::enqueue(key, u32::MAX);
        if look(at, count)?.0 > 0 {
            waiting.cancel();
        } else if waiting.sleep(Sleep::Interruptible, soon) == Woken::Signal {
            return Err(Errno::EINTR);
        }
    }
}

/// Looks at every file that a poll names; returns how many are ready, and the keys of the others.
fn look(at: u64, count: u64) -> Result<(u64, Vec<wait::Key>), Errno> {
    let (mut ready, mut keys) = (0, Vec::new());
    for n in 0..count {
        let entry = UserPtr::<u64>::new(at).add(n);
        let word = entry.read()?;
        let (descriptor, events) = (word as i32, (word >> 32) as u16);
        let found = match file(descriptor as u32 as u64) {
            _ if descriptor < 0 => 0,
            Ok(open) => {
                keys.extend(open.file.ready_key());
                open.file.ready() & (u32::from(events) | POLLERR | POLLHUP)
            }
            Err(_) => POLLNVAL,
        };
        ready += u64::from(found != 0);
        UserPtr::<u16>::new(entry.at() + 6).write(&(found as u16))?;
    }
    Ok((ready, keys))
}

fn ftruncate(frame: &mut Frame) -> Answer {
    let [descriptor, size, ..] = frame.args();
    let open = file(descriptor)?;
    let mapping = open.file.mapping().filter(|_| open.may_write()).ok_or(Errno::EINVAL)?;
    if size > i64::MAX as u64 {
        return Err(Errno::EINVAL);
    }
    mapping.truncate(size).map(|()| 0).map_err(|error| error.errno())
}
