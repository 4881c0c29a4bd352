//! Calls on open files that a descriptor names: reading, writing, closing, copying of descriptors, pipes,
//! fcntl. The functions that decode a descriptor or an array of `struct iovec` also serve the other
//! files of this folder.
//!
//! A write takes the lock of the file's position and then the lock of the file's contents (`files/open.rs`).
//! The table of descriptors is locked only while a descriptor is looked up or changed. The programs `files.c`
//! and `appends.c` test the calls. A new command of fcntl needs an arm in `fcntl`. A new request of ioctl
//! belongs in `File::ioctl` of the kind of file that it concerns.

use crate::arch::frame::Frame;
use crate::calls::answer::{Answer, Calls};
use crate::errno;
use crate::files::buffer::{Part, UserBuffer};
use crate::files::socket::{self, Socket};
use crate::files::{node::node_of, open::Open, pipe};
use crate::platform::user::UserPtr;
use crate::process::{renew, signal};
use crate::sched::current;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use freehold::error::Errno;
use freehold::file::Seals;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[
    (__NR_read, read),
    (__NR_write, write),
    (__NR_pread64, pread),
    (__NR_pwrite64, pwrite),
    (__NR_readv, readv),
    (__NR_writev, writev),
    (__NR_preadv, preadv),
    (__NR_pwritev, pwritev),
    (__NR_preadv2, preadv),
    (__NR_pwritev2, pwritev),
    (__NR_close, close),
    (__NR_close_range, close_range),
    (__NR_dup, dup),
    (__NR_dup2, dup2),
    (__NR_dup3, dup3),
    (__NR_fcntl, fcntl),
    (__NR_flock, flock),
    (__NR_ioctl, ioctl),
    (__NR_pipe, pipe),
    (__NR_pipe2, pipe2),
];

/// Maximum number of bytes that one call transfers.
pub const MAX_TRANSFER: u64 = 0x7fff_f000;

/// Returns the open file of a descriptor. Fails with EBADF if there is none, or if it is open with O_PATH.
pub fn file(descriptor: u64) -> Result<Arc<Open>, Errno> {
    current().files.get(descriptor)
}

fn read(frame: &mut Frame) -> Answer {
    let [descriptor, at, len, ..] = frame.args();
    let parts = [[at, len.min(MAX_TRANSFER)]];
    Ok(file(descriptor)?.read(None, &mut UserBuffer::new(&parts))? as u64)
}

fn write(frame: &mut Frame) -> Answer {
    let [descriptor, at, len, ..] = frame.args();
    let parts = [[at, len.min(MAX_TRANSFER)]];
    put(&*file(descriptor)?, None, &mut UserBuffer::new(&parts))
}

fn pread(frame: &mut Frame) -> Answer {
    let [descriptor, at, len, offset, ..] = frame.args();
    let parts = [[at, len.min(MAX_TRANSFER)]];
    let open = file(descriptor)?;
    takes_offset(&open, offset)?;
    Ok(open.read(Some(offset), &mut UserBuffer::new(&parts))? as u64)
}

fn pwrite(frame: &mut Frame) -> Answer {
    let [descriptor, at, len, offset, ..] = frame.args();
    let parts = [[at, len.min(MAX_TRANSFER)]];
    let open = file(descriptor)?;
    takes_offset(&open, offset)?;
    put(&open, Some(offset), &mut UserBuffer::new(&parts))
}

/// Fails with ESPIPE if the file has no positions.
pub fn seekable(open: &Open) -> Result<(), Errno> {
    if open.file.can_seek() { Ok(()) } else { Err(errno::ESPIPE) }
}

/// Fails with EINVAL if the offset is too large, and with ESPIPE if calls cannot name offsets in the file.
fn takes_offset(open: &Open, offset: u64) -> Result<(), Errno> {
    match open.file.takes_offsets() {
        _ if offset > i64::MAX as u64 => Err(Errno::EINVAL),
        true => Ok(()),
        false => Err(errno::ESPIPE),
    }
}

/// Reads an array of `struct iovec` and returns the ranges in it.
pub fn parts(at: u64, count: u64) -> Result<Vec<Part>, Errno> {
    if count > UIO_MAXIOV.into() {
        return Err(Errno::EINVAL);
    }
    let (from, mut room) = (UserPtr::<Part>::new(at), MAX_TRANSFER);
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
    put(&*file(descriptor)?, None, &mut UserBuffer::new(&parts))
}

/// Returns the offset at which preadv2 or pwritev2 begins. Returns `None` for -1, which selects the file's
/// position.
fn place(open: &Open, offset: u64) -> Result<Option<u64>, Errno> {
    if offset == u64::MAX {
        return Ok(None);
    }
    takes_offset(open, offset).map(|()| Some(offset))
}

fn preadv(frame: &mut Frame) -> Answer {
    let [descriptor, at, count, offset, ..] = frame.args();
    let (open, parts) = (file(descriptor)?, parts(at, count)?);
    Ok(open.read(place(&open, offset)?, &mut UserBuffer::new(&parts))? as u64)
}

