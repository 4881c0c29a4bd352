//! Calls that pass messages in a `struct msghdr`: bytes in several ranges, descriptors and credentials
//! (cmsg(3)).
//!
//! A header in a program's memory is read as an array of words. `calls/sockets.rs` sends and receives with
//! the decoded header, and `files/socket/message.rs` limits the files in flight. A received file gets its
//! descriptor while the control data is written; if no descriptor is free or the data has no room, the rest
//! of the files is closed and MSG_CTRUNC is set. The program `sockets.c` tests the calls.

use crate::arch::{clock, frame::Frame};
use crate::calls::answer::{Answer, Calls};
use crate::calls::descriptors::{file, parts};
use crate::calls::sockets::{attached, check_address, how, own_credentials, send, socket_of};
use crate::calls::time;
use crate::errno;
use crate::files::socket::message::{Credentials, MAX_RIGHTS, NOBODY};
use crate::files::socket::{Attached, Received, Socket};
use crate::files::{buffer::Part, buffer::UserBuffer, open::Open};
use crate::platform::user::{self, UserPtr};
use crate::process;
use crate::sched::{charge, checkpoint, current};
use alloc::sync::Arc;
use alloc::vec::Vec;
use freehold::error::Errno;
use linux_raw_sys::general::*;
use linux_raw_sys::net::*;

pub const CALLS: Calls = &[
    (__NR_sendmsg, send_message),
    (__NR_recvmsg, receive_message),
    (__NR_sendmmsg, send_messages),
    (__NR_recvmmsg, receive_messages),
];

/// A decoded `struct msghdr`.
struct Header {
    /// The address of the structure.
    at: u64,
    name: u64,
    name_bytes: u64,
    parts: Vec<Part>,
    control: u64,
    control_bytes: u64,
}

/// Offsets of fields of `struct msghdr` that a receiver writes.
const NAME_BYTES: u64 = 8;
const CONTROL_BYTES: u64 = 40;
const FLAGS: u64 = 48;

impl Header {
    fn read(at: u64) -> Result<Self, Errno> {
        let [name, name_bytes, ranges, count, control, control_bytes, _] =
            UserPtr::<[u64; 7]>::new(at).read()?;
        if (name_bytes as i32) < 0 {
            return Err(Errno::EINVAL);
        }
        if count > UIO_MAXIOV.into() {
            return Err(errno::EMSGSIZE);
        }
        Ok(Header { at, name, name_bytes, parts: parts(ranges, count)?, control, control_bytes })
    }
}

/// Bytes of a `struct cmsghdr`: the length, the level and the type. Also the alignment of lengths is 8.
const CONTROL_HEADER: usize = 16;
/// Maximum number of bytes of control data that a message is sent with.
const MAX_CONTROL: u64 = 1 << 17;

/// Decodes the control data of a message to send.
///
/// # Errors
///
/// EINVAL if it is malformed; EBADF if a descriptor is not in use; EPERM if the caller may not send the
/// credentials; ESRCH if there is no such process; ETOOMANYREFS; ENOBUFS; EFAULT; ENOMEM.
fn read_control(at: u64, bytes: u64) -> Result<Attached, Errno> {
    if bytes > MAX_CONTROL {
        return Err(errno::ENOBUFS);
    }
    let mut control = charge::filled(0, if at == 0 { 0 } else { bytes as usize })?;
    user::copy_in(at, &mut control)?;
    let (mut files, mut sender, mut rest) = (Vec::new(), None, &*control);
    while let Some((header, after)) = rest.split_first_chunk::<CONTROL_HEADER>() {
        checkpoint()?;
        let [len, word] =
            [0, 8].map(|at| u64::from_ne_bytes(header[at..at + 8].try_into().unwrap_or_default()));
        let data = usize::try_from(len).ok().and_then(|len| len.checked_sub(CONTROL_HEADER));
        let data = data.and_then(|len| after.get(..len)).ok_or(Errno::EINVAL)?;
        if word as u32 == SOL_SOCKET {
            match (word >> 32) as u32 {
                SCM_RIGHTS => add_files(&mut files, data)?,
                SCM_CREDENTIALS => sender = Some(read_credentials(data)?),
                _ => return Err(Errno::EINVAL),
            }
        }
        rest = after.get(data.len().next_multiple_of(8)..).unwrap_or_default();
    }
    let attached = attached(files)?;
    Ok(Attached { sender: sender.unwrap_or(attached.sender), ..attached })
}

