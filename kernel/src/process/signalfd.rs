//! Files from which a program reads its signals (signalfd(2)).
//!
//! A file has only a set of signals. A read takes pending signals of the calling thread and of its process,
//! even if another process made the file: after a fork, the child reads its own signals. The lock of the
//! signals (`signal/mod.rs`) guards the pending signals. Readers sleep on the key [`Process::signal_key`],
//! which `signal::send` wakes. `calls/events.rs` has the calls. The program `signals.c` of the tests checks
//! the files.
//!
//! [`Process::signal_key`]: crate::process::Process::signal_key

use crate::files::{File, NO_INODE, READABLE, Stat, buffer::UserBuffer};
use crate::process::ring;
use crate::process::signal::{self, Info, Set};
use crate::sched::current;
use crate::sched::wait::{self, Key, Sleep, Woken};
use core::any::Any;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use freehold::error::Errno;
use linux_raw_sys::general::*;

/// The file of a signalfd.
pub struct SignalFile {
    /// The signals that the file reads. Relaxed: a change takes effect with the next look at the signals, and
    /// [`set`](Self::set) wakes the readers.
    set: AtomicU64,
}

impl SignalFile {
    /// Makes a file that reads these signals.
    pub fn new(set: Set) -> Self {
        SignalFile { set: AtomicU64::new(set) }
    }

    /// Replaces the set of signals.
    pub fn set(&self, set: Set) {
        self.set.store(set, Relaxed);
        wait::wake(current().process().signal_key(), usize::MAX);
    }

    /// Takes a pending signal in the set. If there is none, sleeps until one comes; with `nonblock`, fails
    /// with EAGAIN instead. Fails with EINTR if a signal arrives that is delivered.
    fn take(&self, nonblock: bool) -> Result<Info, Errno> {
        loop {
            let waiting = wait::enqueue(current().process().signal_key(), u32::MAX);
            let taken = ring::take(self.set.load(Relaxed));
            if taken.is_some() || nonblock {
                waiting.cancel();
                return taken.ok_or(Errno::EAGAIN);
            }
            if waiting.sleep(Sleep::Interruptible, u64::MAX) == Woken::Signal {
                return Err(Errno::EINTR);
            }
        }
    }
}

impl File for SignalFile {
    /// Reads as many signals as are pending and fit. Only the read of the first signal sleeps.
    fn read(&self, _: u64, to: &mut UserBuffer<'_>, nonblock: bool) -> Result<usize, Errno> {
        let most = to.len() / BYTES;
        if most == 0 {
            return Err(Errno::EINVAL);
        }
        let mut bytes = 0;
        while bytes < most * BYTES {
            let put = self.take(nonblock || bytes > 0).and_then(|info| to.put_whole(&record(&info)));
            match put {
                Ok(more) => bytes += more,
                Err(error) if bytes == 0 => return Err(error),
                Err(_) => break,
            }
            crate::sched::checkpoint()?;
        }
        Ok(bytes)
    }

    fn stat(&self) -> Stat {
        Stat { inode: NO_INODE, mode: 0o600, links: 1, ..Stat::default() }
    }

    fn ready(&self) -> u32 {
        if signal::pending() & self.set.load(Relaxed) != 0 { READABLE } else { 0 }
    }

    fn changes(&self) -> u64 {
        current().process().signals_sent.load(Relaxed)
    }

    fn ready_key(&self) -> Option<Key> {
        Some(current().process().signal_key())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

/// The size of a `struct signalfd_siginfo` in bytes.
const BYTES: usize = 128;

/// Codes of siginfo_t: of a timer, and of the readiness of a file.
const SI_TIMER: i32 = -2;
const SI_SIGIO: i32 = -5;

/// Returns the `struct signalfd_siginfo` of a signal. The signal and its code determine which fields of
/// siginfo_t exist. All other fields are 0.
fn record(info: &Info) -> [u8; BYTES] {
    let mut record = [0; BYTES];
    let [first, second, third, fourth] = info.fields;
    let mut put = |at: usize, bytes: &[u8]| record[at..at + bytes.len()].copy_from_slice(bytes);
    let half = |word: u64, n: usize| ((word >> (32 * n)) as u32).to_ne_bytes();
    put(0, &info.signal.to_ne_bytes());
    put(4, &info.errno.to_ne_bytes());
    put(8, &info.code.to_ne_bytes());
    let is_special = info.code > 0 && info.code < SI_KERNEL as i32;
    match info.signal {
        SIGILL | SIGFPE | SIGSEGV | SIGBUS | SIGTRAP if is_special => put(72, &first.to_ne_bytes()),
        SIGSYS if is_special => {
            put(84, &half(second, 0));
            put(88, &first.to_ne_bytes());
            put(96, &half(second, 1));
        }
        SIGPOLL if is_special || info.code == SI_SIGIO => {
            put(20, &half(second, 0));
            put(28, &half(first, 0));
        }
        _ if info.code == SI_TIMER => {
            put(24, &half(first, 0));
            put(32, &half(first, 1));
            put(44, &half(second, 0));
            put(48, &second.to_ne_bytes());
        }
        _ => {
            put(12, &half(first, 0));
            put(16, &half(first, 1));
            if info.signal == SIGCHLD && is_special {
                put(40, &half(second, 0));
                put(56, &third.to_ne_bytes());
                put(64, &fourth.to_ne_bytes());
            } else if info.code < 0 {
                put(44, &half(second, 0));
                put(48, &second.to_ne_bytes());
            }
        }
    }
    record
}
