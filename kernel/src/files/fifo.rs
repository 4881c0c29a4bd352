//! Opens named pipes (fifo(7)). Each open call makes a new end of the node's pipe; `files/pipe.rs` has the
//! pipe, and `calls/files.rs` calls [`open`]. A new end counts as open at once, even while its open call
//! waits for the other end. The program `files.c` and the test `pipelines` check named pipes.

use crate::errno;
use crate::files::pipe::{Pipe, READ, Reader, WRITE, Writer};
use crate::files::{File, Stat, buffer::UserBuffer};
use crate::sched::wait::Key;
use alloc::sync::Arc;
use freehold::error::Errno;
use linux_raw_sys::general::{O_ACCMODE, O_NONBLOCK, O_RDONLY, O_WRONLY};

/// Opens a named pipe. Waits for the other end, unless O_NONBLOCK is set or the file is opened for reading
/// and writing.
///
/// # Errors
///
/// ENXIO if an open for writing with O_NONBLOCK finds no reader; EINTR if a signal interrupts the wait.
pub fn open(pipe: &Arc<Pipe>, flags: u32) -> Result<Arc<dyn File>, Errno> {
    let end = match flags & O_ACCMODE {
        O_RDONLY => READ,
        O_WRONLY => WRITE,
        _ => return Ok(Arc::new(Both(Reader::new(pipe), Writer::new(pipe)))),
    };
    let (others, before) = pipe.open_end(end);
    let file: Arc<dyn File> =
        if end == READ { Arc::new(Reader(pipe.clone())) } else { Arc::new(Writer(pipe.clone())) };
    match flags & O_NONBLOCK {
        _ if others > 0 => {}
        0 => pipe.wait_for_end(1 - end, before)?,
        _ if end == WRITE => return Err(errno::ENXIO),
        _ => {}
    }
    Ok(file)
}

/// Both ends of a pipe in one file.
struct Both(Reader, Writer);

impl File for Both {
    fn read(&self, at: u64, to: &mut UserBuffer<'_>, nonblock: bool) -> Result<usize, Errno> {
        self.0.read(at, to, nonblock)
    }

    fn write(&self, at: u64, from: &mut UserBuffer<'_>, nonblock: bool) -> Result<usize, Errno> {
        self.1.write(at, from, nonblock)
    }

    fn stat(&self) -> Stat {
        self.0.stat()
    }

    fn ready(&self) -> u32 {
        self.0.ready() | self.1.ready()
    }

    fn changes(&self) -> u64 {
        self.0.changes() + self.1.changes()
    }

    fn ready_key(&self) -> Option<Key> {
        self.0.ready_key()
    }

    fn ioctl(&self, request: u64, argument: u64) -> Result<u64, Errno> {
        self.0.ioctl(request, argument)
    }

    fn as_any(&self) -> Option<&dyn core::any::Any> {
        self.0.as_any()
    }
}
