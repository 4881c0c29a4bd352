//! The host of the schedule checker: its threads, mutexes and per-thread state.
//!
//! `host_std` is its twin with the same names. Everything here is decided by the schedule alone, so that a
//! schedule replays; and grace periods end as early as they may, so that a use after one is found.

mod array;
mod lock;
mod raw;
mod rcu;
#[path = "../signals.rs"]
mod signals;
#[path = "../uncharged.rs"]
mod uncharged;
mod wait;

pub(crate) use array::LazyArray;
pub(crate) use lock::Lock;
pub(crate) use raw::{fill_table, find_entry, is_zero};
pub use rcu::RcuGuard;
pub(crate) use rcu::{may_wait_for_grace, rcu_barrier, rcu_defer, rcu_read};
pub use signals::Task;
pub(crate) use signals::{wait_interruptible, wait_killable};
pub(crate) use uncharged::{Lists, copied, interrupt, set_cpus, trap, zeroed};
pub(crate) use wait::{wait, wake_all, wake_one};

use crate::local::Local;
use freehold_sync::LockContext;
use std::sync::atomic::{AtomicU64, Ordering};

/// Contexts that may be inside `with_cpu` at once. Few, since per-CPU arrays are dear here; a thread
/// beyond them is a mistake of the test.
pub(crate) const MAX_CPUS: usize = 16;

shuttle::thread_local! {
    static CPU: Number = Number::take();
    static LOCAL: Local = Local::new();
    static LOCKS: LockContext = LockContext::new();
}

shuttle::lazy_static! {
    /// The numbers that are taken, a bit each.
    static ref NUMBERS: AtomicU64 = AtomicU64::new(0);
    /// Nanoseconds: one per question.
    static ref CLOCK: AtomicU64 = AtomicU64::new(0);
}

/// A thread's number, given back when the thread ends.
struct Number(usize);

impl Number {
    /// The lowest free one. No other thread of the checker runs meanwhile: nothing here is a switch.
    fn take() -> Self {
        let taken = NUMBERS.load(Ordering::SeqCst);
        let number = (!taken).trailing_zeros() as usize;
        assert!(number < MAX_CPUS, "more than {MAX_CPUS} threads at once");
        NUMBERS.store(taken | 1 << number, Ordering::SeqCst);
        Number(number)
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        NUMBERS.fetch_and(!(1 << self.0), Ordering::SeqCst);
    }
}

pub(crate) fn with_cpu<R>(f: impl FnOnce(usize) -> R) -> R {
    let number = CPU.with(|number| number.0);
    f(number)
}

/// What the machine keeps per thread.
pub(crate) fn local<R>(f: impl FnOnce(&Local) -> R) -> R {
    LOCAL.with(f)
}

/// Runs `f` on the calling thread's record of held locks.
pub(crate) fn lock_context<R>(f: impl FnOnce(&LockContext) -> R) -> Option<R> {
    LOCKS.try_with(f).ok()
}

pub(crate) fn now_ns() -> u64 {
    CLOCK.fetch_add(1, Ordering::SeqCst)
}

/// One turn of a spin loop: somebody else has to run.
pub(crate) fn relax() {
    shuttle::thread::yield_now();
}

/// Something takes its time here: others may run in the midst of it.
pub(crate) fn take_time() {
    // A point where the checker may switch, and does not see a thread that waits.
    shuttle::sync::atomic::AtomicU32::new(0).load(std::sync::atomic::Ordering::SeqCst);
}

/// Processors that a machine may have.
pub(crate) fn cpus() -> usize {
    MAX_CPUS
}
