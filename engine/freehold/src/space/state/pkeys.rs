//! The protection keys in use.

use freehold_sync::atomic::AtomicU32;

/// The keys in use by one address space.
///
/// All is written under its mmap lock held for writing, and read under that; relaxed, since the lock orders
/// it.
pub(crate) struct Pkeys {
    /// A bit for each key that is allocated, that for executing included.
    pub(in crate::space) allocated: AtomicU32,
    /// The key of memory that may only be executed; 0: none yet.
    pub(in crate::space) execute_only: AtomicU32,
}

impl Pkeys {
    pub fn new() -> Self {
        Pkeys { allocated: AtomicU32::new(1), execute_only: AtomicU32::new(0) }
    }
}
