//! Pairs of connected sockets (`socketpair`), each made of two pipes. Other sockets do not exist. A named
//! pipe that is opened for reading and writing is also a [`Socket`], made of both ends of one pipe. All state
//! and all locks are those of `files/pipe.rs`. `calls/descriptors.rs` has the calls. The program `files.c` of
//! the tests checks [`Socket::shut_down`].

use crate::files::pipe::{self, Reader, Writer};
use crate::files::{File, HUNG_UP, READABLE, SOCKET, Stat, buffer::UserBuffer};
use crate::sched::wait::Key;
use freehold::error::Errno;

/// A file that reads from one pipe and writes to another.
pub struct Socket {
    reader: Reader,
    writer: Writer,
}

/// Makes two connected sockets.
pub fn pair() -> (Socket, Socket) {
    let ((a_reader, b_writer), (b_reader, a_writer)) = (pipe::new(), pipe::new());
    (Socket::new(a_reader, a_writer), Socket::new(b_reader, b_writer))
}

impl Socket {
    /// Combines two ends in one file: the ends of two pipes, or both ends of a named pipe.
    pub fn new(reader: Reader, writer: Writer) -> Self {
        Socket { reader, writer }
    }

    /// Ends reading, writing, or both.
    pub fn shut_down(&self, reads: bool, writes: bool) {
        if reads {
            self.reader.0.end();
        }
        if writes {
            self.writer.0.end();
        }
    }
}

impl File for Socket {
    fn read(&self, at: u64, to: &mut UserBuffer<'_>, nonblock: bool) -> Result<usize, Errno> {
        self.reader.read(at, to, nonblock)
    }

    fn write(&self, at: u64, from: &mut UserBuffer<'_>, nonblock: bool) -> Result<usize, Errno> {
        self.writer.write(at, from, nonblock)
    }

    fn stat(&self) -> Stat {
        Stat { mode: SOCKET | 0o777, ..self.reader.stat() }
    }

    /// Returns the events for which the socket is ready. If the other side has ended its direction, the
    /// socket is readable. HUP means that both directions have ended.
    fn ready(&self) -> u32 {
        let (read, write) = (self.reader.ready(), self.writer.ready());
        let end = if read & HUNG_UP != 0 { READABLE } else { 0 };
        (read | write) & !HUNG_UP | read & write & HUNG_UP | end
    }

    fn changes(&self) -> u64 {
        self.reader.changes() + self.writer.changes()
    }

    /// Makes a waiting thread poll every millisecond while the socket is not writable. The thread sleeps only
    /// on the key of the pipe from which the socket reads, and new room in the other pipe wakes only that
    /// pipe's key.
    fn ready_at(&self) -> u64 {
        if self.writer.ready() == 0 { crate::arch::clock::now_ns() + 1_000_000 } else { u64::MAX }
    }

    fn ready_key(&self) -> Option<Key> {
        self.reader.ready_key()
    }

    fn ioctl(&self, request: u64, argument: u64) -> Result<u64, Errno> {
        self.reader.ioctl(request, argument)
    }

    fn as_any(&self) -> Option<&dyn core::any::Any> {
        Some(self)
    }
}
