//! Pipes: a queue of bytes with ends for reading and for writing. Named pipes (`files/fifo.rs`) are made of
//! pipes.
//!
//! The spin lock of the state guards the bytes and the counts of ends. This lock is never held while bytes
//! are copied from or to a program. A reader holds a sleeping lock during its copy, so that other readers do
//! not get the same bytes. All threads that wait for the pipe sleep on one key. A change of the state wakes
//! all these threads after the spin lock is released.
//!
//! The lock of the state is taken under the lock of readers, never the other way round. The program `files.c`
//! and the test `pipelines` check pipes.

use crate::arch::lock::SpinLock;
use crate::errno;
use crate::files::pipe_queue::{Page, Queue};
use crate::files::{FIFO, File, HUNG_UP, READABLE, Stat, WRITABLE, buffer::UserBuffer, tree};
use crate::platform::user::UserPtr;
use crate::sched::wait::{self, Key, Sleep, Woken};
use crate::sched::{current, mutex::Mutex, mutex::MutexGuard};
use alloc::sync::Arc;
use freehold::PAGE_SIZE;
use freehold::error::Errno;

/// Indices of the two kinds of ends.
pub(super) const READ: usize = 0;
pub(super) const WRITE: usize = 1;
/// Size of a new pipe in bytes.
const ROOM: usize = 65536;
/// Maximum size of a write whose bytes are not interleaved with those of other writes (PIPE_BUF).
const WHOLE: usize = 4096;
/// The largest size that F_SETPIPE_SZ can set.
const MAX_ROOM: usize = 1 << 20;
const FIONREAD: u64 = 0x541b;

/// Returns the pipe behind a file.
pub fn of(file: &dyn File) -> Option<&Arc<Pipe>> {
    let any = file.as_any()?;
    let reader = any.downcast_ref::<Reader>().map(|reader| &reader.0);
    reader.or(any.downcast_ref::<Writer>().map(|writer| &writer.0))
}

/// Returns the size in bytes of the pipe behind a file. If `set` gives a size, changes the size first.
///
/// # Errors
///
/// EBADF if the file is no pipe; EPERM if the new size is too large; EBUSY if it is too small for the
/// contents.
pub fn room(file: &dyn File, set: Option<usize>) -> Result<usize, Errno> {
    let pipe = of(file).ok_or(Errno::EBADF)?;
    match set {
        Some(bytes) => pipe.set_room(bytes),
        None => Ok(pipe.state.lock().room),
    }
}

/// The state of a pipe, under its spin lock.
struct State {
    contents: Queue,
    /// Number of open ends: element [`READ`] for reading, element [`WRITE`] for writing.
    open: [usize; 2],
    /// Number of ends of each kind that were opened so far.
    opened: [usize; 2],
    /// Size of the pipe in bytes.
    room: usize,
    /// Number of times that bytes were added, and number of times that bytes were removed.
    changes: [u64; 2],
}

impl State {
    /// Returns true if this many bytes fit into the pipe.
    fn has_room(&self, bytes: usize) -> bool {
        self.room.saturating_sub(self.contents.used()) >= bytes
    }

    /// Adds bytes to the pipe, whose room the caller has checked.
    ///
    /// # Errors
    ///
    /// ENOMEM. The pipe is then unchanged.
    fn add(&mut self, part: &[u8]) -> Result<(), Errno> {
        self.contents.add(part)?;
        self.changes[0] += 1;
        Ok(())
    }
}

/// The state that both ends share.
pub struct Pipe {
    /// The number of the pipe, which no node has.
    inode: u64,
    state: SpinLock<State>,
    /// Held by a reader while it copies bytes. The reader removes the bytes from the pipe only after the
    /// copy.
    reading: Mutex,
}

impl Pipe {
    /// Returns the key on which both ends sleep. Every change wakes all threads on it.
    fn key(&self) -> Key {
        Key::kernel(&raw const self.state as u64)
    }
}

/// An end for reading.
pub struct Reader(pub(super) Arc<Pipe>);
/// An end for writing.
pub struct Writer(pub(super) Arc<Pipe>);

/// Makes a pipe and returns both ends.
pub fn new() -> (Reader, Writer) {
    let pipe = Pipe::new();
    (Reader::new(&pipe), Writer::new(&pipe))
}

impl Reader {
    pub(super) fn new(pipe: &Arc<Pipe>) -> Self {
        pipe.open_end(READ);
        Reader(pipe.clone())
    }
}

impl Writer {
    pub(super) fn new(pipe: &Arc<Pipe>) -> Self {
        pipe.open_end(WRITE);
        Writer(pipe.clone())
    }
}

impl Pipe {
    /// Makes a pipe without ends.
    pub fn new() -> Arc<Self> {
        let state =
            State { contents: Queue::new(), open: [0; 2], opened: [0; 2], room: ROOM, changes: [0; 2] };
        Arc::new(Pipe { inode: tree::new_inode(), state: SpinLock::new(state), reading: Mutex::new() })
    }

