//! A cluster of a swap device: consecutive slots, the table with their words, and the count of free slots.
//!
//! The table is allocated when the cluster is first used, and freed with the device. The word `state` has two
//! parts:
//!
//! | bits | contents |
//! | --- | --- |
//! | 0 to 15 | number of free slots that no task has claimed |
//! | 31 | a CPU uses the cluster as its current one (`table.rs`) |
//!
//! | step | change of `state` | then |
//! | --- | --- | --- |
//! | allocation of slots | claims `n` free slots: - n | reserves the words of `n` free slots one by one |
//! | end of an allocation that got fewer | + rest | see below |
//! | a slot becomes free | + 1, after the word is free | see below |
//! | a CPU takes the cluster | sets the bit | |
//! | a CPU leaves the cluster | clears the bit | see below |
//!
//! A cluster is *available* if no CPU uses it and it has free slots. A step that makes the cluster available
//! returns true, and the caller then announces the cluster in the bitmap of the table. All steps change the
//! same word, so each change to available is seen by exactly one task.
//!
//! Any number of tasks may allocate at once. A word is free before it is counted, and a task claims before it
//! reserves words. So a task that has claimed `n` slots finds `n` free words, unless others were faster;
//! these have claimed other words.
//!
//! `table_tests.rs` and `slot_loom_tests.rs` test this file.
#![expect(unsafe_code, reason = "owns a table that is linked by an atomic pointer")]

use super::{slot::Slot, word::State};
use crate::error::NoMemory;
use allocator_api2::{boxed::Box, vec::Vec};
use core::slice;
use freehold_sync::{
    atomic::{
        AtomicU32, AtomicU64, CHECKED,
        Ordering::{AcqRel, Acquire, Relaxed},
    },
    publish::Published,
};

/// Number of slots of a cluster: a table has 4 KiB. Small under a schedule checker.
pub(super) const SLOTS: u32 = if CHECKED { 4 } else { 512 };

/// A bit of `state`: a CPU uses the cluster.
const OWNED: u32 = 1 << 31;

/// A cluster. It has a cache line of its own, because the CPU that uses the cluster writes `state`.
///
/// # Invariants
///
/// `table` is null or points to the words of `SLOTS` slots, which `Box` has allocated and which belong to
/// this cluster. It changes once, from null.
#[repr(align(64))]
pub(super) struct Cluster {
    /// See the module.
    state: AtomicU32,
    /// Number of slots. The other words of the table are bad from the beginning.
    slots: u32,
    /// The words of the slots, or null before the first use.
    table: Published<AtomicU64>,
}

/// Slots that were allocated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    /// The first slot, as a number in the cluster.
    pub first: u32,
    /// Number of consecutive slots; not zero.
    pub count: u32,
}

impl Cluster {
    /// Creates a cluster with this many slots, which are all free. Allocates nothing.
    pub fn new(slots: u32) -> Self {
        debug_assert!(slots <= SLOTS);
        Cluster { state: AtomicU32::new(slots), slots, table: Published::new() }
    }

    /// Returns the words of the slots. Empty before the first use.
    pub fn words(&self) -> &[AtomicU64] {
        let table = self.table.get();
        if table.is_null() {
            return &[];
        }
        // SAFETY: the type's invariant. The table lives as long as the cluster.
        unsafe { slice::from_raw_parts(table, SLOTS as usize) }
    }

    /// Allocates the table, unless the cluster has one.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory; nothing has changed.
    pub fn make_table(&self) -> Result<(), NoMemory> {
        if !self.words().is_empty() {
            return Ok(());
        }
        let mut words = Vec::new();
        words.try_reserve_exact(SLOTS as usize).map_err(|_| NoMemory)?;
        let state = |n| if n < self.slots { State::Free } else { State::Bad };
        words.extend((0..SLOTS).map(|n| AtomicU64::new(state(n).word())));
        let words = Box::into_raw(words.into_boxed_slice());
        if self.table.publish_first(words.cast()).is_err() {
            // SAFETY: from `into_raw`, and not linked.
            drop(unsafe { Box::from_raw(words) });
        }
        Ok(())
    }

    /// Marks the cluster as used by a CPU.
    pub fn take(&self) {
        // Relaxed, here and below for this bit: it publishes nothing. The words of the slots do.
        self.state.fetch_or(OWNED, Relaxed);
    }

    /// Marks the cluster as not used by a CPU. Returns true if it became available.
    #[must_use = "the caller announces an available cluster"]
    pub fn leave(&self) -> bool {
        self.state.fetch_and(!OWNED, AcqRel) & !OWNED != 0
    }

    /// Counts slots that became free. Returns true if the cluster became available.
    #[must_use = "the caller announces an available cluster"]
    pub fn add_free(&self, slots: u32) -> bool {
        // Release pairs with the acquire in `allocate`: the words are free.
        slots != 0 && self.state.fetch_add(slots, AcqRel) == 0
    }

    /// Allocates up to `wanted` consecutive slots, from `start` on if possible. The slots are reserved.
    /// Returns the slots, and true if the cluster became available. The cluster has a table.
    #[must_use = "the caller announces an available cluster"]
    pub fn allocate(&self, wanted: u32, start: u32) -> (Option<Taken>, bool) {
        let claim = |state: u32| (state & !OWNED).min(wanted);
        let change = |state| (claim(state) != 0).then(|| state - claim(state));
        // Acquire pairs with the release in `add_free`.
        let Ok(state) = self.state.fetch_update(AcqRel, Acquire, change) else { return (None, false) };
        let claimed = claim(state);
        // The claim guarantees a free word. It is missed only if other tasks free and reserve words behind
        // and in front of this task, so each further round means that another task has made progress.
        let taken = loop {
            if let Some(taken) = self.reserve_run(claimed, start) {
                break taken;
            }
        };
        (Some(taken), self.add_free(claimed - taken.count))
    }

    /// Reserves the first free words from `start` on, or from the beginning: consecutive ones, at most
    /// `most`.
    fn reserve_run(&self, most: u32, start: u32) -> Option<Taken> {
        let words = self.words();
        let len = words.len() as u32;
        let first = (start..len).chain(0..start.min(len)).find(|n| Slot(&words[*n as usize]).reserve())?;
        let more = (first + 1..len).take(most as usize - 1);
        let count = 1 + more.take_while(|n| Slot(&words[*n as usize]).reserve()).count() as u32;
        Some(Taken { first, count })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Relaxed: exclusive access.
        let table = self.table.get();
        if !table.is_null() {
            let words = core::ptr::slice_from_raw_parts_mut(table, SLOTS as usize);
            // SAFETY: the type's invariant. No other task has access.
            drop(unsafe { Box::from_raw(words) });
        }
    }
}
