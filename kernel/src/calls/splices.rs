//! Calls that move data through pipes within the kernel: splice, tee, vmsplice.
//!
//! splice and tee copy bytes. vmsplice pins the pages of the caller and adds them to the pipe without a copy
//! (`files/pipe_queue.rs`). A call that takes bytes from a pipe holds the right to remove bytes from the copy
//! until the bytes have left the pipe, so no reader gets them twice. It never waits for the other file while
//! it holds this right, so two calls in opposite directions do not wait for each other. The program
//! `splices.c` tests the calls.

use crate::arch::frame::Frame;
use crate::calls::answer::{Answer, Calls};
use crate::calls::contents::copy;
use crate::calls::descriptors::{MAX_TRANSFER, file, parts, put, with_signal};
use crate::calls::poll::wait_until_ready;
use crate::errno;
use crate::files::pipe::{self, Pipe};
use crate::files::pipe_queue::Page;
use crate::files::{READABLE, WRITABLE, buffer::UserBuffer, open::Open};
use crate::platform::user::UserPtr;
use crate::sched::{checkpoint, current};
use core::sync::atomic::Ordering::Relaxed;
use freehold::PAGE_SIZE;
use freehold::error::Errno;
use freehold::remote::PinFlags;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[(__NR_splice, splice), (__NR_tee, tee), (__NR_vmsplice, vmsplice)];

/// The flags SPLICE_F_MOVE, NONBLOCK, MORE and GIFT. Only the second one has an effect.
const FLAGS: u32 = 0xf;
const NONBLOCK: u32 = 2;
/// Number of bytes that one step of a call moves.
const PART: usize = 2048;

/// Returns the pipe of an open file, if the file is one.
fn pipe_of(open: &Open) -> Option<&Pipe> {
    pipe::of(&*open.file).map(|pipe| &**pipe)
}

/// Fails with EBADF unless the first file is open for reading and the second one for writing.
fn check_modes(from: &Open, to: &Open) -> Result<(), Errno> {
    if from.may_read() && to.may_write() { Ok(()) } else { Err(Errno::EBADF) }
}

/// Reads the offset that the program passes for a file.
///
/// # Errors
///
/// ESPIPE if the file is a pipe; EINVAL if the file has no positions, or if the offset is too large; EFAULT.
fn offset_at(open: &Open, at: u64) -> Result<Option<u64>, Errno> {
    let Some(place) = UserPtr::<u64>::optional(at) else { return Ok(None) };
    if pipe_of(open).is_some() {
        return Err(errno::ESPIPE);
    }
    let offset = place.read()?;
    if open.file.can_seek() && offset <= i64::MAX as u64 { Ok(Some(offset)) } else { Err(Errno::EINVAL) }
}

fn splice(frame: &mut Frame) -> Answer {
    let [from, from_at, to, to_at, len, flags] = frame.args();
    if len == 0 {
        return Ok(0);
    }
    if flags as u32 & !FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    let (from, to) = (file(from)?, file(to)?);
    check_modes(&from, &to)?;
    let (source, target) = (pipe_of(&from), pipe_of(&to));
    let (begin, to_begin) = (offset_at(&from, from_at)?, offset_at(&to, to_at)?);
    if len > i64::MAX as u64 {
        return Err(Errno::EINVAL);
    }
    let (len, nonblock) = (len.min(MAX_TRANSFER), flags as u32 & NONBLOCK != 0);
    let done = match (source, target) {
        (Some(source), Some(target)) if core::ptr::eq(source, target) => return Err(Errno::EINVAL),
        (Some(source), target) => {
            if target.is_none() && to.flags.load(Relaxed) & O_APPEND != 0 {
                return Err(Errno::EINVAL);
            }
            let nonblock = nonblock || target.is_some() && (from.nonblock() || to.nonblock());
            move_out(&from, source, &to, to_begin, Amount { len, nonblock, keeps: false })?
        }
        (None, Some(target)) => {
            let nonblock = nonblock || to.nonblock();
            let room = room_of(&to, target, nonblock)?;
            let len = len.min(room as u64);
            if from.file.can_seek() { copy(&from, begin, &to, None, len)? } else { move_in(&from, &to, len)? }
        }
        (None, None) => return Err(Errno::EINVAL),
    };
    for (at, begin) in [(from_at, begin), (to_at, to_begin)] {
        if let Some(begin) = begin {
            UserPtr::<u64>::new(at).write(&(begin + done))?;
        }
    }
    Ok(done)
}

/// Returns the room of a pipe for bytes, at least 1. Waits for it; with `nonblock`, fails with EAGAIN
/// instead.
fn room_of(open: &Open, pipe: &Pipe, nonblock: bool) -> Result<usize, Errno> {
    loop {
        match pipe.room() {
            Ok(0) if nonblock => return Err(Errno::EAGAIN),
            Ok(0) => wait_until_ready(open, WRITABLE)?,
            room => return with_signal(open, room),
        }
    }
}

