//! Marks for a trace of the program's memory accesses that is compared with what a run saw.
//!
//! In such a trace the program's own accesses stand between those of the simulation. So the simulation
//! stores to a byte when it begins to work for a task and to another when it ends; and a program that is
//! traced stores to two more around what is to be looked at. By their addresses the trace can be taken apart.

use std::sync::atomic::{AtomicU8, Ordering};

/// Each in a line of its own.
#[repr(align(64))]
struct Mark(AtomicU8);

static MARKS: [Mark; 4] = [const { Mark(AtomicU8::new(0)) }; 4];

fn mark(number: usize) {
    MARKS[number].0.store(1, Ordering::Relaxed);
}

/// The addresses of the bytes that are stored to where the simulation begins to work, where it ends, where
/// what is to be looked at begins, and where that ends.
pub fn marks() -> [usize; 4] {
    std::array::from_fn(|number| MARKS[number].0.as_ptr().addr())
}

/// Does what is to be looked at in a trace.
pub fn marked<R>(work: impl FnOnce() -> R) -> R {
    mark(2);
    let done = work();
    mark(3);
    done
}

/// The simulation works for a task, until this is dropped.
pub(crate) struct Within(());

impl Within {
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
