//! eventfd: a counter that writers add to, and that readers take or decrement.
//!
//! One spin lock guards the counter. A reader of an empty counter and a writer to a full counter sleep
//! without the lock (`sched/wait.rs`) and try again when the counter changes. `calls/events.rs` makes the
//! file. The program `files.c` of the tests checks the file with epoll.

use crate::arch::lock::SpinLock;
use crate::files::{File, NO_INODE, READABLE, Stat, WRITABLE, buffer::UserBuffer};
use crate::sched::wait::{self, Key, Sleep, Woken};
use freehold::error::Errno;

/// The file of an eventfd.
pub struct Event {
    state: SpinLock<State>,
    /// True if a read decrements the counter instead of taking all of it (EFD_SEMAPHORE).
    counts_down: bool,
}

/// The counter, and a count for epoll. Guarded by the spin lock of [`Event`].
struct State {
    /// The counter.
    number: u64,
    /// Number of writes. epoll reports each write as an edge (`File::changes`).
    writes: u64,
}

/// The maximum of the counter.
const MAX_COUNT: u64 = u64::MAX - 1;

impl Event {
    /// Makes an eventfd with this counter.
    pub fn new(number: u64, counts_down: bool) -> Self {
        Event { state: SpinLock::new(State { number, writes: 0 }), counts_down }
    }

    /// Returns the key on which readers and writers sleep.
    fn key(&self) -> Key {
        Key::kernel(&raw const self.state as u64)
    }

    /// Calls `step` until it returns a value, and then wakes all threads that sleep on the key. Sleeps
    /// between calls; with `nonblock`, fails with EAGAIN instead. Fails with EINTR if a signal arrives.
    fn until<R>(&self, nonblock: bool, mut step: impl FnMut(&mut State) -> Option<R>) -> Result<R, Errno> {
        loop {
            let waiting = wait::enqueue(self.key(), u32::MAX);
            let done = step(&mut self.state.lock());
            if let Some(done) = done {
                waiting.cancel();
                wait::wake(self.key(), usize::MAX);
                return Ok(done);
            }
            if nonblock {
                waiting.cancel();
                return Err(Errno::EAGAIN);
            }
            if waiting.sleep(Sleep::Interruptible, u64::MAX) == Woken::Signal {
                return Err(Errno::EINTR);
            }
        }
    }
}

impl File for Event {
    fn read(&self, _: u64, to: &mut UserBuffer<'_>, nonblock: bool) -> Result<usize, Errno> {
        if to.len() < 8 {
            return Err(Errno::EINVAL);
        }
        let number = self.until(nonblock, |state| {
            let taken = if self.counts_down { state.number.min(1) } else { state.number };
            state.number -= taken;
            (taken > 0).then_some(taken)
        })?;
        to.put_whole(&number.to_ne_bytes())
    }

    fn write(&self, _: u64, from: &mut UserBuffer<'_>, nonblock: bool) -> Result<usize, Errno> {
        let mut bytes = [0; 8];
        if from.len() < 8 {
            return Err(Errno::EINVAL);
        }
        if from.get(&mut bytes)? != 8 {
            return Err(Errno::EFAULT);
        }
        let more = u64::from_ne_bytes(bytes);
        if more == u64::MAX {
            return Err(Errno::EINVAL);
        }
        self.until(nonblock, |state| {
            let sum = state.number.checked_add(more).filter(|sum| *sum <= MAX_COUNT)?;
            state.number = sum;
            state.writes += 1;
            Some(8)
        })
    }

    fn stat(&self) -> Stat {
        Stat { inode: NO_INODE, mode: 0o600, links: 1, ..Stat::default() }
    }

    fn ready(&self) -> u32 {
        let number = self.state.lock().number;
        (if number > 0 { READABLE } else { 0 }) | if number < MAX_COUNT { WRITABLE } else { 0 }
    }

    fn changes(&self) -> u64 {
        self.state.lock().writes
    }

    fn ready_key(&self) -> Option<Key> {
        Some(self.key())
    }
}
