//! Calls on sockets: pairs, options, names, and messages in one buffer. `files/socket/` has the sockets and
//! their locks. `calls/messages.rs` has the calls with `struct msghdr`, and `calls/descriptors.rs` has read
//! and write, which pass each message of a program to [`send`].
//!
//! Sockets with addresses do not exist: `socket` fails with EAFNOSUPPORT, and `bind` with EOPNOTSUPP. The
//! program `sockets.c` tests the calls. A new option needs an arm in `get_option` and one in `set_option`.

use crate::arch::frame::Frame;
use crate::calls::answer::{Answer, Calls};
use crate::calls::descriptors::{MAX_TRANSFER, file, return_both, with_signal};
use crate::errno;
use crate::files::socket::message::{Credentials, Rights};
use crate::files::socket::{self, Attached, How, Kind, Options, ROOM, Socket};
use crate::files::{buffer::UserBuffer, open::Open};
use crate::platform::user::{self, UserPtr};
use crate::sched::current;
use alloc::sync::Arc;
use alloc::vec::Vec;
use freehold::error::Errno;
use linux_raw_sys::general::*;
use linux_raw_sys::net::*;

pub const CALLS: Calls = &[
    (__NR_socketpair, socketpair),
    (__NR_socket, no_socket),
    (__NR_bind, bind),
    (__NR_connect, connect),
    (__NR_listen, listen),
    (__NR_accept, listen),
    (__NR_accept4, listen),
    (__NR_shutdown, shutdown),
    (__NR_getsockname, own_name),
    (__NR_getpeername, other_name),
    (__NR_getsockopt, get_option),
    (__NR_setsockopt, set_option),
    (__NR_sendto, send_to),
    (__NR_recvfrom, receive_from),
];

/// Returns the socket of an open file.
///
/// # Errors
///
/// ENOTSOCK if the file is no socket.
pub fn socket_of(open: &Open) -> Result<&Socket, Errno> {
    Socket::of(open).ok_or(errno::ENOTSOCK)
}

/// Splits the second argument of `socket` and `socketpair` into the type and the flags.
fn kind_of(word: u64) -> Result<(u32, u32), Errno> {
    let (kind, flags) = (word as u32 & 0xf, word as u32 & !0xf);
    if flags & !(O_CLOEXEC | O_NONBLOCK) == 0 { Ok((kind, flags)) } else { Err(Errno::EINVAL) }
}

/// Performs `socket`, which always fails: there are no sockets except pairs.
fn no_socket(frame: &mut Frame) -> Answer {
    let [_, kind, ..] = frame.args();
    kind_of(kind)?;
    Err(errno::EAFNOSUPPORT)
}

fn socketpair(frame: &mut Frame) -> Answer {
    let [family, kind, protocol, out, ..] = frame.args();
    let (kind, flags) = kind_of(kind)?;
    if family as u32 != AF_UNIX {
        return Err(errno::EAFNOSUPPORT);
    }
    if !matches!(protocol as u32, 0 | AF_UNIX) {
        return Err(errno::EPROTONOSUPPORT);
    }
    let kind = match kind {
        SOCK_STREAM => Kind::Stream,
        SOCK_DGRAM | SOCK_RAW => Kind::Datagrams,
        SOCK_SEQPACKET => Kind::Packets,
        _ => return Err(errno::ESOCKTNOSUPPORT),
    };
    let ids = *current().process().ids.lock();
    let maker = [current().process().pid, ids.user.effective, ids.group.effective];
    let both = socket::pair(kind, maker, own_credentials)
        .map(|socket| Open::new(Arc::new(socket), O_RDWR | flags & O_NONBLOCK, b"socket:"));
    return_both(both, flags & O_CLOEXEC != 0, out)
}

/// Performs `bind`, which always fails: sockets have no addresses.
fn bind(frame: &mut Frame) -> Answer {
    let [descriptor, ..] = frame.args();
    socket_of(&*file(descriptor)?)?;
    Err(Errno::EOPNOTSUPP)
}

/// Performs `connect`, which always fails: no address belongs to a socket.
fn connect(frame: &mut Frame) -> Answer {
    let [descriptor, ..] = frame.args();
    socket_of(&*file(descriptor)?)?;
    Err(errno::ECONNREFUSED)
}

/// Performs `listen` and `accept`, which always fail: a socket of a pair is connected.
fn listen(frame: &mut Frame) -> Answer {
    let [descriptor, ..] = frame.args();
    match socket_of(&*file(descriptor)?)?.kind() {
        Kind::Datagrams => Err(Errno::EOPNOTSUPP),
        _ => Err(Errno::EINVAL),
    }
}

