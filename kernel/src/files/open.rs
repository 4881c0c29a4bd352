//! An open file: what descriptors share that were made by dup or fork.

use crate::arch::lock::SpinLock;
use crate::errno;
use crate::files::{FAILED, File, buffer::UserBuffer};
use crate::platform::Machine;
use crate::sched::mutex::{Mutex, MutexGuard};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use freehold::counted::Counted;
use freehold::error::Errno;
use freehold::file::{self, FileAccess};
use linux_raw_sys::general::{O_ACCMODE, O_APPEND, O_NONBLOCK, O_PATH, O_RDONLY, O_RDWR, O_WRONLY};

/// How many bytes a regular file may get from a place on.
pub type Room = fn(u64) -> Result<usize, Errno>;

pub struct Open {
    pub file: Arc<dyn File>,
    /// O_ACCMODE, O_APPEND, O_NONBLOCK.
    pub flags: AtomicU32,
    position: AtomicU64,
    /// Held by calls that move the position, from where they look at it until it is moved. Comes before what
    /// [`File::changing`] says.
    moving: Mutex,
    /// Its path, for reports.
    pub name: Vec<u8>,
    /// What mmap maps, once it was asked for.
    mapped: SpinLock<Option<Counted<file::File<Machine>>>>,
}

impl Open {
    pub fn new(file: Arc<dyn File>, flags: u32, name: &[u8]) -> Arc<Open> {
        Arc::new(Open {
            file,
            flags: AtomicU32::new(flags),
            position: AtomicU64::new(0),
            moving: Mutex::new(),
            name: name.to_vec(),
            mapped: SpinLock::new(None),
        })
    }

    fn flags(&self) -> u32 {
        self.flags.load(Relaxed)
    }

    pub fn may_read(&self) -> bool {
        matches!(self.flags() & O_ACCMODE, O_RDONLY | O_RDWR)
    }

    pub fn may_write(&self) -> bool {
        matches!(self.flags() & O_ACCMODE, O_WRONLY | O_RDWR)
    }

    fn nonblock(&self) -> bool {
        self.flags() & O_NONBLOCK != 0
    }

    /// What of POLLIN, POLLOUT, POLLHUP and so on holds now.
    pub fn ready(&self) -> u32 {
        if self.nonblock() || self.file.polls_blocking() { self.file.ready() } else { FAILED }
    }

    /// Reads at the position, which moves, or at `at`.
    ///
    /// # Errors
    ///
    /// EBADF: not open for reading. What the file says.
    pub fn read(&self, at: Option<u64>, to: &mut UserBuffer<'_>) -> Result<usize, Errno> {
        if !self.may_read() {
            return Err(Errno::EBADF);
        }
        let _moving = if at.is_none() { self.hold_position()? } else { None };
        let begin = at.unwrap_or_else(|| self.position());
        let done = self.file.read(begin, to, self.nonblock())?;
        self.advance(at, begin, done);
        Ok(done)
    }

    /// Writes at the position, which moves, or at `at`; at the end of the file where it is open for that.
    ///
    /// # Errors
    ///
    /// EBADF: not open for writing. What `room` says of where a regular file is written: how many bytes it may get
    /// there. What the file says.
    pub fn write(&self, at: Option<u64>, from: &mut UserBuffer<'_>, room: Room) -> Result<usize, Errno> {
        if !self.may_write() {
            return Err(Errno::EBADF);
        }
        let _moving = if at.is_none() { self.hold_position()? } else { None };
        let changing = self.hold_contents()?;
        // Whatever place a call names, as on Linux (pwrite(2), BUGS).
        let begin = match self.flags() & O_APPEND {
            0 => at.unwrap_or_else(|| self.position()),
            _ => self.file.stat().size,
        };
        if changing.is_some() && from.len() > 0 {
            from.shorten(room(begin)?);
        }
        let done = self.file.write(begin, from, self.nonblock())?;
        self.advance(at, begin, done);
        Ok(done)
    }

    fn advance(&self, at: Option<u64>, begin: u64, done: usize) {
        if at.is_none() && self.file.can_seek() {
            self.position.store(begin + done as u64, Relaxed);
        }
    }

    /// The right to move the position, if there is one.
    ///
    /// # Errors
    ///
    /// EINTR: the thread has to end.
    pub fn hold_position(&self) -> Result<Option<MutexGuard<'_>>, Errno> {
        if self.file.can_seek() { self.moving.lock().map(Some) } else { Ok(None) }
    }

    /// The right to change what is in the file, where calls that do exclude each other.
    ///
    /// # Errors
    ///
    /// EINTR: the thread has to end.
    pub fn hold_contents(&self) -> Result<Option<MutexGuard<'_>>, Errno> {
        self.file.changing().map(Mutex::lock).transpose()
    }

    pub fn position(&self) -> u64 {
        self.position.load(Relaxed)
    }

    pub fn set_position(&self, to: u64) {
        self.position.store(to, Relaxed);
    }

    /// What mmap maps of it.
    ///
    /// # Errors
    ///
    /// EBADF: it is open for its name alone. ENODEV: it is no memory. ENOMEM.
    pub fn mapped(&self) -> Result<Counted<file::File<Machine>>, Errno> {
        if self.flags() & O_PATH != 0 {
            return Err(Errno::EBADF);
        }
        let mapping = self.file.mapping().ok_or(errno::ENODEV)?;
        if let Some(file) = &*self.mapped.lock() {
            return Ok(file.clone());
        }
        let access = FileAccess { read: self.may_read(), write: self.may_write(), ..FileAccess::READ };
        let name = core::str::from_utf8(&self.name).unwrap_or_default();
        let file = file::File::new(mapping, access, name).map_err(|_| Errno::ENOMEM)?;
        Ok(self.mapped.lock().get_or_insert(file).clone())
    }
}
