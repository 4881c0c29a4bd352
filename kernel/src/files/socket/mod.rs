//! Pairs of connected sockets (`socketpair`, unix(7)): streams, datagrams, and sequences of packets. Sockets
//! with addresses do not exist.
//!
//! | file | contents |
//! | --- | --- |
//! | here | the pair, the readiness of its sockets, their ends, options |
//! | [`transfer`] | sending and receiving |
//! | [`message`] | messages, and the descriptors in flight with them |
//!
//! The spin lock of the pair guards the queues, the ends and the options of both sockets. This lock is never
//! held while bytes are copied from or to a program, nor while a message is dropped. A receiver holds a
//! sleeping lock of its socket from the choice of a message until the message has left the queue. All threads
//! that wait for either socket sleep on one key. A change of the state wakes all these threads after the spin
//! lock is released.
//!
//! `calls/sockets.rs` and `calls/messages.rs` have the calls. The program `sockets.c` of the tests checks the
//! pairs.

pub mod message;
mod transfer;

pub use transfer::{Attached, How, Received};

use crate::arch::lock::SpinLock;
use crate::errno;
use crate::files::{FAILED, File, HUNG_UP, READABLE, SOCKET, Stat, WRITABLE};
use crate::files::{buffer::UserBuffer, open::Open, tree};
use crate::memory::account::Account;
use crate::platform::user::UserPtr;
use crate::sched::current;
use crate::sched::mutex::Mutex;
use crate::sched::wait::{self, Key};
use alloc::collections::LinkedList;
use alloc::sync::Arc;
use core::any::Any;
use core::mem;
use freehold::error::Errno;
use linux_raw_sys::general::POLLRDHUP;
use linux_raw_sys::ioctl::{FIONREAD, TIOCOUTQ};
use message::{Credentials, Message};

/// The kinds of sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A connection without boundaries between messages (SOCK_STREAM).
    Stream,
    /// Messages without a connection (SOCK_DGRAM).
    Datagrams,
    /// Messages in a connection (SOCK_SEQPACKET).
    Packets,
}

/// Indices of the two directions that a socket can end.
const READS: usize = 0;
const WRITES: usize = 1;

/// A socket of a pair.
pub struct Socket {
    pair: Arc<Pair>,
    /// The index of the socket in the pair.
    side: usize,
}

/// The state that both sockets of a pair share.
struct Pair {
    kind: Kind,
    /// The numbers of the sockets, which no node has.
    inodes: [u64; 2],
    /// The process that made the pair.
    maker: Credentials,
    /// Returns the credentials of the calling process, which this layer does not know.
    sender: fn() -> Credentials,
    /// The account of this process. Messages are charged to it, because their senders may end before they are
    /// received.
    account: Arc<Account>,
    state: SpinLock<[Side; 2]>,
    /// Held by a receiver of each socket while it copies a message.
    receiving: [Mutex; 2],
}

/// The state of one socket, under the spin lock of the pair.
#[derive(Default)]
struct Side {
    /// The messages for this socket, oldest first.
    queue: LinkedList<Message>,
    /// The sum of the costs of the messages in `queue`.
    queued: usize,
    /// True for each direction that has ended: [`READS`] and [`WRITES`].
    ended: [bool; 2],
    /// True if the socket is closed.
    is_closed: bool,
    /// True if a datagram found the other socket closed. The socket then has no other socket.
    is_alone: bool,
    /// An error that the next call reports: ECONNRESET.
    error: Option<Errno>,
    /// Number of messages that were added to `queue` or have left the other socket's queue.
    changes: u64,
    options: Options,
}

/// The options of a socket (socket(7)).
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The cost of messages from this socket above which senders wait (SO_SNDBUF).
    pub send_room: usize,
    /// SO_RCVBUF. Has no effect, as in sockets of this family on Linux.
    pub receive_room: usize,
    /// Minimum number of bytes for which a receiver of a stream waits (SO_RCVLOWAT).
    pub least: u32,
    /// The longest waits of receivers and of senders, in nanoseconds; 0 is no limit (SO_RCVTIMEO,
    /// SO_SNDTIMEO).
    pub waits_ns: [u64; 2],
    /// True if receivers get the sender's credentials (SO_PASSCRED).
    pub passes_credentials: bool,
    /// The options that have no effect: bit N is option N.
    pub stored: u64,
    /// SO_LINGER, which has no effect.
    pub linger: u64,
}

/// The default of SO_SNDBUF and SO_RCVBUF, and the maximum that a program can ask for.
pub const ROOM: usize = 212_992;

impl Default for Options {
    fn default() -> Self {
        Options {
            send_room: ROOM,
            receive_room: ROOM,
            least: 1,
            waits_ns: [0; 2],
            passes_credentials: false,
            stored: 0,
            linger: 0,
        }
    }
}

/// Makes two connected sockets. `sender` returns the credentials of a process that writes to a socket.
pub fn pair(kind: Kind, maker: Credentials, sender: fn() -> Credentials) -> [Socket; 2] {
    let pair = Arc::new(Pair {
        kind,
        inodes: [tree::new_inode(), tree::new_inode()],
        maker,
        sender,
        account: current().account.clone(),
        state: SpinLock::default(),
        receiving: [Mutex::new(), Mutex::new()],
    });
    [Socket { pair: pair.clone(), side: 0 }, Socket { pair, side: 1 }]
}

