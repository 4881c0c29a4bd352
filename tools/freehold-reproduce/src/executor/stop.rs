//! Tells each thread of a load when the turn ends. The function `for_a_while` of the executors passes a
//! [`Stop`] to each thread; the load checks the [`Stop`] between two operations, and returns when the turn is
//! over. A load that never calls [`Stop::is_told`] does not end. Both executors use this file.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Number of checks after which a thread of a load may stop.
const AT_LEAST: u32 = 32;

/// Stop condition of one thread of a load.
///
/// On a busy host a thread may get no processor for a whole turn, and a rate of zero cannot be compared. A
/// thread therefore checks several times, and works between the checks, before it stops.
pub struct Stop<'t> {
    is_over: &'t AtomicBool,
    looks: Cell<u32>,
}

impl<'t> Stop<'t> {
    /// Creates the condition for one thread of a turn, which ends when `is_over` becomes true.
    pub(super) fn new(is_over: &'t AtomicBool) -> Stop<'t> {
        Stop { is_over, looks: Cell::new(0) }
    }

    /// Returns true if the thread must stop.
    pub fn is_told(&self) -> bool {
        let looks = self.looks.get();
        if looks < AT_LEAST {
            self.looks.set(looks + 1);
            return false;
        }
        self.is_over.load(Relaxed)
    }
}