    /// Counts a new end, and empties the pipe if it had no open end. Returns how many ends of the other kind
    /// are open, and how many ends of that kind were opened so far.
    pub(super) fn open_end(&self, end: usize) -> (usize, usize) {
        let mut state = self.state.lock();
        let left = if state.open == [0; 2] { Some(state.contents.remove_all()) } else { None };
        state.open[end] += 1;
        state.opened[end] += 1;
        let others = (state.open[1 - end], state.opened[1 - end]);
        drop(state);
        drop(left);
        wait::wake(self.key(), usize::MAX);
        others
    }

    /// Counts an end that was closed.
    fn close_end(&self, end: usize) {
        let mut state = self.state.lock();
        state.open[end] = state.open[end].saturating_sub(1);
        drop(state);
        wait::wake(self.key(), usize::MAX);
    }

    /// Acquires the right to remove bytes.
    ///
    /// # Errors
    ///
    /// EINTR if the thread is killed while waiting.
    pub fn hold_contents(&self) -> Result<MutexGuard<'_>, Errno> {
        self.reading.lock()
    }

    /// Copies bytes that begin `skip` bytes behind the first one. Returns the number of bytes, which is 0
    /// only if the contents end there.
    pub fn peek(&self, skip: usize, out: &mut [u8]) -> usize {
        self.state.lock().contents.peek(skip, out)
    }

    /// Removes the first `count` bytes, which one [`peek`](Self::peek) has copied. The caller holds the right
    /// to remove bytes.
    pub fn remove(&self, count: usize) {
        let mut state = self.state.lock();
        let gone = state.contents.remove(count);
        state.changes[1] += 1;
        drop(state);
        drop(gone);
        wait::wake(self.key(), usize::MAX);
    }

    /// Adds a page of a program. Sleeps until there is room; with `nonblock`, fails with EAGAIN instead.
    ///
    /// # Errors
    ///
    /// EPIPE if the pipe has no reader; EAGAIN; EINTR; ENOMEM.
    pub fn add_page(&self, page: Page, nonblock: bool) -> Result<(), Errno> {
        let mut page = Some(page);
        let has_room = |state: &State| state.open[READ] == 0 || state.has_room(PAGE_SIZE as usize);
        loop {
            let mut state = self.state.lock();
            if state.open[READ] == 0 {
                return Err(errno::EPIPE);
            }
            if has_room(&state) {
                state.contents.reserve_page()?;
                page.take().into_iter().for_each(|page| state.contents.add_page(page));
                state.changes[0] += 1;
                drop(state);
                wait::wake(self.key(), usize::MAX);
                return Ok(());
            }
            drop(state);
            if nonblock {
                return Err(Errno::EAGAIN);
            }
            self.sleep_unless(has_room)?;
        }
    }

    /// Returns the number of bytes for which the pipe has room. Less than [`WHOLE`] counts as none, as for
    /// writers that wait.
    ///
    /// # Errors
    ///
    /// EPIPE if the pipe has no reader.
    pub fn room(&self) -> Result<usize, Errno> {
        let state = self.state.lock();
        match state.room.saturating_sub(state.contents.used()) {
            _ if state.open[READ] == 0 => Err(errno::EPIPE),
            ..WHOLE => Ok(0),
            room => Ok(room),
        }
    }

    /// Returns true if the pipe is empty and no end can add bytes.
    pub fn has_ended(&self) -> bool {
        let state = self.state.lock();
        state.contents.len() == 0 && state.open[WRITE] == 0
    }

    /// Sleeps until the count of opened ends of this kind differs from `before`.
    pub(super) fn wait_for_end(&self, end: usize, before: usize) -> Result<(), Errno> {
        let is_there = |state: &State| state.opened[end] != before;
        let mut slept = Ok(());
        while !is_there(&self.state.lock()) {
            // A signal ends the wait only if no end was opened.
            slept?;
            slept = self.sleep_unless(is_there);
        }
        Ok(())
    }

    /// Sleeps until the pipe changes, unless `holds` is already true for its state.
    fn sleep_unless(&self, holds: impl FnOnce(&State) -> bool) -> Result<(), Errno> {
        let waiting = wait::enqueue(self.key(), u32::MAX);
        let over = holds(&self.state.lock());
        if over {
            waiting.cancel();
            return Ok(());
        }
        match waiting.sleep(Sleep::Interruptible, u64::MAX) {
            Woken::Signal => Err(Errno::EINTR),
            _ => Ok(()),
        }
    }

    /// Performs FIONREAD: stores the number of bytes in the pipe.
    fn ioctl(&self, request: u64, argument: u64) -> Result<u64, Errno> {
        if request != FIONREAD {
            return Err(errno::ENOTTY);
        }
        let bytes = self.state.lock().contents.len() as u32;
        UserPtr::<u32>::new(argument).write(&bytes).map(|()| 0)
    }

    /// Performs F_SETPIPE_SZ: sets the size to `bytes`, rounded up. Returns the new size.
    fn set_room(&self, bytes: usize) -> Result<usize, Errno> {
        let mut state = self.state.lock();
        if bytes > MAX_ROOM {
            return Err(Errno::EPERM);
        }
        let bytes = bytes.max(WHOLE).next_power_of_two();
        if bytes < state.contents.used() {
            return Err(Errno::EBUSY);
        }
        state.room = bytes;
        drop(state);
        wait::wake(self.key(), usize::MAX);
        Ok(bytes)
    }

    fn stat(&self) -> Stat {
        Stat { inode: self.inode, mode: FIFO | 0o600, links: 1, ..Stat::default() }
    }
}

