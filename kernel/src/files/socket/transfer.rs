//! Sending to and receiving from a socket of a pair.
//!
//! A sender copies its bytes into a message, waits for room, and adds the message to the queue of the other
//! socket. A stream consists of such messages, too, but its receiver ignores their boundaries. A receiver of
//! a stream stops behind a message with files. If it gets credentials, it also stops where the credentials
//! change. The order of errors is that of Linux. `mod.rs` describes the locks.

use super::message::{Credentials, Message, Rights, check_cycles};
use super::{Kind, READS, Side, Socket, WRITES};
use crate::arch::clock;
use crate::errno;
use crate::files::{buffer::UserBuffer, open::Open};
use crate::sched::wait::{self, Sleep, Woken};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use freehold::error::Errno;

/// Maximum number of bytes of a message of a stream.
const PART: usize = 1 << 15;
/// Room for messages that a datagram must leave free.
const MARGIN: usize = 32;

/// The parts of a message other than its bytes.
pub struct Attached {
    pub rights: Rights,
    pub sender: Credentials,
}

impl Attached {
    /// Returns the parts of a message without descriptors.
    pub fn none(sender: Credentials) -> Self {
        Attached { rights: Rights::default(), sender }
    }
}

/// How to receive.
#[derive(Clone, Copy, Debug, Default)]
pub struct How {
    pub nonblock: bool,
    /// Leaves the message in the queue (MSG_PEEK).
    pub peeks: bool,
    /// Waits until the buffer is full, unless the stream ends (MSG_WAITALL).
    pub waits_for_all: bool,
}

/// The result of a call that receives.
#[derive(Default)]
pub struct Received {
    /// Number of bytes in the buffer.
    pub bytes: usize,
    /// Number of bytes of the message, of which the buffer may have only the first ones.
    pub len: usize,
    pub files: Vec<Arc<Open>>,
    /// The credentials of the sender, if bytes or a message were received.
    pub sender: Option<Credentials>,
}

/// A place in the messages of a stream: the message and the byte in it at which a receiver continues.
#[derive(Clone, Copy, Default)]
struct Place {
    message: usize,
    byte: usize,
}

impl Side {
    /// Removes the oldest message.
    fn pop(&mut self) -> Option<Message> {
        let message = self.queue.pop_front()?;
        self.queued -= message.cost();
        Some(message)
    }
}

