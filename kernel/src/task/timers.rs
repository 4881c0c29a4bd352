//! The tick, and sleepers with a deadline. Each processor has its own sleepers, and one timer for both.

use super::Thread;
use super::scheduler::SLICE_NS;
use crate::arch::cpu::{self, MAX_CPUS, cpu};
use crate::arch::lock::SpinLock;
use crate::arch::{apic, clock};
use crate::memory::platform::RCU;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Sleepers by deadline and a number of their own.
type Sleepers = BTreeMap<(u64, u64), Arc<Thread>>;

static SLEEPERS: [SpinLock<Sleepers>; MAX_CPUS] = [const { SpinLock::new(BTreeMap::new()) }; MAX_CPUS];
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A thread that will be unparked at its deadline; not any more when this is dropped.
pub struct Alarm {
    cpu: usize,
    key: (u64, u64),
}

impl Alarm {
    /// Unparks the calling thread at this time, in nanoseconds since the start. None: never.
    pub fn set(deadline: u64) -> Option<Alarm> {
        if deadline == u64::MAX {
            return None;
        }
        let alarm = Alarm { cpu: cpu::number(), key: (deadline, NEXT.fetch_add(1, Relaxed)) };
        SLEEPERS[alarm.cpu].lock().insert(alarm.key, Thread::hold_current());
        if deadline < cpu().timer.get() {
            apic::set_timer(deadline);
        }
        Some(alarm)
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let gone = SLEEPERS[self.cpu].lock().remove(&self.key);
        drop(gone);
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
        begin_turn();
    }
}

/// Unparks the sleepers of which the deadline has come.
fn wake_sleepers() {
    let now = clock::now_ns();
    loop {
        let mut sleepers = SLEEPERS[cpu::number()].lock();
        let due = sleepers.first_entry().filter(|first| first.key().0 <= now).map(|first| first.remove());
        drop(sleepers);
        match due {
            Some(thread) => thread.unpark(),
            None => return,
        }
    }
}

fn first_deadline() -> u64 {
    SLEEPERS[cpu::number()].lock().first_key_value().map_or(u64::MAX, |(key, _)| key.0)
}

/// A thread begins its turn: the timer ends it.
pub fn begin_turn() {
    let end = clock::now_ns() + SLICE_NS;
    if cpu().timer.get() > end {
        apic::set_timer(first_deadline().min(end));
    }
}

/// The processor is about to halt: only a deadline ends that.
pub fn before_idle() {
    apic::set_timer(first_deadline());
}
