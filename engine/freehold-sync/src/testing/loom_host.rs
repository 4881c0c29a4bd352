//! A host whose every step loom sees.
#![expect(unsafe_code, reason = "keeps the host's contract, and runs deferred functions")]

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

/// A thread of a model, as the sender of signals sees it.
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

struct World {
    parking_lot: ParkingLot,
    /// Not loom's mutex: what it guards is fixed by the schedule, and it must order nothing.
    tasks: std::sync::Mutex<Tasks>,
    /// Read sections begun, ever.
    entered: AtomicU64,
    /// Read sections ended, ever.
    exited: AtomicU64,
    deferred: Mutex<Vec<Deferred>>,
}

struct Tasks {
    next: usize,
    killed: Vec<usize>,
}

struct Deferred(NonNull<RcuHead>);

// SAFETY: the caller that defers a function allows it to run on any thread.
unsafe impl Send for Deferred {}

/// Preemptions in a quick run.
const QUICK: usize = 2;

/// Runs `f` under every schedule; in a quick run under those of [`model_bounded`] with [`QUICK`].
pub fn model(f: impl Fn() + Sync + Send + 'static) {
    run(loom::model::Builder::new(), f);
}

/// Runs `f` under every schedule that takes the processor away from a thread that could go on at most
/// `preemptions` times.
pub fn model_bounded(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // What the environment asks for is stricter or meant.
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    run(builder, f);
}

fn run(mut builder: loom::model::Builder, f: impl Fn() + Sync + Send + 'static) {
    if std::env::var_os("FREEHOLD_EFFORT").is_some_and(|effort| effort == "quick") {
        builder.preemption_bound = Some(builder.preemption_bound.map_or(QUICK, |bound| bound.min(QUICK)));
    }
    builder.max_branches = builder.max_branches.max(20_000);
    builder.check(move || {
        // Made before there is a second thread, so that its first use orders nothing.
        let _ = &*WORLD;
        f();
    });
}

impl LoomHost {
    /// The calling thread.
    pub fn current_task() -> Task {
        Task(number())
    }
}

impl Task {
    /// Makes a fatal signal pending for the thread, for good.
    pub fn kill(self) {
        WORLD.parking_lot.wake_killed(|| WORLD.tasks.lock().unwrap().killed.push(self.0));
    }

    fn is_killed(self) -> bool {
        WORLD.tasks.lock().unwrap().killed.contains(&self.0)
    }
}

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

/// A read section.
#[derive(Debug)]
pub struct LoomRcuGuard(());

impl Drop for LoomRcuGuard {
    fn drop(&mut self) {
        // Release: pairs with the acquire in `run_deferred`; what was read ends before what was deferred
        // begins.
        WORLD.exited.fetch_add(1, Ordering::Release);
    }
}

/// Runs what was deferred, if no read section is open.
fn run_deferred() -> bool {
    let mut deferred = WORLD.deferred.lock().unwrap();
    // Acquire: pairs with the ends of read sections.
    let exited = WORLD.exited.fetch_add(0, Ordering::Acquire);
    // Release: pairs with the acquire of sections that begin later; they see what was done before the
    // deferral.
    let entered = WORLD.entered.fetch_add(0, Ordering::Release);
    if entered != exited {
        return deferred.is_empty();
    }
    let ready = core::mem::take(&mut *deferred);
    drop(deferred);
    for Deferred(head) in ready {
        // SAFETY: set in `rcu_defer`; all sections that had begun have ended.
        unsafe { RcuHead::run(head) };
    }
    true
}

// SAFETY: every thread has a number of its own; `run_deferred` waits for the readers.
unsafe impl Host for LoomHost {
    const MAX_CPUS: usize = 5;

    fn wait(word: &AtomicU32, expected: u32) {
        // Not killable, so not killed.
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
        // Acquire: pairs with the release in `run_deferred` alone.
        WORLD.entered.fetch_add(1, Ordering::Acquire);
        LoomRcuGuard(())
    }

    unsafe fn rcu_defer(head: NonNull<RcuHead>, f: unsafe fn(NonNull<RcuHead>)) {
        // SAFETY: the caller gave us the head.
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
