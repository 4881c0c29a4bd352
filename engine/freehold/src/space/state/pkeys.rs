//! The record of the protection keys in use. `space/pkeys.rs` explains protection keys and has the operations
//! on this record.

use freehold_sync::atomic::AtomicU32;

/// The protection keys that one address space uses.
///
/// pkey_alloc, pkey_free and fork write this record under the space's mmap lock held for writing. The first
/// request for `EXEC` without other rights also writes it, with the right of its writer, which may be a range
/// writer. All accesses are Relaxed, because no other data depends on these words.
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
