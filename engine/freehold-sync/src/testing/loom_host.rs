//! [`LoomHost`]: the host of tests under loom. loom schedules each step of the host. [`model`] and
//! [`model_bounded`] run a test under every schedule.
//!
//! Each thread of a model is a task and a CPU of its own, numbered in the order of its first use of the host.
//! Tasks sleep in one parking lot (`parking_lot.rs`). For grace periods, two counters count the read sections
//! that have begun and ended. Deferred functions run as soon as the counters are equal, in the thread that
//! defers or waits for them. `std_host.rs` is the host for real threads; the [module head](super) says what
//! both hosts guarantee.
//!
//! The host must order as little as the contract of `Host` allows. If the host ordered more, a test would not
//! detect a missing order in the tested code. The host must also make every wait visible to loom, which then
//! reports a lost wake-up as a deadlock. `tests/loom_small.rs` tests the grace periods.
#![expect(unsafe_code, reason = "implements the host's contract, and runs deferred functions")]

use super::parking_lot::ParkingLot;
use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::host::{Host, Killed, RcuHead};
use crate::rank::LockContext;
use core::cell::Cell;
use core::ptr::NonNull;
use loom::sync::Mutex;
use std::vec::Vec;

/// A host for tests under loom; see the [module](super).
#[derive(Clone, Copy, Debug)]
pub struct LoomHost;

/// A thread of a model, as the target of signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task(usize);

const UNSET: usize = usize::MAX;

loom::lazy_static! {
    static ref WORLD: World = World {
        parking_lot: ParkingLot::new(),
        tasks: std::sync::Mutex::new(Tasks { next: 0, killed: Vec::new() }),
        entered: AtomicU64::new(0),
        exited: AtomicU64::new(0),
        deferred: Mutex::new(Vec::new()),
    };
}

loom::thread_local! {
    static LOCKS: LockContext = LockContext::new();
    static NUMBER: Cell<usize> = Cell::new(UNSET);
}

/// The state that the threads of one execution share.
struct World {
    parking_lot: ParkingLot,
    /// A mutex of `std`, because a mutex of loom would order the threads. A thread that holds it makes no
    /// step that loom schedules, so no other thread finds it locked.
    tasks: std::sync::Mutex<Tasks>,
    /// Number of read sections that have begun.
    entered: AtomicU64,
    /// Number of read sections that have ended.
    exited: AtomicU64,
    /// Functions that run as soon as no read section is open.
    deferred: Mutex<Vec<Deferred>>,
}

/// The threads of one execution.
struct Tasks {
    /// The number of the next thread that uses the host.
    next: usize,
    /// The threads with a fatal signal pending.
    killed: Vec<usize>,
}

/// A function that [`Host::rcu_defer`] was called with.
struct Deferred(NonNull<RcuHead>);

// SAFETY: by the contract of `rcu_defer`, the function may run on any thread.
unsafe impl Send for Deferred {}

/// Maximum number of preemptions in a quick run (`FREEHOLD_EFFORT=quick`).
const QUICK: usize = 2;

/// Runs `f` under every schedule. A quick run (`FREEHOLD_EFFORT=quick`) explores only the schedules with at
/// most two preemptions.
pub fn model(f: impl Fn() + Sync + Send + 'static) {
    run(loom::model::Builder::new(), f);
}

/// Runs `f` under every schedule with at most `preemptions` preemptions of runnable threads. The environment,
/// for example `LOOM_MAX_PREEMPTIONS=2`, overrides the number. A quick run allows one preemption less, but at
/// least one and at most two.
pub fn model_bounded(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // A bound from the environment takes precedence, because it is stricter or was set on purpose.
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    run(builder, f);
}

/// Runs `f` under the schedules that `builder` selects.
fn run(mut builder: loom::model::Builder, f: impl Fn() + Sync + Send + 'static) {
    if std::env::var_os("FREEHOLD_EFFORT").is_some_and(|effort| effort == "quick") {
        builder.preemption_bound =
            Some(builder.preemption_bound.map_or(QUICK, |bound| bound.saturating_sub(1).clamp(1, QUICK)));
    }
    builder.max_branches = builder.max_branches.max(20_000);
    builder.check(move || {
        // Creates the world before there is a second thread. A thread that created the world later would
        // synchronize with the other threads, and hide a missing order in the tested code.
        let _ = &*WORLD;
        f();
    });
}

