//! Parts of the program whose uses of the heap are not the engine's.

use std::cell::Cell;

thread_local! {
    /// Calls of [`exempt`] that the thread is inside of.
    static EXEMPT: Cell<u32> = const { Cell::new(0) };
}

/// Returns true if the calling thread is inside of [`exempt`].
pub(crate) fn is_exempt() -> bool {
    EXEMPT.get() > 0
}

/// Runs a part of the host, or of a test's own platform, that may not fail, and whose allocations are none of
/// the engine's.
pub fn exempt<R>(f: impl FnOnce() -> R) -> R {
    let _exempt = Exempt::new();
    f()
}

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
