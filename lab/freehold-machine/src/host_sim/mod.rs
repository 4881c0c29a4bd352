//! The host of a simulation (`cfg(sim)`). Its threads are the tasks of a run in virtual time, and its
//! processors are the processors of the run (`freehold-sim`).
//!
//! `host_std` exports the same names. This host also uses the array, the lock and the raw accesses of
//! `host_std`, because tasks run one at a time on one thread. This host charges the costs of a kernel that
//! are not accesses of the engine: traps, zeroing, copies, interrupts, and the lock of the frame allocator
//! behind its per-CPU lists. Outside a run there is one thread, and time does not advance. A machine, and
//! everything on it, stays on the thread that built it. A newly charged operation is a function here and in
//! `uncharged.rs`; it calls `freehold_sim::task`. `tests/sim_engine` tests the engine on this host
//! (`cargo xtask sim`).

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
pub(crate) use raw::{fill_table, find_other, is_zero};
pub use rcu::RcuGuard;
pub(crate) use rcu::{may_wait_for_grace, rcu_barrier, rcu_defer, rcu_read};
pub use signals::Task;
pub(crate) use signals::{wait_interruptible, wait_killable};
pub(crate) use wait::{wait, wake_all, wake_one};

use crate::local::Local;
use crate::lock_log::LockLog;
use freehold_pagetable::PAGE_SIZE;
use freehold_sim::task;
use freehold_sync::LockContext;
use std::cell::{Cell, OnceCell, RefCell};

/// Number of tasks that may be inside `with_cpu` at once: one per processor.
pub(crate) const MAX_CPUS: usize = freehold_sim::Machine::MAX_CPUS;

thread_local! {
    /// Number of processors of the machines of this thread: the maximum so far.
    static CPUS: Cell<usize> = const { Cell::new(0) };
    /// The state of each task, by its number. The states are never freed: the tasks of a run reuse the states
    /// of the previous run.
    static STATES: RefCell<Vec<&'static State>> = const { RefCell::new(Vec::new()) };
    /// The state of the thread outside a run.
    static OUTSIDE: State = const { State::new() };
}

/// The data of one task.
pub(crate) struct State {
    local: Local,
    locks: LockContext,
    lock_log: LockLog,
    /// The signals of the task, created on first use.
    task: OnceCell<Task>,
    /// Number of read sections and deferred functions that the task is in.
    rcu_inside: Cell<usize>,
}

impl State {
    const fn new() -> State {
        State {
            local: Local::new(),
            locks: LockContext::new(),
            lock_log: LockLog::new(),
            task: OnceCell::new(),
            rcu_inside: Cell::new(0),
        }
    }

    fn task(&self) -> &Task {
        self.task.get_or_init(Task::new)
    }
}

/// Runs `f` on the state of the calling task. Outside a run, uses the thread's own state.
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

/// Sets the number of processors of a machine of this thread. Per-CPU data is created for the largest number
/// so far.
pub(crate) fn set_cpus(cpus: usize) {
    CPUS.set(CPUS.get().max(cpus));
}

pub(crate) fn cpus() -> usize {
    CPUS.get()
}

pub(crate) fn with_cpu<R>(f: impl FnOnce(usize) -> R) -> R {
    /// Ends the section, also if `f` panics.
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

/// Runs `f` on the machine's data of the calling task.
pub(crate) fn local<R>(f: impl FnOnce(&Local) -> R) -> R {
    state(|state| f(&state.local))
}

/// Runs `f` on the calling thread's record of held locks.
pub(crate) fn lock_context<R>(f: impl FnOnce(&LockContext) -> R) -> Option<R> {
    Some(state(|state| f(&state.locks)))
}

/// Runs `f` on the calling task's log of mmap locks.
pub(crate) fn lock_log(f: impl FnOnce(&LockLog)) {
    state(|state| f(&state.lock_log));
}

pub(crate) fn now_ns() -> u64 {
    task::now_ns().unwrap_or(0)
}

/// Does nothing, because this host charges operations by kind.
pub(crate) fn take_time() {}

pub(crate) fn relax() {
    task::relax();
}

/// Charges the entry into the kernel and the return from it on a page fault.
pub(crate) fn trap() {
    task::trap();
}

/// Charges the zeroing of frames.
pub(crate) fn zeroed(frames: u64) {
    task::zeroes(frames * PAGE_SIZE);
}

/// Charges the copying of frames.
pub(crate) fn copied(frames: u64) {
    task::copies(frames * PAGE_SIZE);
}

/// Charges the interrupts to other processors and their answers.
pub(crate) fn interrupt<I: Iterator<Item = usize>>(others: impl FnOnce() -> I) {
    task::interrupt(others());
}
