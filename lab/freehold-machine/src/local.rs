//! The machine's data per thread: the virtual CPU that the thread runs on, and failures to inject.

use crate::inside::Context;
use std::cell::Cell;

/// The per-thread state. No field needs a destructor, so that an access to the state is a single address
/// computation.
#[derive(Debug)]
pub(crate) struct Local {
    /// The virtual CPU that this thread runs on.
    cpu: Cell<Option<CpuId>>,
    /// Number of allocations until one fails. 0: none fails.
    countdown: Cell<u64>,
    /// True if the allocations after that one fail too.
    lasting: Cell<bool>,
    /// Number of failures since the last `set_failure`.
    failed: Cell<u64>,
    context: Context,
}

/// A virtual CPU of one of the machines of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CpuId {
    pub(crate) machine: u64,
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

    #[inline]
    pub(crate) fn cpu(&self) -> Option<CpuId> {
        self.cpu.get()
    }

    pub(crate) fn replace_cpu(&self, cpu: Option<CpuId>) -> Option<CpuId> {
        self.cpu.replace(cpu)
    }

    pub(crate) fn set_failure(&self, nth: u64, lasting: bool) {
        self.countdown.set(nth);
        self.lasting.set(lasting);
        self.failed.set(0);
    }

    pub(crate) fn failures(&self) -> u64 {
        self.failed.get()
    }

    /// Counts one allocation. Returns true if the allocation must fail.
    #[inline]
    pub(crate) fn allocation_fails(&self) -> bool {
        self.countdown.get() != 0 && self.count_down()
    }

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
