//! How wide the nodes of the tree of VMAs are in tests.

use freehold::{
    engine::NodeWidth,
    space::{Locking, Write},
};

/// Returns the nodes with which tests try a design: narrow where every change is a range writer's, so that
/// its neighbours mostly lie in different leaves.
#[must_use]
pub fn nodes_for(locking: Locking) -> NodeWidth {
    match locking.write {
        Write::RangesOnly => NodeWidth::Narrow,
        Write::Whole | Write::Ranges => NodeWidth::Wide,
    }
}
