//! How wide the nodes of the tree of VMAs are in tests.

use freehold::{
    engine::Nodes,
    space::{Locking, Write},
};

/// Returns the nodes with which tests try a design: narrow where every change is a range writer's, so that
/// its neighbours mostly lie in different leaves.
#[must_use]
pub fn nodes_for(locking: Locking) -> Nodes {
    match locking.write {
        Write::RangesOnly => Nodes::Narrow,
        Write::Whole | Write::Ranges => Nodes::Wide,
    }
}
