//! How often range writers met: see `space/write_mode.rs`.

use freehold_sync::atomic::{AtomicU32, Ordering::Relaxed};

/// How many conflicts a CPU takes off the count at a time.
const DECAY: u32 = 2;

/// What is known of conflicts between changes.
pub(crate) struct WriteContention {
    /// Conflicts between changes, after decay. Written where changes meet, and a while after.
    pub(in crate::space) conflicts: AtomicU32,
    /// How many changes that wait are still to take turns as the exclusive writer.
    pub(in crate::space) exclusive_left: AtomicU32,
}

impl WriteContention {
    pub fn new() -> Self {
        WriteContention { conflicts: AtomicU32::new(0), exclusive_left: AtomicU32::new(0) }
    }

    /// Takes some of the conflicts off the count.
    #[inline]
    pub(in crate::space) fn decay(&self) {
        // Nearly always there are none.
        let conflicts = self.conflicts.load(Relaxed);
        if conflicts > 0 {
            self.conflicts.store(conflicts.saturating_sub(DECAY), Relaxed);
        }
    }
}