impl Pair {
    /// Returns the key on which all threads sleep that wait for either socket.
    fn key(&self) -> Key {
        Key::kernel(&raw const self.state as u64)
    }
}

impl Socket {
    /// Returns the socket of an open file, if the file is a socket.
    pub fn of(open: &Open) -> Option<&Self> {
        open.file.as_any()?.downcast_ref()
    }

    pub fn kind(&self) -> Kind {
        self.pair.kind
    }

    /// Returns the process that made the pair.
    pub fn maker(&self) -> Credentials {
        self.pair.maker
    }

    /// Wakes all threads that wait for either socket. Called after each change for which a thread may wait.
    fn wake(&self) {
        wait::wake(self.pair.key(), usize::MAX);
    }

    /// Calls `f` with the state of this socket and of the other one.
    fn with_sides<R>(&self, f: impl FnOnce(&mut Side, &mut Side) -> R) -> R {
        let mut state = self.pair.state.lock();
        let [first, second] = &mut *state;
        if self.side == 0 { f(first, second) } else { f(second, first) }
    }

    /// Returns the options.
    pub fn options(&self) -> Options {
        self.with_sides(|own, _| own.options)
    }

    /// Changes the options.
    pub fn set_options(&self, f: impl FnOnce(&mut Options)) {
        self.with_sides(|own, _| f(&mut own.options));
        self.wake();
    }

    /// Returns the error that a call has to report, and clears it (SO_ERROR).
    pub fn take_error(&self) -> Option<Errno> {
        self.with_sides(|own, _| own.error.take())
    }

    /// Returns true if the socket still has its other socket.
    pub fn is_connected(&self) -> bool {
        self.with_sides(|own, _| !own.is_alone)
    }

    /// Ends reading, writing, or both. In a connection, ends the opposite directions of the other socket,
    /// too.
    pub fn shut_down(&self, reads: bool, writes: bool) {
        self.with_sides(|own, other| {
            own.ended[READS] |= reads;
            own.ended[WRITES] |= writes;
            if self.kind() != Kind::Datagrams {
                other.ended[READS] |= writes;
                other.ended[WRITES] |= reads;
            }
        });
        self.wake();
    }

    /// Closes the socket and returns the messages that it did not receive. In a connection, ends both
    /// directions of the other socket, which reports ECONNRESET if messages were not received.
    fn close(&self) -> LinkedList<Message> {
        let queue = self.with_sides(|own, other| {
            own.is_closed = true;
            if self.kind() != Kind::Datagrams {
                other.ended = [true; 2];
                if !own.queue.is_empty() {
                    other.error = Some(errno::ECONNRESET);
                }
            }
            own.queued = 0;
            mem::take(&mut own.queue)
        });
        self.wake();
        queue
    }

    /// Returns the number of bytes that a receiver finds: the next datagram, or else all messages.
    fn unread(&self) -> usize {
        let most = if self.kind() == Kind::Datagrams { 1 } else { usize::MAX };
        self.with_sides(|own, _| own.queue.iter().take(most).map(Message::unread).sum())
    }
}

impl File for Socket {
    /// Receives a message. Descriptors in it are closed.
    fn read(&self, _: u64, to: &mut UserBuffer<'_>, nonblock: bool) -> Result<usize, Errno> {
        if to.len() == 0 {
            return Ok(0);
        }
        Ok(self.receive(to, How { nonblock, ..How::default() })?.bytes)
    }

    /// Sends a message without descriptors.
    fn write(&self, _: u64, from: &mut UserBuffer<'_>, nonblock: bool) -> Result<usize, Errno> {
        self.send(from, Attached::none((self.pair.sender)()), nonblock)
    }

    fn stat(&self) -> Stat {
        Stat { inode: self.pair.inodes[self.side], mode: SOCKET | 0o777, links: 1, ..Stat::default() }
    }

    /// Returns the events for which the socket is ready. A quarter of the room for messages has to be free
    /// for POLLOUT. HUP means that both directions have ended.
    fn ready(&self) -> u32 {
        self.with_sides(|own, other| {
            let event = |is: bool, event: u32| if is { event } else { 0 };
            event(own.error.is_some(), FAILED)
                | event(own.ended == [true; 2], HUNG_UP)
                | event(own.ended[READS], READABLE | POLLRDHUP)
                | event(!own.queue.is_empty(), READABLE)
                | event(other.queued * 4 <= own.options.send_room, WRITABLE)
        })
    }

    fn changes(&self) -> u64 {
        self.with_sides(|own, _| own.changes)
    }

    fn ready_key(&self) -> Option<Key> {
        Some(self.pair.key())
    }

    fn ioctl(&self, request: u64, argument: u64) -> Result<u64, Errno> {
        let bytes = match request as u32 {
            FIONREAD => self.unread(),
            TIOCOUTQ => self.with_sides(|_, other| other.queued),
            _ => return Err(errno::ENOTTY),
        };
        UserPtr::<u32>::new(argument).write(&(bytes as u32)).map(|()| 0)
    }

    // The locks of several pairs nest here, in the order of the chains of queues, which have no cycle.
    fn left_in_flight(&self, survey: u64, depth: u32) -> u64 {
        self.with_sides(|own, _| own.queue.iter().map(|message| message.rights.left(survey, depth)).sum())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        message::discard(self.close());
    }
}
