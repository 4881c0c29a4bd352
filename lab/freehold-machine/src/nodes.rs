//! The width of the nodes of the VMA tree in tests.

use freehold::{
    engine::NodeWidth,
    space::{Locking, Write},
};

/// Returns the node width with which tests run a design. The width is narrow if every change is a range
/// writer's, so that neighbouring VMAs are mostly in different leaves.
#[must_use]
pub fn nodes_for(locking: Locking) -> NodeWidth {
    match locking.write {
        Write::RangesOnly => NodeWidth::Narrow,
        Write::Whole | Write::Ranges => NodeWidth::Wide,
    }
}