fn pwritev(frame: &mut Frame) -> Answer {
    let [descriptor, at, count, offset, ..] = frame.args();
    let (open, parts) = (file(descriptor)?, parts(at, count)?);
    put(&open, place(&open, offset)?, &mut UserBuffer::new(&parts))
}

fn close(frame: &mut Frame) -> Answer {
    let [descriptor, ..] = frame.args();
    current().files.close(descriptor).map(|()| 0)
}

fn dup(frame: &mut Frame) -> Answer {
    let [descriptor, ..] = frame.args();
    let files = &current().files;
    files.add(files.get_any(descriptor)?, 0, false)
}

fn dup2(frame: &mut Frame) -> Answer {
    let [from, to, ..] = frame.args();
    let open = current().files.get_any(from)?;
    if from as u32 != to as u32 {
        current().files.put(open, to, false)?;
    }
    Ok((to as u32).into())
}

fn dup3(frame: &mut Frame) -> Answer {
    let [from, to, flags, ..] = frame.args();
    if from as u32 == to as u32 || flags & !u64::from(O_CLOEXEC) != 0 {
        return Err(Errno::EINVAL);
    }
    let files = &current().files;
    files.put(files.get_any(from)?, to, flags != 0)?;
    Ok((to as u32).into())
}

const CLOSE_RANGE_UNSHARE: u32 = 2;
const CLOSE_RANGE_CLOEXEC: u32 = 4;

fn close_range(frame: &mut Frame) -> Answer {
    let [first, last, flags, ..] = frame.args();
    let (first, last, flags) = (first as u32 as usize, last as u32 as usize, flags as u32);
    if first > last || flags & !(CLOSE_RANGE_CLOEXEC | CLOSE_RANGE_UNSHARE) != 0 {
        return Err(Errno::EINVAL);
    }
    let files = &current().files;
    if flags & CLOSE_RANGE_UNSHARE != 0 {
        files.unshare()?;
    }
    match flags & CLOSE_RANGE_CLOEXEC {
        0 => files.close_range(first, last)?,
        _ => files.mark_range(first, last)?,
    }
    Ok(0)
}

fn fcntl(frame: &mut Frame) -> Answer {
    let [descriptor, what, argument, ..] = frame.args();
    let files = &current().files;
    let open = files.get_any(descriptor)?;
    let of_descriptor = [F_DUPFD, F_DUPFD_CLOEXEC, F_DUPFD_QUERY, F_GETFD, F_SETFD, F_GETFL];
    if open.is_path() && !of_descriptor.contains(&(what as u32)) {
        return Err(Errno::EBADF);
    }
    match what as u32 {
        F_DUPFD | F_DUPFD_CLOEXEC if argument as u32 as usize >= current().files.limit() => {
            Err(Errno::EINVAL)
        }
        F_DUPFD => files.add(open, argument as u32 as usize, false),
        F_DUPFD_CLOEXEC => files.add(open, argument as u32 as usize, true),
        F_GETFD => files.close_on_exec(descriptor, None).map(u64::from),
        F_SETFD => files.close_on_exec(descriptor, Some(argument & 1 != 0)).map(|_| 0),
        F_GETFL => Ok(u64::from(open.flags.load(Relaxed)) | if open.is_path() { 0 } else { O_LARGE }),
        F_DUPFD_QUERY => Ok(Arc::ptr_eq(&open, &files.get_any(argument)?).into()),
        F_SETFL => {
            let change = O_APPEND | O_NONBLOCK | O_DIRECT | O_NOATIME;
            let step = |flags| Some(flags & !change | argument as u32 & change);
            let _ = open.flags.fetch_update(Relaxed, Relaxed, step);
            Ok(0)
        }
        // File locks are always granted, because the kernel does not record them. Two processes can therefore
        // hold conflicting locks.
        F_GETLK | OFD_GETLK => UserPtr::<u16>::new(argument).write(&UNLOCKED).map(|()| 0),
        F_SETLK | F_SETLKW | OFD_SETLK | OFD_SETLKW => UserPtr::<u16>::new(argument).read().map(|_| 0),
        F_GETOWN | F_SETOWN | F_GETSIG | F_SETSIG => Ok(0),
        F_GETPIPE_SZ => pipe::room(&*open.file, None).map(|bytes| bytes as u64),
        F_SETPIPE_SZ => pipe::room(&*open.file, Some(argument as u32 as usize)).map(|bytes| bytes as u64),
        F_GET_SEALS => {
            let mapping = open.file.mapping().ok_or(Errno::EINVAL)?;
            Ok(mapping.seals().unwrap_or(Seals::SEAL).bits().into())
        }
        F_ADD_SEALS => add_seals(&open, argument as u32),
        _ => Err(Errno::EINVAL),
    }
}

