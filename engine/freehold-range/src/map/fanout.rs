//! The fan-out: how many slots of a node are used, and what follows from it.

/// How many entries share a node of a map, and so the latch that claim writers take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum NodeWidth {
    /// All slots of a node: the fastest map.
    #[default]
    Wide,
    /// Four. Neighbours are then mostly entries of different leaves, and a few changes split and merge nodes:
    /// for tests of what uses the map.
    Narrow,
}

/// The smallest fan-out: of a node that is split each half has two slots.
pub(super) const MIN_FANOUT: usize = 4;

/// The numbers of slots at which nodes of a map are split and merged. They fit into one word.
#[derive(Clone, Copy)]
pub(super) struct Fanout {
    max_slots: u8,
    sparse: u8,
    max_merged: u8,
}

impl Fanout {
    /// Nodes with at most `max_slots` slots in use.
    pub(super) const fn new(max_slots: usize) -> Self {
        assert!(MIN_FANOUT <= max_slots && max_slots <= 63);
        let sparse = if max_slots / 3 > 2 { max_slots / 3 } else { 2 };
        let max_merged = max_slots - if max_slots / 4 > 1 { max_slots / 4 } else { 1 };
        Fanout { max_slots: max_slots as u8, sparse: sparse as u8, max_merged: max_merged as u8 }
    }

    /// Slots of a node in use at most.
    #[inline]
    pub(super) fn max_slots(self) -> usize {
        usize::from(self.max_slots)
    }

    /// A sparse node (fewer slots in use than this) is merged with a neighbour if that leaves room.
    #[inline]
    pub(super) fn sparse(self) -> usize {
        usize::from(self.sparse)
    }

    /// Slots in use after a merge at most; the rest keeps the next few insertions from splitting again.
    #[inline]
    pub(super) fn max_merged(self) -> usize {
        usize::from(self.max_merged)
    }

    /// Returns true if the map is of a checker or a test, which tries rare paths often.
    const fn is_narrow(self) -> bool {
        self.max_slots < 8
    }

    /// Attempts of a lookup before it returns [`Lookup::Contended`](super::Lookup::Contended).
    pub(super) fn lookup_attempts(self) -> usize {
        if self.is_narrow() { 2 } else { 32 }
    }

    /// The number of meetings in a leaf, of a hundred changes about, at which the leaf is contended.
    pub(super) fn conflict_limit(self) -> u64 {
        if self.is_narrow() { 1 } else { 8 }
    }

    /// A contended leaf with fewer entries is not split.
    pub(super) fn min_divided(self) -> usize {
        if self.is_narrow() { 2 } else { 4 }
    }
}
