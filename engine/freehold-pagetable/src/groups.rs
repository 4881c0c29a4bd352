//! Which parts of a leaf table hold anything: one bit for every 64th part of its entries (eight, a cache
//! line, in a table of 512), so that clearing a nearly empty table does not read all of it.
//!
//! | bit | entries of the group |
//! | --- | --- |
//! | 0 | all empty |
//! | 1 | anything; set before an entry is filled, cleared when all were seen empty |
//!
//! Every access is under the table's lock, so all of them are relaxed and an update is a load and a store.

use crate::addr::ENTRIES;
use crate::memory::TableMeta;
use freehold_sync::atomic::Ordering;

/// Entries of one group.
pub(crate) const GROUP: usize = ENTRIES.div_ceil(64);
/// Groups of one table.
pub(crate) const GROUPS: usize = ENTRIES / GROUP;

/// Records that `index` is about to be filled.
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

/// The groups that may hold something among the entries `first..end`.
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
