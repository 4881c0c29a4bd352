//! One bit per group of entries that says whether the group may hold a non-empty entry. A group is one of 64
//! equal parts of a table. In a table of 512 entries, a group is eight entries, which are one cache line. The
//! bits let a zap of a nearly empty table skip most of the table.
//!
//! | bit | entries of the group |
//! | --- | --- |
//! | 0 | all empty |
//! | 1 | any; set before an entry is filled, cleared after all were seen empty |
//!
//! Every access is under the table's lock. So all accesses are relaxed, and an update is a load and a store.
//! `table.rs` and `split.rs` set bits when they fill entries, `entries.rs` reads and clears them, and
//! `reclaim.rs` uses them to find an empty table. A bit that is wrongly 0 hides an entry from zaps; a bit
//! that is wrongly 1 costs time only. `tests/tables.rs` tests the bits with partly cleared groups.

use crate::addr::ENTRIES;
use crate::memory::TableMeta;
use freehold_sync::atomic::Ordering;

/// Number of entries of one group.
pub(crate) const GROUP: usize = ENTRIES.div_ceil(64);
/// Number of groups of one table.
pub(crate) const GROUPS: usize = ENTRIES / GROUP;

/// Records that the entry at `index` is about to be filled.
#[inline]
pub(crate) fn set_filled(meta: &TableMeta, index: usize) {
    let bit = 1 << (index / GROUP);
    let filled = meta.filled.load(Ordering::Relaxed);
    if filled & bit == 0 {
        meta.filled.store(filled | bit, Ordering::Relaxed);
    }
}

/// Records that every entry may be filled.
pub(crate) fn set_all_filled(meta: &TableMeta) {
    meta.filled.store(u64::MAX >> (64 - GROUPS), Ordering::Relaxed);
}

/// Returns the groups that may hold a non-empty entry among the entries `first..end`.
#[inline]
pub(crate) fn filled(meta: &TableMeta, first: usize, end: usize) -> u64 {
    debug_assert!(first < end && end <= ENTRIES);
    let from = u64::MAX << (first / GROUP);
    let to = u64::MAX >> (63 - (end - 1) / GROUP);
    meta.filled.load(Ordering::Relaxed) & from & to
}

/// Records that all entries of these groups are empty.
#[inline]
pub(crate) fn set_empty(meta: &TableMeta, groups: u64) {
    let filled = meta.filled.load(Ordering::Relaxed);
    meta.filled.store(filled & !groups, Ordering::Relaxed);
}
