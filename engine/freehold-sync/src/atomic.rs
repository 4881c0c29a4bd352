//! The atomics that every crate of the engine uses: the processor's own, loom's under `cfg(loom)`, shuttle's
//! under `cfg(shuttle)`, those that take virtual time under `cfg(sim)`; in this crate's unit tests those of
//! `axioms`.
//!
//! This is the one place that knows which of them it is. What else depends on it is here too: constants that
//! shrink under the checking tools, so that rare paths run in a handful of steps.

/// A field of a record that a lock guards, which the simulation is to see as it sees atomics. An ordinary
/// cell in any other build.
#[cfg(not(sim))]
pub use core::cell::Cell as PlainCell;
#[cfg(sim)]
pub use freehold_sim::atomic::PlainCell;

/// The type of the values in `Ordering`, which is a module under shuttle.
pub(crate) use core::sync::atomic::Ordering as Order;
#[cfg(not(all(shuttle, not(loom))))]
pub use imp::Ordering;
pub use imp::{
    AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, fence,
};

#[cfg(all(test, not(any(loom, shuttle, sim))))]
use crate::axioms::atomics as imp;
#[cfg(not(any(test, loom, shuttle, sim)))]
use core::sync::atomic as imp;
#[cfg(sim)]
use freehold_sim::atomic as imp;
#[cfg(loom)]
use loom::sync::atomic as imp;
#[cfg(all(shuttle, not(loom)))]
use shuttle::sync::atomic as imp;

/// shuttle takes every order for the strongest. Told of a weaker one, it looks each time whether it has
/// warned of that yet, at a word that all its tests write: a seventh of the time that they take.
#[cfg(all(shuttle, not(loom)))]
#[expect(non_snake_case, non_upper_case_globals, missing_docs, reason = "in the place of an enum")]
pub mod Ordering {
    use core::sync::atomic::Ordering;

    pub const Relaxed: Ordering = Ordering::SeqCst;
    pub const Acquire: Ordering = Ordering::SeqCst;
    pub const Release: Ordering = Ordering::SeqCst;
    pub const AcqRel: Ordering = Ordering::SeqCst;
    pub const SeqCst: Ordering = Ordering::SeqCst;
}

/// Declares functions that are `const` except under loom, whose atomics must be made at run time.
#[doc(hidden)]
#[macro_export]
macro_rules! const_unless_loom {
    ($($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $out:ty $body:block)*) => {$(
        #[cfg(not(loom))]
        $(#[$meta])*
        $vis const fn $name($($arg: $type),*) -> $out $body
        #[cfg(loom)]
        $(#[$meta])*
        $vis fn $name($($arg: $type),*) -> $out $body
    )*};
}
pub use const_unless_loom;

/// Whether a tool that explores schedules runs this code. Caches are small then, or absent, so that memory is
/// free at once when it is released, and a later use of it is found.
pub const CHECKED: bool = cfg!(any(loom, shuttle));

/// How often a task that finds the lock taken looks again before it queues. That takes about as long as going
/// to sleep and being woken, and several times as long as most writers hold the lock. The checkers queue at
/// once.
pub(crate) const SPINS_BEFORE_QUEUEING: u32 = if CHECKED { 0 } else { 200 };
/// How often a writer that finds a reader/writer lock taken looks again before it queues. It looks seldom:
/// each look takes the lock's line away from the holder, which may have several turns between two, and a few
/// dozen in all.
pub(crate) const WRITER_SPINS: u32 = if CHECKED { 0 } else { 6 };
/// Calls of `Host::relax` between two such looks.
pub(crate) const WRITER_SPIN_INTERVAL: u32 = 64;
/// How often a waiter looks again before it goes to sleep. That takes about as long as going to sleep and
/// being woken, so a wait costs at most about twice what the better of the two would.
pub(crate) const SPINS_BEFORE_SLEEP: u32 = if CHECKED { 1 } else { 400 };
/// Longest pause between two looks at a spin lock, in `Host::relax` calls.
pub(crate) const MAX_BACKOFF: u32 = if CHECKED { 1 } else { 64 };
/// Wake-ups in vain after which a waiting writer keeps new writers out.
pub(crate) const MAX_FAILED_WAKEUPS: u32 = if CHECKED { 1 } else { 4 };
/// Largest value of a VMA's count that a reader may bring about: 1 for being attached, and the readers. Half
/// of what there is room for, because readers from the slots, at most one for each CPU, are added regardless.
pub(crate) const VMA_COUNT_LIMIT: u32 = if CHECKED { 3 } else { (1 << 28) - 1 };

/// Stands between a `SeqCst` read-modify-write of one word and a `SeqCst` load of another, where two threads
/// do so crosswise and one of them has to see the other. The language promises that, and processors whose
/// read-modify-writes are no full barriers have loads that wait for them. loom takes such accesses for
/// `AcqRel` and knows total order by fences alone, so there it is one. What ships, without it, is checked by
/// `axioms`.
#[inline]
pub(crate) fn store_buffering_fence() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}

/// Tells the simulation that `count` records of the type lie one after the other, and the names of the fields
/// that its report is to tell apart. Nothing in any other build.
#[inline]
pub fn announce_records<T>(
    name: &'static str,
    first: *const T,
    count: usize,
    fields: &'static [(&'static str, usize)],
) {
    #[cfg(sim)]
    freehold_sim::names::announce(name, first.addr(), size_of::<T>(), count, fields);
    #[cfg(not(sim))]
    let _ = (name, first, count, fields);
}

/// [`announce_records`] with the fields by their names: a field in a field has a name of its own (`count:
/// state.count`).
#[doc(hidden)]
#[macro_export]
macro_rules! announce {
    ($name:literal, $first:expr, $count:expr, $type:ty { $($field:ident: $($path:ident).+),* $(,)? }) => {
        $crate::atomic::announce_records::<$type>($name, $first, $count, const {
            &[$((stringify!($field), core::mem::offset_of!($type, $($path).+))),*]
        })
    };
}
pub use announce;
