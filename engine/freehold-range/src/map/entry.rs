//! The entries of a map, the results of lookups, and the sizes that the whole map shares.
//!
//! Users of the map see [`Entry`], [`Lookup`], [`FANOUT`] and [`MAX_REPLACEMENT`]. [`assert_fits`] checks the
//! entries that a change stores, and panics before anything is changed (`tests/refused.rs`).

use core::num::NonZeroU64;

/// Default number of slots of a node. A node with 15 slots has exactly six cache lines.
pub const FANOUT: usize = 15;

/// Maximum number of entries that one [`ExclusiveWriter::replace`](crate::ExclusiveWriter::replace) puts in
/// place of a range.
pub const MAX_REPLACEMENT: usize = 4;

/// Maximum number of levels of a tree. [`ExclusiveWriter::preallocate`](crate::ExclusiveWriter::preallocate)
/// fails if the tree would grow beyond this limit. A system runs out of memory long before that.
pub(super) const MAX_LEVELS: usize = 16;

/// A range `[start, end)` of addresses, in bytes, and the value that the user of the map attached to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// First address of the range.
    pub start: u64,
    /// First address behind the range. Greater than `start`.
    pub end: u64,
    /// The value of the entry. Opaque to the map.
    pub value: NonZeroU64,
}

/// The result of a lookup without a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// This entry was in the map at some instant during the call.
    Found(Entry),
    /// At some instant during the call, the map contained no entry that matches the lookup.
    Hole,
    /// A writer changed the map at this place for longer than a reader retries. The caller must take the
    /// lock.
    Contended,
}

/// Asserts that the entries are ascending and inside the range.
#[inline]
pub(super) fn assert_fits(start: u64, end: u64, with: &[Entry]) {
    assert!(start < end && with.len() <= MAX_REPLACEMENT);
    let mut before = start;
    for entry in with {
        assert!(before <= entry.start && entry.start < entry.end && entry.end <= end, "entries out of order");
        before = entry.end;
    }
}

/// Returns true if the entries, which are ascending and inside the range, leave no gap in it.
#[inline]
pub(super) fn leave_no_gap(start: u64, end: u64, with: &[Entry]) -> bool {
    with.iter().map(|entry| entry.end - entry.start).sum::<u64>() == end - start
}
