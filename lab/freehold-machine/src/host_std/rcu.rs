//! Grace periods from the epochs of crossbeam.
//!
//! Guarantee: a deferred function runs after every read section that was open at the deferral has ended.
//! [`rcu_barrier`] returns after every function that was deferred before the call has run. Deferred functions
//! run on any thread, inside any call of this module, so they take no lock that a caller may hold.
//!
//! Mechanism: deferred functions are linked into batches. There are several batches, so that threads rarely
//! contend. A full batch becomes one deferred function of crossbeam, and is pushed at once to the list that
//! every thread reads. Batches run in any order. Each batch therefore counts the functions that it still has
//! to run, in two generations. A barrier starts the next generation, pushes the batches that are not full,
//! and drives the epochs until no function of the previous generation remains. Only one barrier runs at a
//! time, so the counts of the new generation are 0 when it starts. `tests/host.rs` tests the guarantees.
#![expect(unsafe_code, reason = "defers functions on raw objects")]

use super::{Lock, with_cpu};
use crate::context;
use crate::exempt::exempt;
use crate::inside::Inside;
use crossbeam_epoch as epoch;
use freehold_sync::RcuHead;
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// A read section. Objects that are reachable in the section stay valid until it ends.
#[derive(Debug)]
pub struct RcuGuard {
    /// Keeps the epoch pinned until the section ends.
    _pinned: epoch::Guard,
}

/// Number of functions in a full batch.
const FULL: u64 = 64;
/// Number of batches. A thread uses the batch of its number of `with_cpu`.
const BATCHES: usize = 8;

/// The functions that were deferred last and are not pushed yet, and counts of all functions that were
/// deferred here and have not run.
#[repr(align(128))]
struct Batch {
    list: Lock<List>,
    /// Number of functions deferred here that have not run, by generation.
    owed: [AtomicU64; 2],
}

/// Deferred functions, linked through their heads, the latest first.
struct List {
    first: Option<NonNull<RcuHead>>,
    len: u64,
    /// The generation in which these functions are counted. Only barriers change it.
    generation: usize,
}

// SAFETY: the caller of `rcu_defer` permits its function to run on any thread, so the objects may move there.
unsafe impl Send for List {}

static PENDING: [Batch; BATCHES] =
    [const { Batch { list: Lock::new(List::empty(0)), owed: [const { AtomicU64::new(0) }; 2] } }; BATCHES];

/// Held by the running barrier.
static BARRIER: Mutex<()> = Mutex::new(());

thread_local! {
    /// True while the thread runs deferred functions.
    static RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// Opens a read section.
#[inline]
pub(crate) fn rcu_read() -> RcuGuard {
    RcuGuard { _pinned: epoch::pin() }
}

/// Defers `f(head)` until a grace period has passed.
///
/// # Safety
/// `head` belongs to this module until `f(head)` runs. `f(head)` may run on any thread once all read sections
/// that are open now have ended.
pub(crate) unsafe fn rcu_defer(head: NonNull<RcuHead>, f: unsafe fn(NonNull<RcuHead>)) {
    let at = with_cpu(|number| number % BATCHES);
    let full = {
        let mut list = PENDING[at].list.lock();
        // SAFETY: the caller passed ownership of the head.
        unsafe { RcuHead::set(head, list.first, f) };
        list.first = Some(head);
        list.len += 1;
        // Relaxed: a barrier that must wait for this function takes the list's lock afterwards. The function
        // is counted before it can run.
        PENDING[at].owed[list.generation].fetch_add(1, Ordering::Relaxed);
        (list.len >= FULL).then(|| list.take())
    };
    if let Some(list) = full {
        push(at, list);
    }
}

/// Returns after every function that was deferred before the call has run. The caller is in no read section.
pub(crate) fn rcu_barrier() {
    // A poisoned lock is harmless: a barrier that panicked leaves no partial state.
    let _turn = BARRIER.lock().unwrap_or_else(PoisonError::into_inner);
    let before = PENDING.each_ref().map(|batch| {
        let mut list = batch.list.lock();
        let next = 1 - list.generation;
        std::mem::replace(&mut *list, List::empty(next))
    });
    let generations = before.each_ref().map(|list| list.generation);
    for (at, begun) in before.into_iter().enumerate().filter(|(_, list)| list.first.is_some()) {
        push(at, begun);
    }
    // Acquire: pairs with the release in `run`, so the caller sees the effects of the functions.
    let done = || {
        let mut places = PENDING.iter().zip(generations);
        places.all(|(batch, generation)| batch.owed[generation].load(Ordering::Acquire) == 0)
    };
    while !done() {
        exempt(|| epoch::pin().flush());
        std::thread::yield_now();
    }
}

/// Returns true if the calling thread may wait for a grace period: it is in no read section and no deferred
/// function.
pub(crate) fn may_wait_for_grace() -> bool {
    !epoch::is_pinned() && !RUNNING.get()
}

/// Passes a batch to crossbeam as one deferred function. The allocations of crossbeam do not count as the
/// caller's.
fn push(at: usize, list: List) {
    exempt(|| {
        let guard = epoch::pin();
        // SAFETY: each function may run on any thread after the grace period, as the caller of `rcu_defer`
        // promised. The closure owns everything that it uses.
        unsafe { guard.defer_unchecked(move || run(at, list)) };
        guard.flush();
    });
}

/// Runs the functions of a batch, after their grace period.
fn run(at: usize, list: List) {
    let before = RUNNING.replace(true);
    let mut next = list.first;
    while let Some(head) = next {
        // SAFETY: the grace period has ended, and the head belongs to this module until its function runs.
        // The link to the next head is read before the function runs.
        unsafe {
            next = RcuHead::next(head);
            context::inside(Inside::Deferred, || RcuHead::run(head));
        }
    }
    RUNNING.set(before);
    // Release: pairs with the acquire in `rcu_barrier`.
    PENDING[at].owed[list.generation].fetch_sub(list.len, Ordering::Release);
}

impl List {
    const fn empty(generation: usize) -> List {
        List { first: None, len: 0, generation }
    }

    fn take(&mut self) -> List {
        let generation = self.generation;
        std::mem::replace(self, List::empty(generation))
    }
}
