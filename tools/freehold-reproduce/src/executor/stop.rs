//! The end of a turn, as a thread of a load sees it.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Looks that each thread of a load has before it is told to stop.
const AT_LEAST: u32 = 32;

/// Tells one thread of a load when it has to stop.
///
/// On a busy host a thread may get no processor for as long as a turn lasts, and a rate of zero cannot be
/// compared. So a thread looks several times, and works in between, before it is told to stop.
pub struct Stop<'t> {
    is_over: &'t AtomicBool,
    looks: Cell<u32>,
}

impl<'t> Stop<'t> {
    /// For one thread of a turn that is over when `is_over` says so.
    pub(super) fn new(is_over: &'t AtomicBool) -> Stop<'t> {
        Stop { is_over, looks: Cell::new(0) }
    }

    /// Returns whether the thread has to stop.
    pub fn is_told(&self) -> bool {
        let looks = self.looks.get();
        if looks < AT_LEAST {
            self.looks.set(looks + 1);
            return false;
        }
        self.is_over.load(Relaxed)
    }
}
