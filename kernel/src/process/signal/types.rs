//! Types of signals: numbers, sets, actions, contents, and queues of pending signals.

use crate::platform::user::{Plain, UserPtr};
use alloc::collections::VecDeque;
use freehold::error::Errno;
use linux_raw_sys::general::*;

/// Signals: number n is bit n - 1.
pub type Set = u64;

pub const fn bit(signal: u32) -> Set {
    1 << (signal - 1)
}

/// Highest number of a signal.
pub const MOST: u32 = 64;
/// Nobody can block, catch or ignore these.
pub const ALWAYS: Set = bit(SIGKILL) | bit(SIGSTOP);
/// These stop a process that has set nothing else.
pub const STOPS: Set = bit(SIGSTOP) | bit(SIGTSTP) | bit(SIGTTIN) | bit(SIGTTOU);
/// An instruction of the thread deserves these: they come first.
const SYNCHRONOUS: Set = bit(SIGSEGV) | bit(SIGBUS) | bit(SIGILL) | bit(SIGTRAP) | bit(SIGFPE) | bit(SIGSYS);
/// These leave a core file of a process that they end.
pub const DUMPING: Set = SYNCHRONOUS | bit(SIGQUIT) | bit(SIGABRT) | bit(SIGXCPU) | bit(SIGXFSZ);
/// Nothing happens by default.
const HARMLESS: Set = bit(SIGCHLD) | bit(SIGURG) | bit(SIGWINCH) | bit(SIGCONT);
/// The first signal that is queued as often as it is sent.
pub const REAL_TIME: u32 = 32;
/// Most that wait for one thread or process, whatever RLIMIT_SIGPENDING says.
const MOST_PENDING: usize = 4096;

/// Handlers that are none.
pub const DEFAULT: u64 = 0;
pub const IGNORE: u64 = 1;

/// What rt_sigaction sets for a signal, as programs pass it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Action {
    pub handler: u64,
    pub flags: u64,
    pub restorer: u64,
    pub mask: Set,
}

// SAFETY: four words.
unsafe impl Plain for Action {}

impl Action {
    pub fn has(&self, flag: u32) -> bool {
        self.flags & u64::from(flag) != 0
    }

    /// Whether `signal` does nothing.
    pub fn ignores(&self, signal: u32) -> bool {
        self.handler == IGNORE || self.handler == DEFAULT && HARMLESS & bit(signal) != 0
    }

    /// Whether `signal` ends the process at once. A thread has to act on one that leaves a core file.
    pub(super) fn ends(&self, signal: u32) -> bool {
        self.handler == DEFAULT && (HARMLESS | STOPS | DUMPING) & bit(signal) == 0
    }
}

/// Actions by number; 0 is not used.
pub type Actions = [Action; MOST as usize + 1];

/// What is known of a signal: `siginfo_t`, of which nothing uses more than the first 48 bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Info {
    pub signal: u32,
    pub errno: i32,
    pub code: i32,
    /// From byte 16 on: the sender, and its value; or where a fault was.
    pub fields: [u64; 4],
}

impl Info {
    /// From the kernel, which says no more.
    pub fn kernel(signal: u32) -> Self {
        Info { signal, code: SI_KERNEL as i32, ..Info::default() }
    }

    /// An instruction has failed; `at` is the address that it is about.
    pub fn fault(signal: u32, code: u32, at: u64) -> Self {
        Info { signal, code: code as i32, fields: [at, 0, 0, 0], ..Info::default() }
    }

    /// As programs see it.
    pub fn words(&self) -> [u64; 16] {
        let mut words = [0; 16];
        words[0] = u64::from(self.signal) | u64::from(self.errno as u32) << 32;
        words[1] = u64::from(self.code as u32);
        words[2..6].copy_from_slice(&self.fields);
        words
    }

    /// What a program has put together.
    ///
    /// # Errors
    ///
    /// EFAULT.
    pub fn read(at: u64) -> Result<Self, Errno> {
        let words = UserPtr::<[u64; 16]>::new(at).read()?;
        Ok(Info {
            signal: words[0] as u32,
            errno: (words[0] >> 32) as i32,
            code: words[1] as i32,
            fields: [words[2], words[3], words[4], words[5]],
        })
    }
}

/// Signals that wait for a thread or a process.
#[derive(Default)]
pub struct Pending {
    /// Those of which there is one in the queue.
    pub set: Set,
    pub(super) queue: VecDeque<Info>,
}

impl Pending {
    /// Adds one. False: it is pending already, and such a signal is so once; or there are too many.
    pub(super) fn add(&mut self, info: Info) -> bool {
        let again = self.set & bit(info.signal) != 0;
        // A timer's signal counts how often it would have come.
        let timer = |other: &Info| {
            other.code == SI_TIMER
                && other.signal == info.signal
                && other.fields[0] as u32 == info.fields[0] as u32
        };
        let once = info.signal < REAL_TIME || info.code == SI_TIMER && self.queue.iter().any(timer);
        if again && once || self.queue.len() >= MOST_PENDING {
            return false;
        }
        self.set |= bit(info.signal);
        self.queue.push_back(info);
        true
    }

    /// Which are pending.
    pub fn signals(&self) -> Set {
        self.set
    }

    /// Takes the one of these that comes first.
    pub fn take(&mut self, of: Set) -> Option<Info> {
        let ready = self.set & of;
        let ready = if ready & SYNCHRONOUS != 0 { ready & SYNCHRONOUS } else { ready };
        if ready == 0 {
            return None;
        }
        let signal = ready.trailing_zeros() + 1;
        let at = self.queue.iter().position(|info| info.signal == signal);
        let info = at.and_then(|at| self.queue.remove(at));
        if !self.queue.iter().any(|info| info.signal == signal) {
            self.set &= !bit(signal);
        }
        info
    }

    /// Forgets all of these.
    pub fn discard(&mut self, of: Set) {
        if self.set & of != 0 {
            self.set &= !of;
            self.queue.retain(|info| of & bit(info.signal) == 0);
        }
    }
}

/// What a parent may be told once of a child that lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Report {
    /// By this signal.
    Stopped(u32),
    Continued,
}

/// Under the lock of the process's signals.
#[derive(Default)]
pub struct Job {
    /// The signal that stops the process.
    pub(super) stop: Option<u32>,
    /// How often it was stopped.
    pub(super) number: u64,
    /// Threads that have stopped.
    pub(super) stopped: usize,
    /// What the parent has not been told by a wait.
    pub report: Option<Report>,
}

impl Job {
    pub fn is_stopping(&self) -> bool {
        self.stop.is_some()
    }

    /// Whether there was a stop, which is over.
    pub(super) fn resume(&mut self) -> bool {
        if self.stop.take().is_none() {
            return false;
        }
        self.report = Some(Report::Continued);
        true
    }
}

/// What a process has of signals, under its lock.
#[derive(Default)]
pub struct Signals {
    /// For whichever thread takes it first.
    pub pending: Pending,
    pub job: Job,
}
