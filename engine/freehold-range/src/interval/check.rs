//! The checks of an interval tree's invariants.
//!
//! Tests call [`IntervalTree::check`] after changes; the engine's own checks call it for the trees of the
//! reverse map and of spaces without an MMU. The check visits every link and recomputes the ranks and the
//! largest ends from the shape, the keys and the parity bits. A new field of
//! [`IntervalLink`](super::IntervalLink) needs a check here.

use super::link::{Ptr, get};
use super::{IntervalAdapter, IntervalTree};

impl<A: IntervalAdapter> IntervalTree<A> {
    /// Verifies the order, the largest ends, the parents, the ranks and the depth of the whole tree. The
    /// depth must be at most twice the logarithm of the size.
    ///
    /// # Panics
    ///
    /// Panics with a description if an invariant does not hold.
    pub fn check(&self) {
        let Some(root) = self.root.get() else { return };
        assert!(get(root).parent().is_none(), "the root has a parent");
        let shape = check(root, 0, u64::MAX);
        let bound = 2 * (shape.links + 1).ilog2() + 1;
        assert!(shape.depth <= bound, "{} links are {} deep", shape.links, shape.depth);
    }
}

/// The verified properties of a subtree. The properties of a parent's subtree are computed from those of its
/// children.
struct Shape {
    rank: i32,
    links: u64,
    /// Number of links on the longest path down.
    depth: u32,
}

/// Verifies a subtree. The `first` of each link must lie in `low..=high`.
fn check(at: Ptr, low: u64, high: u64) -> Shape {
    let link = get(at);
    let (first, last) = (link.first.get(), link.last.get());
    assert!(first <= last && low <= first && first <= high, "out of order: {first}..={last}");
    assert_eq!(link.max.get(), link.subtree_max(), "wrong largest end at {first}..={last}");
    let shapes =
        [(link.left.get(), low, first), (link.right.get(), first, high)].map(|(child, low, high)| {
            let Some(child) = child else { return Shape { rank: -1, links: 0, depth: 0 } };
            assert_eq!(get(child).parent(), Some(at), "a child has a wrong parent");
            check(child, low, high)
        });
    let [left, right] = &shapes;
    let above = left.rank.max(right.rank) + 1;
    let rank = above + i32::from((above % 2 != 0) != link.is_rank_odd());
    let leaf = left.links + right.links == 0;
    assert!(
        if leaf { rank == 0 } else { rank - left.rank.min(right.rank) <= 2 },
        "unbalanced at {first}..={last}"
    );
    Shape { rank, links: left.links + right.links + 1, depth: left.depth.max(right.depth) + 1 }
}