/// Returns the words of control data. Ignores an incomplete word at the end.
fn words(data: &[u8]) -> impl Iterator<Item = u32> {
    data.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap_or_default()))
}

/// Adds the open files of descriptors in control data.
fn add_files(files: &mut Vec<Arc<Open>>, data: &[u8]) -> Result<(), Errno> {
    if files.len() + data.len() / 4 > MAX_RIGHTS {
        return Err(Errno::EINVAL);
    }
    charge::reserve(files, data.len() / 4)?;
    for descriptor in words(data) {
        files.push(current().files.get_any(descriptor.into())?);
    }
    Ok(())
}

/// Returns the credentials in control data, if the caller may send them.
fn read_credentials(data: &[u8]) -> Result<Credentials, Errno> {
    let mut sent = NOBODY;
    if data.len() != size_of_val(&sent) {
        return Err(Errno::EINVAL);
    }
    words(data).zip(&mut sent).for_each(|(word, to)| *to = word);
    let [pid, user, group] = sent;
    let ids = *current().process().ids.lock();
    // Other processes, users and groups need a capability.
    let may = (pid == own_credentials()[0] || ids.may(CAP_SYS_ADMIN))
        && (ids.user.has(user) || ids.may(CAP_SETUID))
        && (ids.group.has(group) || ids.may(CAP_SETGID));
    if !may {
        return Err(Errno::EPERM);
    }
    process::find(pid).map(|_| sent).ok_or(Errno::ESRCH)
}

/// Sends the message of a header.
fn send_one(open: &Open, socket: &Socket, header: &Header, flags: u32) -> Answer {
    let attached = read_control(header.control, header.control_bytes)?;
    check_address(socket, header.name, header.name_bytes)?;
    send(open, socket, &mut UserBuffer::new(&header.parts), attached, flags)
}

fn send_message(frame: &mut Frame) -> Answer {
    let [descriptor, at, flags, ..] = frame.args();
    let open = file(descriptor)?;
    send_one(&open, socket_of(&open)?, &Header::read(at)?, flags as u32)
}

/// The control data of a receiver: where to write, and what remains of the room.
struct Control {
    at: u64,
    room: usize,
    flags: u32,
}

impl Control {
    /// Ends an element whose data has `bytes` bytes: writes its header and goes on behind it.
    fn finish(&mut self, kind: u32, bytes: usize) -> Result<(), Errno> {
        let len = CONTROL_HEADER + bytes;
        UserPtr::<[u64; 2]>::new(self.at)
            .write(&[len as u64, u64::from(SOL_SOCKET) | u64::from(kind) << 32])?;
        let space = len.next_multiple_of(8).min(self.room);
        self.at += space as u64;
        self.room -= space;
        Ok(())
    }

    /// Returns the room for the data of the next element.
    fn data_room(&self) -> usize {
        self.room.saturating_sub(CONTROL_HEADER)
    }

    /// Writes the credentials of a message.
    fn put_credentials(&mut self, sender: Credentials) -> Result<(), Errno> {
        let data = sender.map(u32::to_ne_bytes).concat();
        let bytes = data.len().min(self.data_room());
        if bytes < data.len() {
            self.flags |= MSG_CTRUNC;
        }
        if self.room < CONTROL_HEADER {
            return Ok(());
        }
        user::copy_out(self.at + CONTROL_HEADER as u64, &data[..bytes])?;
        self.finish(SCM_CREDENTIALS, bytes)
    }

    /// Gives files descriptors and writes these, as far as there is room. The rest is closed.
    fn put_files(&mut self, files: Vec<Arc<Open>>, close_on_exec: bool) -> Result<(), Errno> {
        let (count, most, mut done) = (files.len(), self.data_room() / 4, 0);
        for open in files.into_iter().take(most) {
            let Ok(descriptor) = current().files.add(open, 0, close_on_exec) else { break };
            let to = UserPtr::<u32>::new(self.at + CONTROL_HEADER as u64).add(done as u64);
            if to.write(&(descriptor as u32)).is_err() {
                let _ = current().files.close(descriptor);
                break;
            }
            done += 1;
        }
        if done < count {
            self.flags |= MSG_CTRUNC;
        }
        if done > 0 { self.finish(SCM_RIGHTS, 4 * done) } else { Ok(()) }
    }
}

