//! The fan-out: the number of slots that a node uses, and the limits derived from this number.
//!
//! A map gets its `Fanout` when it is created, and never changes it. The limits decide when a node is split
//! or merged, when a leaf counts as contended, and how often a lookup retries. Tests use
//! [`NodeWidth::Narrow`] or a small `SLOTS`, so that few entries reach every path. `max_merged` is below
//! `max_slots`, and `sparse` is below `max_merged`: otherwise the same entries would be merged and split
//! again and again.

/// The number of entries that share a node of a map. Entries of one leaf share the latch that claim writers
/// take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum NodeWidth {
    /// Uses all slots of a node: the fastest map.
    #[default]
    Wide,
    /// Uses four slots. Neighbouring entries are then mostly in different leaves, and a few changes split and
    /// merge nodes. Meant for tests of code that uses the map.
    Narrow,
}

/// The smallest fan-out. After a split, each half has at least two slots.
pub(super) const MIN_FANOUT: usize = 4;

/// The numbers of slots at which nodes of a map are split and merged. The three numbers fit into one word.
#[derive(Clone, Copy)]
pub(super) struct Fanout {
    max_slots: u8,
    sparse: u8,
    max_merged: u8,
}

impl Fanout {
    /// Returns the limits for nodes with at most `max_slots` slots in use.
    pub(super) const fn new(max_slots: usize) -> Self {
        assert!(MIN_FANOUT <= max_slots && max_slots <= 63);
        let sparse = if max_slots / 3 > 2 { max_slots / 3 } else { 2 };
        let max_merged = max_slots - if max_slots / 4 > 1 { max_slots / 4 } else { 1 };
        Fanout { max_slots: max_slots as u8, sparse: sparse as u8, max_merged: max_merged as u8 }
    }

    /// Returns the maximum number of slots in use.
    #[inline]
    pub(super) fn max_slots(self) -> usize {
        usize::from(self.max_slots)
    }

    /// Returns the number of slots in use below which a node is sparse. A sparse node is merged with a
    /// neighbour if the merged node is small enough.
    #[inline]
    pub(super) fn sparse(self) -> usize {
        usize::from(self.sparse)
    }

    /// Returns the maximum number of slots in use after a merge. The remaining slots keep the next few
    /// insertions from splitting the node again.
    #[inline]
    pub(super) fn max_merged(self) -> usize {
        usize::from(self.max_merged)
    }

    /// Returns true if the fan-out is that of a model checker or a test, in which rare paths must occur
    /// often.
    const fn is_narrow(self) -> bool {
        self.max_slots < 8
    }

    /// Returns the number of attempts of a lookup before it returns
    /// [`Lookup::Contended`](super::Lookup::Contended).
    pub(super) fn lookup_attempts(self) -> usize {
        if self.is_narrow() { 2 } else { 32 }
    }

    /// Returns the number of conflicts, in about a hundred changes, at which a leaf counts as contended.
    pub(super) fn conflict_limit(self) -> u64 {
        if self.is_narrow() { 1 } else { 8 }
    }

    /// Returns the smallest number of entries at which a contended leaf is split.
    pub(super) fn min_divided(self) -> usize {
        if self.is_narrow() { 2 } else { 4 }
    }
}
