//! Timers that send signals: the timers of alarm, setitimer and timer_create. All of them count elapsed time;
//! no timer counts the run time of a process. `calls/timers.rs` has the calls, `ring.rs` sends the signals,
//! and `files/timer.rs` has the timers of timerfd.
//!
//! A timer expires in the timer interrupt, so [`Expire::expire`] never sleeps. A spin lock guards the state
//! of a timer. Code that holds this lock takes the lock of a CPU's list in `sched/timers.rs`, but no lock of
//! `signal`. An expiration that comes after the timer was set again is ignored, because the timer no longer
//! has the [`Armed`] of this expiration. If the signal of a timer is still pending at the next expiration,
//! the expirations are merged and counted (overrun).
//!
//! The programs `signals.c` and `jobs.c` of the tests check these timers.

use crate::arch::{clock, lock::SpinLock};
use crate::process::signal::types::Info;
use crate::sched::timers::{self, Armed, Expire};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use linux_raw_sys::general::{SI_TIMER, SIGALRM};

/// The shortest time between two signals of a timer, so that the program makes progress.
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
}

/// The changing part of a timer.
#[derive(Default)]
struct State {
    /// The place of the timer in the list of a CPU, if the timer is armed.
    armed: Option<Armed>,
    /// Time of the next expiration, in nanoseconds since the start.
    next: u64,
    /// The interval between expirations; 0 if the timer expires once.
    interval: u64,
    /// Number of expirations that were merged into the pending signal.
    overrun: u32,
    /// Number of expirations that were merged into the signal that a thread took last.
    told_overrun: u32,
}

impl Timer {
    /// Returns the time until the next expiration and the interval, both in nanoseconds. The time is 0 if the
    /// timer is not armed.
    pub fn get(&self) -> [u64; 2] {
        let state = self.state.lock();
        let left = state.next.saturating_sub(clock::now_ns()).max(1);
        [if state.armed.is_some() { left } else { 0 }, state.interval]
    }

    /// Sets the timer to expire at `next`, in nanoseconds since the start, and then after each interval. A
    /// `next` of 0 disarms the timer.
    pub fn set(self: &Arc<Self>, next: u64, interval: u64) {
        let mut state = self.state.lock();
        let before = state.armed.take();
        (state.next, state.interval, state.overrun) = (next, interval, 0);
        state.armed = (next != 0).then(|| timers::arm(next, self.clone()));
        drop(state);
        if let Some(before) = before {
            timers::disarm(before);
        }
    }

    /// Returns the number of expirations that were merged into the signal that was taken last.
    pub fn told_overrun(&self) -> u32 {
        self.state.lock().told_overrun
    }

    /// Adds the number of merged expirations to the information of the timer's signal, which a thread is
    /// taking.
    pub fn tell(&self, info: &mut Info) {
        let mut state = self.state.lock();
        state.told_overrun = core::mem::take(&mut state.overrun);
        info.fields[0] |= u64::from(state.told_overrun) << 32;
    }
}

impl Expire for Timer {
    fn expire(self: Arc<Self>, armed: Armed) {
        let now = clock::now_ns();
        let mut state = self.state.lock();
        if state.armed != Some(armed) {
            return;
        }
        state.armed = None;
        if let Some(missed) = (now - state.next.min(now)).checked_div(state.interval) {
            state.overrun = state.overrun.saturating_add(missed as u32);
            state.next += (missed + 1) * state.interval;
            let next = state.next.max(now + SHORTEST_NS);
            state.armed = Some(timers::arm(next, self.clone()));
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
        let info = Info::kernel(SIGALRM);
        let new = || {
            let state = SpinLock::new(State::default());
            Arc::new(Timer { process, ring, clock: 1, notify: Notify::Process(info), state })
        };
        self.real.get_or_insert_with(new).clone()
    }

    /// Makes a timer and returns its number. `notify` gets the number and returns the receiver of the signal.
    pub fn create(
        &mut self,
        (process, ring): (u32, Ring),
        clock: u32,
        notify: impl FnOnce(u32) -> Notify,
    ) -> u32 {
        let id = self.next_id;
        self.next_id += 1;
        let state = SpinLock::new(State::default());
        let mut notify = notify(id);
        if let Notify::Process(info) | Notify::Thread(_, info) = &mut notify {
            info.fields[0] = id.into();
        }
        let timer = Timer { process, ring, clock, notify, state };
        self.by_id.insert(id, Arc::new(timer));
        id
    }

    /// Returns the timer with this number.
    pub fn get(&self, id: u32) -> Option<Arc<Timer>> {
        self.by_id.get(&id).cloned()
    }

    /// Removes and returns the timer with this number. The caller disarms it.
    pub fn delete(&mut self, id: u32) -> Option<Arc<Timer>> {
        self.by_id.remove(&id)
    }

    /// Deletes the timers of timer_create, at exec.
    pub fn forget(&mut self) {
        core::mem::take(&mut self.by_id).values().for_each(|timer| timer.set(0, 0));
    }

    /// Deletes all timers, at the end of the process.
    pub fn end(&mut self) {
        self.forget();
        if let Some(real) = self.real.take() {
            real.set(0, 0);
        }
    }
}

/// Returns the information of a timer's signal.
pub fn info(signal: u32, value: u64) -> Info {
    Info { signal, code: SI_TIMER, fields: [0, value, 0, 0], ..Info::default() }
}