/// Flag that F_GETFL reports for every file that is not open with O_PATH.
const O_LARGE: u64 = 0o100_000;
/// The type F_UNLCK, which says that no lock is in conflict.
const UNLOCKED: u16 = 2;
const OFD_GETLK: u32 = 36;
const OFD_SETLK: u32 = 37;
const OFD_SETLKW: u32 = 38;
const F_SETPIPE_SZ: u32 = 1031;
const F_GETPIPE_SZ: u32 = 1032;
const F_ADD_SEALS: u32 = 1033;
const F_GET_SEALS: u32 = 1034;

/// Performs F_ADD_SEALS. Only files of memfd_create accept seals.
fn add_seals(open: &Open, seals: u32) -> Answer {
    let mapping = open.file.mapping().ok_or(Errno::EINVAL)?;
    if !open.may_write() {
        return Err(Errno::EPERM);
    }
    let mut seals = Seals::from_bits(seals).ok_or(Errno::EINVAL)?;
    if mapping.seals().is_none() {
        return Err(Errno::EPERM);
    }
    let can_run = node_of(&*open.file).is_some_and(|node| node.mode.load(Relaxed) & 0o111 != 0);
    if seals.contains(Seals::EXEC) && can_run {
        // F_SEAL_EXEC on an executable file also seals its contents.
        seals |= Seals::SHRINK | Seals::GROW | Seals::WRITE | Seals::FUTURE_WRITE;
    }
    mapping.add_seals(seals).map(|()| 0).map_err(|error| error.errno())
}

fn flock(frame: &mut Frame) -> Answer {
    let [descriptor, operation, ..] = frame.args();
    match operation as u32 & !LOCK_NB {
        LOCK_SH | LOCK_EX | LOCK_UN => file(descriptor).map(|_| 0),
        _ => Err(Errno::EINVAL),
    }
}

const FIOCLEX: u64 = 0x5451;
const FIONCLEX: u64 = 0x5450;
const FIONBIO: u64 = 0x5421;

fn ioctl(frame: &mut Frame) -> Answer {
    let [descriptor, request, argument, ..] = frame.args();
    let open = file(descriptor)?;
    let request = request & 0xffff_ffff;
    match request {
        FIOCLEX | FIONCLEX => {
            let marked = Some(request == FIOCLEX);
            current().files.close_on_exec(descriptor, marked).map(|_| 0)
        }
        FIONBIO => {
            let nonblock = if UserPtr::<u32>::new(argument).read()? != 0 { O_NONBLOCK } else { 0 };
            let step = |flags| Some(flags & !O_NONBLOCK | nonblock);
            let _ = open.flags.fetch_update(Relaxed, Relaxed, step);
            Ok(0)
        }
        _ => open.file.ioctl(request, argument),
    }
}

fn pipe(frame: &mut Frame) -> Answer {
    let [out, ..] = frame.args();
    make_pipe(out, 0)
}

fn pipe2(frame: &mut Frame) -> Answer {
    let [out, flags, ..] = frame.args();
    make_pipe(out, flags as u32)
}

/// Makes a pipe and stores the descriptors of its ends at `out`.
fn make_pipe(out: u64, flags: u32) -> Answer {
    let (reader, writer) = pipe::new();
    let (close, keep) = (flags & O_CLOEXEC != 0, flags & O_NONBLOCK);
    let reader = Open::new(Arc::new(reader), O_RDONLY | keep, b"pipe:");
    let writer = Open::new(Arc::new(writer), O_WRONLY | keep, b"pipe:");
    return_both([reader, writer], close, out)
}

/// Stores the descriptors of two new open files in the two words at `out`. Closes both if that fails.
pub fn return_both([first, second]: [Arc<Open>; 2], close_on_exec: bool, out: u64) -> Answer {
    let files = &current().files;
    let first = files.add(first, 0, close_on_exec)?;
    let second = files.add(second, 0, close_on_exec);
    let stored =
        second.and_then(|second| UserPtr::<[u32; 2]>::new(out).write(&[first as u32, second as u32]));
    if stored.is_err() {
        let _ = files.close(first);
        let _ = second.map(|second| files.close(second));
    }
    stored.map(|()| 0)
}

/// Writes to an open file, within the process's limit of file sizes. If a pipe or socket has no reader, also
/// sends SIGPIPE to the calling thread.
///
/// # Errors
///
/// Fails like [`Open::write`].
pub fn put(open: &Open, at: Option<u64>, from: &mut UserBuffer<'_>) -> Answer {
    with_signal(open, open.write(at, from, renew::file_room).map(|bytes| bytes as u64))
}

/// Returns the answer of a call that writes to a file. If the file has no reader, sends SIGPIPE to the calling
/// thread, except for a socket of messages.
pub fn with_signal<R>(open: &Open, answer: Result<R, Errno>) -> Result<R, Errno> {
    let is_stream = || Socket::of(open).is_none_or(|socket| socket.kind() == socket::Kind::Stream);
    if matches!(answer, Err(errno::EPIPE)) && is_stream() {
        signal::to_itself(SIGPIPE);
    }
    answer
}
