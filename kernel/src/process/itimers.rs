//! Timers that send signals: the timers of alarm, setitimer and timer_create. All of them count elapsed time;
//! no timer counts the run time of a process. `calls/timers.rs` has the calls, `ring.rs` sends the signals,
//! and `files/timer.rs` has the timers of timerfd.
//!
//! A timer expires in the timer interrupt, so [`Expire::expire`] never sleeps. A periodic timer that has expired
//! *rests*: it is armed again when a thread takes its signal, and the expirations in between are computed then
//! (overrun). A timer whose signal no thread takes therefore costs nothing. A timer of timer_create whose signal
//! was ignored is armed again when the program stops to ignore the signal, as on Linux; ITIMER_REAL only when a
//! thread takes SIGALRM. A timer that sends no signal is never armed: its state follows from the clock.
//!
//! A spin lock guards the state of a timer. Code that holds this lock takes the lock of a CPU's list in
//! `sched/timers.rs`, but no lock of `signal`. An expiration that comes after the timer was set again is ignored,
//! because the timer no longer has the [`Armed`] of this expiration.
//!
//! The programs `signals.c` and `jobs.c` of the tests check these timers, and `floods.c` checks many timers with
//! short intervals.

use crate::arch::{clock, lock::SpinLock, preempt::preempt_point};
use crate::process::signal::types::Info;
use crate::sched::charge::{self, Charge};
use crate::sched::timers::{self, Armed, Expire};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Bound::{Excluded, Unbounded};
use freehold::error::Errno;
use linux_raw_sys::general::{CLOCK_MONOTONIC, SI_TIMER, SIGALRM};

/// The shortest time from the taking of a timer's signal to the timer's next expiration, so that the program
/// makes progress.
const SHORTEST_NS: u64 = 20_000;

/// The receiver of a timer's signal.
#[derive(Clone, Copy, Debug)]
pub enum Notify {
    /// The timer sends no signal.
    Nobody,
    /// The process.
    Process(Info),
    /// The thread with this number.
    Thread(u32, Info),
}

/// A function that sends a timer's signal. Returns false if the signal is already pending.
pub type Ring = fn(&Timer) -> bool;

/// A timer of a process.
pub struct Timer {
    /// The number of the process.
    pub process: u32,
    /// Sends the timer's signal. Returns false if the signal is already pending.
    ring: Ring,
    /// The clock that timer_create named.
    pub clock: u32,
    pub notify: Notify,
    state: SpinLock<State>,
    _charge: Charge,
}

/// Bytes of kernel memory for a timer: the timer, its element in the process, and its place in the list of a CPU.
const COST: usize = size_of::<Timer>() + 128;

/// The changing part of a timer.
#[derive(Default)]
struct State {
    /// The place of the timer in the list of a CPU, if the timer is armed.
    armed: Option<Armed>,
    /// True if the timer is periodic, has expired, and waits until a thread takes its signal.
    rests: bool,
    /// Time of the next expiration or, if the timer rests, of the last one, in nanoseconds since the start; 0
    /// if the timer is not set.
    next: u64,
    /// The interval between expirations; 0 if the timer expires once.
    interval: u64,
    /// Number of expirations that were merged into the pending signal.
    overrun: u64,
    /// Number of expirations that were merged into the signal that a thread took last.
    told_overrun: u32,
}

impl State {
    /// Returns the number of expirations from `next`, which is in the past, until `now`, without the one at
    /// `next`, and the time of the first expiration after `now`. The timer is periodic.
    fn forward(&self, now: u64) -> (u64, u64) {
        let missed = now.saturating_sub(self.next) / self.interval;
        (missed, self.next.saturating_add((missed + 1).saturating_mul(self.interval)))
    }
}

impl Timer {
    /// Makes a timer that is not set.
    fn new(process: u32, ring: Ring, clock: u32, notify: Notify) -> Arc<Self> {
        let state = SpinLock::new(State::default());
        Arc::new(Timer { process, ring, clock, notify, state, _charge: Charge::new(COST) })
    }

    /// Returns the time until the next expiration and the interval, both in nanoseconds. The time is 0 if the
    /// timer is not set.
    pub fn get(&self) -> [u64; 2] {
        let (state, now) = (self.state.lock(), clock::now_ns());
        let left = match state.next {
            0 => 0,
            // Linux reports no time for ITIMER_REAL, whose interval begins when the signal is taken.
            _ if state.rests && self.is_real() => 0,
            next if next > now => next - now,
            _ if state.interval != 0 => state.forward(now).1 - now,
            _ if state.armed.is_some() => 1,
            _ => 0,
        };
        [left, state.interval]
    }

    /// Sets the timer to expire at `next`, in nanoseconds since the start, and then after each interval. A
    /// `next` of 0 disarms the timer.
    pub fn set(self: &Arc<Self>, next: u64, interval: u64) {
        let mut state = self.state.lock();
        let before = state.armed.take();
        (state.next, state.interval, state.overrun, state.rests) = (next, interval, 0, false);
        let is_armed = next != 0 && !matches!(self.notify, Notify::Nobody);
        state.armed = is_armed.then(|| timers::arm(next, self.clone()));
        drop(state);
        if let Some(before) = before {
            timers::disarm(before);
        }
    }

    /// Returns the number of expirations that were merged into the signal that was taken last.
    pub fn told_overrun(&self) -> u32 {
        self.state.lock().told_overrun
    }

