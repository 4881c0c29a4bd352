//! The tick, sleepers with a deadline, and timers of programs. Each CPU has its own list of deadlines, and
//! uses one hardware timer for all of them. All deadlines are nanoseconds since the start; `u64::MAX` means
//! never.
//!
//! `wait.rs` sets an [`Alarm`] for a sleep with a timeout. `process/itimers.rs` arms timers; a timerfd
//! (`files/timer.rs`) only sleeps with a timeout. Each list has a spin lock, which is not held while an
//! action runs. Actions run in the timer interrupt ([`Expire::expire`]), so they may take spin locks but
//! never sleep. The hardware timer never fires later than the first deadline of its CPU or, while a thread
//! runs, than the end of the thread's time slice.
//!
//! A new kind of timer implements [`Expire`] and calls [`arm`]. The programs `signals.c` and `jobs.c` of the
//! tests check timers.

use super::scheduler::{self, SLICE_NS};
use super::thread::Thread;
use crate::arch::cpu::{self, MAX_CPUS, cpu};
use crate::arch::{apic, clock, lock::SpinLock};
use crate::memory::rcu::RCU;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A timer that can be armed.
pub trait Expire: Send + Sync {
    /// Handles the expiration of the timer that was armed as `armed`. Called in an interrupt, so it must not
    /// sleep.
    fn expire(self: Arc<Self>, armed: Armed);
}

/// The action at a deadline.
enum Due {
    /// Unparks the thread.
    Sleeper(Arc<Thread>),
    /// Lets the timer expire.
    Timer(Arc<dyn Expire>),
}

/// The waiting actions, by deadline and a unique number.
type Sleepers = BTreeMap<(u64, u64), Due>;

/// The place of an armed timer in the list of a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Armed {
    cpu: usize,
    key: (u64, u64),
}

/// Arms a timer on the calling CPU.
pub fn arm(deadline: u64, timer: Arc<dyn Expire>) -> Armed {
    insert(deadline, Due::Timer(timer))
}

/// Disarms a timer. An expiration that has already begun continues.
pub fn disarm(armed: Armed) {
    let gone = SLEEPERS[armed.cpu].lock().remove(&armed.key);
    drop(gone);
}

/// Adds an action to the list of the calling CPU, and sets the CPU's timer earlier if necessary.
fn insert(deadline: u64, due: Due) -> Armed {
    let armed = Armed { cpu: cpu::number(), key: (deadline, NEXT.fetch_add(1, Relaxed)) };
    SLEEPERS[armed.cpu].lock().insert(armed.key, due);
    if deadline < cpu().timer.get() {
        apic::set_timer(deadline);
    }
    armed
}

/// The waiting actions of each CPU.
static SLEEPERS: [SpinLock<Sleepers>; MAX_CPUS] = [const { SpinLock::new(BTreeMap::new()) }; MAX_CPUS];
/// The number of the next action, which keeps keys unique.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A thread that will be unparked at its deadline. Dropping the alarm cancels it.
pub struct Alarm(Armed);

impl Alarm {
    /// Sets an alarm for the calling thread, at a time in nanoseconds since the start. Returns `None` if the
    /// deadline is `u64::MAX`.
    pub fn set(deadline: u64) -> Option<Alarm> {
        if deadline == u64::MAX {
            return None;
        }
        Some(Alarm(insert(deadline, Due::Sleeper(Thread::hold_current()))))
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        disarm(self.0);
    }
}

/// Handles the timer interrupt.
pub fn tick() {
    let own = cpu();
    own.timer.set(u64::MAX);
    wake_sleepers();
    if own.current.get() != own.idle.get() {
        // The interrupt came while a program ran, or at a preemption point, so no read section is open.
        RCU.quiescent(own.number.get());
        RCU.advance();
        own.resched.set(true);
        scheduler::count_turn();
        begin_turn();
    }
}

/// Unparks the sleepers whose deadline has passed, and lets timers expire.
fn wake_sleepers() {
    let now = clock::now_ns();
    loop {
        let mut sleepers = SLEEPERS[cpu::number()].lock();
        let due =
            sleepers.first_entry().filter(|first| first.key().0 <= now).map(|first| first.remove_entry());
        drop(sleepers);
        match due {
            Some((_, Due::Sleeper(thread))) => thread.unpark(),
            Some((key, Due::Timer(timer))) => timer.expire(Armed { cpu: cpu::number(), key }),
            None => return,
        }
    }
}

/// Returns the first deadline of the calling CPU.
fn first_deadline() -> u64 {
    SLEEPERS[cpu::number()].lock().first_key_value().map_or(u64::MAX, |(key, _)| key.0)
}

/// Starts a time slice, and sets the timer to its end.
pub fn begin_turn() {
    let now = clock::now_ns();
    cpu().turn_began.store(now, Relaxed);
    let end = now + SLICE_NS;
    if cpu().timer.get() > end {
        apic::set_timer(first_deadline().min(end));
    }
}

/// Sets the timer before the CPU halts: only the first deadline ends the halt.
pub fn before_idle() {
    apic::set_timer(first_deadline());
}
