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
//! A tick spends at most about [`MOST_NS`] on sleepers and as much on timers, whatever number of them is due.
//! The next tick continues, after threads have had as much time as the tick took. Sleepers come first, so a
//! flood of timers does not delay them.
//!
//! A new kind of timer implements [`Expire`] and calls [`arm`]. The programs `signals.c` and `jobs.c` of the
//! tests check timers, and `floods.c` checks that many of them stop no other process.

use super::scheduler;
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

/// A deadline and a unique number.
type Place = (u64, u64);

/// The threads that sleep with a deadline, and the armed timers, of a CPU.
struct Waiting {
    sleepers: BTreeMap<Place, Arc<Thread>>,
    timers: BTreeMap<Place, Arc<dyn Expire>>,
}

/// The place of an armed timer or of a sleeper in the lists of a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Armed {
    cpu: usize,
    place: Place,
}

/// Arms a timer on the calling CPU.
pub fn arm(deadline: u64, timer: Arc<dyn Expire>) -> Armed {
    insert(deadline, |waiting, place| drop(waiting.timers.insert(place, timer)))
}

/// Disarms a timer. An expiration that has already begun continues.
pub fn disarm(armed: Armed) {
    let gone = WAITING[armed.cpu].lock().timers.remove(&armed.place);
    drop(gone);
}

/// Calls `add` with the lists of the calling CPU, and sets the CPU's timer earlier if necessary.
fn insert(deadline: u64, add: impl FnOnce(&mut Waiting, Place)) -> Armed {
    let armed = Armed { cpu: cpu::number(), place: (deadline, NEXT.fetch_add(1, Relaxed)) };
    add(&mut WAITING[armed.cpu].lock(), armed.place);
    if deadline < cpu().timer.get() {
        apic::set_timer(deadline);
    }
    armed
}

/// Time that a tick spends on sleepers, and on timers, before it leaves the others to the next tick.
const MOST_NS: u64 = 50_000;

/// The waiting threads and timers of each CPU.
static WAITING: [SpinLock<Waiting>; MAX_CPUS] =
    [const { SpinLock::new(Waiting { sleepers: BTreeMap::new(), timers: BTreeMap::new() }) }; MAX_CPUS];
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
        let thread = Thread::hold_current();
        Some(Alarm(insert(deadline, |waiting, place| drop(waiting.sleepers.insert(place, thread)))))
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let gone = WAITING[self.0.cpu].lock().sleepers.remove(&self.0.place);
        drop(gone);
    }
}

/// Handles the timer interrupt.
pub fn tick() {
    let own = cpu();
    own.timer.set(u64::MAX);
    let begin = clock::now_ns();
    let left = each_due(|waiting| &mut waiting.sleepers, |thread, _| thread.unpark())
        | each_due(|waiting| &mut waiting.timers, |timer, armed| timer.expire(armed));
    let end = clock::now_ns();
    let resume = if left { end + (end - begin) } else { 0 };
    if own.current.get() != own.idle.get() {
        // The interrupt came while a program ran, or at a preemption point, so no read section is open.
        RCU.quiescent(own.number.get());
        RCU.advance();
        own.resched.set(true);
        scheduler::count_turn();
        begin_turn_with(resume);
    }
}

/// Takes from a list of the calling CPU the entries whose deadline has passed, and calls `f` with each.
/// Returns true if the time was over before the last one.
fn each_due<T>(list: impl Fn(&mut Waiting) -> &mut BTreeMap<Place, T>, f: impl Fn(T, Armed)) -> bool {
    let begin = clock::now_ns();
    let mut now = begin;
    loop {
        let mut waiting = WAITING[cpu::number()].lock();
        let first = list(&mut waiting).first_entry().filter(|first| first.key().0 <= now);
        let due = first.map(|first| first.remove_entry());
        drop(waiting);
        let Some((place, due)) = due else { return false };
        f(due, Armed { cpu: cpu::number(), place });
        now = clock::now_ns();
        if now - begin > MOST_NS {
            return true;
        }
    }
}

/// Returns the first deadline of the calling CPU.
fn first_deadline() -> u64 {
    let waiting = WAITING[cpu::number()].lock();
    let sleeper = waiting.sleepers.first_key_value().map(|(place, _)| place.0);
    let timer = waiting.timers.first_key_value().map(|(place, _)| place.0);
    sleeper.into_iter().chain(timer).min().unwrap_or(u64::MAX)
}

/// Starts a time slice, and sets the timer to its end.
pub fn begin_turn() {
    begin_turn_with(0);
}

/// Like [`begin_turn`], but lets the timer fire at `earliest` at the earliest.
fn begin_turn_with(earliest: u64) {
    let now = clock::now_ns();
    cpu().turn_began.store(now, Relaxed);
    let end = now + scheduler::slice_ns();
    if cpu().timer.get() > end {
        apic::set_timer(first_deadline().max(earliest).min(end));
    }
}

/// Sets the timer before the CPU halts: only the first deadline ends the halt.
pub fn before_idle() {
    apic::set_timer(first_deadline());
}
