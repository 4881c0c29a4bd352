//! Paths to a leaf while other writers exist.
//!
//! A [`LeafPath`] was correct at one instant; its values count only if the leaf is unchanged afterwards. A
//! [`LatchedLeaf`] stays correct, because the leaf is latched. A path from [`RangeMap::latched_path_to`]
//! stays correct, because the caller holds the structure lock. [`claim_writer`](super::claim_writer) explains
//! both latches and why the facts of one instant hold until the latch is released.
//!
//! Claim writers start here: a change of one leaf calls `latch`; any other change takes the structure lock
//! and calls `latched_path_to`. The end of the entry before the leaf (`lo`) may come from any node above.
//! That node must be checked again; `tests/loom_claims.rs` fails without that check.
#![expect(unsafe_code, reason = "follows links of nodes that an RCU section or the structure lock protects")]

use core::cell::Cell;

use freehold_sync::{Host, Rank, rank};

use super::RangeMap;
use super::busy_nodes::BusyNodes;
use super::node::{Node, Word};
use super::path::{Path, Step};

/// A path to a leaf, as it was at one instant.
pub(super) struct LeafPath<'n, const SLOTS: usize> {
    pub(super) leaf: &'n Node<SLOTS>,
    /// The control word of the leaf.
    pub(super) word: Word,
    /// The first slot whose end lies above the key, or the slot behind the last slot in use.
    pub(super) at: usize,
    /// End of the entry before the leaf's first entry.
    pub(super) lo: u64,
    /// The node above, its word, and the slot that links the leaf. `None` if the leaf is the root.
    pub(super) above: Option<(&'n Node<SLOTS>, Word, usize)>,
}

impl<'n, const SLOTS: usize> LeafPath<'n, SLOTS> {
    /// Returns true if every entry that starts below `end` and ends above the key is in this leaf.
    #[inline]
    pub(super) fn covers(&self, end: u64) -> bool {
        self.above.is_none() || self.leaf.last_end() >= end
    }
}

/// A latched leaf: no other writer changes it, and readers continue to read it. The owner calls
/// [`hold`](LatchedLeaf::hold) before it changes the leaf. Dropping the value releases the latch, at the same
/// version if the leaf was not held.
pub(super) struct LatchedLeaf<'n, H: Host, const SLOTS: usize> {
    pub(super) path: LeafPath<'n, SLOTS>,
    /// Set if this attempt conflicted with another writer here, and such conflicts have been frequent
    /// recently.
    pub(super) contended: bool,
    changed: Cell<bool>,
    host: core::marker::PhantomData<fn() -> H>,
}

impl<H: Host, const SLOTS: usize> LatchedLeaf<'_, H, SLOTS> {
    /// Keeps readers out until the latch is released, because the leaf is about to be changed.
    #[inline]
    pub(super) fn hold(&self) {
        self.path.leaf.hold();
        self.changed.set(true);
    }
}

impl<H: Host, const SLOTS: usize> Drop for LatchedLeaf<'_, H, SLOTS> {
    #[inline]
    fn drop(&mut self) {
        match self.changed.get() {
            true => self.path.leaf.release(),
            false => self.path.leaf.release_unchanged(self.path.word),
        }
        rank::released::<H>(Rank::VmaMap);
        H::spin_exit(Rank::VmaMap);
    }
}

impl<H: Host, const SLOTS: usize> RangeMap<H, SLOTS> {
    /// Returns the path to the first entry whose end lies above `key`, or to the last leaf if there is none.
    /// The RCU section keeps the nodes allocated. Values read from the leaf, including the slot, are valid
    /// only if the leaf is unchanged afterwards.
    #[inline(always)]
    pub(super) fn leaf_path<'n>(&'n self, rcu: &'n H::RcuGuard, key: u64) -> LeafPath<'n, SLOTS> {
        loop {
            if let Some(path) = self.try_leaf_path(rcu, key) {
                return path;
            }
            H::relax();
        }
    }

