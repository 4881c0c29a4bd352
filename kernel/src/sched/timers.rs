//! The tick, sleepers with a deadline, and timers of programs. Each processor has its own, and one timer of
//! the machine for all.

use super::scheduler::{self, SLICE_NS};
use super::thread::Thread;
use crate::arch::cpu::{self, MAX_CPUS, cpu};
use crate::arch::{apic, clock, lock::SpinLock};
use crate::memory::rcu::RCU;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A timer.
pub trait Expire: Send + Sync {
    /// It goes off, armed as this. Called in an interrupt.
    fn expire(self: Arc<Self>, armed: Armed);
}

/// What a deadline ends.
enum Due {
    Sleeper(Arc<Thread>),
    Timer(Arc<dyn Expire>),
}

/// Those that wait, by deadline and a number of their own.
type Sleepers = BTreeMap<(u64, u64), Due>;

/// A timer's place among those of a processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Armed {
    cpu: usize,
    key: (u64, u64),
}

/// Has the timer expire at its time, on the calling processor.
pub fn arm(deadline: u64, timer: Arc<dyn Expire>) -> Armed {
    insert(deadline, Due::Timer(timer))
}

/// It does not expire any more, unless it does so already.
pub fn disarm(armed: Armed) {
    let gone = SLEEPERS[armed.cpu].lock().remove(&armed.key);
    drop(gone);
}

fn insert(deadline: u64, due: Due) -> Armed {
    let armed = Armed { cpu: cpu::number(), key: (deadline, NEXT.fetch_add(1, Relaxed)) };
    SLEEPERS[armed.cpu].lock().insert(armed.key, due);
    if deadline < cpu().timer.get() {
        apic::set_timer(deadline);
    }
    armed
}

static SLEEPERS: [SpinLock<Sleepers>; MAX_CPUS] = [const { SpinLock::new(BTreeMap::new()) }; MAX_CPUS];
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A thread that will be unparked at its deadline; not any more when this is dropped.
pub struct Alarm(Armed);

impl Alarm {
    /// Unparks the calling thread at this time, in nanoseconds since the start. None: never.
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

/// The timer has gone off.
pub fn tick() {
    let own = cpu();
    own.timer.set(u64::MAX);
    wake_sleepers();
    if own.current.get() != own.idle.get() {
        // A program was interrupted, so no read section is open.
        RCU.quiescent(own.number.get());
        RCU.advance();
        own.resched.set(true);
        scheduler::count_turn();
        begin_turn();
    }
}

/// Unparks the sleepers of which the deadline has come.
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

fn first_deadline() -> u64 {
    SLEEPERS[cpu::number()].lock().first_key_value().map_or(u64::MAX, |(key, _)| key.0)
}

/// A thread begins its turn: the timer ends it.
pub fn begin_turn() {
    let now = clock::now_ns();
    cpu().turn_began.store(now, Relaxed);
    let end = now + SLICE_NS;
    if cpu().timer.get() > end {
        apic::set_timer(first_deadline().min(end));
    }
}

/// The processor is about to halt: only a deadline ends that.
pub fn before_idle() {
    apic::set_timer(first_deadline());
}
