//! Parts of the program whose heap uses do not count as the engine's.
//!
//! Failure injection for the heap (`inject.rs`) and the check for uses of the heap in forbidden contexts
//! (`context.rs`) must apply only to the engine. The hosts therefore wrap their own allocations in
//! [`exempt`], for example the allocations for grace periods. Tests wrap the allocations of their platforms.
//! Never wrap a call of the engine: its allocations would never fail. `tests/heap/failures.rs` checks that
//! the allocations of the host are exempt.

use std::cell::Cell;

thread_local! {
    /// Nesting depth of [`exempt`] calls on the thread.
    static EXEMPT: Cell<u32> = const { Cell::new(0) };
}

/// Returns true if the calling thread is inside [`exempt`].
pub(crate) fn is_exempt() -> bool {
    EXEMPT.get() > 0
}

/// Runs code whose allocations do not count as the engine's and must not fail: a part of the host, or of a
/// test's own platform.
pub fn exempt<R>(f: impl FnOnce() -> R) -> R {
    let _exempt = Exempt::new();
    f()
}

/// A guard that keeps the thread exempt until it is dropped.
struct Exempt;

impl Exempt {
    fn new() -> Self {
        EXEMPT.set(EXEMPT.get() + 1);
        Exempt
    }
}

impl Drop for Exempt {
    fn drop(&mut self) {
        EXEMPT.set(EXEMPT.get() - 1);
    }
}
