//! The flag of a frame whose memory failed.
//!
//! A task that maps a page may meet a failure of its frame. If no lock excludes this, each of the two tasks
//! writes first, executes a fence, and then looks at what the other one has written: the failure at the
//! entries, the other task at the flag. `loom_tests.rs` tests the fences, and the mutations `frame-failure-*`
//! remove them.

use super::{FAILED, Frame};
use freehold_sync::atomic::{
    Ordering::{Relaxed, SeqCst},
    fence,
};

/// Functions for the crate `freehold`.
#[doc(hidden)]
impl Frame {
    /// Records that the memory failed. No entry maps the frame. The caller has a reference, or has just taken
    /// the frame off the free list.
    #[inline]
    pub fn set_failed(&self) {
        // Relaxed, here and below: the order of the accesses to `refs` makes the bit visible to the task that
        // drops the last reference. Other tasks hold the frame's lock or need only a hint.
        self.word.fetch_or(FAILED, Relaxed);
    }

    /// Orders an earlier [`set_failed`](Self::set_failed) before a look at the entries that map the frame.
    /// A task that maps the frame concurrently calls [`has_failed_after_map`](Self::has_failed_after_map), so
    /// either the caller finds its entry, or that task finds the failure.
    pub fn fence_failure(&self) {
        // Pairs with the fence in `has_failed_after_map`.
        fence(SeqCst);
    }

    /// Returns true if the memory failed. The caller has just made an entry that maps the frame.
    pub fn has_failed_after_map(&self) -> bool {
        // Pairs with the fence in `fence_failure`.
        fence(SeqCst);
        self.has_failed()
    }

    /// Returns true if the memory failed.
    #[inline]
    pub fn has_failed(&self) -> bool {
        self.word.load(Relaxed) & FAILED != 0
    }
}