/// Receives into the buffers of a header, and writes the header's results.
fn receive_one(open: &Open, socket: &Socket, header: &Header, flags: u32) -> Answer {
    let received = socket.receive(&mut UserBuffer::new(&header.parts), how(open, flags)?)?;
    let Received { bytes, len, files, sender } = received;
    let room = if header.control == 0 { 0 } else { header.control_bytes };
    let room = usize::try_from(room).unwrap_or(usize::MAX);
    let mut control = Control { at: header.control, room, flags: flags & MSG_CMSG_CLOEXEC };
    if socket.options().passes_credentials {
        control.put_credentials(sender.unwrap_or(NOBODY))?;
    }
    if !files.is_empty() {
        control.put_files(files, flags & MSG_CMSG_CLOEXEC != 0)?;
    }
    if bytes < len {
        control.flags |= MSG_TRUNC;
    }
    if header.name != 0 {
        // The sender has no name.
        UserPtr::<u32>::new(header.at + NAME_BYTES).write(&0)?;
    }
    UserPtr::<u32>::new(header.at + FLAGS).write(&control.flags)?;
    let written = control.at - header.control;
    UserPtr::<u64>::new(header.at + CONTROL_BYTES).write(&written)?;
    Ok(if flags & MSG_TRUNC != 0 { len } else { bytes } as u64)
}

fn receive_message(frame: &mut Frame) -> Answer {
    let [descriptor, at, flags, ..] = frame.args();
    let open = file(descriptor)?;
    receive_one(&open, socket_of(&open)?, &Header::read(at)?, flags as u32)
}

/// Bytes of a `struct mmsghdr`, and the offset in it of the number of transferred bytes.
const ELEMENT: u64 = 64;
const ELEMENT_BYTES: u64 = 56;

/// Calls `one` with up to `count` elements of the array at `at`, until `one` fails or returns false for "no
/// more". Stores the number of bytes in each element. Returns the number of transferred messages.
///
/// # Errors
///
/// Errors of the first message.
fn each_message(
    at: u64,
    count: u64,
    mut one: impl FnMut(&Header, u64) -> Result<(u64, bool), Errno>,
) -> Answer {
    for n in 0..count {
        checkpoint()?;
        let element = at.wrapping_add(n * ELEMENT);
        let moved = Header::read(element).and_then(|header| one(&header, n)).and_then(|(bytes, goes_on)| {
            UserPtr::<u32>::new(element.wrapping_add(ELEMENT_BYTES)).write(&(bytes as u32))?;
            Ok(goes_on)
        });
        match moved {
            Ok(true) => {}
            Ok(false) => return Ok(n + 1),
            Err(error) if n == 0 => return Err(error),
            Err(_) => return Ok(n),
        }
    }
    Ok(count)
}

fn send_messages(frame: &mut Frame) -> Answer {
    let [descriptor, at, count, flags, ..] = frame.args();
    let open = file(descriptor)?;
    let socket = socket_of(&open)?;
    let count = u64::from(count as u32).min(UIO_MAXIOV.into());
    each_message(at, count, |header, _| Ok((send_one(&open, socket, header, flags as u32)?, true)))
}

/// Performs recvmmsg. The timeout ends the call only after a message, as on Linux.
fn receive_messages(frame: &mut Frame) -> Answer {
    let [descriptor, at, count, flags, timeout, _] = frame.args();
    let open = file(descriptor)?;
    let socket = socket_of(&open)?;
    let deadline = time::after_timeout(timeout)?;
    each_message(at, (count as u32).into(), |header, n| {
        let later = flags as u32 & MSG_WAITFORONE != 0 && n > 0;
        let flags = flags as u32 & !MSG_WAITFORONE | if later { MSG_DONTWAIT } else { 0 };
        let bytes = receive_one(&open, socket, header, flags)?;
        Ok((bytes, clock::now_ns() < deadline))
    })
}

/// Makes recvmmsg wait only for the first message.
const MSG_WAITFORONE: u32 = 0x10000;