impl LoomHost {
    /// Returns the calling thread.
    pub fn current_task() -> Task {
        Task(number())
    }
}

impl Task {
    /// Makes a fatal signal pending for the thread, permanently.
    pub fn kill(self) {
        WORLD.parking_lot.wake_killed(|| WORLD.tasks.lock().unwrap().killed.push(self.0));
    }

    fn is_killed(self) -> bool {
        WORLD.tasks.lock().unwrap().killed.contains(&self.0)
    }
}

/// Returns the number of the calling thread, and assigns a number at the first call.
fn number() -> usize {
    NUMBER.with(|number| {
        if number.get() == UNSET {
            let mut tasks = WORLD.tasks.lock().unwrap();
            number.set(tasks.next);
            tasks.next += 1;
        }
        number.get()
    })
}

/// Guard of a read section.
#[derive(Debug)]
pub struct LoomRcuGuard(());

impl Drop for LoomRcuGuard {
    fn drop(&mut self) {
        // Release: pairs with the acquire in `run_deferred`. The section's reads end before a deferred
        // function begins.
        WORLD.exited.fetch_add(1, Ordering::Release);
    }
}

/// Runs the deferred functions if no read section is open. Returns true if no deferred function is left.
fn run_deferred() -> bool {
    let mut deferred = WORLD.deferred.lock().unwrap();
    // Acquire: pairs with the releases at the ends of read sections.
    let exited = WORLD.exited.fetch_add(0, Ordering::Acquire);
    // Release: pairs with the acquire of later read sections, which then see everything done before the
    // deferral.
    let entered = WORLD.entered.fetch_add(0, Ordering::Release);
    if entered != exited {
        return deferred.is_empty();
    }
    let ready = core::mem::take(&mut *deferred);
    drop(deferred);
    for Deferred(head) in ready {
        // SAFETY: set in `rcu_defer`. All read sections that began before have ended.
        unsafe { RcuHead::run(head) };
    }
    true
}

// SAFETY: every thread has its own number, and `run_deferred` waits for all read sections.
unsafe impl Host for LoomHost {
    const MAX_CPUS: usize = 5;

    fn wait(word: &AtomicU32, expected: u32) {
        // The wait is not killable, so it does not fail.
        let _ = WORLD.parking_lot.sleep(word, expected, || false);
    }

    fn wait_killable(word: &AtomicU32, expected: u32) -> Result<(), Killed> {
        let task = LoomHost::current_task();
        WORLD.parking_lot.sleep(word, expected, || task.is_killed())
    }

    fn wake_one(word: &AtomicU32) {
        WORLD.parking_lot.wake(word, 1);
    }

    fn wake_all(word: &AtomicU32) {
        WORLD.parking_lot.wake(word, usize::MAX);
    }

    fn with_cpu<R>(f: impl FnOnce(usize) -> R) -> R {
        f(number())
    }

    fn now_ns() -> u64 {
        0
    }

    fn relax() {
        loom::thread::yield_now();
    }

    fn lock_context<R>(f: impl FnOnce(&LockContext) -> R) -> Option<R> {
        Some(LOCKS.with(f))
    }

    type RcuGuard = LoomRcuGuard;

    fn rcu_read() -> LoomRcuGuard {
        // Acquire: pairs only with the release in `run_deferred`.
        WORLD.entered.fetch_add(1, Ordering::Acquire);
        LoomRcuGuard(())
    }

    unsafe fn rcu_defer(head: NonNull<RcuHead>, f: unsafe fn(NonNull<RcuHead>)) {
        // SAFETY: the caller has given the head to the host.
        unsafe { RcuHead::set(head, None, f) };
        WORLD.deferred.lock().unwrap().push(Deferred(head));
        run_deferred();
    }

    fn rcu_barrier() {
        while !run_deferred() {
            LoomHost::relax();
        }
    }
}