impl File for Reader {
    fn read(&self, _: u64, to: &mut UserBuffer<'_>, nonblock: bool) -> Result<usize, Errno> {
        let wanted = to.len();
        if wanted == 0 {
            return Ok(0);
        }
        let (mut part, mut done) = ([0; 2048], 0);
        loop {
            let turn = self.0.reading.lock()?;
            loop {
                let room = (wanted - done).min(part.len());
                let bytes = self.0.peek(0, &mut part[..room]);
                if bytes == 0 {
                    break;
                }
                // The bytes stay in the pipe until the program has them.
                let put = match to.put(&part[..bytes]) {
                    Err(error) if done == 0 => return Err(error),
                    Err(_) => return Ok(done),
                    Ok(put) => put,
                };
                self.0.remove(put);
                done += put;
            }
            drop(turn);
            if done > 0 {
                return Ok(done);
            }
            let state = self.0.state.lock();
            if state.open[WRITE] == 0 {
                return Ok(0);
            }
            drop(state);
            if nonblock {
                return Err(Errno::EAGAIN);
            }
            self.0.sleep_unless(|state| state.contents.len() > 0 || state.open[WRITE] == 0)?;
        }
    }

    fn stat(&self) -> Stat {
        self.0.stat()
    }

    fn ready(&self) -> u32 {
        let state = self.0.state.lock();
        let readable = if state.contents.len() == 0 { 0 } else { READABLE };
        readable | if state.open[WRITE] == 0 { HUNG_UP } else { 0 }
    }

    fn changes(&self) -> u64 {
        self.0.state.lock().changes[0]
    }

    fn ioctl(&self, request: u64, argument: u64) -> Result<u64, Errno> {
        self.0.ioctl(request, argument)
    }

    fn as_any(&self) -> Option<&dyn core::any::Any> {
        Some(self)
    }

    fn ready_key(&self) -> Option<Key> {
        Some(self.0.key())
    }
}

impl File for Writer {
    fn write(&self, _: u64, from: &mut UserBuffer<'_>, nonblock: bool) -> Result<usize, Errno> {
        let (mut part, mut done) = ([0; WHOLE], 0);
        while from.len() > 0 {
            let needed = from.len().min(WHOLE);
            if self.0.state.lock().open[READ] == 0 {
                return if done > 0 { Ok(done) } else { Err(errno::EPIPE) };
            }
            if !self.0.state.lock().has_room(needed) {
                if nonblock || done > 0 && current().is_killed() {
                    return if done > 0 { Ok(done) } else { Err(Errno::EAGAIN) };
                }
                let room = |state: &State| state.has_room(needed) || state.open[READ] == 0;
                match self.0.sleep_unless(room) {
                    Err(_) if done > 0 => return Ok(done),
                    result => result?,
                }
                continue;
            }
            let bytes = match from.get(&mut part) {
                Err(_) if done > 0 => return Ok(done),
                bytes => bytes?,
            };
            let mut state = self.0.state.lock();
            match state.add(&part[..bytes]) {
                Err(_) if done > 0 => return Ok(done),
                added => added?,
            }
            drop(state);
            done += bytes;
            wait::wake(self.0.key(), usize::MAX);
        }
        Ok(done)
    }

    fn stat(&self) -> Stat {
        self.0.stat()
    }

    fn ready(&self) -> u32 {
        let state = self.0.state.lock();
        let writable = if state.has_room(WHOLE) { WRITABLE } else { 0 };
        writable | if state.open[READ] == 0 { HUNG_UP } else { 0 }
    }

    fn changes(&self) -> u64 {
        self.0.state.lock().changes[1]
    }

    fn ioctl(&self, request: u64, argument: u64) -> Result<u64, Errno> {
        self.0.ioctl(request, argument)
    }

    fn as_any(&self) -> Option<&dyn core::any::Any> {
        Some(self)
    }

    fn ready_key(&self) -> Option<Key> {
        Some(self.0.key())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.close_end(READ);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.close_end(WRITE);
    }
}
