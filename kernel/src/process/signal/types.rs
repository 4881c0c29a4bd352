//! Types of signals: numbers, sets, actions, contents, and queues of pending signals. They have no locks of
//! their own: the module [`signal`](super) says which locks guard their values. Nothing here sleeps, because
//! signals are also sent in interrupts. The default effect of a signal follows from the sets [`STOPS`],
//! [`DUMPING`] and [`HARMLESS`].

use crate::memory::account::Account;
use crate::platform::user::{Plain, UserPtr};
use crate::sched::charge::Charge;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use freehold::error::Errno;
use linux_raw_sys::general::*;

/// A set of signals: signal n is bit n - 1.
pub type Set = u64;

/// Returns the set that contains only this signal, from 1 to [`MAX_SIGNAL`].
pub const fn bit(signal: u32) -> Set {
    1 << (signal - 1)
}

/// The highest signal number.
pub const MAX_SIGNAL: u32 = 64;
/// Signals that cannot be blocked, caught or ignored.
pub const ALWAYS: Set = bit(SIGKILL) | bit(SIGSTOP);
/// Signals that stop a process by default.
pub const STOPS: Set = bit(SIGSTOP) | bit(SIGTSTP) | bit(SIGTTIN) | bit(SIGTTOU);
/// Signals that an instruction of the thread causes. They are delivered first.
const SYNCHRONOUS: Set = bit(SIGSEGV) | bit(SIGBUS) | bit(SIGILL) | bit(SIGTRAP) | bit(SIGFPE) | bit(SIGSYS);
/// Signals whose default action leaves a core file.
pub const DUMPING: Set = SYNCHRONOUS | bit(SIGQUIT) | bit(SIGABRT) | bit(SIGXCPU) | bit(SIGXFSZ);
/// Signals that are ignored by default.
const HARMLESS: Set = bit(SIGCHLD) | bit(SIGURG) | bit(SIGWINCH) | bit(SIGCONT);
/// The first real-time signal. A real-time signal is queued each time it is sent; a signal with a lower
/// number is pending at most once.
pub const REAL_TIME: u32 = 32;
/// Maximum number of signals in a queue, independent of RLIMIT_SIGPENDING, because a queue is searched under a spin
/// lock.
const MAX_PENDING: usize = 4096;
/// Capacity of a queue that is kept while the queue is empty.
const SHORT: usize = 16;

/// The values of `handler` that are no addresses: SIG_DFL and SIG_IGN.
pub const DEFAULT: u64 = 0;
pub const IGNORE: u64 = 1;

/// The action for a signal, in the layout of rt_sigaction.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Action {
    /// Address of the handler, or [`DEFAULT`] or [`IGNORE`].
    pub handler: u64,
    /// Flags, such as SA_RESTART.
    pub flags: u64,
    /// Address to which the handler returns. The code there calls rt_sigreturn.
    pub restorer: u64,
    /// Signals that are blocked while the handler runs.
    pub mask: Set,
}

// SAFETY: four words, with no padding.
unsafe impl Plain for Action {}

impl Action {
    /// Returns true if the flag is set.
    pub fn has(&self, flag: u32) -> bool {
        self.flags & u64::from(flag) != 0
    }

    /// Returns the action of a process without handlers: a signal that was ignored stays ignored.
    pub fn without_handler(self) -> Self {
        let handler = if self.handler == IGNORE { IGNORE } else { DEFAULT };
        Action { handler, ..Action::default() }
    }

    /// Returns true if `signal` has no effect.
    pub fn ignores(&self, signal: u32) -> bool {
        self.handler == IGNORE || self.handler == DEFAULT && HARMLESS & bit(signal) != 0
    }

    /// Returns true if `signal` ends the process at once. False for a signal that leaves a core file, because
    /// a thread must write the file first.
    pub(super) fn ends(&self, signal: u32) -> bool {
        self.handler == DEFAULT && (HARMLESS | STOPS | DUMPING) & bit(signal) == 0
    }
}

/// The actions by signal number; element 0 is not used.
pub type Actions = [Action; MAX_SIGNAL as usize + 1];

/// The information of a signal: `siginfo_t`, of which only the first 48 bytes are used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Info {
    /// The number of the signal (`si_signo`).
    pub signal: u32,
    /// An error number (the field si_errno).
    pub errno: i32,
    /// The reason (`si_code`).
    pub code: i32,
    /// The bytes from offset 16 on: the sender and its value, or the address of a fault.
    pub fields: [u64; 4],
    /// The number of the timer that sent the signal, for a timer of timer_create. Not visible to programs.
    pub timer: Option<u32>,
}

impl Info {
    /// Returns the information of a signal from the kernel without details.
    pub fn kernel(signal: u32) -> Self {
        Info { signal, code: SI_KERNEL as i32, ..Info::default() }
    }

    /// Returns the information of a fault at address `at`.
    pub fn fault(signal: u32, code: u32, at: u64) -> Self {
        Info { signal, code: code as i32, fields: [at, 0, 0, 0], ..Info::default() }
    }

    /// Returns `siginfo_t` in the layout of programs.
    pub fn words(&self) -> [u64; 16] {
        let mut words = [0; 16];
        words[0] = u64::from(self.signal) | u64::from(self.errno as u32) << 32;
        words[1] = u64::from(self.code as u32);
        words[2..6].copy_from_slice(&self.fields);
        words
    }

