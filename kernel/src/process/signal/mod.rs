//! Signals: what they carry, what is pending, and which thread gets them.
//!
//! | file | what |
//! | --- | --- |
//! | here | [`Info`], [`Action`], [`Pending`]; [`send`] and [`force`] |
//! | [`deliver`] | what a thread does about its signals on the way back to its program |
//! | [`frame`] | what a handler finds on its stack, and the way back from it |
//! | [`restart`] | calls that a signal has interrupted, and whether they begin again |
//! | [`job`] | processes that stop and go on, and what parents are told |
//!
//! # Locks
//!
//! [`Process::signals`] guards what is pending for the process *and for each of its threads*, and changes of
//! the threads' masks: so a sender sees a mask and decides in one step. In it the locks of the actions, of a
//! thread's own pending set, of the list of threads and of the scheduler's queues may be taken. No two
//! processes' are held at a time.

pub mod deliver;
pub mod frame;
pub mod job;
pub mod restart;

use crate::platform::user::{Plain, UserPtr};
use crate::process::exit::{self, Status};
use crate::process::{self, Process};
use crate::sched::{Thread, current, work};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};
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
    fn ends(&self, signal: u32) -> bool {
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

    /// From the calling thread, by kill or tgkill.
    pub fn from_here(signal: u32, code: i32) -> Self {
        let process = current().process();
        let sender = u64::from(process.pid) | u64::from(process.ids.lock().user.real) << 32;
        Info { signal, code, fields: [sender, 0, 0, 0], ..Info::default() }
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
    queue: VecDeque<Info>,
}

impl Pending {
    /// Adds one. False: it is pending already, and such a signal is so once; or there are too many.
    fn add(&mut self, info: Info) -> bool {
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

/// What a process has of signals, under its lock.
#[derive(Default)]
pub struct Signals {
    /// For whichever thread takes it first.
    pub pending: Pending,
    pub job: job::Job,
}

/// Sends a signal to a process, or to a thread of it. False: it was pending already.
pub fn send(process: &Arc<Process>, thread: Option<&Arc<Thread>>, info: Info) -> bool {
    let signal = info.signal;
    let mut signals = process.signals.lock();
    let mut resumed = false;
    if bit(signal) & STOPS != 0 {
        discard(process, &mut signals, bit(SIGCONT));
    } else if signal == SIGCONT {
        discard(process, &mut signals, STOPS);
        resumed = signals.job.resume();
    }
    let sent = queue(process, &mut signals, thread, info);
    drop(signals);
    if resumed {
        job::has_resumed(process);
    }
    sent
}

fn queue(process: &Arc<Process>, signals: &mut Signals, thread: Option<&Arc<Thread>>, info: Info) -> bool {
    let (signal, action) = (info.signal, process.action(info.signal));
    let threads = process.threads.lock();
    // A sender that ignores what it sends itself may wait for it all the same.
    let Some(first) = thread.or(threads.first()) else { return true };
    let is_blocked = |thread: &Thread, but: Set| thread.blocked() & !but & bit(signal) != 0;
    // A tracer hears of every signal.
    let traced = first.trace.is_traced() && signal != SIGKILL;
    if action.ignores(signal) && !is_blocked(first, 0) && !traced {
        return true;
    }
    let taker = match thread {
        Some(thread) => Some(thread).filter(|thread| !is_blocked(thread, thread.awaited.load(Relaxed))),
        None => threads
            .iter()
            .find(|thread| !is_blocked(thread, thread.awaited.load(Relaxed)) && !thread.is_killed()),
    };
    let added = match thread {
        Some(thread) => thread.pending.lock().add(info),
        None => signals.pending.add(info),
    };
    let Some(taker) = taker.cloned() else { return added };
    drop(threads);
    if signal == SIGKILL || action.ends(signal) && !is_blocked(&taker, 0) && !taker.trace.is_traced() {
        exit::end_process(process, Status::by_signal(signal as u8));
    } else if added {
        taker.give_work(work::SIGNAL);
    }
    added
}

/// How many signals wait for processes and their threads.
pub fn queued() -> u64 {
    let of = |process: &Arc<Process>| {
        let signals = process.signals.lock();
        let threads = process.threads.lock();
        let own: usize = threads.iter().map(|thread| thread.pending.lock().queue.len()).sum();
        (signals.pending.queue.len() + own) as u64
    };
    process::all().iter().map(of).sum()
}

/// Nothing of these is pending any more, for the process and its threads.
pub fn discard(process: &Process, signals: &mut Signals, of: Set) {
    signals.pending.discard(of);
    process.threads.lock().iter().for_each(|thread| thread.pending.lock().discard(of));
}

/// An instruction of the calling thread deserves this signal, which comes though it is blocked or ignored:
/// then it ends the process.
pub fn force(info: Info) {
    let here = current();
    let process = here.process();
    let signals = process.signals.lock();
    let actions = process.actions();
    let mut actions = actions.lock();
    let action = &mut actions[info.signal as usize];
    if here.blocked() & bit(info.signal) != 0 || action.handler == IGNORE {
        action.handler = DEFAULT;
    }
    drop(actions);
    here.blocked.fetch_and(!bit(info.signal), Relaxed);
    let mut pending = here.pending.lock();
    pending.discard(bit(info.signal));
    pending.add(info);
    drop(pending);
    here.work.fetch_or(work::SIGNAL, AcqRel);
    drop(signals);
}

/// Forces a signal as [`force`] does, and removes its handler: the signal ends the process.
pub fn force_default(info: Info) {
    current().process().actions().lock()[info.signal as usize].handler = DEFAULT;
    force(info);
}

/// The calling thread blocks these signals, and no others, from now on.
pub fn set_blocked(blocked: Set) {
    let here = current();
    let process = here.process();
    let signals = process.signals.lock();
    let newly = blocked & !here.blocked();
    here.blocked.store(blocked & !ALWAYS, Relaxed);
    refresh(here, &signals);
    if signals.pending.set & newly != 0 {
        pass_on(process, here, signals.pending.set & newly);
    }
}

/// Says whether the calling thread has something to do for signals.
pub fn refresh(here: &Thread, signals: &Signals) {
    let blocked = here.blocked() & !here.awaited.load(Relaxed);
    let ready = (here.pending.lock().set | signals.pending.set) & !blocked;
    match ready != 0 || signals.job.is_stopping() {
        true => here.work.fetch_or(work::SIGNAL, AcqRel),
        false => here.work.fetch_and(!work::SIGNAL, AcqRel),
    };
}

/// Other threads than `here`, which does not take these signals of the process any more, come by for them.
pub fn pass_on(process: &Process, here: &Thread, of: Set) {
    for thread in process.threads.lock().iter() {
        if !core::ptr::eq(&raw const **thread, here) && of & !thread.blocked() != 0 {
            thread.give_work(work::SIGNAL);
        }
    }
}

/// The mask of the calling thread is this one until the call that says so is over, or, if a handler comes,
/// until that returns. For rt_sigsuspend, ppoll, pselect6 and epoll_pwait.
pub fn set_blocked_for_call(blocked: Set) {
    let here = current();
    if here.saved_mask.get().is_none() {
        here.saved_mask.set(Some(here.blocked()));
    }
    set_blocked(blocked);
    here.work.fetch_or(work::MASK, AcqRel);
}

/// What the calling thread does deserves this signal: SIGPIPE, SIGXFSZ.
pub fn to_itself(signal: u32) {
    send(current().process(), Some(&Thread::hold_current()), Info::from_here(signal, 0));
}
