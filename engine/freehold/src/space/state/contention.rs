//! The counts by which an address space chooses between range writers and exclusive writers.
//! `space/write_mode.rs` explains the choice and is the only user.
//!
//! The counts are hints without a lock, and all accesses are Relaxed. A lost update only changes the moment
//! at which the kind of writer changes. No result of a system call may depend on them.

use freehold_sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Number of conflicts that [`decay`](WriteContention::decay) subtracts from the count.
const DECAY: u32 = 2;

/// The state of the choice between range writers and exclusive writers.
pub(crate) struct WriteContention {
    /// Conflicts between changes, after decay. Written when changes conflict, and for a while afterwards.
    pub(in crate::space) conflicts: AtomicU32,
    /// Approximate number of changes that must still wait and become exclusive writers before range writers
    /// are tried again; 0 if range writers may be tried now.
    pub(in crate::space) exclusive_left: AtomicU32,
}

impl WriteContention {
    pub fn new() -> Self {
        WriteContention { conflicts: AtomicU32::new(0), exclusive_left: AtomicU32::new(0) }
    }

    /// Subtracts `DECAY` conflicts from the count.
    #[inline]
    pub(in crate::space) fn decay(&self) {
        // There are usually no conflicts, so this usually writes nothing.
        let conflicts = self.conflicts.load(Relaxed);
        if conflicts > 0 {
            self.conflicts.store(conflicts.saturating_sub(DECAY), Relaxed);
        }
    }
}
