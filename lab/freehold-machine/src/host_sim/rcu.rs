//! Grace periods in virtual time. A grace period ends when all sections that were open at its start have
//! ended, and not before the minimum duration (`grace` of the simulated machine) has passed.
//!
//! Every read section and every deferral takes a number, in ascending order. A deferred function may run when
//! no section with a lower number is open and its time has come. The next call of this module that finds the
//! function ready, in any task, runs the function. Outside a run no time passes, and a function is ready
//! without a delay. The guarantees are those of `host_std/rcu.rs`. A run must not depend on earlier runs, so
//! a function that an earlier run deferred is due at once (`tests/sim_engine/grace.rs`).
#![expect(unsafe_code, reason = "runs functions on raw objects")]

use super::state as task_state;
use crate::context;
use crate::exempt::exempt;
use crate::inside::Inside;
use freehold_sim::task;
use freehold_sync::RcuHead;
use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::ptr::NonNull;

/// Time in nanoseconds that a task sleeps between two checks, while it waits for the sections of other tasks.
const LOOKS_AGAIN: u64 = 20_000;

thread_local! {
    static STATE: RefCell<State> = const { RefCell::new(State::new()) };
}

/// The open read sections and the deferred functions of the machines of this thread.
struct State {
    next: u64,
    /// Numbers of the open read sections.
    open: BTreeSet<u64>,
    /// Deferred functions, in ascending order of their numbers.
    deferred: VecDeque<Deferred>,
    /// Number of functions that are running.
    running: usize,
}

/// A deferred function, with its number and its argument.
struct Deferred {
    number: u64,
    /// Number of the run in which the function was deferred, or of the last run if the function was deferred
    /// outside a run.
    run: u64,
    /// The earliest time at which the function may run, in nanoseconds of that run.
    due: u64,
    head: NonNull<RcuHead>,
    f: unsafe fn(NonNull<RcuHead>),
}

impl Deferred {
    /// Returns the earliest time at which the function may run, in nanoseconds of the current run. Each run
    /// has a clock of its own. A function of an earlier run is due at once.
    fn due(&self) -> u64 {
        if self.run == task::runs() { self.due } else { 0 }
    }
}

/// A read section. Objects that are reachable in the section stay valid until it ends.
#[derive(Debug)]
pub struct RcuGuard {
    number: u64,
    /// A section belongs to the task that opened it.
    not_send: std::marker::PhantomData<*const ()>,
}

impl Drop for RcuGuard {
    fn drop(&mut self) {
        STATE.with_borrow_mut(|state| state.open.remove(&self.number));
        task_state(|state| state.rcu_inside.set(state.rcu_inside.get() - 1));
        run_ripe();
    }
}

/// Opens a read section.
pub(crate) fn rcu_read() -> RcuGuard {
    let number = STATE.with_borrow_mut(|state| {
        let number = state.number();
        state.open.insert(number);
        number
    });
    task_state(|state| state.rcu_inside.set(state.rcu_inside.get() + 1));
    RcuGuard { number, not_send: std::marker::PhantomData }
}

/// Defers `f(head)` until a grace period has passed.
///
/// # Safety
/// `f(head)` may be called, in any task, once all read sections that are open now have ended.
pub(crate) unsafe fn rcu_defer(head: NonNull<RcuHead>, f: unsafe fn(NonNull<RcuHead>)) {
    let due = task::now_ns().map_or(0, |now| now + task::grace_ns());
    STATE.with_borrow_mut(|state| {
        let number = state.number();
        let run = task::runs();
        exempt(|| state.deferred.push_back(Deferred { number, run, due, head, f }));
    });
    run_ripe();
}

/// Returns after every function that was deferred before the call has run.
pub(crate) fn rcu_barrier() {
    let last = STATE.with_borrow(|state| state.next);
    loop {
        run_ripe();
        let due = STATE.with_borrow(|state| {
            let first = state.deferred.front().filter(|deferred| deferred.number < last);
            first.map(Deferred::due).or((state.running > 0).then_some(0))
        });
        let Some(due) = due else { return };
        let now = task::now_ns().expect("outside a run only the caller can be in a section");
        task::sleep_until(due.max(now + LOOKS_AGAIN));
    }
}

/// Returns true if the calling task may wait for a grace period: it is in no read section and no deferred
/// function.
pub(crate) fn may_wait_for_grace() -> bool {
    !std::thread::panicking() && task_state(|state| state.rcu_inside.get() == 0)
}

impl State {
    const fn new() -> State {
        State { next: 0, open: BTreeSet::new(), deferred: VecDeque::new(), running: 0 }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Removes the first deferred function if it may run.
    fn take_ripe(&mut self, now: u64) -> Option<Deferred> {
        let oldest = self.open.first().copied().unwrap_or(u64::MAX);
        let first = self.deferred.front()?;
        if first.number >= oldest || first.due() > now {
            return None;
        }
        self.running += 1;
        self.deferred.pop_front()
    }
}

/// Runs the ready functions without holding the state: functions may defer functions and open read sections
/// themselves.
fn run_ripe() {
    while let Some(Deferred { head, f, .. }) =
        STATE.with_borrow_mut(|state| state.take_ripe(task::now_ns().unwrap_or(u64::MAX)))
    {
        task_state(|state| state.rcu_inside.set(state.rcu_inside.get() + 1));
        // SAFETY: the grace period has ended, so the contract of `rcu_defer` permits the call.
        context::inside(Inside::Deferred, || unsafe { f(head) });
        task_state(|state| state.rcu_inside.set(state.rcu_inside.get() - 1));
        STATE.with_borrow_mut(|state| state.running -= 1);
    }
}
