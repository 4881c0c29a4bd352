//! Ways to a leaf beside others: found at one instant, latched, or with the structure lock.
#![expect(unsafe_code, reason = "follows links of nodes that it keeps allocated, or in place")]

use core::cell::Cell;

use freehold_sync::{Host, Rank};

use super::RangeMap;
use super::busy_nodes::BusyNodes;
use super::node::{Node, Word};
use super::path::{Path, Step};

/// A way to a leaf, as it was at one instant.
pub(super) struct LeafPath<'n, const SLOTS: usize> {
    pub(super) leaf: &'n Node<SLOTS>,
    /// Of the leaf.
    pub(super) word: Word,
    /// The first slot whose end lies above the key, or one behind the last.
    pub(super) at: usize,
    /// End of the entry before the leaf's first.
    pub(super) lo: u64,
    /// The node above, its word, and the slot that links the leaf; none above the root.
    pub(super) above: Option<(&'n Node<SLOTS>, Word, usize)>,
}

impl<'n, const SLOTS: usize> LeafPath<'n, SLOTS> {
    /// Whether everything that starts below `end` and ends above the key is in this leaf.
    #[inline]
    pub(super) fn covers(&self, end: u64) -> bool {
        self.above.is_none() || self.leaf.last_end() >= end
    }
}

/// A latched leaf. Given back when this is dropped: as it was, unless [`LatchedLeaf::changed`] was called.
pub(super) struct LatchedLeaf<'n, H: Host, const SLOTS: usize> {
    pub(super) path: LeafPath<'n, SLOTS>,
    /// Whether another writer was met here, as so often lately.
    pub(super) contended: bool,
    changed: Cell<bool>,
    host: core::marker::PhantomData<fn() -> H>,
}

impl<H: Host, const SLOTS: usize> LatchedLeaf<'_, H, SLOTS> {
    /// Something is about to be stored into the leaf.
    #[inline]
    pub(super) fn changed(&self) {
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
        H::spin_exit(Rank::VmaMap);
    }
}

impl<H: Host, const SLOTS: usize> RangeMap<H, SLOTS> {
    /// The way to the first entry whose end lies above `key`; to the last leaf if there is none. The section
    /// keeps the nodes. What is read from the leaf counts if the leaf is unchanged afterwards, the slot too.
    #[inline(always)]
    pub(super) fn leaf_path<'n>(&'n self, rcu: &'n H::RcuGuard, key: u64) -> LeafPath<'n, SLOTS> {
        loop {
            if let Some(path) = self.try_leaf_path(rcu, key) {
                return path;
            }
            H::relax();
        }
    }

    #[inline(always)]
    fn try_leaf_path<'n>(&'n self, _rcu: &'n H::RcuGuard, key: u64) -> Option<LeafPath<'n, SLOTS>> {
        let mut above = None;
        let (mut lo, mut lo_from) = (0, None);
        let mut node = &self.root;
        let mut word = node.begin()?;
        while !word.is_leaf() {
            let at = node.search(key).min(word.count() - 1);
            if at > 0 {
                lo = node.end(at - 1);
                lo_from = Some((node, word));
            }
            let child = node.child(at);
            if !node.unchanged(word) {
                return None;
            }
            // SAFETY: the node was unchanged after the slot was read, so this was its child; the section
            // keeps it allocated even when it was unlinked since (pairing B: its contents are visible).
            let child = unsafe { &*child };
            let below = child.begin()?;
            if !node.unchanged(word) {
                return None;
            }
            above = Some((node, word, at));
            (node, word) = (child, below);
        }
        let at = node.search(key).min(word.count());
        // Node by node the way led here, as for a reader. Where the entry before the leaf ends was said by a
        // node that need not be the one above. Whether the leaf has changed since is the caller's to ask.
        let stood = lo_from.is_none_or(|(node, word)| node.unchanged(word));
        stood.then_some(LeafPath { leaf: node, word, at, lo, above })
    }

    /// The same with the leaf latched.
    #[inline(always)]
    pub(super) fn latch<'n>(&'n self, rcu: &'n H::RcuGuard, key: u64) -> LatchedLeaf<'n, H, SLOTS> {
        let mut conflicted = false;
        loop {
            let Some(path) = self.try_leaf_path(rcu, key) else {
                conflicted = true;
                H::relax();
                continue;
            };
            // First: a task with the latch must not be preempted by one that spins for it.
            H::spin_enter(Rank::VmaMap);
            if path.leaf.try_latch(path.word) {
                let contended = conflicted && path.leaf.count_conflict(self.fan);
                let host = core::marker::PhantomData;
                return LatchedLeaf { path, contended, changed: Cell::new(conflicted), host };
            }
            H::spin_exit(Rank::VmaMap);
            conflicted = true;
        }
    }

    /// The path to the first entry whose end lies above `key`, its leaf latched; to the end of the last leaf
    /// if there is none. For the holder of the structure lock.
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
            // SAFETY: a slot in use links a node, which nobody unlinks without the structure lock.
            node = unsafe { &*node.child(at) };
            level -= 1;
        }
        busy.latch::<H>(node);
        path.set(0, Step { node, at: node.search(key).min(node.count()), lo });
        path
    }

    /// Brings the ends that the nodes above the level keep into line.
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
                busy.latch::<H>(above.node);
                above.node.set_end(above.at, end);
            }
        }
    }

    /// The nodes on the path keep of the leaf's entries exactly what gaps there are, and no less of others.
    pub(super) fn update_gaps(&self, path: &Path<'_, SLOTS>) {
        for level in 0..path.top {
            let (below, above) = (path.step(level), path.step(level + 1));
            above.node.set_gap(above.at, below.node.max_gap(below.lo));
        }
    }
}
