//! Grace periods from crossbeam's epochs.
//!
//! Guarantee: a deferred function runs after every read section that was open when it was deferred has
//! ended; [`rcu_barrier`] returns after everything deferred before it has run. Deferred functions run on
//! any thread, inside any of the calls of this module: they take no lock that a caller might hold.
//!
//! Mechanism: what is deferred is linked into batches, a few of them beside each other so that threads do
//! not meet, and a full batch becomes one deferred function of crossbeam's, pushed at once to where every
//! thread finds it. A barrier pushes the batches begun and drives the epochs until as many functions have
//! run as were deferred.
#![expect(unsafe_code, reason = "defers functions on raw objects")]

use super::{Lock, with_cpu};
use crate::context::{self, Inside};
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

/// Functions per batch.
const FULL: u64 = 64;
const BATCHES: usize = 8;

#[repr(align(128))]
struct Batch {
    list: Lock<List>,
    /// Functions deferred here.
    deferred: AtomicU64,
    /// How many of these have run.
    run: AtomicU64,
}

/// Requests linked through their heads, the latest first.
struct List {
    first: Option<NonNull<RcuHead>>,
    len: u64,
}

// SAFETY: the objects were handed over to whoever runs the functions, on any thread.
unsafe impl Send for List {}

static PENDING: [Batch; BATCHES] =
    [const { Batch { list: Lock::new(List::EMPTY), deferred: AtomicU64::new(0), run: AtomicU64::new(0) } };
        BATCHES];

thread_local! {
    /// The thread is running deferred functions.
    static RUNNING: Cell<bool> = const { Cell::new(false) };
}

#[inline]
pub(crate) fn rcu_read() -> RcuGuard {
    RcuGuard { _pinned: epoch::pin() }
}

/// # Safety
/// `head` is this module's until `f(head)` runs, on any thread, after all present read sections have ended.
pub(crate) unsafe fn rcu_defer(head: NonNull<RcuHead>, f: unsafe fn(NonNull<RcuHead>)) {
    let at = with_cpu(|number| number % BATCHES);
    let full = {
        let mut list = PENDING[at].list.lock();
        // SAFETY: the head was handed over.
        unsafe { RcuHead::set(head, list.first, f) };
        list.first = Some(head);
        list.len += 1;
        // Release, pairs with the acquire in `rcu_barrier`; counted before it can run.
        PENDING[at].deferred.fetch_add(1, Ordering::Release);
        (list.len >= FULL).then(|| list.take())
    };
    if let Some(list) = full {
        push(at, list);
    }
}

pub(crate) fn rcu_barrier() {
    let wanted = PENDING.each_ref().map(|batch| batch.deferred.load(Ordering::Acquire));
    for (at, batch) in PENDING.iter().enumerate() {
        let begun = batch.list.lock().take();
        if begun.first.is_some() {
            push(at, begun);
        }
    }
    // Acquire: pairs with the release in `run`; what the functions did is seen.
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

/// Makes a batch one deferred function of crossbeam's. What crossbeam allocates for that does not count as
/// an allocation of the caller's.
fn push(at: usize, list: List) {
    exempt(|| {
        let guard = epoch::pin();
        // SAFETY: each function may run on any thread after the grace period, as its caller promised; the
        // closure owns everything it uses.
        unsafe { guard.defer_unchecked(move || run(at, list)) };
        guard.flush();
    });
}

fn run(at: usize, list: List) {
    let before = RUNNING.replace(true);
    let mut next = list.first;
    while let Some(head) = next {
        // SAFETY: the grace period is over, and the head is this module's until its function runs; the
        // link is read before.
        unsafe {
            next = RcuHead::next(head);
            context::inside(Inside::Deferred, || RcuHead::run(head));
        }
    }
    RUNNING.set(before);
    // Release, pairs with the acquire in `rcu_barrier`.
    PENDING[at].run.fetch_add(list.len, Ordering::Release);
}

impl List {
    const EMPTY: List = List { first: None, len: 0 };

    fn take(&mut self) -> List {
        std::mem::replace(self, List::EMPTY)
    }
}
