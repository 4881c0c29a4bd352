//! What the locks need from the world around them.
#![expect(
    unsafe_code,
    reason = "the contract on grace periods and CPU numbers is for the implementation to keep"
)]

use crate::atomic::AtomicU32;
use crate::rank::{LockContext, Rank};
use core::cell::UnsafeCell;
use core::fmt;
use core::ptr::NonNull;

/// A killable wait was given up because a fatal signal is pending: nothing was acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Killed;

impl fmt::Display for Killed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a fatal signal is pending")
    }
}

impl core::error::Error for Killed {}

/// A wait was given up because a signal is pending, fatal or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a signal is pending")
    }
}

impl core::error::Error for Interrupted {}

/// The embedding kernel, as the locks see it: waiting, CPU numbers, time, grace periods.
///
/// All functions are associated functions, because a lock word has no room for a reference to its host.
///
/// # Safety
///
/// An implementation promises that
/// - [`with_cpu`](Self::with_cpu) never lets two contexts be inside with the same number, that numbers are
///   below [`MAX_CPUS`](Self::MAX_CPUS), and that leaving with a number happens before the next entry with
///   it;
/// - a function given to [`rcu_defer`](Self::rcu_defer) runs once, and not before every
///   [`RcuGuard`](Self::RcuGuard) that existed at the call is gone; their ends happen before the function,
///   and what happened before the call happens before every guard made after it that the function did not
///   wait for.
pub unsafe trait Host: Sized + Send + Sync + 'static {
    /// An upper bound of the numbers that [`with_cpu`](Self::with_cpu) hands out.
    const MAX_CPUS: usize;

    /// How many numbers [`with_cpu`](Self::with_cpu) hands out on this machine: those below this. Always the
    /// same, and at most [`MAX_CPUS`](Self::MAX_CPUS).
    fn cpus() -> usize {
        Self::MAX_CPUS
    }

    /// Sleeps while `*word == expected`, until a wake-up for this address. The comparison and going to sleep
    /// are one step for [`wake_one`](Self::wake_one) and [`wake_all`](Self::wake_all): a wake-up that
    /// follows a change of the word is never lost. Spurious returns are allowed.
    fn wait(word: &AtomicU32, expected: u32);

    /// As [`wait`](Self::wait), and gives up when a fatal signal is pending for this task, whether it arrives
    /// before or during the wait; also where there is nothing to wait for, since the word differs: see
    /// [`check_killed`].
    ///
    /// # Errors
    /// [`Killed`].
    fn wait_killable(word: &AtomicU32, expected: u32) -> Result<(), Killed>;

    /// As [`wait_killable`](Self::wait_killable), and gives up for any other signal as well that the task is
    /// to handle before its program goes on. A host without such signals leaves this as it is.
    ///
    /// # Errors
    /// [`Interrupted`].
    fn wait_interruptible(word: &AtomicU32, expected: u32) -> Result<(), Interrupted> {
        Self::wait_killable(word, expected).map_err(|Killed| Interrupted)
    }

    /// Wakes a task that sleeps on this address, the one that has slept longest; nobody if there is none. The
    /// word is not read: it may be part of an object whose life is over, as long as its memory is not
    /// unmapped.
    fn wake_one(word: &AtomicU32);

    /// Wakes all tasks that sleep on this address; as [`wake_one`](Self::wake_one).
    fn wake_all(word: &AtomicU32);

    /// Runs `f` with a number that no other context has meanwhile: the CPU's, with preemption off. `f`
    /// neither waits nor nests.
    fn with_cpu<R>(f: impl FnOnce(usize) -> R) -> R;

    /// The calling task is about to take a spin lock of this rank, or to try. Until the matching
    /// [`spin_exit`](Self::spin_exit) it keeps its processor: preemption is off. The host decides by rank
    /// whether interrupts are off as well. They stay on for page tables where flushes are interrupts: a task
    /// that spins for a table must take those, unless [`relax`](Self::relax) does what they ask for. No lock
    /// of the engine is taken in an interrupt.
    ///
    /// Sections of one task overlap and need not nest: locks are let go of in any order, and two may have the
    /// same rank. So a host counts, and what it turns off at the first it turns on at the last.
    #[inline]
    fn spin_enter(rank: Rank) {
        let _ = rank;
    }

    /// The lock has been let go of, or was not got.
    #[inline]
    fn spin_exit(rank: Rank) {
        let _ = rank;
    }

    /// A clock that never goes back, in nanoseconds.
    fn now_ns() -> u64;

    /// Called in every turn of a loop that waits for another processor.
    fn relax();

    /// Runs `f` on the calling task's record of held locks. `None`: the task has no record, its order is not
    /// checked. Used with debug assertions only.
    fn lock_context<R>(f: impl FnOnce(&LockContext) -> R) -> Option<R>;

    /// A read section of the grace-period mechanism; it ends when this is dropped. Sections nest.
    type RcuGuard;

    /// Begins a read section.
    fn rcu_read() -> Self::RcuGuard;

    /// Runs `f(head)` after a grace period. Allocates nothing: the head is the room for the request.
    ///
    /// # Safety
    ///
    /// `head` stays valid, and is touched by nobody else, until `f` runs; `f` may be called with it from any
    /// thread.
    unsafe fn rcu_defer(head: NonNull<RcuHead>, f: unsafe fn(NonNull<RcuHead>));

    /// Waits until everything deferred before this call has run. Not inside a read section.
    fn rcu_barrier();
}

