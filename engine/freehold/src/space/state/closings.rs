//! The words by which closing ranges are waited for: see `space/closing.rs`.

use crate::platform::Platform;
use freehold_sync::atomic::{AtomicU32, Ordering::Relaxed};

/// See the table in `space/closing.rs`.
#[derive(Debug)]
pub(crate) struct Closings {
    pub(in crate::space) counted: AtomicU32,
    uncounted: AtomicU32,
    pub(in crate::space) generation: AtomicU32,
    pub(in crate::space) has_sleepers: AtomicU32,
}

impl Closings {
    pub fn new() -> Self {
        Closings {
            counted: AtomicU32::new(0),
            uncounted: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            has_sleepers: AtomicU32::new(0),
        }
    }

    /// How many claims that were waited for, or reservations, have ended. To be read before the wait is
    /// announced: by a refused claim, with the leaf latched.
    pub fn generation(&self) -> u32 {
        // Relaxed: the task that counts an end has seen the announcement.
        self.generation.load(Relaxed)
    }

    /// What those sleep on that wait for an end.
    pub fn generation_word(&self) -> &AtomicU32 {
        &self.generation
    }

    /// Whether an exclusive writer has said that it waits for a reservation to end. For range writers,
    /// which it keeps out while it says so.
    #[inline]
    pub fn has_waiters(&self) -> bool {
        self.has_sleepers.load(Relaxed) != 0
    }

    /// Something ended that somebody may wait for. The caller is within the gate.
    #[cold]
    pub fn notify<P: Platform>(&self) {
        self.has_sleepers.store(0, Relaxed);
        // Relaxed: what was waited for has ended by a store to its leaf, which the waiter looks at again.
        self.generation.fetch_add(1, Relaxed);
        // Nobody waits with a lock held that is needed here.
        P::wake_all(&self.generation);
    }

    /// Returns true if there may be a closing range, or a boundary. The caller has the mmap lock for writing.
    #[inline(always)]
    pub fn any(&self) -> bool {
        // Relaxed: ordered by the mmap lock, like every access to them.
        self.counted.load(Relaxed) != 0 || self.uncounted.load(Relaxed) != 0
    }

    /// A range writer puts a reservation into the tree. Others do so at the same time: they are not
    /// counted.
    pub fn begin_uncounted(&self) {
        if self.uncounted.load(Relaxed) == 0 {
            self.uncounted.store(1, Relaxed);
        }
    }

    /// A range writer has taken one out that was counted.
    pub fn uncount(&self) {
        self.counted.fetch_sub(1, Relaxed);
    }
}
