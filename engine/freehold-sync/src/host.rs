//! The services that the locks need from the embedding kernel: [`Host`], with waiting, CPU numbers, time and
//! grace periods.
//!
//! Every lock is generic over its host. An embedder implements the trait, which `Platform` of
//! `freehold-vmspace` extends; `freehold-kit` has an implementation of grace periods. The hosts of tests are
//! in `testing`, and the hosts of the test machine are in `lab/freehold-machine`.
//!
//! The contract of `Host` is part of the safety of the engine: lookups without locks rely on grace periods,
//! and per-CPU values rely on [`Host::with_cpu`]. A new function of the trait needs a default implementation,
//! or a change of every host.
#![expect(unsafe_code, reason = "an implementation must keep the contract on grace periods and CPU numbers")]

use crate::atomic::AtomicU32;
use crate::rank::{LockContext, Rank};
use crate::stats::LockUse;
use core::cell::UnsafeCell;
use core::fmt;
use core::ptr::NonNull;

/// A killable wait ended because a fatal signal is pending. Nothing was acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Killed;

impl fmt::Display for Killed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a fatal signal is pending")
    }
}

impl core::error::Error for Killed {}

/// A wait ended because a signal is pending, fatal or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a signal is pending")
    }
}

impl core::error::Error for Interrupted {}

/// The services of the embedding kernel that the locks use: waiting, CPU numbers, time, grace periods.
///
/// All functions are associated functions, because a lock word has no room for a reference to its host.
///
/// # Safety
///
/// An implementation guarantees:
/// - [`with_cpu`](Self::with_cpu) never lets two contexts run at the same time with the same CPU number.
/// - All CPU numbers are below [`MAX_CPUS`](Self::MAX_CPUS).
/// - Leaving `with_cpu` with a number happens before the next entry with that number.
/// - A function passed to [`rcu_defer`](Self::rcu_defer) runs exactly once, after every
///   [`RcuGuard`](Self::RcuGuard) that existed at the call is dropped. The drops of those guards happen
///   before the function.
/// - Everything that happens before the call to `rcu_defer` happens before every later guard that the
///   function does not wait for.
pub unsafe trait Host: Sized + Send + Sync + 'static {
    /// Upper bound of the CPU numbers that [`with_cpu`](Self::with_cpu) provides.
    const MAX_CPUS: usize;

    /// Number of CPU numbers in use on this machine: [`with_cpu`](Self::with_cpu) provides only numbers below
    /// this value. The value never changes, and is at most [`MAX_CPUS`](Self::MAX_CPUS).
    fn cpus() -> usize {
        Self::MAX_CPUS
    }

    /// Sleeps while `*word == expected`, until a wake-up for this address.
    ///
    /// The comparison and going to sleep are one atomic step with respect to [`wake_one`](Self::wake_one) and
    /// [`wake_all`](Self::wake_all), so a wake-up after a change of the word is never lost. Spurious returns
    /// are allowed.
    fn wait(word: &AtomicU32, expected: u32);

    /// Like [`wait`](Self::wait), but returns early if a fatal signal is pending for this task.
    ///
    /// The signal may arrive before or during the wait. If a signal is pending, the call fails even if the
    /// word differs from `expected` and there is nothing to wait for; see [`check_killed`].
    ///
    /// # Errors
    /// Fails with [`Killed`] if a fatal signal is pending.
    fn wait_killable(word: &AtomicU32, expected: u32) -> Result<(), Killed>;

    /// Like [`wait_killable`](Self::wait_killable), but also returns early for any other signal that the task
    /// must handle before its program continues. A host without such signals keeps the default
    /// implementation.
    ///
    /// # Errors
    /// Fails with [`Interrupted`] if such a signal is pending.
    fn wait_interruptible(word: &AtomicU32, expected: u32) -> Result<(), Interrupted> {
        Self::wait_killable(word, expected).map_err(|Killed| Interrupted)
    }

    /// Wakes the task that has slept longest on this address, if a task sleeps there.
    ///
    /// The implementation does not read the word: the word may be part of a dropped object, as long as its
    /// memory is mapped.
    fn wake_one(word: &AtomicU32);

    /// Wakes all tasks that sleep on this address. Does not read the word, like [`wake_one`](Self::wake_one).
    fn wake_all(word: &AtomicU32);

    /// Runs `f` with the number of the current CPU, with preemption off. No other context runs with the same
    /// number until `f` returns. `f` neither waits nor calls `with_cpu` again.
    fn with_cpu<R>(f: impl FnOnce(usize) -> R) -> R;

    /// Notifies the host that the calling task is about to take, or try to take, a spin lock of this rank.
    ///
    /// Until the matching [`spin_exit`](Self::spin_exit) the task stays on its CPU: preemption is off. The
    /// host decides by rank whether interrupts are off as well. Where TLB flushes are interrupts, interrupts
    /// stay on for page tables: a task that spins for the lock of a page table must receive the interrupts of
    /// flushes, unless [`relax`](Self::relax) performs the flushes. The engine takes no lock in an interrupt.
    ///
    /// The sections of one task may overlap without nesting: locks are released in any order, and two may
    /// have the same rank. So a host counts sections; the beginning of the first section turns preemption or
    /// interrupts off, and the end of the last section turns them on again.
    #[inline]
    fn spin_enter(rank: Rank) {
        let _ = rank;
    }

    /// Notifies the host that the lock is released, or that the attempt to take it failed.
    #[inline]
    fn spin_exit(rank: Rank) {
        let _ = rank;
    }

    /// Returns the time of a monotonic clock in nanoseconds.
    fn now_ns() -> u64;

    /// Notifies the host that the calling task has waited for a reader/writer lock, or has held it, so that
    /// the host can trace waits. Called only for locks with [statistics](crate::stats): after an acquisition
    /// that had to wait, and after each release and downgrade. Other locks may be held during the call.
    #[inline]
    fn lock_used(used: &LockUse) {
        let _ = used;
    }

    /// Pauses briefly. Called in every iteration of a loop that waits for another CPU. Must not switch tasks
    /// while a spin section is open, or while a read section that must stay on its CPU is open.
    fn relax();

    /// Lets other tasks run, if it is time and no spin section and no read section is open. Called in every
    /// iteration of a loop whose length a program chooses. Short runs of such a loop may be in a section; the
    /// call then does nothing. A host that preempts its tasks at any time keeps the default implementation.
    #[inline]
    fn cond_resched() {}

    /// Runs `f` on the calling task's record of held locks. Returns `None` if the task has no record; its
    /// lock order is then not checked. Called with debug assertions only. The record belongs to the task, not
    /// to a CPU, and exists before the task takes its first lock.
    fn lock_context<R>(f: impl FnOnce(&LockContext) -> R) -> Option<R>;

    /// Guard of an RCU read section, which ends when the guard is dropped. Sections nest.
    type RcuGuard;

    /// Begins an RCU read section.
    fn rcu_read() -> Self::RcuGuard;

    /// Runs `f(head)` after a grace period. Does not allocate: the request is stored in the head.
    ///
    /// # Safety
    ///
    /// Until `f` runs, `head` stays valid and only the host accesses it. `f` may be called with `head` on any
    /// thread.
    unsafe fn rcu_defer(head: NonNull<RcuHead>, f: unsafe fn(NonNull<RcuHead>));

    /// Waits until every function deferred before this call has run. Must not be called inside a read
    /// section.
    fn rcu_barrier();
}

