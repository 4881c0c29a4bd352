//! Pipes.

use super::buffer::UserBuffer;
use super::{FIFO, File, HUNG_UP, READABLE, Stat, WRITABLE};
use crate::arch::lock::SpinLock;
use crate::calls::errno;
use crate::task::wait::{self, Key, Sleep, Woken};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use freehold::error::Errno;

const ROOM: usize = 65536;
/// A write of so many bytes is not mixed with others (PIPE_BUF).
const WHOLE: usize = 4096;

struct State {
    bytes: VecDeque<u8>,
    readers: usize,
    writers: usize,
}

struct Pipe {
    state: SpinLock<State>,
}

impl Pipe {
    /// Both ends sleep on one key: whatever changes wakes all.
    fn key(&self) -> Key {
        Key::kernel(&raw const self.state as u64)
    }
}

/// The end that is read.
pub struct Reader(Arc<Pipe>);
/// The end that is written.
pub struct Writer(Arc<Pipe>);

/// A new pipe: both ends.
pub fn new() -> (Reader, Writer) {
    let state = State { bytes: VecDeque::new(), readers: 1, writers: 1 };
    let pipe = Arc::new(Pipe { state: SpinLock::new(state) });
    (Reader(pipe.clone()), Writer(pipe))
}

impl Pipe {
    /// Sleeps until something changes, unless `holds` says that it has.
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

    fn stat(&self) -> Stat {
        Stat { inode: self.key().at, mode: FIFO | 0o600, links: 1, ..Stat::default() }
    }
}

impl File for Reader {
    fn read(&self, _: u64, to: &mut UserBuffer<'_>, nonblock: bool) -> Result<usize, Errno> {
        let wanted = to.len();
        if wanted == 0 {
            return Ok(0);
        }
        loop {
            let mut part = [0; 1024];
            let mut state = self.0.state.lock();
            let bytes = wanted.min(part.len()).min(state.bytes.len());
            if bytes > 0 {
                state.bytes.drain(..bytes).zip(&mut part).for_each(|(from, to)| *to = from);
                drop(state);
                wait::wake(self.0.key(), usize::MAX);
                return to.put(&part[..bytes]);
            }
            if state.writers == 0 {
                return Ok(0);
            }
            drop(state);
            if nonblock {
                return Err(Errno::EAGAIN);
            }
            self.0.sleep_unless(|state| !state.bytes.is_empty() || state.writers == 0)?;
        }
    }

    fn stat(&self) -> Stat {
        self.0.stat()
    }

    fn ready(&self) -> u32 {
        let state = self.0.state.lock();
        let readable = if state.bytes.is_empty() { 0 } else { READABLE };
        readable | if state.writers == 0 { HUNG_UP } else { 0 }
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
            if self.0.state.lock().readers == 0 {
                // The signal SIGPIPE belongs here.
                return if done > 0 { Ok(done) } else { Err(errno::EPIPE) };
            }
            if ROOM - self.0.state.lock().bytes.len() < needed {
                if nonblock || done > 0 && crate::arch::cpu::current().is_killed() {
                    return if done > 0 { Ok(done) } else { Err(Errno::EAGAIN) };
                }
                let room = |state: &State| ROOM - state.bytes.len() >= needed || state.readers == 0;
                match self.0.sleep_unless(room) {
                    Err(_) if done > 0 => return Ok(done),
                    result => result?,
                }
                continue;
            }
            let bytes = from.get(&mut part)?;
            self.0.state.lock().bytes.extend(&part[..bytes]);
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
        let writable = if ROOM - state.bytes.len() >= WHOLE { WRITABLE } else { 0 };
        writable | if state.readers == 0 { HUNG_UP } else { 0 }
    }

    fn ready_key(&self) -> Option<Key> {
        Some(self.0.key())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.state.lock().readers -= 1;
        wait::wake(self.0.key(), usize::MAX);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.state.lock().writers -= 1;
        wait::wake(self.0.key(), usize::MAX);
    }
}
