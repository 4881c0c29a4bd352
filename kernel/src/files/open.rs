//! An open file ("open file description" in POSIX): its node or device, its flags and its position.
//! Descriptors that were made by dup or fork share the open file.
//!
//! The position has a sleeping lock, which a call takes before the lock of the file's contents. The call
//! holds both locks during the copy from or to the program. Only files that can seek have the first lock, and
//! only regular files have the second lock. `files/table.rs` has the descriptors, and [`File`] is the
//! interface of the file behind them. The program `appends.c` of the tests checks both locks.

use crate::arch::{lock::SpinLock, preempt::preempt_point};
use crate::errno;
use crate::files::{FAILED, File, buffer::UserBuffer};
use crate::platform::Machine;
use crate::sched::charge::Charge;
use crate::sched::mutex::{Mutex, MutexGuard};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use freehold::counted::Counted;
use freehold::error::Errno;
use freehold::file::{self, FileAccess};
use linux_raw_sys::general::{O_ACCMODE, O_APPEND, O_NONBLOCK, O_PATH, O_RDONLY, O_RDWR, O_WRONLY};

/// A function that returns how many bytes may be written to a regular file at an offset.
pub type Room = fn(u64) -> Result<usize, Errno>;

/// An open file.
pub struct Open {
    /// The file that was opened.
    pub file: Arc<dyn File>,
    /// O_ACCMODE, O_APPEND, O_NONBLOCK and others; with O_PATH only O_PATH, O_DIRECTORY and O_NOFOLLOW.
    pub flags: AtomicU32,
    /// The position in bytes; for a directory, the number of the next entry.
    position: AtomicU64,
    /// Held by calls that move the position, from reading the position until it is updated. Taken before the
    /// lock that [`File::changing`] returns.
    moving: Mutex,
    /// The path, for reports.
    pub name: Vec<u8>,
    /// The engine's file, which mmap maps; made on first use.
    mapped: SpinLock<Option<Counted<file::File<Machine>>>>,
    /// The epolls that watch the file, one element for each descriptor in a set. Some of them may be closed.
    /// `files/epoll.rs` changes the list.
    pub(super) watchers: SpinLock<Vec<Weak<Open>>>,
    charge: Charge,
}

/// Bytes of kernel memory for an open file without its name: the open file, the file, and what the file has
/// for itself, such as a pipe without bytes.
const COST: usize = size_of::<Open>() + 256;

impl Open {
    /// Makes an open file at position 0. `flags` are those of `open`.
    pub fn new(file: Arc<dyn File>, flags: u32, name: &[u8]) -> Arc<Open> {
        Arc::new(Open {
            file,
            flags: AtomicU32::new(flags),
            position: AtomicU64::new(0),
            moving: Mutex::new(),
            name: name.to_vec(),
            mapped: SpinLock::new(None),
            watchers: SpinLock::new(Vec::new()),
            charge: Charge::new(COST + name.len()),
        })
    }

    fn flags(&self) -> u32 {
        self.flags.load(Relaxed)
    }

    /// Returns the bytes that ended processes have left and that the survey with this number has not counted: those
    /// of the process that opened the file, and those of files in flight to the file if it is a socket. Follows
    /// sockets in flight `depth` times.
    pub fn left(&self, survey: u64, depth: u32) -> u64 {
        let in_flight = depth.checked_sub(1).map_or(0, |depth| self.file.left_in_flight(survey, depth));
        self.charge.left(survey) + in_flight
    }

    /// Returns true if the file is open with O_PATH: it has a place in the tree, and cannot be used.
    pub fn is_path(&self) -> bool {
        self.flags() & O_PATH != 0
    }

    /// Returns true if the file is open for reading.
    pub fn may_read(&self) -> bool {
        matches!(self.flags() & O_ACCMODE, O_RDONLY | O_RDWR)
    }

    /// Returns true if the file is open for writing.
    pub fn may_write(&self) -> bool {
        matches!(self.flags() & O_ACCMODE, O_WRONLY | O_RDWR)
    }

    /// Returns true if reads and writes of the file do not wait.
    pub fn nonblock(&self) -> bool {
        self.flags() & O_NONBLOCK != 0
    }

    /// Returns the events for which the file is ready: POLLIN, POLLOUT, POLLHUP and so on.
    pub fn ready(&self) -> u32 {
        if self.nonblock() || self.file.polls_blocking() { self.file.ready() } else { FAILED }
    }

    /// Reads at the offset `at`. If `at` is `None`, reads at the position and advances it. Returns the number
    /// of bytes.
    ///
    /// # Errors
    ///
    /// EBADF if the file is not open for reading; the errors of the file.
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

    /// Writes at the offset `at`. If `at` is `None`, writes at the position and advances it. If O_APPEND is
    /// set, writes at the end of the file. `room` returns how many bytes may be written to a regular file at
    /// that offset. Returns the number of bytes.
    ///
    /// # Errors
    ///
    /// EBADF if the file is not open for writing; the errors of `room` and of the file.
    pub fn write(&self, at: Option<u64>, from: &mut UserBuffer<'_>, room: Room) -> Result<usize, Errno> {
        if !self.may_write() {
            return Err(Errno::EBADF);
        }
        let _moving = if at.is_none() { self.hold_position()? } else { None };
        let changing = self.hold_contents()?;
        // O_APPEND overrides even the offset of pwrite, as on Linux (pwrite(2), BUGS).
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

    /// Moves the position behind the `done` bytes at `begin`, unless the call named its own offset.
    fn advance(&self, at: Option<u64>, begin: u64, done: usize) {
        if at.is_none() && self.file.can_seek() {
            self.position.store(begin + done as u64, Relaxed);
        }
    }

    /// Acquires the right to move the position, if the file has one.
    ///
    /// # Errors
    ///
    /// EINTR if the thread is killed while waiting.
    pub fn hold_position(&self) -> Result<Option<MutexGuard<'_>>, Errno> {
        if self.file.can_seek() { self.moving.lock().map(Some) } else { Ok(None) }
    }

    /// Acquires the right to change the file's contents, if the file has a lock for its contents.
    ///
    /// # Errors
    ///
    /// EINTR if the thread is killed while waiting.
    pub fn hold_contents(&self) -> Result<Option<MutexGuard<'_>>, Errno> {
        self.file.changing().map(Mutex::lock).transpose()
    }

    /// Returns the position.
    pub fn position(&self) -> u64 {
        self.position.load(Relaxed)
    }

    /// Sets the position. The caller holds the right to move it.
    pub fn set_position(&self, to: u64) {
        self.position.store(to, Relaxed);
    }

    /// Returns the engine's file, which mmap maps.
    ///
    /// # Errors
    ///
    /// ENODEV if the file has no pages, ENOMEM.
    pub fn mapped(&self) -> Result<Counted<file::File<Machine>>, Errno> {
        let mapping = self.file.mapping().ok_or(errno::ENODEV)?;
        if let Some(file) = &*self.mapped.lock() {
            return Ok(file.clone());
        }
        let access = FileAccess::READ.read(self.may_read()).write(self.may_write()).shows_cache(true);
        let name = core::str::from_utf8(&self.name).unwrap_or_default();
        let file = match self.file.writing() {
            Some(writing) => file::File::with_owned(mapping, writing.clone(), access, name),
            None => file::File::new(mapping, access, name),
        };
        let file = file.map_err(|_| Errno::ENOMEM)?;
        Ok(self.mapped.lock().get_or_insert(file).clone())
    }
}

impl Drop for Open {
    // A process may close many files in one call.
    fn drop(&mut self) {
        preempt_point();
    }
}
