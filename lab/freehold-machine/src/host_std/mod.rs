//! The host of an ordinary process: threads, futexes, mapped memory, the epochs of crossbeam.
//!
//! A host is the part of the machine that depends on how threads run. `lib.rs` chooses a host at compile
//! time; the chosen host is the module `host`. `host_shuttle` and `host_sim` export the same names; add a
//! name to all three. The other code of the crate is the same for every host. `machine.rs` implements the
//! trait `Host` with these functions, and adds the checks of contexts. `tests/host.rs` tests a host through
//! the trait. `array.rs` has the lazily mapped arrays of the machine, `lists.rs` free numbers per CPU,
//! `lock.rs` the short lock, `raw.rs` the oracles' access to records and tables, `rcu.rs` grace periods,
//! `wait.rs` sleeping and waking. This file has the numbers of `with_cpu`, the data per thread, and the
//! clock.

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
use std::cell::Cell;
use std::sync::{Mutex, MutexGuard};

/// Number of threads that may be inside `with_cpu` at once. The first threads have numbers of their own. All
/// further threads share the last number, one at a time.
pub(crate) const MAX_CPUS: usize = 64;
/// The number that all threads without a number of their own share.
const SHARED: usize = MAX_CPUS - 1;
/// Marks a thread that has no number yet.
const UNSET: usize = usize::MAX;

thread_local! {
    static CPU: Cell<usize> = const { Cell::new(UNSET) };
    static RETURN: ReturnNumber = const { ReturnNumber };
    static LOCAL: Local = const { Local::new() };
    static LOCKS: LockContext = const { LockContext::new() };
    static LOCK_LOG: LockLog = const { LockLog::new() };
    static SPINS: Cell<u32> = const { Cell::new(0) };
}

/// The numbers that no thread uses.
static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers { next: 0, returned: Vec::new() });
/// Held by the thread that is inside `with_cpu` with the number `SHARED`.
static SHARED_TURN: Mutex<()> = Mutex::new(());

/// The free numbers. No thread has had a number from `next` on; `returned` has the numbers of threads that
/// have ended.
struct Numbers {
    next: usize,
    returned: Vec<usize>,
}

/// Frees the thread's number when the thread ends.
struct ReturnNumber;

impl Drop for ReturnNumber {
    fn drop(&mut self) {
        let number = CPU.replace(SHARED);
        if number < SHARED {
            numbers(|n| n.returned.push(number));
        }
    }
}

fn numbers<R>(f: impl FnOnce(&mut Numbers) -> R) -> R {
    f(&mut NUMBERS.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
}

/// Runs `f` with the number of the calling thread. No other thread runs with the same number until `f`
/// returns. `f` must not wait or call `with_cpu` again.
#[inline(always)]
pub(crate) fn with_cpu<R>(f: impl FnOnce(usize) -> R) -> R {
    let own = CPU.get();
    let (number, _turn) = if own < SHARED { (own, None) } else { enter_slow(own) };
    f(number)
}

/// Returns the number for a thread that has no number yet or uses the shared number. Also returns the lock of
/// the shared number if the thread uses that number. One thread at a time uses the shared number: the holder
/// of `SHARED_TURN`.
#[cold]
fn enter_slow(number: usize) -> (usize, Option<MutexGuard<'static, ()>>) {
    let number = if number == UNSET { choose_number() } else { number };
    let turn = || SHARED_TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    (number, (number == SHARED).then(turn))
}

/// Gives the calling thread a number of its own if one is free, and otherwise the shared number. Returns the
/// number.
fn choose_number() -> usize {
    let taken = numbers(|n| {
        n.returned.pop().or_else(|| {
            let fresh = (n.next < SHARED).then_some(n.next);
            n.next += usize::from(fresh.is_some());
            fresh
        })
    });
    CPU.set(taken.unwrap_or(SHARED));
    // The first use of the key registers the destructor. A thread that has already run its destructors keeps
    // the shared number.
    if RETURN.try_with(|_| ()).is_err() {
        taken.into_iter().for_each(|number| numbers(|n| n.returned.push(number)));
        CPU.set(SHARED);
    }
    CPU.get()
}

/// Runs `f` on the machine's data of the calling thread.
#[inline]
pub(crate) fn local<R>(f: impl FnOnce(&Local) -> R) -> R {
    LOCAL.with(f)
}

/// Runs `f` on the calling thread's record of held locks.
#[inline]
pub(crate) fn lock_context<R>(f: impl FnOnce(&LockContext) -> R) -> Option<R> {
    LOCKS.try_with(f).ok()
}

/// Runs `f` on the calling thread's log of mmap locks, unless the thread is ending.
pub(crate) fn lock_log(f: impl FnOnce(&LockLog)) {
    let _ = LOCK_LOG.try_with(f);
}

/// Returns a time in nanoseconds that never decreases.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// Does nothing: operations take real time on this host.
#[inline]
pub(crate) fn take_time() {}

/// One iteration of a spin loop. Yields the processor from time to time, because the host may have preempted
/// the lock's holder in the middle of its critical section.
#[inline]
pub(crate) fn relax() {
    let spins = SPINS.get().wrapping_add(1);
    SPINS.set(spins);
    if spins.is_multiple_of(128) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

/// Maximum number of processors of a machine.
pub(crate) fn cpus() -> usize {
    MAX_CPUS
}