/// What runs after a grace period.
type Deferred = unsafe fn(NonNull<RcuHead>);

/// What an object embeds that is to be freed after a grace period: the host's room for a list and a function.
///
/// Belongs to the host from [`Host::rcu_defer`] until the deferred function runs; to the object's owner
/// otherwise.
pub struct RcuHead {
    next: UnsafeCell<Option<NonNull<RcuHead>>>,
    run: UnsafeCell<Option<Deferred>>,
}

// SAFETY: a shared reference gives no access to the fields; the unsafe functions below leave access to the
// host, which `rcu_defer` makes the only owner.
unsafe impl Send for RcuHead {}
// SAFETY: as above.
unsafe impl Sync for RcuHead {}

impl RcuHead {
    /// A head that is not in use.
    pub const fn new() -> Self {
        RcuHead { next: UnsafeCell::new(None), run: UnsafeCell::new(None) }
    }

    /// For hosts: notes what to run and which request hangs behind this one.
    ///
    /// # Safety
    ///
    /// The head is the caller's by `rcu_defer`.
    pub unsafe fn set(head: NonNull<Self>, next: Option<NonNull<Self>>, run: unsafe fn(NonNull<RcuHead>)) {
        // SAFETY: the caller owns the head.
        unsafe {
            *head.as_ref().next.get() = next;
            *head.as_ref().run.get() = Some(run);
        }
    }

    /// For hosts: the request behind this one.
    ///
    /// # Safety
    ///
    /// As for [`set`](Self::set), which was called before.
    pub unsafe fn next(head: NonNull<Self>) -> Option<NonNull<Self>> {
        // SAFETY: the caller owns the head.
        unsafe { *head.as_ref().next.get() }
    }

    /// For hosts: runs what was deferred. The head, and the object around it, may be gone afterwards.
    ///
    /// # Safety
    ///
    /// As for [`next`](Self::next), and the grace period is over; not called again for this request.
    pub unsafe fn run(head: NonNull<Self>) {
        // SAFETY: the caller owns the head, and the grace period that `run` was promised is over.
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

/// Looks for a fatal signal, for loops that are as long as others make them. Never sleeps.
///
/// # Errors
///
/// [`Killed`]: one is pending for this task.
pub fn check_killed<H: Host>() -> Result<(), Killed> {
    // Whatever it is expected to be, it is not.
    H::wait_killable(&AtomicU32::new(1), 0)
}
