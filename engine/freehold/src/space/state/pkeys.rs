//! The record of the protection keys in use. The operations on keys are in `space/pkeys.rs`.

use freehold_sync::atomic::AtomicU32;

/// The protection keys that one address space uses.
///
/// Written under the space's mmap lock held for writing, and read under that lock. All accesses are Relaxed,
/// because the lock orders them.
pub(crate) struct Pkeys {
    /// One bit for each allocated key, including the execute-only key.
    pub(in crate::space) allocated: AtomicU32,
    /// The key of memory that may only be executed; 0 if there is none yet.
    pub(in crate::space) execute_only: AtomicU32,
}

impl Pkeys {
    pub fn new() -> Self {
        Pkeys { allocated: AtomicU32::new(1), execute_only: AtomicU32::new(0) }
    }
}