impl Socket {
    /// Sends bytes and what is attached to them. Returns the number of bytes.
    ///
    /// # Errors
    ///
    /// EPIPE, ECONNREFUSED or ENOTCONN if there is no receiver; EMSGSIZE if a message is too long; EAGAIN if
    /// there is no room; ETOOMANYREFS if files would form a cycle; EFAULT; EINTR; ENOMEM.
    pub fn send(
        &self,
        from: &mut UserBuffer<'_>,
        attached: Attached,
        nonblock: bool,
    ) -> Result<usize, Errno> {
        let options = self.options();
        let deadline = deadline(options.waits_ns[1]);
        let len = from.len();
        if self.kind() != Kind::Stream {
            if len > options.send_room - MARGIN {
                return Err(errno::EMSGSIZE);
            }
            self.wait_for_room(nonblock, deadline)?;
            let message = self.message(from, len, attached.rights, attached.sender)?;
            self.push(message, nonblock, deadline)?;
            return Ok(len);
        }
        let part = PART.min(options.send_room / 2);
        let (mut rights, mut done) = (attached.rights, 0);
        self.with_sides(|own, _| if own.ended[WRITES] { Err(errno::EPIPE) } else { Ok(()) })?;
        while done < len {
            let bytes = part.min(len - done);
            let sent = self
                .wait_for_room(nonblock, deadline)
                .and_then(|()| self.message(from, bytes, mem::take(&mut rights), attached.sender))
                .and_then(|message| self.push(message, nonblock, deadline));
            match sent {
                Ok(()) => done += bytes,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Copies a message from a program.
    fn message(
        &self,
        from: &mut UserBuffer<'_>,
        len: usize,
        rights: Rights,
        sender: Credentials,
    ) -> Result<Message, Errno> {
        Message::copy(from, len, rights, sender, &self.pair.account)
    }

    /// Returns the error with which a message is refused, if it would be.
    fn refusal(&self, own: &mut Side, other: &Side) -> Option<Errno> {
        if self.kind() != Kind::Stream
            && let Some(error) = own.error.take()
        {
            return Some(error);
        }
        if own.ended[WRITES] || other.ended[READS] {
            return Some(errno::EPIPE);
        }
        match other.is_closed {
            true if mem::replace(&mut own.is_alone, true) => Some(errno::ENOTCONN),
            true => Some(errno::ECONNREFUSED),
            false => None,
        }
    }

    /// Sleeps until a message can be sent or would be refused.
    fn wait_for_room(&self, nonblock: bool, deadline: u64) -> Result<(), Errno> {
        self.until(nonblock, deadline, |own, other| {
            let is_over = own.ended[WRITES] || other.ended[READS] || other.is_closed;
            Ok((is_over || other.queued < own.options.send_room).then_some(()))
        })
    }

    /// Adds a message to the queue of the other socket, as soon as there is room.
    fn push(&self, message: Message, nonblock: bool, deadline: u64) -> Result<(), Errno> {
        let mut message = Some(message);
        loop {
            let checked = match &message {
                Some(message) => check_cycles(&message.rights, self)?,
                None => return Ok(()),
            };
            let refusal = self.with_sides(|own, other| {
                let refusal = self.refusal(own, other);
                if refusal.is_none()
                    && other.queued < own.options.send_room
                    && let Some(message) = message.take()
                {
                    other.queued += message.cost();
                    other.queue.push_back(message);
                    other.changes += 1;
                }
                refusal
            });
            drop(checked);
            match refusal {
                Some(error) => return Err(error),
                None if message.is_none() => self.wake(),
                None => self.wait_for_room(nonblock, deadline)?,
            }
        }
    }

    /// Calls `step` until it returns a value, and sleeps in between.
    ///
    /// # Errors
    ///
    /// Errors of `step`; EAGAIN with `nonblock`, or if the deadline has passed; EINTR if a signal arrives.
    fn until<R>(
        &self,
        nonblock: bool,
        deadline: u64,
        mut step: impl FnMut(&mut Side, &mut Side) -> Result<Option<R>, Errno>,
    ) -> Result<R, Errno> {
        loop {
            match self.with_sides(&mut step)? {
                Some(done) => return Ok(done),
                None if nonblock => return Err(Errno::EAGAIN),
                None => {}
            }
            let waiting = wait::enqueue(self.pair.key(), u32::MAX);
            match self.with_sides(&mut step) {
                Ok(None) => {}
                done => {
                    waiting.cancel();
                    return done?.ok_or(Errno::EAGAIN);
                }
            }
            match waiting.sleep(Sleep::Interruptible, deadline) {
                Woken::Signal => return Err(Errno::EINTR),
                Woken::Time => return Err(Errno::EAGAIN),
                Woken::Waker => {}
            }
        }
    }

    /// Receives bytes of a stream, or a message.
    ///
    /// # Errors
    ///
    /// ECONNRESET if the other socket was closed before it received all messages; EAGAIN if there is no
    /// message; EFAULT; EINTR; ENOMEM.
    pub fn receive(&self, to: &mut UserBuffer<'_>, how: How) -> Result<Received, Errno> {
        let options = self.options();
        let deadline = deadline(options.waits_ns[0]);
        if self.kind() != Kind::Stream {
            return self.receive_message(to, how, deadline);
        }
        let wanted = to.len();
        let least = if how.waits_for_all { wanted } else { wanted.min(options.least as usize) };
        let (mut received, mut place) = (Received::default(), Place::default());
        loop {
            let turn = self.pair.receiving[self.side].lock()?;
            let is_over = self.receive_bytes(to, how.peeks, &mut place, &mut received)?;
            drop(turn);
            if is_over || received.bytes >= least.max(1) {
                break;
            }
            let more = self.until(how.nonblock, deadline, |own, _| match own.queue.len() > place.message {
                true => Ok(Some(true)),
                false if received.bytes > 0 && own.error.is_some() => Ok(Some(false)),
                false => own.error.take().map_or(Ok(own.ended[READS].then_some(false)), Err),
            });
            match more {
                Err(error) if received.bytes == 0 => return Err(error),
                Ok(true) => {}
                _ => break,
            }
        }
        received.len = received.bytes;
        Ok(received)
    }

    /// Copies bytes of a stream until the buffer is full or the queue ends. Returns true if the receiver must
    /// stop although the buffer may have room. The caller holds the lock of receivers.
    fn receive_bytes(
        &self,
        to: &mut UserBuffer<'_>,
        peeks: bool,
        place: &mut Place,
        received: &mut Received,
    ) -> Result<bool, Errno> {
        loop {
            let next = self.with_sides(|own, _| {
                let message = own.queue.iter().nth(place.message)?;
                let has_other_sender = received.sender.is_some_and(|sender| sender != message.sender);
                let stops = own.options.passes_credentials && has_other_sender;
                Some((message.bytes.clone(), message.received + place.byte, message.sender, stops))
            });
            let Some((bytes, from, sender, stops)) = next else { return Ok(false) };
            if stops {
                return Ok(true);
            }
            let put = match to.put(&bytes[from..]) {
                Err(error) if received.bytes == 0 => return Err(error),
                Err(_) => return Ok(true),
                Ok(put) => put,
            };
            received.bytes += put;
            received.sender = Some(sender);
            let is_whole = from + put == bytes.len();
            let gone = self.with_sides(|own, other| {
                let Some(message) = own.queue.iter_mut().nth(place.message) else { return Ok(None) };
                if peeks {
                    received.files = message.rights.copies()?;
                    let next = Place { message: place.message + 1, byte: 0 };
                    *place = if is_whole { next } else { Place { byte: place.byte + put, ..*place } };
                    return Ok(None);
                }
                received.files = message.rights.take();
                message.received += put;
                if !is_whole {
                    return Ok(None);
                }
                other.changes += 1;
                Ok(own.pop())
            })?;
            if gone.is_some() {
                self.wake();
            }
            if !received.files.is_empty() || !is_whole || to.len() == 0 {
                return Ok(true);
            }
        }
    }

    /// Receives one message.
    fn receive_message(&self, to: &mut UserBuffer<'_>, how: How, deadline: u64) -> Result<Received, Errno> {
        loop {
            let turn = self.pair.receiving[self.side].lock()?;
            let message = self.with_sides(|own, other| {
                if let Some(error) = own.error.take() {
                    return Err(error);
                }
                let Some(message) = own.queue.front() else { return Ok(None) };
                let (bytes, sender) = (message.bytes.clone(), Some(message.sender));
                if how.peeks {
                    return Ok(Some((bytes, sender, message.rights.copies()?, None)));
                }
                let mut gone = own.pop();
                other.changes += 1;
                let files = gone.as_mut().map(|message| message.rights.take());
                Ok(Some((bytes, sender, files.unwrap_or_default(), gone)))
            })?;
            if let Some((bytes, sender, files, gone)) = message {
                if gone.is_some() {
                    self.wake();
                }
                let wanted = to.len().min(bytes.len());
                if wanted > 0 && to.put(&bytes)? < wanted {
                    return Err(Errno::EFAULT);
                }
                return Ok(Received { bytes: wanted, len: bytes.len(), files, sender });
            }
            drop(turn);
            let has_message = self.until(how.nonblock, deadline, |own, _| {
                let ends = own.ended[READS] && (self.kind() == Kind::Packets || !how.nonblock);
                match own.queue.is_empty() && own.error.is_none() {
                    true if ends => Ok(Some(false)),
                    is_empty => Ok((!is_empty).then_some(true)),
                }
            })?;
            if !has_message {
                return Ok(Received::default());
            }
        }
    }
}

/// Returns the end of a wait of up to `ns` nanoseconds. 0 is no limit.
fn deadline(ns: u64) -> u64 {
    if ns == 0 { u64::MAX } else { clock::now_ns().saturating_add(ns) }
}
