//! Grace periods from crossbeam's epochs.
//!
//! Guarantee: a deferred function runs after every read section that was open when it was deferred has
//! ended; [`rcu_barrier`] returns after everything deferred before it has run. Deferred functions run on
//! any thread, inside any of the calls of this module: they take no lock that a caller might hold.
//!
//! Mechanism: what is deferred is linked into batches, a few of them beside each other so that threads do
//! not meet, and a full batch becomes one deferred function of crossbeam's, pushed at once to where every
//! thread finds it. Batches run in any order. So each place counts what it still owes in two generations: a
//! barrier has the next one begin, pushes the batches begun, and drives the epochs until nothing is owed of
//! the generation before. Barriers take turns, so the other generation owes nothing when it begins.
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
    /// Functions deferred here that have not run, by generation.
    owed: [AtomicU64; 2],
}

/// Requests linked through their heads, the latest first.
struct List {
    first: Option<NonNull<RcuHead>>,
    len: u64,
    /// Which of the two it is owed in. Changed by barriers.
    generation: usize,
}

// SAFETY: the objects were handed over to the thread that runs the functions, whichever it is.
unsafe impl Send for List {}

static PENDING: [Batch; BATCHES] =
    [const { Batch { list: Lock::new(List::empty(0)), owed: [const { AtomicU64::new(0) }; 2] } }; BATCHES];

/// Held by the barrier whose turn it is.
static BARRIER: Mutex<()> = Mutex::new(());

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
        // Relaxed: a barrier that has to wait for it has taken the list's lock since; counted before it can
        // run.
        PENDING[at].owed[list.generation].fetch_add(1, Ordering::Relaxed);
        (list.len >= FULL).then(|| list.take())
    };
    if let Some(list) = full {
        push(at, list);
    }
}

pub(crate) fn rcu_barrier() {
    // A test that failed in its turn has left nothing half done.
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
    // Acquire: pairs with the release in `run`; what the functions did is seen.
    let done = || {
        let mut places = PENDING.iter().zip(generations);
        places.all(|(batch, generation)| batch.owed[generation].load(Ordering::Acquire) == 0)
    };
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
