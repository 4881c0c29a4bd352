//! Walks of page tables without a lock, on processors whose flushes are broadcast instructions (Arm).
//!
//! `Platform::walk_tables` runs a function that reads tables and holds no lock. A flush with `tables_freed`
//! must not return while such a function may still read the tables. If flushes are interrupts, a CPU that
//! walks with interrupts off delays the flush. A broadcast instruction waits for the hardware of other CPUs
//! but not for their instructions, so the flush then calls [`wait`](Walkers::wait).
//!
//! | word | value | meaning | written by |
//! | --- | --- | --- | --- |
//! | number of a CPU | even | the CPU does not walk | that CPU only |
//! | | odd | the CPU walks | that CPU only |
//!
//! A walk does not wait: it takes no lock, except by attempts, and does not sleep. So `wait` ends.
//! `tests/loom_kit/walkers.rs` tests the protocol.

use freehold_sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    const_unless_loom, fence,
};

/// The number of one CPU, on a cache line of its own.
#[derive(Debug)]
#[repr(align(128))]
pub struct Walker(AtomicU64);

impl Walker {
    const_unless_loom! {
        /// Creates the number of a CPU that does not walk.
        pub fn new() -> Self {
            Walker(AtomicU64::new(0))
        }
    }
}

impl Default for Walker {
    fn default() -> Self {
        Self::new()
    }
}

/// The walks of a kernel with `CPUS` CPUs; see the [module](self).
///
/// ```
/// use freehold_kit::walkers::{Walker, Walkers};
///
/// static WALKERS: Walkers<2> = Walkers::new([const { Walker::new() }; 2]);
///
/// assert_eq!(WALKERS.walk(0, || 1 + 1), 2);
/// WALKERS.wait(core::hint::spin_loop);
/// ```
#[derive(Debug)]
pub struct Walkers<const CPUS: usize> {
    cpus: [Walker; CPUS],
}

impl<const CPUS: usize> Walkers<CPUS> {
    const_unless_loom! {
        /// Creates the numbers of CPUs that do not walk.
        pub fn new(cpus: [Walker; CPUS]) -> Self {
            Walkers { cpus }
        }
    }

    /// Runs `walk` on the calling CPU. Implements `Platform::walk_tables`. The thread stays on its CPU, and
    /// no other thread of the CPU walks during the call: preemption is off. `walk` begins no other walk.
    #[inline]
    pub fn walk<R>(&self, cpu: usize, walk: impl FnOnce() -> R) -> R {
        let number = &self.cpus[cpu].0;
        let before = number.load(Relaxed);
        debug_assert!(before.is_multiple_of(2), "a walk begins inside another walk");
        // Release: pairs with the acquire in `wait`. A task that waits for this CPU's earlier walk may find
        // the number of this walk.
        number.store(before + 1, Release);
        // Pairs with the fence in `wait`: either `wait` finds the walk, or the walk sees that the table is
        // not linked any more.
        fence(SeqCst);
        let result = walk();
        // Release: pairs with the same acquire. All reads of the walk are over.
        number.store(before + 2, Release);
        result
    }

    /// Waits until all walks are over that may have found a table which the caller has unlinked before this
    /// call. Part of `Platform::flush` with `tables_freed`. Does not wait for walks that begin later. The
    /// calling CPU does not walk. `relax` pauses briefly.
    pub fn wait(&self, relax: impl Fn()) {
        // Pairs with the fence in `walk`.
        fence(SeqCst);
        for Walker(number) in &self.cpus {
            // Acquire, here and below: pairs with the release in `walk`.
            let seen = number.load(Acquire);
            while !seen.is_multiple_of(2) && number.load(Acquire) == seen {
                relax();
            }
        }
    }
}