    /// Handles the taking of the timer's signal: arms the timer again if it rests. Returns the number of
    /// expirations that were merged into the signal.
    pub fn taken(self: &Arc<Self>) -> u32 {
        let mut state = self.state.lock();
        let missed = self.arm_again(&mut state);
        let overrun = core::mem::take(&mut state.overrun).saturating_add(missed);
        // The largest count that Linux reports (DELAYTIMER_MAX).
        state.told_overrun = overrun.min(i32::MAX as u64) as u32;
        state.told_overrun
    }

    /// Arms the timer again if it rests. Returns the number of expirations since it rests.
    fn arm_again(self: &Arc<Self>, state: &mut State) -> u64 {
        if !state.rests {
            return 0;
        }
        let now = clock::now_ns();
        let (missed, next) = state.forward(now);
        (state.rests, state.next) = (false, next);
        state.armed = Some(timers::arm(next.max(now + SHORTEST_NS), self.clone()));
        missed
    }

    /// Returns true if the timer is ITIMER_REAL of its process.
    fn is_real(&self) -> bool {
        matches!(self.notify, Notify::Process(info) if info.timer.is_none())
    }

    /// Returns the signal that the timer sends, if any.
    fn signal(&self) -> Option<u32> {
        match self.notify {
            Notify::Nobody => None,
            Notify::Process(info) | Notify::Thread(_, info) => Some(info.signal),
        }
    }
}

impl Expire for Timer {
    fn expire(self: Arc<Self>, armed: Armed) {
        let mut state = self.state.lock();
        if state.armed != Some(armed) {
            return;
        }
        state.armed = None;
        match state.interval {
            0 => state.next = 0,
            _ => state.rests = true,
        }
        drop(state);
        if !(self.ring)(&self) {
            let mut state = self.state.lock();
            state.overrun = state.overrun.saturating_add(1);
        }
    }
}

/// The timers of a process.
#[derive(Default)]
pub struct Timers {
    /// ITIMER_REAL.
    real: Option<Arc<Timer>>,
    /// Timers of timer_create, by number.
    by_id: BTreeMap<u32, Arc<Timer>>,
    /// The number of the next timer.
    next_id: u32,
}

impl Timers {
    /// Returns ITIMER_REAL of a process; makes it on first use.
    pub fn real(&mut self, process: u32, ring: Ring) -> Arc<Timer> {
        let notify = Notify::Process(Info::kernel(SIGALRM));
        self.real.get_or_insert_with(|| Timer::new(process, ring, CLOCK_MONOTONIC, notify)).clone()
    }

    /// Makes a timer and returns its number. `notify` gets the number and returns the receiver of the signal.
    ///
    /// # Errors
    ///
    /// ENOMEM.
    pub fn create(
        &mut self,
        (process, ring): (u32, Ring),
        clock: u32,
        notify: impl FnOnce(u32) -> Notify,
    ) -> Result<u32, Errno> {
        charge::admit()?;
        let id = self.next_id;
        self.next_id += 1;
        let mut notify = notify(id);
        if let Notify::Process(info) | Notify::Thread(_, info) = &mut notify {
            (info.fields[0], info.timer) = (id.into(), Some(id));
        }
        self.by_id.insert(id, Timer::new(process, ring, clock, notify));
        Ok(id)
    }

    /// Returns the number of timers of timer_create.
    pub fn created_timers(&self) -> usize {
        self.by_id.len()
    }

    /// Returns ITIMER_REAL, if it has been used.
    pub fn existing_real(&self) -> Option<Arc<Timer>> {
        self.real.clone()
    }

    /// Returns the timer with this number.
    pub fn get(&self, id: u32) -> Option<Arc<Timer>> {
        self.by_id.get(&id).cloned()
    }

    /// Removes and returns the timer with this number. The caller disarms it.
    pub fn delete(&mut self, id: u32) -> Option<Arc<Timer>> {
        self.by_id.remove(&id)
    }

    /// Removes and returns the timers of timer_create, at exec. The caller disarms them.
    pub fn forget(&mut self) -> Timers {
        Timers { real: None, by_id: core::mem::take(&mut self.by_id), next_id: 0 }
    }

    /// Disarms all timers.
    pub fn disarm(self) {
        for timer in self.by_id.into_values().chain(self.real) {
            preempt_point();
            timer.set(0, 0);
        }
    }
}

/// Arms again the timers of timer_create that rest because `signal` was ignored. `lock` guards the timers of a
/// process.
pub fn arm_ignored(lock: &SpinLock<Timers>, signal: u32) {
    let mut from = Unbounded;
    loop {
        preempt_point();
        let timers = lock.lock();
        let part: Vec<_> = timers.by_id.range((from, Unbounded)).take(PART).collect();
        let Some((last, _)) = part.last() else { return };
        from = Excluded(**last);
        for (_, timer) in part.into_iter().filter(|(_, timer)| timer.signal() == Some(signal)) {
            let mut state = timer.state.lock();
            timer.arm_again(&mut state);
        }
    }
}

/// Maximum number of timers that are examined in one section of the lock of a process's timers.
const PART: usize = 64;

/// Returns the information of a timer's signal.
pub fn info(signal: u32, value: u64) -> Info {
    Info { signal, code: SI_TIMER, fields: [0, value, 0, 0], ..Info::default() }
}
