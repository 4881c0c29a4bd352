//! The balance of the interval tree: weak AVL.
//!
//! Every link has a rank, which is an integer. A missing child has rank -1, and a leaf has rank 0. A child's
//! rank is one or two below its parent's. So a link of rank `r` has at least `2^(r/2)` links at and below it.
//! The tree is never deeper than twice the logarithm of its size, for any sequence of insertions and
//! removals. A tree without removals is an AVL tree.
//!
//! Only the parity of a rank is kept, in the lowest bit of the parent's address. At most one link, at the
//! place of a change, breaks the rules. So for any other child, the parity tells whether the child is one
//! below its parent (parities differ) or two below (parities are equal). The child at the place of a change
//! is zero or one below its parent after an insertion, and two or three below after a removal. The parity
//! tells these cases apart too.
//!
//! An insertion or a removal makes at most two rotations, and changes a constant number of ranks on average.
//! The table shows the rotations. Here r is the rank of the parent before the rotation, and the inner child
//! of a link is the child on the side of the link's sibling.
//!
//! | rotation | ranks before | ranks after, from the top |
//! | --- | --- | --- |
//! | insertion, single | parent r, `at` r, sibling r-2, inner child of `at` r-2 | `at` r, parent r-1 |
//! | insertion, double | parent r, `at` r, sibling r-2, inner child of `at` r-1 | inner child r, `at` and parent r-1 |
//! | removal, single | parent r, child r-3, sibling r-1, outer child of the sibling r-2 | sibling r, parent r-1, or r-2 if it is a leaf now |
//! | removal, double | parent r, child r-3, sibling r-1, only the inner child of the sibling r-2 | inner child r, sibling and parent r-2 |
//!
//! `mod.rs` links and unlinks objects, corrects `IntervalLink::max` on the path to the root, and then calls
//! `rebalance_after_insert` or `rebalance_after_remove`. A new link is a leaf of rank 0. This file restores
//! the ranks, and may neither change the order of the links nor leave a wrong `max`. Therefore only
//! `rotate_up` changes the shape. It keeps the order and the rank of each link, and corrects the `max` of
//! both links. The callers of `rotate_up` then flip the parity of each link whose rank changes by one; a
//! change by two flips nothing. The caller holds the lock of the tree exclusively.
//!
//! `check.rs` verifies all rules; `tests/interval.rs` tries every small tree.
//!
//! # Sources
//!
//! Haeupler, Sen, Tarjan, "Rank-Balanced Trees" (2009, 2015).

use super::link::{Ptr, get};
use super::{IntervalAdapter, IntervalTree};

/// Returns true if the rank of `child` is odd. A missing child has rank -1, which is odd.
#[inline]
fn is_rank_odd(child: Option<Ptr>) -> bool {
    child.is_none_or(|child| get(child).is_rank_odd())
}

impl<A: IntervalAdapter> IntervalTree<A> {
    /// Restores the balance after `at` was inserted as a leaf. Goes up from `at`, and raises the rank of each
    /// parent whose rank is not above that of its child. Ends at the first parent whose rank is above that of
    /// its child, or after a rotation.
    pub(super) fn rebalance_after_insert(&mut self, mut at: Ptr) {
        while let Some(above) = get(at).parent() {
            let (link, parent) = (get(at), get(above));
            if link.is_rank_odd() != parent.is_rank_odd() {
                // The rank of `at` is one below the parent's.
                return;
            }
            let is_left = parent.left.get() == Some(at);
            let (sibling, inner) =
                if is_left { (&parent.right, &link.right) } else { (&parent.left, &link.left) };
            if is_rank_odd(sibling.get()) == parent.is_rank_odd() {
                // The sibling is two below the parent. Raising the parent would break the rule for the
                // sibling, so a rotation lowers the parent.
                self.rotate_after_insert(at, above, inner.get());
                return;
            }
            parent.flip_rank();
            at = above;
        }
    }

    /// Rotates after an insertion. The rank of `at` equals its parent's, and the rank of its sibling is two
    /// below the parent's. One child of `at` is one rank below `at`, and the other child is two ranks below.
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

    /// Restores the balance after a removal that lowered the rank of `child`, a child of `above`. Goes up
    /// from `above`, and lowers the rank of each parent that is three above its child or is a leaf of rank 1.
    /// Ends at the first parent that needs no change, or after a rotation.
    pub(super) fn rebalance_after_remove(&mut self, mut above: Option<Ptr>, mut child: Option<Ptr>) {
        while let Some(at) = above {
            let parent = get(at);
            let (left, right) = (parent.left.get(), parent.right.get());
            if is_rank_odd(child) == parent.is_rank_odd() {
                // The child is two below the parent, which is allowed unless the parent is now a leaf of rank
                // 1.
                if left.is_some() || right.is_some() {
                    return;
                }
            } else {
                // The child is three below the parent, so the parent has another child.
                let is_left = left == child;
                let Some(sibling) = (if is_left { right } else { left }) else { return };
                let link = get(sibling);
                if link.is_rank_odd() != parent.is_rank_odd() {
                    // The sibling is one below the parent.
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

    /// Rotates after a removal. One child of `above` is three ranks below it. The other child, `sibling`, is
    /// one rank below it. At least one child of `sibling` is one rank below `sibling`.
    fn rotate_after_remove(&mut self, above: Ptr, sibling: Ptr, inner: Option<Ptr>, outer: Option<Ptr>) {
        let (parent, link) = (get(above), get(sibling));
        match inner.filter(|_| is_rank_odd(outer) == link.is_rank_odd()) {
            None => {
                self.rotate_up(sibling);
                link.flip_rank();
                // If the parent is a leaf now, its rank falls by two, so its parity does not change.
                if parent.left.get().is_some() || parent.right.get().is_some() {
                    parent.flip_rank();
                }
            }
            Some(inner) => {
                // The inner link rises by two ranks, and the parent falls by two, so their parities do not
                // change.
                self.rotate_up(inner);
                self.rotate_up(inner);
                link.flip_rank();
            }
        }
    }

    /// Exchanges a link with its parent, and keeps the order of the tree. Ranks stay with their links.
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