    /// Makes one descent. Returns `None` if a node was busy or changed during the visit.
    #[inline(always)]
    fn try_leaf_path<'n>(&'n self, _rcu: &'n H::RcuGuard, key: u64) -> Option<LeafPath<'n, SLOTS>> {
        let mut above = None;
        let (mut lo, mut lo_from) = (0, None);
        let mut node = &self.root;
        let mut word = node.begin()?;
        let mut at = node.search(key).min(word.count());
        // If no slot of the root ends above the key, the path takes the last slot of each inner node.
        let last = at == word.count();
        while !word.is_leaf() {
            at -= usize::from(last);
            if at > 0 {
                lo = node.end(at - 1);
                lo_from = Some((node, word));
            }
            let child = node.child(at);
            if !node.unchanged(word) {
                return None;
            }
            // SAFETY: the node was unchanged after the slot was read, so the pointer led to a child of the
            // node. The RCU section keeps the child allocated even if it was unlinked since. The child's
            // contents are visible (pairing B).
            let child = unsafe { &*child };
            let below = child.begin()?;
            if !node.unchanged(word) {
                return None;
            }
            above = Some((node, word, at));
            (node, word) = (child, below);
            at = if last { word.count() } else { node.search_below(key) };
        }
        // The loop has checked the path node by node, as a reader does. The node that supplied `lo` need not
        // be the parent, so this node is checked once more. The caller checks that the leaf is unchanged.
        let stood = lo_from.is_none_or(|(node, word)| node.unchanged(word));
        stood.then_some(LeafPath { leaf: node, word, at, lo, above })
    }

    /// Returns the path to the first entry whose end lies above `key`, with its leaf latched.
    #[inline(always)]
    pub(super) fn latch<'n>(&'n self, rcu: &'n H::RcuGuard, key: u64) -> LatchedLeaf<'n, H, SLOTS> {
        rank::will_wait::<H>(Rank::VmaMap);
        let mut conflicted = false;
        loop {
            let path = self.try_leaf_path(rcu, key);
            let Some(path) = path.filter(|path| !path.word.is_latched()) else {
                conflicted = true;
                H::relax();
                continue;
            };
            // Enter the spin section before taking the latch: a thread that holds the latch must not be
            // preempted by a thread that spins for it.
            H::spin_enter(Rank::VmaMap);
            if path.leaf.try_latch(path.word) {
                rank::acquired::<H>(Rank::VmaMap);
                let contended = conflicted && path.leaf.count_conflict(self.fan);
                let host = core::marker::PhantomData;
                return LatchedLeaf { path, contended, changed: Cell::new(conflicted), host };
            }
            H::spin_exit(Rank::VmaMap);
            conflicted = true;
        }
    }

    /// Returns the path to the first entry whose end lies above `key`, with its leaf latched. If there is
    /// none, returns the path to the end of the last leaf. The caller holds the structure lock.
    pub(super) fn latched_path_to<'n>(
        &'n self,
        busy: &mut BusyNodes<'n, SLOTS>,
        key: u64,
    ) -> Path<'n, SLOTS> {
        let mut node = &self.root;
        let mut level = node.level();
        let mut path = Path::new(level);
        let mut lo = 0;
        while level > 0 {
            let at = node.search(key).min(node.count() - 1);
            path.set(level, Step { node, at, lo });
            if at > 0 {
                lo = node.end(at - 1);
            }
            // SAFETY: a slot in use links a node. No thread unlinks a node without the structure lock.
            node = unsafe { &*node.child(at) };
            level -= 1;
        }
        busy.hold::<H>(node);
        path.set(0, Step { node, at: node.search(key).min(node.count()), lo });
        path
    }

    /// Updates the ends that the nodes above `level` keep for the path.
    pub(super) fn update_ends<'n>(
        &'n self,
        busy: &mut BusyNodes<'n, SLOTS>,
        path: &Path<'n, SLOTS>,
        level: usize,
    ) {
        for level in level..path.top {
            let (below, above) = (path.step(level), path.step(level + 1));
            let end = below.node.last_end();
            if above.node.end(above.at) != end {
                busy.hold::<H>(above.node);
                above.node.set_end(above.at, end);
            }
        }
    }

    /// Recomputes the gap words on the path. The new words are exact for the leaf, and upper bounds for all
    /// other children.
    pub(super) fn update_gaps(&self, path: &Path<'_, SLOTS>) {
        for level in 0..path.top {
            let (below, above) = (path.step(level), path.step(level + 1));
            above.node.set_gap(above.at, below.node.max_gap(below.lo));
        }
    }
}
