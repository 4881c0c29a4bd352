//! What a map holds, what a lookup returns, and the sizes that all of the map agrees on.

use core::num::NonZeroU64;

/// Slots of a node unless the map's type says otherwise: 15 make a node of exactly six cache lines.
pub const FANOUT: usize = 15;

/// The largest number of entries that one [`ExclusiveWriter::replace`](crate::ExclusiveWriter::replace) puts
/// in place of a range.
pub const MAX_REPLACEMENT: usize = 4;

/// Levels a tree can have. [`ExclusiveWriter::preallocate`](crate::ExclusiveWriter::preallocate) refuses to
/// let it grow beyond; memory runs out long before.
pub(super) const MAX_LEVELS: usize = 16;

/// A range `[start, end)` of addresses, in bytes, and the value that the map's user attached to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// First address of the range.
    pub start: u64,
    /// First address behind the range; greater than `start`.
    pub end: u64,
    /// Opaque to the map.
    pub value: NonZeroU64,
}

/// What a lookup without a lock found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// This entry was in the map at some instant during the call.
    Found(Entry),
    /// At some instant during the call there was no such entry.
    Hole,
    /// A writer was at work at this place for longer than a reader is prepared to wait: take the lock
    /// instead.
    Contended,
}

/// Returns whether the entries leave no gap in the range.
#[inline]
pub(super) fn assert_fits(start: u64, end: u64, with: &[Entry]) -> bool {
    assert!(start < end && with.len() <= MAX_REPLACEMENT);
    let (mut before, mut gaps) = (start, 0);
    for entry in with {
        assert!(before <= entry.start && entry.start < entry.end && entry.end <= end, "entries out of order");
        gaps |= entry.start - before;
        before = entry.end;
    }
    gaps | (end - before) == 0
}
