//! Grace periods from crossbeam's epochs.
//!
//! Guarantee: a deferred function runs after every read section that was open when it was deferred has
//! ended; [`rcu_barrier`] returns after everything deferred before it has run. Deferred functions run on
//! any thread, inside any of the calls of this module: they take no lock that a caller might hold.
//!
//! Mechanism: what is deferred is collected in batches, a few of them beside each other so that threads
//! do not meet, and a full batch becomes one deferred function of crossbeam's, pushed at once to where
//! every thread finds it. A barrier pushes the batches begun and drives the epochs until as many
//! functions have run as were deferred.
#![expect(unsafe_code, reason = "defers functions on raw objects")]

use super::{Lock, with_cpu};
use crate::inject::exempt;
use crossbeam_epoch as epoch;
use freehold_sync::RcuHead;
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// A read section: objects reachable in it stay until it ends.
#[derive(Debug)]
pub struct RcuGuard {
    /// Held for its end.
    _pinned: epoch::Guard,
}

type Deferred = (NonNull<RcuHead>, unsafe fn(NonNull<RcuHead>));

const BATCH: usize = 64;
const BATCHES: usize = 8;

#[repr(align(128))]
struct Batch {
    functions: Lock<Vec<Deferred>>,
    /// Functions deferred here.
    deferred: AtomicU64,
    /// How many of these have run.
    run: AtomicU64,
}

// SAFETY: the objects were handed over to whoever runs the functions, on any thread.
unsafe impl Sync for Batch {}

static PENDING: [Batch; BATCHES] = [const {
    Batch { functions: Lock::new(Vec::new()), deferred: AtomicU64::new(0), run: AtomicU64::new(0) }
}; BATCHES];

thread_local! {
    /// The thread is running deferred functions.
    static RUNNING: Cell<bool> = const { Cell::new(false) };
}

#[inline]
pub(crate) fn rcu_read() -> RcuGuard {
    RcuGuard { _pinned: epoch::pin() }
}

/// # Safety
/// `f(head)` may be called from any thread once all present read sections have ended.
pub(crate) unsafe fn rcu_defer(head: NonNull<RcuHead>, f: unsafe fn(NonNull<RcuHead>)) {
    let at = with_cpu(|number| number % BATCHES);
    let full = exempt(|| {
        let mut functions = PENDING[at].functions.lock();
        functions.reserve(BATCH);
        functions.push((head, f));
        // Release, pairs with the acquire in `rcu_barrier`; counted before it can run.
        PENDING[at].deferred.fetch_add(1, Ordering::Release);
        (functions.len() >= BATCH).then(|| std::mem::take(&mut *functions))
    });
    if let Some(functions) = full {
        push(at, functions);
    }
}

pub(crate) fn rcu_barrier() {
    let wanted = PENDING.each_ref().map(|batch| batch.deferred.load(Ordering::Acquire));
    for (at, batch) in PENDING.iter().enumerate() {
        let begun = std::mem::take(&mut *batch.functions.lock());
        if !begun.is_empty() {
            push(at, begun);
        }
    }
    // Acquire: pairs with the release in `push`; what the functions did is seen.
    let done = || PENDING.iter().zip(wanted).all(|(batch, count)| batch.run.load(Ordering::Acquire) >= count);
    while !done() {
        exempt(|| epoch::pin().flush());
        std::thread::yield_now();
    }
}

/// Whether the calling thread may wait for a grace period: it is in no read section and no deferred function.
pub(crate) fn may_wait_for_grace() -> bool {
    !epoch::is_pinned() && !RUNNING.get()
}

fn push(at: usize, functions: Vec<Deferred>) {
    let guard = exempt(epoch::pin);
    let batch = Sendable(functions);
    exempt(|| {
        // SAFETY: each function may run on any thread after the grace period, as its caller promised; the
        // closure owns everything it uses.
        unsafe { guard.defer_unchecked(move || run(at, batch)) };
        guard.flush();
    });
}

struct Sendable(Vec<Deferred>);

fn run(at: usize, batch: Sendable) {
    let before = RUNNING.replace(true);
    let count = batch.0.len() as u64;
    for (head, f) in batch.0 {
        // SAFETY: the grace period is over; see `rcu_defer`.
        unsafe { f(head) };
    }
    RUNNING.set(before);
    // Release, pairs with the acquire in `rcu_barrier`.
    PENDING[at].run.fetch_add(count, Ordering::Release);
}