fn shutdown(frame: &mut Frame) -> Answer {
    let [descriptor, how, ..] = frame.args();
    let open = file(descriptor)?;
    let socket = socket_of(&open)?;
    match how as u32 {
        SHUT_RD | SHUT_WR | SHUT_RDWR => socket.shut_down(how as u32 != SHUT_WR, how as u32 != SHUT_RD),
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

/// Stores the first bytes of `value` at `to`, as many as the length at `bytes` allows. Returns the number of
/// stored bytes.
fn store(to: u64, bytes: u64, value: &[u8]) -> Result<usize, Errno> {
    let room = UserPtr::<i32>::new(bytes).read()?;
    let count = value.len().min(usize::try_from(room).map_err(|_| Errno::EINVAL)?);
    user::copy_out(to, &value[..count])?;
    Ok(count)
}

/// Stores the name of a socket of a pair, which has a family and no path.
fn put_name(to: u64, bytes: u64) -> Answer {
    let name = (AF_UNIX as u16).to_ne_bytes();
    store(to, bytes, &name)?;
    UserPtr::<u32>::new(bytes).write(&(name.len() as u32)).map(|()| 0)
}

fn own_name(frame: &mut Frame) -> Answer {
    let [descriptor, to, bytes, ..] = frame.args();
    socket_of(&*file(descriptor)?)?;
    put_name(to, bytes)
}

fn other_name(frame: &mut Frame) -> Answer {
    let [descriptor, to, bytes, ..] = frame.args();
    if !socket_of(&*file(descriptor)?)?.is_connected() {
        return Err(errno::ENOTCONN);
    }
    put_name(to, bytes)
}

/// The options that are stored and have no effect, one bit each.
const STORED: u64 = 1 << SO_DEBUG
    | 1 << SO_REUSEADDR
    | 1 << SO_DONTROUTE
    | 1 << SO_BROADCAST
    | 1 << SO_KEEPALIVE
    | 1 << SO_OOBINLINE
    | 1 << SO_TIMESTAMP
    | 1 << SO_TIMESTAMPNS;

/// Smallest values of SO_SNDBUF and SO_RCVBUF.
const LEAST_ROOM: [usize; 2] = [4608, 2304];

fn get_option(frame: &mut Frame) -> Answer {
    let [descriptor, level, option, value, bytes, ..] = frame.args();
    let open = file(descriptor)?;
    let socket = socket_of(&open)?;
    if level as u32 != SOL_SOCKET {
        return Err(Errno::EOPNOTSUPP);
    }
    let options = socket.options();
    let word = |word: u32| word.to_ne_bytes().to_vec();
    let found = match option as u32 {
        SO_TYPE => word(match socket.kind() {
            Kind::Stream => SOCK_STREAM,
            Kind::Datagrams => SOCK_DGRAM,
            Kind::Packets => SOCK_SEQPACKET,
        }),
        SO_DOMAIN => word(AF_UNIX),
        SO_PROTOCOL | SO_ACCEPTCONN => word(0),
        SO_ERROR => word(socket.take_error().map_or(0, |error| error.0 as u32)),
        SO_SNDBUF => word(options.send_room as u32),
        SO_RCVBUF => word(options.receive_room as u32),
        SO_RCVLOWAT => word(options.least),
        SO_SNDLOWAT => word(1),
        SO_PASSCRED => word(options.passes_credentials.into()),
        SO_PEERCRED => socket.maker().map(u32::to_ne_bytes).concat(),
        SO_LINGER => options.linger.to_ne_bytes().to_vec(),
        SO_RCVTIMEO => time_of(options.waits_ns[0]),
        SO_SNDTIMEO => time_of(options.waits_ns[1]),
        option @ 0..64 if STORED >> option & 1 != 0 => word((options.stored >> option & 1) as u32),
        _ => return Err(errno::ENOPROTOOPT),
    };
    let count = store(value, bytes, &found)?;
    UserPtr::<u32>::new(bytes).write(&(count as u32)).map(|()| 0)
}

/// Returns a `struct timeval`.
fn time_of(ns: u64) -> Vec<u8> {
    [ns / 1_000_000_000, ns % 1_000_000_000 / 1000].map(u64::to_ne_bytes).concat()
}

/// Reads a `struct timeval`, which limits waits. Returns nanoseconds; 0 is no limit.
///
/// # Errors
///
/// EDOM if the microseconds are not below a million; EFAULT.
fn wait_of(at: u64) -> Result<u64, Errno> {
    let [seconds, us] = UserPtr::<[i64; 2]>::new(at).read()?;
    match us {
        0..1_000_000 if seconds >= 0 => {
            Ok((seconds as u64).saturating_mul(1_000_000_000).saturating_add(us as u64 * 1000))
        }
        // A negative time is over at once.
        0..1_000_000 => Ok(1),
        _ => Err(errno::EDOM),
    }
}

fn set_option(frame: &mut Frame) -> Answer {
    let [descriptor, level, option, value, bytes, ..] = frame.args();
    let open = file(descriptor)?;
    let (socket, option) = (socket_of(&open)?, option as u32);
    if (bytes as i32) < 0 {
        return Err(Errno::EINVAL);
    }
    if level as u32 != SOL_SOCKET {
        return Err(Errno::EOPNOTSUPP);
    }
    let needed = match option {
        SO_RCVTIMEO | SO_SNDTIMEO => 16,
        SO_LINGER => 8,
        _ => 4,
    };
    if (bytes as u32) < needed {
        return Err(Errno::EINVAL);
    }
    let word = UserPtr::<u32>::new(value).read()?;
    let room = |least: usize| (2 * (word as usize).min(ROOM)).max(least);
    let set = |f: &dyn Fn(&mut Options)| {
        socket.set_options(f);
        Ok(0)
    };
    match option {
        SO_SNDBUF | SO_SNDBUFFORCE => set(&|options| options.send_room = room(LEAST_ROOM[0])),
        SO_RCVBUF | SO_RCVBUFFORCE => set(&|options| options.receive_room = room(LEAST_ROOM[1])),
        SO_RCVLOWAT => set(&|options| {
            options.least = match word as i32 {
                ..0 => i32::MAX as u32,
                0 => 1,
                _ => word,
            }
        }),
        SO_PASSCRED => set(&|options| options.passes_credentials = word != 0),
        SO_LINGER => {
            let linger = UserPtr::<u64>::new(value).read()?;
            set(&|options| options.linger = linger)
        }
        SO_RCVTIMEO | SO_SNDTIMEO => {
            let (ns, which) = (wait_of(value)?, usize::from(option == SO_SNDTIMEO));
            set(&|options| options.waits_ns[which] = ns)
        }
        SO_REUSEPORT => Err(Errno::EOPNOTSUPP),
        0..64 if STORED >> option & 1 != 0 => {
            let bit = u64::from(word != 0) << option;
            set(&|options| options.stored = options.stored & !(1 << option) | bit)
        }
        _ => Err(errno::ENOPROTOOPT),
    }
}

/// Returns what is attached to a message of the calling process.
///
/// # Errors
///
/// ETOOMANYREFS if too many files are in flight.
pub fn attached(files: Vec<Arc<Open>>) -> Result<Attached, Errno> {
    Ok(Attached { rights: Rights::new(files)?, sender: own_credentials() })
}

/// Returns the credentials of the calling process.
pub fn own_credentials() -> Credentials {
    let process = current().process();
    let ids = process.ids.lock();
    [process.pid, ids.user.real, ids.group.real]
}

/// Returns true if a call on the file with these flags of a message does not wait.
fn is_nonblocking(open: &Open, flags: u32) -> bool {
    flags & MSG_DONTWAIT != 0 || open.nonblock()
}

/// Sends a message. If a stream has no receiver, also sends SIGPIPE to the calling thread.
///
/// # Errors
///
/// Fails like [`Socket::send`], and with EOPNOTSUPP for out-of-band data.
pub fn send(
    open: &Open,
    socket: &Socket,
    from: &mut UserBuffer<'_>,
    attached: Attached,
    flags: u32,
) -> Answer {
    if flags & MSG_OOB != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let sent = socket.send(from, attached, is_nonblocking(open, flags)).map(|bytes| bytes as u64);
    if flags & MSG_NOSIGNAL == 0 { with_signal(open, sent) } else { sent }
}

/// Decides about the receiver's address in a call that sends. Only datagrams can have a receiver other than
/// the other socket of the pair, and there is no such receiver.
pub fn check_address(socket: &Socket, address: u64, bytes: u64) -> Result<(), Errno> {
    match socket.kind() {
        _ if address == 0 || bytes as u32 == 0 => Ok(()),
        Kind::Stream => Err(errno::EISCONN),
        Kind::Packets => Ok(()),
        Kind::Datagrams if UserPtr::<u16>::new(address).read()? != AF_UNIX as u16 => Err(Errno::EINVAL),
        Kind::Datagrams => Err(errno::ECONNREFUSED),
    }
}

fn send_to(frame: &mut Frame) -> Answer {
    let [descriptor, at, len, flags, address, bytes] = frame.args();
    let open = file(descriptor)?;
    let socket = socket_of(&open)?;
    user::check(at, len.min(MAX_TRANSFER) as usize)?;
    check_address(socket, address, bytes)?;
    let parts = [[at, len.min(MAX_TRANSFER)]];
    send(&open, socket, &mut UserBuffer::new(&parts), attached(Vec::new())?, flags as u32)
}

/// Returns how to receive with these flags of a message.
///
/// # Errors
///
/// EOPNOTSUPP for out-of-band data.
pub fn how(open: &Open, flags: u32) -> Result<How, Errno> {
    if flags & MSG_OOB != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(How {
        nonblock: is_nonblocking(open, flags),
        peeks: flags & MSG_PEEK != 0,
        waits_for_all: flags & MSG_WAITALL != 0,
    })
}

fn receive_from(frame: &mut Frame) -> Answer {
    let [descriptor, at, len, flags, address, bytes] = frame.args();
    let open = file(descriptor)?;
    let socket = socket_of(&open)?;
    user::check(at, len.min(MAX_TRANSFER) as usize)?;
    let parts = [[at, len.min(MAX_TRANSFER)]];
    let received = socket.receive(&mut UserBuffer::new(&parts), how(&open, flags as u32)?)?;
    if address != 0 {
        // The sender has no name.
        UserPtr::<u32>::new(bytes).write(&0)?;
    }
    let count = if flags as u32 & MSG_TRUNC != 0 { received.len } else { received.bytes };
    Ok(count as u64)
}
