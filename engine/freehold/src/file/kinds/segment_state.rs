//! The state of a System V segment, in one word: the number of attachments and two marks.
//!
//! | state | meaning | becomes |
//! | --- | --- | --- |
//! | n attached | in use, or not yet attached | another n, when VMAs or attempts begin or end; marked, by `mark`; destroyed, by `mark` if n is 0 |
//! | n attached, marked | still in use; may still be attached by identifier | another n; destroyed, by the task that decrements n to 0; ending, by a mapping that replaces all n VMAs |
//! | n attached, marked, ending | one call is removing all n VMAs; the segment cannot be attached any more | n - 1; destroyed, by the task that decrements n to 0 |
//! | 0 attached, marked (ending or not) | destroyed; the segment cannot be attached any more | |
//!
//! The task that destroys the segment sees all uses of its memory. `segment_state_loom_tests.rs` tests this,
//! and the mutations `segment-state-*` weaken the orders.

use freehold_sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Relaxed},
};

/// The segment is marked as removed.
const MARKED: u64 = 1;
/// One call is removing all VMAs that map the segment; other callers see the removal as one step.
const ENDING: u64 = 2;
/// One attachment. The count is stored above the marks.
const ATTACH: u64 = 4;

/// The state of a segment; see the table above.
pub(super) struct SegmentState(AtomicU64);

impl SegmentState {
    /// Returns the state without attachments and marks.
    pub fn new() -> Self {
        SegmentState(AtomicU64::new(0))
    }

    /// Returns the number of attachments.
    pub fn attached(&self) -> u64 {
        // Relaxed, here and below: a snapshot of a single word, which may be out of date at once.
        self.0.load(Relaxed) / ATTACH
    }

    /// Returns true if the segment is marked as removed.
    pub fn is_marked(&self) -> bool {
        self.0.load(Relaxed) & MARKED != 0
    }

    /// Returns true if the segment is destroyed.
    pub fn is_destroyed(&self) -> bool {
        self.0.load(Relaxed) & !ENDING == MARKED
    }

    /// Marks the segment as removed. Returns true if the caller has destroyed it.
    pub fn mark(&self) -> bool {
        // AcqRel pairs with itself here and in `detach`, so that all accesses of the segment's users happen
        // before its memory is freed.
        self.0.fetch_or(MARKED, AcqRel) == 0
    }

    /// Marks the segment as ending if it is marked and has exactly `vmas` attachments, at least one. Returns
    /// true if it marked the segment.
    pub fn ends_with(&self, vmas: u64) -> bool {
        let all = (vmas * ATTACH) | MARKED;
        // Relaxed: the decrement of the count to 0 orders the end of the segment after all uses.
        vmas != 0 && self.0.compare_exchange(all, all | ENDING, Relaxed, Relaxed).is_ok()
    }

    /// Counts an attachment. Returns false if the segment is destroyed or ending.
    pub fn try_attach(&self) -> bool {
        let mut state = self.0.load(Relaxed);
        while state != MARKED && state & ENDING == 0 {
            // Relaxed: an increment orders nothing.
            match self.0.compare_exchange_weak(state, state + ATTACH, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        false
    }

    /// Counts an attachment. Another one exists during this call.
    pub fn attach(&self) {
        self.0.fetch_add(ATTACH, Relaxed);
    }

    /// Uncounts an attachment. Returns true if the caller has destroyed the segment.
    pub fn detach(&self) -> bool {
        // AcqRel: as in `mark`.
        self.0.fetch_sub(ATTACH, AcqRel) & !ENDING == ATTACH | MARKED
    }
}

#[cfg(all(test, loom))]
#[path = "segment_state_loom_tests.rs"]
mod loom_tests;