    /// Reads information that a program has composed.
    ///
    /// # Errors
    ///
    /// EFAULT if it cannot be read.
    pub fn read(at: u64) -> Result<Self, Errno> {
        let words = UserPtr::<[u64; 16]>::new(at).read()?;
        Ok(Info {
            signal: words[0] as u32,
            errno: (words[0] >> 32) as i32,
            code: words[1] as i32,
            fields: [words[2], words[3], words[4], words[5]],
            timer: None,
        })
    }
}

/// Pending signals of a thread or a process.
#[derive(Default)]
pub struct Pending {
    /// The pending signals. Some of them may have no place in the queue.
    pub set: Set,
    /// The signals in the order in which they were sent.
    pub(super) queue: VecDeque<Info>,
    /// The timers whose signals are in the queue.
    timers: BTreeSet<u32>,
    /// The charge for the capacity of the queue.
    charge: Option<Charge>,
}

/// Number of signals in all queues. Relaxed: the number publishes no other memory.
static QUEUED: AtomicU64 = AtomicU64::new(0);

/// Returns the number of signals in the queues of all processes and threads.
pub fn queued() -> u64 {
    QUEUED.load(Relaxed)
}

impl Pending {
    /// Adds a signal. Returns false if that changes nothing: the signal is already pending, and is queued only once
    /// or has no place in the queue. Without a place, the signal is pending and has lost its information, as on
    /// Linux: real-time signals have places only while less than `most` signals of all processes are queued. The
    /// signal of a timer is queued once for each timer: the number of timers is limited. `account` is charged for
    /// the queue.
    pub(super) fn add(&mut self, info: Info, most: u64, account: &Arc<Account>) -> bool {
        let again = self.set & bit(info.signal) != 0;
        let refused = match info.timer {
            Some(timer) => !self.timers.insert(timer),
            None => again && info.signal < REAL_TIME,
        };
        if refused {
            return false;
        }
        self.set |= bit(info.signal);
        let is_full = info.signal >= REAL_TIME && queued() >= most || self.queue.len() >= MAX_PENDING;
        if info.timer.is_none() && is_full || self.queue.try_reserve(1).is_err() {
            info.timer.map(|timer| self.timers.remove(&timer));
            return !again;
        }
        self.queue.push_back(info);
        QUEUED.fetch_add(1, Relaxed);
        let bytes = self.queue.capacity() * size_of::<Info>();
        self.charge.get_or_insert_with(|| Charge::to(account.clone(), 0)).set(bytes);
        true
    }

    /// Uncounts signals that have left the queue. Frees a long queue that is empty.
    fn went(&mut self, count: usize) {
        QUEUED.fetch_sub(count as u64, Relaxed);
        if self.queue.is_empty() && self.queue.capacity() > SHORT {
            (self.queue, self.charge) = (VecDeque::new(), None);
        }
    }

    /// Returns the set of pending signals.
    pub fn signals(&self) -> Set {
        self.set
    }

    /// Takes a pending signal in `of`. Prefers a signal that an instruction caused, then the lowest number,
    /// then the oldest signal.
    pub fn take(&mut self, of: Set) -> Option<Info> {
        let ready = self.set & of;
        let ready = if ready & SYNCHRONOUS != 0 { ready & SYNCHRONOUS } else { ready };
        if ready == 0 {
            return None;
        }
        let signal = ready.trailing_zeros() + 1;
        let at = self.queue.iter().position(|info| info.signal == signal);
        let info = at.and_then(|at| self.queue.remove(at));
        self.went(usize::from(info.is_some()));
        if let Some(timer) = info.and_then(|info| info.timer) {
            self.timers.remove(&timer);
        }
        if !self.queue.iter().any(|info| info.signal == signal) {
            self.set &= !bit(signal);
        }
        // A signal without a place in the queue has lost its information.
        Some(info.unwrap_or(Info { signal, ..Info::default() }))
    }

    /// Discards all signals in `of`.
    pub fn discard(&mut self, of: Set) {
        if self.set & of != 0 {
            self.set &= !of;
            let (timers, before) = (&mut self.timers, self.queue.len());
            self.queue.retain(|info| {
                let stays = of & bit(info.signal) == 0;
                if let Some(timer) = info.timer.filter(|_| !stays) {
                    timers.remove(&timer);
                }
                stays
            });
            self.went(before - self.queue.len());
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        QUEUED.fetch_sub(self.queue.len() as u64, Relaxed);
    }
}

/// An event of a live child that is reported to the parent once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Report {
    /// The child was stopped by this signal.
    Stopped(u32),
    /// The child has continued.
    Continued,
}

/// The state of job control. Guarded by the lock of the process's signals.
#[derive(Default)]
pub struct Job {
    /// The signal by which the process is stopped; `None` if it is not stopped.
    pub(super) stop: Option<u32>,
    /// Number of stops so far.
    pub(super) number: u64,
    /// Number of threads that have stopped in the current stop.
    pub(super) stopped: usize,
    /// The event that no wait of the parent has reported yet.
    pub report: Option<Report>,
}

impl Job {
    /// Returns true if the process is stopped or about to stop.
    pub fn is_stopping(&self) -> bool {
        self.stop.is_some()
    }

    /// Returns the signal by which the process is stopped or about to stop.
    pub fn signal(&self) -> Option<u32> {
        self.stop
    }

    /// Ends a stop. Returns true if the process was stopped.
    pub(super) fn resume(&mut self) -> bool {
        if self.stop.take().is_none() {
            return false;
        }
        self.report = Some(Report::Continued);
        true
    }
}

/// The signals of a process. `Process::signals` is their lock.
#[derive(Default)]
pub struct Signals {
    /// Signals for any thread of the process.
    pub pending: Pending,
    /// Job control.
    pub job: Job,
}
