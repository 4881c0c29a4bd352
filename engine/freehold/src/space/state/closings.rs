//! The words on which tasks wait for closing ranges and for claims, and the operations on them that take no
//! guard. `space/closing.rs` explains each word and has the operations of the exclusive writer.
//!
//! All accesses are Relaxed. For exclusive writers the mmap lock orders the accesses. For range writers the
//! latch of the leaf of the reservation or claim orders them; each function names the access that it depends
//! on. A missing wake-up shows as a deadlock in `ranges::every_pair_of_concurrent_changes`
//! (`shuttle_engine`).

use crate::platform::Platform;
use freehold_sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The words on which tasks wait; `space/closing.rs` has a table of them.
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

    /// Returns the number of reservations that have ended, plus the number of claims that had waiters when
    /// they ended. A task must read this number before it announces its wait. The refused claim announces the
    /// wait: it sets `HAS_WAITERS` while it holds the leaf's latch.
    pub fn generation(&self) -> u32 {
        // Relaxed: only a task that has seen the announcement increments the number for this waiter.
        self.generation.load(Relaxed)
    }

    /// Returns the word on which tasks sleep until a reservation or claim ends.
    pub fn generation_word(&self) -> &AtomicU32 {
        &self.generation
    }

    /// Returns true if an exclusive writer has announced that it waits for a reservation to end. Called by
    /// range writers, which cannot run while the exclusive writer makes the announcement.
    #[inline]
    pub fn has_waiters(&self) -> bool {
        self.has_sleepers.load(Relaxed) != 0
    }

    /// Wakes the tasks that wait for a reservation or claim that has just ended. The caller is inside the
    /// gate.
    #[cold]
    pub fn notify<P: Platform>(&self) {
        self.has_sleepers.store(0, Relaxed);
        // Relaxed: the reservation or claim was ended by a store to its leaf, and the waiter reads the leaf
        // again.
        self.generation.fetch_add(1, Relaxed);
        // No task waits here while it holds a lock that the caller needs.
        P::wake_all(&self.generation);
    }

    /// Returns true if there may be a closing range, or a boundary. The caller holds the mmap lock for
    /// writing.
    #[cfg_attr(feature = "inline", inline(always))]
    pub fn any(&self) -> bool {
        // Relaxed: the mmap lock orders all accesses to these words.
        self.counted.load(Relaxed) != 0 || self.uncounted.load(Relaxed) != 0
    }

    /// Records that a range writer inserts a reservation into the tree. Such reservations are not counted,
    /// because several range writers insert them concurrently.
    pub fn begin_uncounted(&self) {
        if self.uncounted.load(Relaxed) == 0 {
            self.uncounted.store(1, Relaxed);
        }
    }

    /// Counts the end of a counted reservation that a range writer has removed.
    pub fn uncount(&self) {
        self.counted.fetch_sub(1, Relaxed);
    }
}
