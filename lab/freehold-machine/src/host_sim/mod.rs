//! The host of a simulation: the tasks of a run in virtual time are its threads, and the run's processors are
//! its processors.
//!
//! `host_std` is its twin with the same names. What a kernel pays for beside the engine's own accesses is
//! charged here: traps, zeroing, copies, interrupts, and the lock of the frame allocator behind its per-CPU
//! lists. Outside of a run there is one thread, and time stands still. A machine and what is on it stay with
//! the thread that made them.

#[path = "../host_std/array.rs"]
mod array;
mod frames;
#[path = "../host_std/lock.rs"]
mod lock;
#[path = "../host_std/raw.rs"]
mod raw;
mod rcu;
#[path = "../signals.rs"]
mod signals;
mod wait;

pub(crate) use array::LazyArray;
pub(crate) use frames::Lists;
pub(crate) use lock::Lock;
pub(crate) use raw::{fill_table, find_entry, is_zero};
pub use rcu::RcuGuard;
pub(crate) use rcu::{may_wait_for_grace, rcu_barrier, rcu_defer, rcu_read};
pub use signals::Task;
pub(crate) use signals::{wait_interruptible, wait_killable};
pub(crate) use wait::{wait, wake_all, wake_one};

use crate::local::Local;
use freehold_pagetable::PAGE_SIZE;
use freehold_sim::task;
use freehold_sync::LockContext;
use std::cell::{Cell, OnceCell, RefCell};

/// Contexts that may be inside `with_cpu` at once.
pub(crate) const MAX_CPUS: usize = freehold_sim::Machine::MAX_CPUS;

thread_local! {
    /// Processors of the machines of this thread.
    static CPUS: Cell<usize> = const { Cell::new(0) };
    /// By number of the task, and what stands in for one outside of runs. Never freed: a run's tasks have
    /// those of the run before.
    static STATES: RefCell<Vec<&'static State>> = const { RefCell::new(Vec::new()) };
    static OUTSIDE: State = const { State::new() };
}

/// What is kept for a task.
pub(crate) struct State {
    local: Local,
    locks: LockContext,
    /// Made when it is first asked for.
    task: OnceCell<Task>,
    /// Read sections and deferred functions that it is in.
    rcu_inside: Cell<usize>,
}

impl State {
    const fn new() -> State {
        State {
            local: Local::new(),
            locks: LockContext::new(),
            task: OnceCell::new(),
            rcu_inside: Cell::new(0),
        }
    }

    fn task(&self) -> &Task {
        self.task.get_or_init(Task::new)
    }
}

/// The state of the calling task.
pub(crate) fn state<R>(f: impl FnOnce(&State) -> R) -> R {
    let Some(task) = task::current() else { return OUTSIDE.with(f) };
    let state = STATES.with_borrow_mut(|states| {
        while states.len() <= task {
            states.push(Box::leak(Box::new(State::new())));
        }
        states[task]
    });
    f(state)
}

/// Tells how many processors a machine of this thread has: what is per CPU is made for the largest so far.
pub(crate) fn set_cpus(cpus: usize) {
    CPUS.set(CPUS.get().max(cpus));
}

pub(crate) fn cpus() -> usize {
    CPUS.get()
}

pub(crate) fn with_cpu<R>(f: impl FnOnce(usize) -> R) -> R {
    /// Ends the section when `f` panics, too.
    struct Kept;
    impl Drop for Kept {
        fn drop(&mut self) {
            task::release();
        }
    }
    task::keep();
    let _kept = Kept;
    f(task::cpu().unwrap_or(0))
}

/// What the machine keeps per thread.
pub(crate) fn local<R>(f: impl FnOnce(&Local) -> R) -> R {
    state(|state| f(&state.local))
}

/// Runs `f` on the calling thread's record of held locks.
pub(crate) fn lock_context<R>(f: impl FnOnce(&LockContext) -> R) -> Option<R> {
    Some(state(|state| f(&state.locks)))
}

pub(crate) fn now_ns() -> u64 {
    task::now_ns().unwrap_or(0)
}

/// Something takes its time here; what it is tells how much.
pub(crate) fn take_time() {}

pub(crate) fn relax() {
    task::relax();
}

/// A page fault enters the kernel, and leaves it.
pub(crate) fn trap() {
    task::trap();
}

/// So many frames were zeroed.
pub(crate) fn zeroed(frames: u64) {
    task::zeroes(frames * PAGE_SIZE);
}

/// So many frames were copied.
pub(crate) fn copied(frames: u64) {
    task::copies(frames * PAGE_SIZE);
}

/// Other processors are interrupted, and have answered.
pub(crate) fn interrupt<I: Iterator<Item = usize>>(others: impl FnOnce() -> I) {
    task::interrupt(others());
}
