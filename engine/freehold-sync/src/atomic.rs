//! The atomics that every crate of the engine uses.
//!
//! The atomics are those of the CPU in a normal build, those of loom under `cfg(loom)`, those of shuttle
//! under `cfg(shuttle)`, and those of virtual time under `cfg(sim)`. The unit tests of this crate use the
//! atomics of `axioms`.
//!
//! Only this file distinguishes these builds, except for test hosts, test modules, and a few files that
//! `xtask/tests/tidy.rs` lists with reasons. So the constants that depend on the build are here too. They are
//! smaller under the checkers, so that a test reaches rare paths within a few steps. A new type is added to
//! the imports below. It must exist in the standard library, loom, shuttle, `freehold-sim` and `axioms`,
//! because each of them is the source of the atomics in one build.
//!
//! Code of the engine must not import atomics from `core`, because the checkers do not see accesses to
//! atomics of `core`.

/// A field of a record that a lock guards. The simulation (`cfg(sim)`) observes accesses to it like accesses
/// to an atomic; in any other build it is an ordinary `Cell`.
#[cfg(not(sim))]
pub use core::cell::Cell as PlainCell;
#[cfg(sim)]
pub use freehold_sim::atomic::PlainCell;

/// The type of the values in `Ordering`. Needed because `Ordering` is a module under shuttle.
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

/// Orderings for shuttle: each is `SeqCst`. shuttle treats every order as the strongest one. For a weaker
/// order, shuttle checks at each access whether it has already printed a warning. The check reads a word that
/// all tests write. That check takes a seventh of the run time of the tests.
#[cfg(all(shuttle, not(loom)))]
#[expect(non_snake_case, non_upper_case_globals, missing_docs, reason = "replaces the variants of an enum")]
pub mod Ordering {
    use core::sync::atomic::Ordering;

    pub const Relaxed: Ordering = Ordering::SeqCst;
    pub const Acquire: Ordering = Ordering::SeqCst;
    pub const Release: Ordering = Ordering::SeqCst;
    pub const AcqRel: Ordering = Ordering::SeqCst;
    pub const SeqCst: Ordering = Ordering::SeqCst;
}

/// Declares functions that are `const` except under loom, whose atomics must be created at run time.
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

/// True if a tool that explores schedules runs this code. Caches are then small or absent: memory is freed as
/// soon as it is released, so the tool finds a later use of the memory.
pub const CHECKED: bool = cfg!(any(loom, shuttle));

/// Number of times that a task looks at a held lock again before it queues. These looks take about as long as
/// going to sleep and being woken, and several times as long as most writers hold the lock. Under the
/// checkers a task queues at once.
pub(crate) const SPINS_BEFORE_QUEUEING: u32 = if CHECKED { 0 } else { 200 };
/// Number of times that a writer looks at a held reader/writer lock again before it queues. The number is
/// small because each look takes the lock's cache line away from the holder. The holder may take the lock
/// several times between two looks, and a few dozen times in all.
pub(crate) const WRITER_SPINS: u32 = if CHECKED { 0 } else { 6 };
/// Calls of `Host::relax` between two looks of a writer.
pub(crate) const WRITER_SPIN_INTERVAL: u32 = 64;
/// Number of times that a queued task looks at the lock again before it goes to sleep. These looks take about
/// as long as going to sleep and being woken, so a wait costs at most about twice as much as only spinning or
/// only sleeping, whichever is cheaper.
pub(crate) const SPINS_BEFORE_SLEEP: u32 = if CHECKED { 1 } else { 400 };
/// Longest pause between two looks at a spin lock, in calls of `Host::relax`.
pub(crate) const MAX_BACKOFF: u32 = if CHECKED { 1 } else { 64 };
/// Number of wake-ups without success after which a waiting writer keeps new writers out of the queue.
pub(crate) const MAX_FAILED_WAKEUPS: u32 = if CHECKED { 1 } else { 4 };
/// Largest value that a reader may give to the count of a VMA: 1 for an attached VMA, plus the readers. The
/// limit is half of what the count can hold. The other half is for readers that a writer moves from slots to
/// the count without a check of the limit: at most one per CPU.
pub(crate) const VMA_COUNT_LIMIT: u32 = if CHECKED { 3 } else { (1 << 28) - 1 };

/// Orders a `SeqCst` read-modify-write of one word before a `SeqCst` load of another word.
///
/// Two threads run this pattern on two words in opposite roles, and at least one of them must see the other's
/// write. The language guarantees that for `SeqCst` accesses. On CPUs whose read-modify-writes are not full
/// barriers, a `SeqCst` load waits for earlier read-modify-writes. loom treats such accesses as `AcqRel` and
/// knows a total order of fences only, so under loom this function is a fence. The unit tests with `axioms`
/// check the shipped code, which has no fence here.
#[inline]
pub(crate) fn store_buffering_fence() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}

/// Registers with the simulation `count` consecutive records of type `T`, and the names of the fields that
/// the simulation's report distinguishes. Does nothing in any other build.
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

/// Calls [`announce_records`] with fields given by name. A field inside another field gets a name of its own
/// (`count: state.count`).
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
