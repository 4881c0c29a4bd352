//! The fan-out: how many slots of a node are used, and what follows from it.

/// How many entries share a node of a map, and so the latch that claim writers take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Nodes {
    /// All slots of a node: the fastest map.
    #[default]
    Wide,
    /// Four. Neighbours are then mostly entries of different leaves, and a few changes split and merge nodes:
    /// for tests of what uses the map.
    Narrow,
}

/// The smallest fan-out: of a node that is split each half has two slots.
pub(super) const LEAST: usize = 4;

/// The numbers of slots at which nodes of a map are split and merged. They fit into one word.
#[derive(Clone, Copy)]
pub(super) struct Fan {
    most: u8,
    sparse: u8,
    merged: u8,
}

impl Fan {
    /// Nodes with at most `most` slots in use.
    pub(super) const fn of(most: usize) -> Self {
        assert!(LEAST <= most && most <= 63);
        let sparse = if most / 3 > 2 { most / 3 } else { 2 };
        let merged = most - if most / 4 > 1 { most / 4 } else { 1 };
        Fan { most: most as u8, sparse: sparse as u8, merged: merged as u8 }
    }

    /// Slots of a node in use at most.
    #[inline(always)]
    pub(super) fn most(self) -> usize {
        usize::from(self.most)
    }

    /// A sparse node (fewer slots in use than this) is merged with a neighbour if that leaves room.
    #[inline(always)]
    pub(super) fn sparse(self) -> usize {
        usize::from(self.sparse)
    }

    /// Slots in use after a merge at most; the rest keeps the next few insertions from splitting again.
    #[inline(always)]
    pub(super) fn merged(self) -> usize {
        usize::from(self.merged)
    }

    /// Returns true if the map is of a checker or a test, which tries rare paths often.
    const fn is_narrow(self) -> bool {
        self.most < 8
    }

    /// Attempts of a lookup before it returns [`Lookup::Contended`](super::Lookup::Contended).
    pub(super) fn attempts(self) -> usize {
        if self.is_narrow() { 2 } else { 32 }
    }

    /// The number of meetings in a leaf, of a hundred changes about, at which the leaf is crowded.
    pub(super) fn many(self) -> u64 {
        if self.is_narrow() { 1 } else { 8 }
    }

    /// A crowded leaf with fewer entries is not split.
    pub(super) fn divisible(self) -> usize {
        if self.is_narrow() { 2 } else { 4 }
    }
}
