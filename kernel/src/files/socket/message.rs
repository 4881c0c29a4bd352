//! Messages in the queues of sockets, and the open files in flight with them (SCM_RIGHTS).
//!
//! A file in flight stays open although no descriptor refers to it. Three rules bound what a program can do
//! with such files:
//!
//! - At most [`MAX_IN_FLIGHT`] files are in flight in all queues together.
//! - No chain of queues leads from a socket to itself. A message that would close such a cycle is refused
//!   ([`check_cycles`]), so the last close of a socket's descriptors always frees what is in its queue. Linux
//!   accepts cycles and collects them later.
//! - [`discard`] closes a socket that is in the queue of another socket without recursion, for any length of
//!   the chain.
//!
//! The mutex [`SENDING`] is held from the check of a message with sockets until the message is in its queue.
//! Messages leave queues without the mutex, because that makes no cycle. The spin lock of one pair is taken
//! under the mutex. The program `sockets.c` of the tests checks the rules.

use super::Socket;
use crate::arch::preempt::preempt_point;
use crate::errno;
use crate::files::{buffer::UserBuffer, open::Open};
use crate::memory::account::Account;
use crate::sched::charge::{self, Charge};
use crate::sched::checkpoint;
use crate::sched::mutex::{Mutex, MutexGuard};
use alloc::collections::{BTreeMap, LinkedList};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use freehold::error::Errno;

/// The number of the process that sent a message, of its user and of its group, as in `struct ucred`.
pub type Credentials = [u32; 3];

/// The credentials of a message whose sender is not known: process 0, and the user and group that stand for
/// no user and no group.
pub const NOBODY: Credentials = [0, 65534, 65534];

/// Maximum number of files in one message.
pub const MAX_RIGHTS: usize = 253;
/// Maximum number of files in flight.
const MAX_IN_FLIGHT: usize = 4096;
/// The number of files in flight. Relaxed: the number orders no other access.
static IN_FLIGHT: AtomicUsize = AtomicUsize::new(0);
/// Held while a message with sockets is checked and sent.
static SENDING: Mutex = Mutex::new();

/// Bytes of room that a message takes, apart from its bytes. As on Linux, 278 messages of one byte fill a
/// queue.
const COST: usize = 767;

/// A message.
pub struct Message {
    pub bytes: Arc<Vec<u8>>,
    /// Number of bytes that were received. Only receivers of a stream receive a message in parts.
    pub received: usize,
    pub rights: Rights,
    pub sender: Credentials,
    _charge: Charge,
}

impl Message {
    /// Copies a message of `len` bytes from a program. The message is charged to `account`.
    ///
    /// # Errors
    ///
    /// EFAULT if the bytes cannot be read; ENOMEM.
    pub fn copy(
        from: &mut UserBuffer<'_>,
        len: usize,
        rights: Rights,
        sender: Credentials,
        account: &Arc<Account>,
    ) -> Result<Self, Errno> {
        charge::admit()?;
        let mut bytes = charge::filled(0, len)?;
        if from.get(&mut bytes)? < len {
            return Err(Errno::EFAULT);
        }
        let charge = Charge::to(account.clone(), COST + len + rights.0.len() * size_of::<Arc<Open>>());
        Ok(Message { bytes: Arc::new(bytes), received: 0, rights, sender, _charge: charge })
    }

    /// Returns the number of bytes that were not received yet.
    pub fn unread(&self) -> usize {
        self.bytes.len() - self.received
    }

    /// Returns the room that the message takes in a queue.
    pub fn cost(&self) -> usize {
        COST + self.bytes.len()
    }
}

/// Files in flight.
#[derive(Default)]
pub struct Rights(Vec<Arc<Open>>);

impl Rights {
    /// Counts these files as in flight.
    ///
    /// # Errors
    ///
    /// ETOOMANYREFS if too many files are in flight.
    pub fn new(files: Vec<Arc<Open>>) -> Result<Self, Errno> {
        // Most messages have no files, and do not write the line that all sockets share.
        if !files.is_empty() {
            let more = |count| Some(count + files.len()).filter(|sum| *sum <= MAX_IN_FLIGHT);
            IN_FLIGHT.fetch_update(Relaxed, Relaxed, more).map_err(|_| errno::ETOOMANYREFS)?;
        }
        Ok(Rights(files))
    }

    /// Returns the files, which are no longer in flight.
    pub fn take(&mut self) -> Vec<Arc<Open>> {
        if !self.0.is_empty() {
            IN_FLIGHT.fetch_sub(self.0.len(), Relaxed);
        }
        mem::take(&mut self.0)
    }

    /// Returns further references to the files.
    ///
    /// # Errors
    ///
    /// ENOMEM.
    pub fn copies(&self) -> Result<Vec<Arc<Open>>, Errno> {
        let mut files = Vec::new();
        charge::reserve(&mut files, self.0.len())?;
        files.extend_from_slice(&self.0);
        Ok(files)
    }

    /// Returns the sum of [`Open::left`] of the files.
    pub fn left(&self, survey: u64, depth: u32) -> u64 {
        self.0.iter().map(|open| open.left(survey, depth)).sum()
    }

    /// Returns the sockets among the files.
    fn sockets(&self) -> impl Iterator<Item = &Arc<Open>> {
        self.0.iter().filter(|open| Socket::of(open).is_some())
    }
}

impl Drop for Rights {
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// Drops messages that were not received, and closes the files in them.
pub fn discard(mut queue: LinkedList<Message>) {
    while let Some(mut message) = queue.pop_front() {
        for open in message.rights.take() {
            // A socket that is closed here gives its messages to this loop, so its drop finds an empty queue.
            if let Some(open) = Arc::into_inner(open)
                && let Some(socket) = Socket::of(&open)
            {
                queue.append(&mut socket.close());
            }
        }
        preempt_point();
    }
}

/// Checks that no chain of queues leads from the sockets in `rights` to the receiver of messages from
/// `sender`. Returns a guard, under which the caller adds the message to the receiver's queue; `None` if
/// there are no sockets.
///
/// # Errors
///
/// ETOOMANYREFS if there is such a chain; ENOMEM; EINTR if the calling thread has to end.
pub fn check_cycles(rights: &Rights, sender: &Socket) -> Result<Option<MutexGuard<'static>>, Errno> {
    if rights.sockets().next().is_none() {
        return Ok(None);
    }
    let turn = SENDING.lock()?;
    let (mut seen, mut rest) = (BTreeMap::new(), Vec::new());
    charge::reserve(&mut rest, rights.0.len())?;
    rest.extend(rights.sockets().cloned());
    // At most [`MAX_IN_FLIGHT`] files are visited, because each is in one queue.
    while let Some(open) = rest.pop() {
        checkpoint()?;
        let Some(socket) = Socket::of(&open) else { continue };
        if Arc::ptr_eq(&socket.pair, &sender.pair) && socket.side != sender.side {
            return Err(errno::ETOOMANYREFS);
        }
        let at = Arc::as_ptr(&open).addr();
        if seen.contains_key(&at) {
            continue;
        }
        // As many files as may be in flight can be in one queue (`bounds.c` of the tests).
        socket.with_sides(|own, _| {
            for below in own.queue.iter().flat_map(|message| message.rights.sockets()) {
                charge::reserve(&mut rest, 1)?;
                rest.push(below.clone());
            }
            Ok(())
        })?;
        charge::admit()?;
        seen.insert(at, open);
    }
    Ok(Some(turn))
}
