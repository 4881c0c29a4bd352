//! The machine's data per thread: the virtual CPU that the thread runs on, failures to inject, and the
//! sections that it is in.
//!
//! Each host keeps one [`Local`] per thread: `host_std` in a thread-local, `host_shuttle` and `host_sim` per
//! task of the checker or of the run. `cpu.rs` sets the CPU when a thread begins to run a CPU, `inject.rs`
//! sets the failures of allocations, and `context.rs` counts sections. Only the owning thread or task
//! accesses its [`Local`]. A new field needs a constant initial value and a type without a destructor.
//! `tests/memory.rs` and `tests/heap/` test the failures of allocations.

use crate::inside::Context;
use std::cell::Cell;

/// The per-thread state. No field needs a destructor, so that an access to the state is a single address
/// computation.
#[derive(Debug)]
pub(crate) struct Local {
    /// The virtual CPU that this thread runs on.
    cpu: Cell<Option<CpuId>>,
    /// Number of allocations up to and including the one that fails. 0 means that no allocation fails.
    countdown: Cell<u64>,
    /// True if all allocations after the failing allocation fail, too.
    lasting: Cell<bool>,
    /// Number of failures since the last `set_failure`.
    failed: Cell<u64>,
    /// The sections that the thread is in.
    context: Context,
}

/// A virtual CPU of one of the machines of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CpuId {
    /// Number of the machine in this process.
    pub(crate) machine: u64,
    /// Number of the CPU in its machine.
    pub(crate) number: usize,
}

impl Local {
    pub(crate) const fn new() -> Self {
        Local {
            cpu: Cell::new(None),
            countdown: Cell::new(0),
            lasting: Cell::new(false),
            failed: Cell::new(0),
            context: Context::new(),
        }
    }

    /// Returns the counts of the sections that the thread is in.
    #[inline]
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the CPU that the thread runs on.
    #[inline]
    pub(crate) fn cpu(&self) -> Option<CpuId> {
        self.cpu.get()
    }

    /// Sets the CPU that the thread runs on. Returns the previous one.
    pub(crate) fn replace_cpu(&self, cpu: Option<CpuId>) -> Option<CpuId> {
        self.cpu.replace(cpu)
    }

    /// Makes the `nth` allocation from now fail, counted from 1, and all later allocations too if `lasting`
    /// is true. If `nth` is 0, no allocation fails.
    pub(crate) fn set_failure(&self, nth: u64, lasting: bool) {
        self.countdown.set(nth);
        self.lasting.set(lasting);
        self.failed.set(0);
    }

    /// Returns the number of failures since the last call of `set_failure`.
    pub(crate) fn failures(&self) -> u64 {
        self.failed.get()
    }

    /// Counts one allocation. Returns true if the allocation must fail.
    #[inline]
    pub(crate) fn allocation_fails(&self) -> bool {
        self.countdown.get() != 0 && self.count_down()
    }

    /// Counts one allocation while a failure is set. Returns true if the allocation must fail.
    #[cold]
    fn count_down(&self) -> bool {
        let left = self.countdown.get();
        if left > 1 {
            self.countdown.set(left - 1);
            return false;
        }
        if !self.lasting.get() {
            self.countdown.set(0);
        }
        self.failed.set(self.failed.get() + 1);
        true
    }
}