/// Moves the bytes that one read of a file without positions returns to a pipe.
fn move_in(from: &Open, to: &Open, len: u64) -> Answer {
    let mut part = [0; PART];
    let room = PART.min(len as usize);
    let bytes = from.read(None, &mut UserBuffer::to_kernel(&mut part[..room]))?;
    put(to, None, &mut UserBuffer::from_kernel(&part[..bytes]))
}

/// How many bytes to move out of a pipe.
#[derive(Clone, Copy)]
struct Amount {
    len: u64,
    /// Fails with EAGAIN instead of waiting.
    nonblock: bool,
    /// Leaves the bytes in the pipe.
    keeps: bool,
}

/// Moves bytes from a pipe to a file. Waits only for the first bytes. Returns the number of bytes.
fn move_out(from: &Open, source: &Pipe, to: &Open, at: Option<u64>, amount: Amount) -> Answer {
    let (mut part, mut done) = ([0; PART], 0);
    while done < amount.len {
        checkpoint()?;
        let turn = source.hold_contents()?;
        let room = PART.min((amount.len - done) as usize);
        let bytes = source.peek(if amount.keeps { done as usize } else { 0 }, &mut part[..room]);
        if bytes == 0 {
            drop(turn);
            if done > 0 || source.has_ended() {
                break;
            }
            if amount.nonblock {
                return Err(Errno::EAGAIN);
            }
            wait_until_ready(from, READABLE)?;
            continue;
        }
        let mut buffer = UserBuffer::from_kernel(&part[..bytes]);
        let written = put_now(to, at.map(|at| at + done), &mut buffer);
        if let Ok(count) = written
            && !amount.keeps
        {
            source.remove(count as usize);
        }
        drop(turn);
        match written {
            Ok(count) => done += count,
            Err(_) if done > 0 => break,
            Err(Errno::EAGAIN) if !amount.nonblock && !to.nonblock() => wait_until_ready(to, WRITABLE)?,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Writes to a file without waiting for room.
fn put_now(to: &Open, at: Option<u64>, from: &mut UserBuffer<'_>) -> Answer {
    if to.file.can_seek() {
        return put(to, at, from);
    }
    with_signal(to, to.file.write(0, from, true).map(|bytes| bytes as u64))
}

fn tee(frame: &mut Frame) -> Answer {
    let [from, to, len, flags, ..] = frame.args();
    if flags as u32 & !FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    if len == 0 {
        return Ok(0);
    }
    let (from, to) = (file(from)?, file(to)?);
    check_modes(&from, &to)?;
    let (Some(source), Some(target)) = (pipe_of(&from), pipe_of(&to)) else { return Err(Errno::EINVAL) };
    if core::ptr::eq(source, target) {
        return Err(Errno::EINVAL);
    }
    let nonblock = flags as u32 & NONBLOCK != 0 || from.nonblock() || to.nonblock();
    move_out(&from, source, &to, None, Amount { len: len.min(MAX_TRANSFER), nonblock, keeps: true })
}

fn vmsplice(frame: &mut Frame) -> Answer {
    let [descriptor, at, count, flags, ..] = frame.args();
    if flags as u32 & !FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    let open = file(descriptor)?;
    let pipe = pipe_of(&open).ok_or(Errno::EBADF)?;
    let parts = parts(at, count)?;
    if !open.may_write() {
        return Ok(open.read(None, &mut UserBuffer::new(&parts))? as u64);
    }
    let nonblock = flags as u32 & NONBLOCK != 0 || open.nonblock();
    let mut done = 0;
    for [base, len] in parts {
        let mut added = 0;
        while added < len {
            match add_page(&open, pipe, base.wrapping_add(added), len - added, nonblock || done > 0) {
                Ok(bytes) => (added, done) = (added + bytes, done + bytes),
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(done)
}

/// Adds the caller's page at `at` to a pipe, up to `len` bytes of it. Returns the number of bytes.
fn add_page(open: &Open, pipe: &Pipe, at: u64, len: u64, nonblock: bool) -> Answer {
    checkpoint()?;
    // The pin has no time limit, because the page stays in the pipe until a program reads it.
    let pins = current().space().pin_user_pages_fast(at, 1, PinFlags::LONGTERM);
    let pins = pins.map_err(|error| error.errno())?;
    let from = at % PAGE_SIZE;
    let bytes = len.min(PAGE_SIZE - from);
    let added = pipe.add_page(Page::new(pins, from as usize, (from + bytes) as usize), nonblock);
    with_signal(open, added).map(|()| bytes)
}
