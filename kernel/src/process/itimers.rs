//! Timers that send signals: alarm and setitimer's, and those of timer_create. All count the time that
//! passes; those of the time that a process runs are not there.

use crate::arch::{clock, lock::SpinLock};
use crate::process::signal::types::Info;
use crate::sched::timers::{self, Armed, Expire};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use linux_raw_sys::general::{SI_TIMER, SIGALRM};

/// The shortest time between two signals of a timer: programs get on.
const SHORTEST_NS: u64 = 20_000;

/// The thread or process that gets a timer's signal.
#[derive(Clone, Copy, Debug)]
pub enum Notify {
    Nobody,
    Process(Info),
    /// The thread with this number.
    Thread(u32, Info),
}

/// Sends a timer's signal.
pub type Ring = fn(&Timer) -> bool;

pub struct Timer {
    pub process: u32,
    /// Sends its signal. False: that is pending already.
    ring: Ring,
    /// The clock that timer_create named.
    pub clock: u32,
    pub notify: Notify,
    state: SpinLock<State>,
}

#[derive(Default)]
struct State {
    armed: Option<Armed>,
    /// When it goes off next, in nanoseconds since the start.
    next: u64,
    /// 0: only once.
    interval: u64,
    /// How often it went off while its signal was pending, and as much when that was taken.
    overrun: u32,
    told_overrun: u32,
}

impl Timer {
    /// What is left until it goes off, 0 where it does not; and the interval. In nanoseconds.
    pub fn get(&self) -> [u64; 2] {
        let state = self.state.lock();
        let left = state.next.saturating_sub(clock::now_ns()).max(1);
        [if state.armed.is_some() { left } else { 0 }, state.interval]
    }

    /// It goes off at `next`, in nanoseconds since the start, and then in intervals; 0: it does not.
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

    /// How often it went off in vain before the signal that was taken last.
    pub fn told_overrun(&self) -> u32 {
        self.state.lock().told_overrun
    }

    /// Its signal is taken: what it would have sent meanwhile is told with it.
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

/// A process's timers.
#[derive(Default)]
pub struct Timers {
    /// ITIMER_REAL.
    real: Option<Arc<Timer>>,
    by_id: BTreeMap<u32, Arc<Timer>>,
    next_id: u32,
}

impl Timers {
    /// ITIMER_REAL of a process.
    pub fn real(&mut self, process: u32, ring: Ring) -> Arc<Timer> {
        let info = Info::kernel(SIGALRM);
        let new = || {
            let state = SpinLock::new(State::default());
            Arc::new(Timer { process, ring, clock: 1, notify: Notify::Process(info), state })
        };
        self.real.get_or_insert_with(new).clone()
    }

    /// A new one; returns its number. `notify` is made of that.
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

    pub fn get(&self, id: u32) -> Option<Arc<Timer>> {
        self.by_id.get(&id).cloned()
    }

    pub fn delete(&mut self, id: u32) -> Option<Arc<Timer>> {
        self.by_id.remove(&id)
    }

    /// Exec: timer_create's go.
    pub fn forget(&mut self) {
        core::mem::take(&mut self.by_id).values().for_each(|timer| timer.set(0, 0));
    }

    /// The process ends.
    pub fn end(&mut self) {
        self.forget();
        if let Some(real) = self.real.take() {
            real.set(0, 0);
        }
    }
}

/// The signal that a timer sends by itself.
pub fn info(signal: u32, value: u64) -> Info {
    Info { signal, code: SI_TIMER, fields: [0, value, 0, 0], ..Info::default() }
}
