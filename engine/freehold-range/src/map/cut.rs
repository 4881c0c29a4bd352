//! Cutting a range out of several leaves: whole subtrees are unlinked at their top nodes, and the nodes at
//! the edges are edited.
//!
//! The exclusive writer (`exclusive_writer.rs`) uses this file; claim writers use only `lower_root`.
//! `insert.rs` is the opposite. All nodes that change are held in [`BusyNodes`] until the change is complete,
//! and unlinked nodes are freed after a grace period (`spare_nodes.rs`). The [module documentation](super)
//! says why a reader inside an unlinked subtree gets a correct result, and why a merged node must be marked
//! DEAD.

use freehold_sync::Host;

use super::busy_nodes::BusyNodes;
use super::exclusive_writer::{ExclusiveWriter, range_end};
use super::node::{Node, Slot};
use super::{RangeMap, spare_nodes};

impl<'a, H: Host, const SLOTS: usize> ExclusiveWriter<'a, H, SLOTS> {
    /// Removes the entries inside `[start, end)`. There is at least one such entry. `refresh_gaps` updates
    /// the gap in front of the entry that follows.
    pub(super) fn cut<'n>(&self, busy: &mut BusyNodes<'n, SLOTS>, start: u64, end: u64)
    where
        'a: 'n,
    {
        self.cut_below(busy, &self.map.root, 0, start, end);
        self.map.lower_root(busy);
    }

    /// Removes the entries inside `[start, end)` from one subtree. `lo` is the end of the entry before the
    /// subtree. Visits at most two nodes of a level.
    fn cut_below<'n>(
        &self,
        busy: &mut BusyNodes<'n, SLOTS>,
        node: &'n Node<SLOTS>,
        lo: u64,
        start: u64,
        end: u64,
    ) where
        'a: 'n,
    {
        busy.hold::<H>(node);
        let first = node.search(start);
        if node.word().is_leaf() {
            let gone = range_end(node, first, start, end) - first;
            node.splice(first, gone, &[]);
            return;
        }
        let last = node.search(end - 1).min(node.count() - 1);
        let lo = if first == 0 { lo } else { node.end(first - 1) };
        // The children between the first and the last lie in the range. So do these two, if they contain no
        // end of the range.
        let (starts_outside, ends_outside) = (lo < start, end < node.end(last));
        let (from, to) = (first + usize::from(starts_outside), last + usize::from(!ends_outside));
        if from < to {
            self.drop_children(node, from, to);
        }
        let edges = match first == last {
            true => usize::from(starts_outside || ends_outside),
            false => usize::from(starts_outside) + usize::from(ends_outside),
        };
        let lo_of = |at: usize| match at == first {
            true => lo,
            false => lo.max(self.node_at(node, first).last_end()),
        };
        for at in first..first + edges {
            self.cut_below(busy, self.node_at(node, at), lo_of(at), start, end);
        }
        for at in (first..first + edges).rev() {
            self.update_child_slot(busy, node, at, lo_of(at));
        }
        self.merge_if_sparse(busy, node, first + 1);
        self.merge_if_sparse(busy, node, first);
    }

    /// Unlinks the children `from..to` of a held node with their whole subtrees.
    fn drop_children(&self, node: &Node<SLOTS>, from: usize, to: usize) {
        let children: [*mut Node<SLOTS>; SLOTS] = core::array::from_fn(|at| node.child(at));
        node.splice(from, to - from, &[]);
        for child in &children[from..to] {
            // SAFETY: slots in use linked these children until now. The node is held. Readers that are
            // already below the node continue in subtrees that no thread changes.
            unsafe { spare_nodes::retire::<H, SLOTS>(*child) };
        }
    }

    /// Updates the slot of a child after a cut. Unlinks the child if it is empty.
    fn update_child_slot<'n>(
        &self,
        busy: &mut BusyNodes<'n, SLOTS>,
        node: &'n Node<SLOTS>,
        at: usize,
        lo: u64,
    ) where
        'a: 'n,
    {
        let child = self.node_at(node, at);
        if child.count() > 0 {
            node.set_end(at, child.last_end());
            node.set_gap(at, child.max_gap(lo));
            return;
        }
        let link = node.child(at);
        node.splice(at, 1, &[]);
        // SAFETY: the slot is cleared. The child is held, because it was cut, and no node hangs below it.
        unsafe { busy.add_dead(link) };
    }

    /// Merges a sparse child with its neighbours if the merged node is small enough.
    fn merge_if_sparse<'n>(&self, busy: &mut BusyNodes<'n, SLOTS>, node: &'n Node<SLOTS>, at: usize)
    where
        'a: 'n,
    {
        if at < node.count() && self.node_at(node, at).count() < self.fan().sparse() {
            self.merge_with_next(busy, node, at);
            if at > 0 {
                self.merge_with_next(busy, node, at - 1);
            }
        }
    }

    /// Moves the contents of the next child into the child at `at`, if there is a next child and the contents
    /// fit.
    fn merge_with_next<'n>(&self, busy: &mut BusyNodes<'n, SLOTS>, node: &'n Node<SLOTS>, at: usize)
    where
        'a: 'n,
    {
        if at + 1 >= node.count() {
            return;
        }
        let (left, right) = (self.node_at(node, at), self.node_at(node, at + 1));
        let (kept, moved) = (left.count(), right.count());
        if kept + moved > self.fan().max_merged() {
            return;
        }
        busy.hold::<H>(left);
        busy.hold::<H>(right);
        for from in 0..moved {
            left.set(kept + from, right.slot(from));
        }
        left.set_count(kept + moved);
        let (one, two) = (node.slot(at), node.slot(at + 1));
        node.splice(at, 2, &[Slot { end: two.end, link: one.link, datum: one.datum.max(two.datum) }]);
        // SAFETY: the slot is cleared. The children of the node now hang below its left neighbour.
        unsafe { busy.add_dead(two.link) };
    }
}

impl<H: Host, const SLOTS: usize> RangeMap<H, SLOTS> {
    /// Lowers the tree while the root has at most one child. The contents of a single child move into the
    /// root. A root without a child becomes an empty leaf.
    pub(super) fn lower_root<'n>(&'n self, busy: &mut BusyNodes<'n, SLOTS>) {
        let root = &self.root;
        while !root.word().is_leaf() && root.count() <= 1 {
            if root.count() == 0 {
                root.set_level(0, root);
                return;
            }
            let link = root.child(0);
            // SAFETY: the slot in use links the child. Only this change unlinks it.
            let child = unsafe { &*link };
            busy.hold::<H>(child);
            for at in 0..child.count() {
                root.set(at, child.slot(at));
            }
            root.set_count(child.count());
            root.set_level(child.level(), child);
            // SAFETY: the root's only slot linked the node and was overwritten. The children of the node now
            // hang below the root.
            unsafe { busy.add_dead(link) };
        }
    }
}