/// A function that runs after a grace period.
type Deferred = unsafe fn(NonNull<RcuHead>);

/// Storage for a deferred function, embedded in each object that is freed after a grace period. It has room
/// for the host's list and the function.
///
/// The host owns the head from [`Host::rcu_defer`] until the deferred function runs. At all other times the
/// owner of the object owns the head.
pub struct RcuHead {
    next: UnsafeCell<Option<NonNull<RcuHead>>>,
    run: UnsafeCell<Option<Deferred>>,
}

// SAFETY: a shared reference gives no access to the fields. Only the unsafe functions below access the
// fields. Only the host calls these functions, and `rcu_defer` makes the host the only owner.
unsafe impl Send for RcuHead {}
// SAFETY: as above, only the one owner accesses the fields.
unsafe impl Sync for RcuHead {}

impl RcuHead {
    /// Creates a head that is not in use.
    pub const fn new() -> Self {
        RcuHead { next: UnsafeCell::new(None), run: UnsafeCell::new(None) }
    }

    /// For hosts: stores the function to run and the next request in the host's list.
    ///
    /// # Safety
    ///
    /// The caller owns the head through `rcu_defer`.
    pub unsafe fn set(head: NonNull<Self>, next: Option<NonNull<Self>>, run: unsafe fn(NonNull<RcuHead>)) {
        // SAFETY: the caller owns the head, so no other access is concurrent.
        unsafe {
            *head.as_ref().next.get() = next;
            *head.as_ref().run.get() = Some(run);
        }
    }

    /// For hosts: returns the next request in the host's list.
    ///
    /// # Safety
    ///
    /// The caller owns the head, as for [`set`](Self::set), and has called `set` before.
    pub unsafe fn next(head: NonNull<Self>) -> Option<NonNull<Self>> {
        // SAFETY: the caller owns the head, so no other access is concurrent.
        unsafe { *head.as_ref().next.get() }
    }

    /// For hosts: runs the deferred function. The head, and the object that contains it, may be freed
    /// afterwards.
    ///
    /// # Safety
    ///
    /// The requirements of [`next`](Self::next). The grace period is over. Called once per request.
    pub unsafe fn run(head: NonNull<Self>) {
        // SAFETY: the caller owns the head, and the grace period that the deferred function must wait for is
        // over.
        unsafe {
            if let Some(run) = *head.as_ref().run.get() {
                run(head);
            }
        }
    }
}

impl Default for RcuHead {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for RcuHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RcuHead")
    }
}

/// Checks for a pending fatal signal, without sleeping. For loops whose length other tasks determine.
///
/// # Errors
///
/// Fails with [`Killed`] if a fatal signal is pending for this task.
pub fn check_killed<H: Host>() -> Result<(), Killed> {
    // The word never has the expected value, so the call does not sleep.
    H::wait_killable(&AtomicU32::new(1), 0)
}
