//! The number of recent conflicts between range writers; see `space/write_mode.rs`.

use freehold_sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Number of conflicts that a CPU subtracts from the count at a time.
const DECAY: u32 = 2;

/// The state of the choice between range writers and exclusive writers.
pub(crate) struct WriteContention {
    /// Conflicts between changes, after decay. Written when changes conflict, and for a while afterwards.
    pub(in crate::space) conflicts: AtomicU32,
    /// Number of waiting changes that are still to become the exclusive writer.
    pub(in crate::space) exclusive_left: AtomicU32,
}

impl WriteContention {
    pub fn new() -> Self {
        WriteContention { conflicts: AtomicU32::new(0), exclusive_left: AtomicU32::new(0) }
    }

    /// Subtracts some conflicts from the count.
    #[inline]
    pub(in crate::space) fn decay(&self) {
        // There are usually none.
        let conflicts = self.conflicts.load(Relaxed);
        if conflicts > 0 {
            self.conflicts.store(conflicts.saturating_sub(DECAY), Relaxed);
        }
    }
}
