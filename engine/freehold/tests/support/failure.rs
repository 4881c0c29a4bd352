//! Failures of memory allocations, injected at the `nth` allocation of a call. [`at_every_allocation`]
//! repeats a call with `nth` = 1, 2 and so on, until the call makes fewer than `nth` allocations. `oom.rs`
//! compares the state after each failure; tests with simpler checks use this file directly.
//!
//! Two kinds of memory fail separately: the machine's memory (frames, page tables, records of address spaces)
//! and the heap. The machine counts per thread, so a failure reaches only allocations of the thread that
//! makes the call. Heap failures need `FailingAllocator` as the global allocator, which `heap.rs` wraps for
//! the program `engine`.

use super::*;
use core::{cell::Cell, convert::Infallible, fmt};
use freehold_machine::{
    fail_heap_from, fail_heap_once, fail_memory_from, fail_memory_once, stop_failing_heap,
    stop_failing_memory,
};

/// The kind of allocation that fails. `MemoryFromThere` and `HeapFromThere` also fail all later allocations.
#[derive(Clone, Copy, Debug)]
pub enum Failure {
    Memory,
    MemoryFromThere,
    Heap,
    HeapFromThere,
}

impl Failure {
    pub const ALL: [Failure; 4] =
        [Failure::Memory, Failure::MemoryFromThere, Failure::Heap, Failure::HeapFromThere];

    fn is_of_heap(self) -> bool {
        matches!(self, Failure::Heap | Failure::HeapFromThere)
    }

    pub fn arm(self, nth: u64) {
        match self {
            Failure::Memory => fail_memory_once(nth),
            Failure::MemoryFromThere => fail_memory_from(nth),
            Failure::Heap => fail_heap_once(nth),
            Failure::HeapFromThere => fail_heap_from(nth),
        }
    }

    /// Stops injecting failures. Returns how many allocations failed.
    pub fn stop(self) -> u64 {
        match self {
            Failure::Memory | Failure::MemoryFromThere => stop_failing_memory(),
            Failure::Heap | Failure::HeapFromThere => stop_failing_heap(),
        }
    }
}

/// A point at which memory runs out: the `nth` allocation of a call.
pub struct Point {
    pub failure: Failure,
    pub nth: u64,
    failures: Cell<u64>,
}

impl Point {
    /// Makes a call in which memory runs out at this point. Failures end even if the call panics, because the
    /// panic message needs memory.
    pub fn fail<R>(&self, call: impl FnOnce() -> R) -> R {
        /// Ends the failures when it is dropped.
        struct Stop<'p>(&'p Point);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.failures.set(self.0.failure.stop());
            }
        }
        let _stop = Stop(self);
        self.failure.arm(self.nth);
        call()
    }

    /// Adds failures that were counted before `call` ended the injection itself.
    pub fn note(&self, failures: u64) {
        self.failures.set(self.failures.get() + failures);
    }

    /// Returns true if the call reached this point.
    pub fn reached(&self) -> bool {
        self.failures.get() > 0
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.failure, self.nth)
    }
}

/// Repeats `attempt` with a failure of each of these kinds at the first allocation, then at the second, and
/// so on, until the call ends before the failure. The attempt wraps the call to be tested in [`Point::fail`].
/// Returns the number of failures that the call reached; two kinds at the same allocation count as two.
pub fn at_every_allocation(kinds: &[Failure], mut attempt: impl FnMut(&Point)) -> u64 {
    let reached = try_at_every_allocation(kinds, |point| {
        attempt(point);
        Ok::<(), Infallible>(())
    });
    reached.unwrap_or_else(|never| match never {})
}

/// Repeats `attempt` like [`at_every_allocation`]; the attempt may return an error.
///
/// # Errors
///
/// Returns the first error of `attempt`.
pub fn try_at_every_allocation<E>(
    kinds: &[Failure],
    mut attempt: impl FnMut(&Point) -> Result<(), E>,
) -> Result<u64, E> {
    let mut reached = 0;
    for alike in kinds.chunk_by(|one, next| one.is_of_heap() == next.is_of_heap()) {
        'next: for nth in 1.. {
            for &failure in alike {
                let point = Point { failure, nth, failures: Cell::new(0) };
                attempt(&point)?;
                if !point.reached() {
                    // The other failures are not reached either, because up to this point nothing has failed.
                    break 'next;
                }
                reached += 1;
            }
        }
    }
    Ok(reached)
}
