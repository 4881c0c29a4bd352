//! The host of the schedule checker (`cfg(shuttle)`): its threads, mutexes and per-thread state.
//!
//! `host_std` exports the same names and describes them. The schedule alone decides everything here, so that
//! a schedule can be replayed: the clock counts calls, and the numbers of threads depend only on the order of
//! the threads' first calls. Nothing may depend on addresses, real time or the host's scheduler. Grace
//! periods end as early as they may, so that a use of an object after its grace period is detected.
//! `cargo xtask shuttle` runs the scenarios of `tests/shuttle_engine` on this host.

mod array;
mod lists;
mod lock;
mod raw;
mod rcu;
#[path = "../signals.rs"]
mod signals;
#[path = "../uncharged.rs"]
mod uncharged;
mod wait;

pub(crate) use array::LazyArray;
pub(crate) use lists::Lists;
pub(crate) use lock::Lock;
pub(crate) use raw::{fill_table, find_other, is_zero};
pub use rcu::RcuGuard;
pub(crate) use rcu::{may_wait_for_grace, rcu_barrier, rcu_defer, rcu_read};
pub use signals::Task;
pub(crate) use signals::{wait_interruptible, wait_killable};
pub(crate) use uncharged::{copied, interrupt, set_cpus, trap, zeroed};
pub(crate) use wait::{wait, wake_all, wake_one};

use crate::local::Local;
use crate::lock_log::LockLog;
use freehold_sync::LockContext;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of threads that may exist at once, because each has a number of its own for `with_cpu`. The number
/// is small, because per-CPU arrays are expensive here. A test with more threads panics.
pub(crate) const MAX_CPUS: usize = 16;

shuttle::thread_local! {
    static CPU: Number = Number::take();
    static LOCAL: Local = Local::new();
    static LOCKS: LockContext = LockContext::new();
    static LOCK_LOG: LockLog = LockLog::new();
}

shuttle::lazy_static! {
    /// The numbers that are taken, one bit each.
    static ref NUMBERS: AtomicU64 = AtomicU64::new(0);
    /// Time in nanoseconds. The time advances by one with each call of `now_ns`.
    static ref CLOCK: AtomicU64 = AtomicU64::new(0);
}

/// A thread's number. The number is freed when the thread ends.
struct Number(usize);

impl Number {
    /// Takes the lowest free number. The checker runs no other thread during this function, because the
    /// function contains no point at which the checker may switch threads.
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

/// Runs `f` on the machine's data of the calling thread.
pub(crate) fn local<R>(f: impl FnOnce(&Local) -> R) -> R {
    LOCAL.with(f)
}

/// Runs `f` on the calling thread's record of held locks.
pub(crate) fn lock_context<R>(f: impl FnOnce(&LockContext) -> R) -> Option<R> {
    LOCKS.try_with(f).ok()
}

/// Runs `f` on the calling thread's log of mmap locks, unless the thread is ending.
pub(crate) fn lock_log(f: impl FnOnce(&LockLog)) {
    let _ = LOCK_LOG.try_with(f);
}

pub(crate) fn now_ns() -> u64 {
    CLOCK.fetch_add(1, Ordering::SeqCst)
}

/// One iteration of a spin loop. Lets another thread run.
pub(crate) fn relax() {
    shuttle::thread::yield_now();
}

/// Marks a point at which time passes, so that other threads may run.
pub(crate) fn take_time() {
    // This load is a point where the checker may switch threads, but the checker does not count the thread as
    // waiting.
    shuttle::sync::atomic::AtomicU32::new(0).load(std::sync::atomic::Ordering::SeqCst);
}

/// Maximum number of processors of a machine.
pub(crate) fn cpus() -> usize {
    MAX_CPUS
}
