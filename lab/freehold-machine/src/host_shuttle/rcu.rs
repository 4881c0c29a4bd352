//! Grace periods that end as early as they may, in the host of the checker.
//!
//! Every read section and every deferral takes a number, in ascending order. A deferred function may run when
//! no section with a lower number is open. The next call of this module that finds the function ready, on any
//! thread, runs the function. If the engine uses an object after its grace period, the object has therefore
//! usually been freed, and the use is detected. The guarantees are those of `host_std/rcu.rs`; every access
//! to the state is a step of the schedule, because a mutex of the checker guards it.
#![expect(unsafe_code, reason = "runs functions on raw objects")]

use crate::context;
use crate::exempt::exempt;
use crate::inside::Inside;
use freehold_sync::RcuHead;
use shuttle::sync::{Mutex, MutexGuard};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ptr::NonNull;

shuttle::lazy_static! {
    static ref STATE: Mutex<State> = Mutex::new(State::default());
}

shuttle::thread_local! {
    /// Number of read sections and deferred functions that the thread is in.
    static INSIDE: Cell<usize> = Cell::new(0);
}

/// The open read sections and the deferred functions.
#[derive(Default)]
struct State {
    next: u64,
    /// Numbers of the open read sections.
    open: BTreeSet<u64>,
    /// Deferred functions, in ascending order of their numbers.
    deferred: Vec<Deferred>,
    /// Number of deferred functions that were removed from `deferred` and have not ended.
    running: usize,
}

/// A deferred function, with its number and its argument.
struct Deferred {
    number: u64,
    head: NonNull<RcuHead>,
    f: unsafe fn(NonNull<RcuHead>),
}

// SAFETY: the caller of `rcu_defer` permits its function to run on any thread, so the objects may move there.
unsafe impl Send for State {}

/// A read section. Objects that are reachable in the section stay valid until it ends.
#[derive(Debug)]
pub struct RcuGuard {
    number: u64,
    /// A section belongs to the thread that opened it.
    not_send: std::marker::PhantomData<*const ()>,
}

impl Drop for RcuGuard {
    fn drop(&mut self) {
        let mut state = state();
        state.open.remove(&self.number);
        INSIDE.with(|inside| inside.set(inside.get() - 1));
        run_ripe(state);
    }
}

/// Opens a read section.
pub(crate) fn rcu_read() -> RcuGuard {
    let mut state = state();
    let number = state.number();
    state.open.insert(number);
    INSIDE.with(|inside| inside.set(inside.get() + 1));
    RcuGuard { number, not_send: std::marker::PhantomData }
}

/// Defers `f(head)` until a grace period has passed.
///
/// # Safety
/// `f(head)` may be called from any thread once all read sections that are open now have ended.
pub(crate) unsafe fn rcu_defer(head: NonNull<RcuHead>, f: unsafe fn(NonNull<RcuHead>)) {
    let mut state = state();
    let number = state.number();
    let earlier = state.take_ripe();
    exempt(|| state.deferred.push(Deferred { number, head, f }));
    run(state, earlier);
}

/// Returns after every function that was deferred before the call has run.
pub(crate) fn rcu_barrier() {
    let last = state().next;
    run_ripe(state());
    while !state().has_run_before(last) {
        // A thread yields only if it must wait. The checker treats a yield as a request to run other threads
        // first. With needless yields, the checker would never try schedules in which the other threads do
        // not run.
        shuttle::thread::yield_now();
        run_ripe(state());
    }
}

/// Returns true if the calling thread may wait for a grace period: it is in no read section and no deferred
/// function.
pub(crate) fn may_wait_for_grace() -> bool {
    !std::thread::panicking() && INSIDE.try_with(|inside| inside.get() == 0).unwrap_or(false)
}

impl State {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Returns true if every deferred function with a lower number has run.
    fn has_run_before(&self, number: u64) -> bool {
        self.running == 0 && self.deferred.first().is_none_or(|deferred| deferred.number >= number)
    }

    /// Removes and returns the deferred functions that may run, and counts them as running.
    fn take_ripe(&mut self) -> Vec<Deferred> {
        let oldest = self.open.first().copied().unwrap_or(u64::MAX);
        let ripe = self.deferred.iter().take_while(|deferred| deferred.number < oldest).count();
        self.running += ripe;
        self.deferred.drain(..ripe).collect()
    }
}

/// Runs the deferred functions that may run.
fn run_ripe(mut state: MutexGuard<'static, State>) {
    let ripe = state.take_ripe();
    run(state, ripe);
}

/// Runs the functions without holding the state: the functions may defer functions and open read sections
/// themselves.
fn run(held: MutexGuard<'static, State>, ripe: Vec<Deferred>) {
    drop(held);
    if ripe.is_empty() {
        return;
    }
    INSIDE.with(|inside| inside.set(inside.get() + 1));
    let count = ripe.len();
    for deferred in ripe {
        // SAFETY: the grace period has ended, so the contract of `rcu_defer` permits the call.
        context::inside(Inside::Deferred, || unsafe { (deferred.f)(deferred.head) });
    }
    INSIDE.with(|inside| inside.set(inside.get() - 1));
    state().running -= count;
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
