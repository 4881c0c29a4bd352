//! The balance of the interval tree: weak AVL.
//!
//! Every link has a rank. A missing child has rank -1, a leaf has rank 0, and a child's rank lies one or two
//! below its parent's. So a link of rank `r` has at least `2^(r/2)` links at and below it, and the tree is
//! never deeper than twice the logarithm of its size, whatever is inserted and removed, where and in which
//! order. Without removals it is an AVL tree.
//!
//! Of a rank only the parity is kept, in the parent's address: with the rules kept everywhere else, it tells
//! a child one below its parent (parities differ) from one two below (equal), and after an insertion or a
//! removal the one at the place of the change that is none below, or three.
//!
//! An insertion rotates twice at most, a removal too; on average both change a constant number of ranks.
//!
//! # Sources
//!
//! Haeupler, Sen, Tarjan, "Rank-Balanced Trees" (2009, 2015).

use super::link::{Ptr, get};
use super::{IntervalAdapter, IntervalTree};

/// Whether the rank of a child, or of a missing one, is odd.
#[inline]
fn is_rank_odd(child: Option<Ptr>) -> bool {
    child.is_none_or(|child| get(child).is_rank_odd())
}

impl<A: IntervalAdapter> IntervalTree<A> {
    /// `at` was inserted as a leaf: until its rank lies below its parent's, the parent's rises, or a rotation
    /// ends it.
    pub(super) fn rebalance_after_insert(&mut self, mut at: Ptr) {
        while let Some(above) = get(at).parent() {
            let (link, parent) = (get(at), get(above));
            if link.is_rank_odd() != parent.is_rank_odd() {
                // One below.
                return;
            }
            let is_left = parent.left.get() == Some(at);
            let (sibling, inner) =
                if is_left { (&parent.right, &link.right) } else { (&parent.left, &link.left) };
            if is_rank_odd(sibling.get()) == parent.is_rank_odd() {
                // The sibling is two below: the parent goes down to it.
                self.rotate_after_insert(at, above, inner.get());
                return;
            }
            parent.flip_rank();
            at = above;
        }
    }

    /// `at` has its parent's rank, and its sibling one two below. Its two children are one and two below it.
    fn rotate_after_insert(&mut self, at: Ptr, above: Ptr, inner: Option<Ptr>) {
        get(above).flip_rank();
        match inner.filter(|&inner| get(inner).is_rank_odd() != get(at).is_rank_odd()) {
            None => self.rotate_up(at),
            Some(inner) => {
                self.rotate_up(inner);
                self.rotate_up(inner);
                get(inner).flip_rank();
                get(at).flip_rank();
            }
        }
    }

    /// What hangs below `above` where `child` hangs has lost a rank. Until that is no more than two below its
    /// parent's, the parent's falls, or a rotation ends it.
    pub(super) fn rebalance_after_remove(&mut self, mut above: Option<Ptr>, mut child: Option<Ptr>) {
        while let Some(at) = above {
            let parent = get(at);
            let (left, right) = (parent.left.get(), parent.right.get());
            if is_rank_odd(child) == parent.is_rank_odd() {
                // Two below. That is well, unless it makes a leaf of rank 1.
                if left.is_some() || right.is_some() {
                    return;
                }
            } else {
                // Three below, so there is a sibling.
                let is_left = left == child;
                let Some(sibling) = (if is_left { right } else { left }) else { return };
                let link = get(sibling);
                if link.is_rank_odd() != parent.is_rank_odd() {
                    // One below.
                    let (inner, outer) = (link.left.get(), link.right.get());
                    let (inner, outer) = if is_left { (inner, outer) } else { (outer, inner) };
                    if is_rank_odd(inner) != link.is_rank_odd() || is_rank_odd(outer) != link.is_rank_odd() {
                        return self.rotate_after_remove(at, sibling, inner, outer);
                    }
                    link.flip_rank();
                }
            }
            parent.flip_rank();
            (above, child) = (parent.parent(), Some(at));
        }
    }

    /// A child of `above` is three below it, the other, `sibling`, one; of whose children one at least is one
    /// below.
    fn rotate_after_remove(&mut self, above: Ptr, sibling: Ptr, inner: Option<Ptr>, outer: Option<Ptr>) {
        let (parent, link) = (get(above), get(sibling));
        match inner.filter(|_| is_rank_odd(outer) == link.is_rank_odd()) {
            None => {
                self.rotate_up(sibling);
                link.flip_rank();
                // A leaf falls by two.
                if parent.left.get().is_some() || parent.right.get().is_some() {
                    parent.flip_rank();
                }
            }
            Some(inner) => {
                // It rises by two, and the parent falls by two.
                self.rotate_up(inner);
                self.rotate_up(inner);
                link.flip_rank();
            }
        }
    }

    /// Exchanges a link with its parent, keeping the order; ranks stay with their links.
    fn rotate_up(&mut self, at: Ptr) {
        let link = get(at);
        let Some(parent) = link.parent() else { return };
        let old = get(parent);
        let above = old.parent();
        let (from, to) =
            if old.left.get() == Some(at) { (&old.left, &link.right) } else { (&old.right, &link.left) };
        let moved = to.get();
        from.set(moved);
        if let Some(moved) = moved {
            get(moved).set_parent(Some(parent));
        }
        to.set(Some(parent));
        self.relink(above, parent, Some(at));
        old.set_parent(Some(at));
        link.max.set(old.max.get());
        old.max.set(old.subtree_max());
    }
}
