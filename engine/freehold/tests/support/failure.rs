//! Memory that runs out when a test says so.

use super::*;
use core::{cell::Cell, convert::Infallible, fmt};
use freehold_machine::{
    fail_heap_from, fail_heap_once, fail_memory_from, fail_memory_once, stop_failing_heap,
    stop_failing_memory,
};

/// What fails, and from when on.
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

    /// How many there were.
    pub fn stop(self) -> u64 {
        match self {
            Failure::Memory | Failure::MemoryFromThere => stop_failing_memory(),
            Failure::Heap | Failure::HeapFromThere => stop_failing_heap(),
        }
    }
}

/// A place at which memory runs out: the `nth` allocation of a call.
pub struct Point {
    pub failure: Failure,
    pub nth: u64,
    failures: Cell<u64>,
}

impl Point {
    /// Makes a call in which memory runs out there. It fails no more when the call panics: what reports that
    /// needs memory.
    pub fn fail<R>(&self, call: impl FnOnce() -> R) -> R {
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

    /// Whether the call came so far.
    pub fn reached(&self) -> bool {
        self.failures.get() > 0
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.failure, self.nth)
    }
}

/// Repeats an attempt with a failure at every allocation in turn, of each of these kinds, until one is not
/// reached. The attempt says by [`Point::fail`] which call it is about. How many were reached, once for each
/// kind.
pub fn at_every_allocation(kinds: &[Failure], mut attempt: impl FnMut(&Point)) -> u64 {
    let reached = try_at_every_allocation(kinds, |point| {
        attempt(point);
        Ok::<(), Infallible>(())
    });
    reached.unwrap_or_else(|never| match never {})
}

/// The same of an attempt that may find fault.
///
/// # Errors
///
/// The first that it finds.
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
                    // Nor is it by the others: up to there nothing has failed.
                    break 'next;
                }
                reached += 1;
            }
        }
    }
    Ok(reached)
}
