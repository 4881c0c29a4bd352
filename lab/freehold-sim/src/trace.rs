//! Marks for a trace of the program's memory accesses. The trace is compared with the accesses that a run
//! saw.
//!
//! Such a trace mixes the program's own accesses with those of the simulation. The simulation therefore
//! stores to one byte when it begins to work for a task, and to another byte when this work ends. A traced
//! program stores to a third byte before the part of interest, and to a fourth byte after it. The addresses
//! of these four bytes separate the parts of the trace.
//!
//! The example `coverage` of `freehold-machine` reads such a trace, and lists the cache lines that the
//! simulation did not see. Every entry point of the simulation needs a `Within` guard; otherwise the
//! simulation's own accesses appear in that list.

use std::sync::atomic::{AtomicU8, Ordering};

/// A byte on its own cache line.
#[repr(align(64))]
struct Mark(AtomicU8);

/// The marks, in the order of [`marks`].
static MARKS: [Mark; 4] = [const { Mark(AtomicU8::new(0)) }; 4];

/// Stores to the mark with this index in `MARKS`.
fn mark(number: usize) {
    MARKS[number].0.store(1, Ordering::Relaxed);
}

/// Returns the addresses of the four marks. The simulation stores to them when its own work begins, when its
/// work ends, when the part of interest begins, and when that part ends.
pub fn marks() -> [usize; 4] {
    std::array::from_fn(|number| MARKS[number].0.as_ptr().addr())
}

/// Runs `work`, the part of interest, between two marks.
pub fn marked<R>(work: impl FnOnce() -> R) -> R {
    mark(2);
    let done = work();
    mark(3);
    done
}

/// A guard for the time in which the simulation works for a task: one mark at its beginning, one at its end.
pub(crate) struct Within(());

impl Within {
    /// Begins the work of the simulation.
    #[inline(always)]
    pub fn simulation() -> Within {
        mark(0);
        Within(())
    }
}

impl Drop for Within {
    #[inline(always)]
    fn drop(&mut self) {
        mark(1);
    }
}
