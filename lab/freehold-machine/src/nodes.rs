//! The width of the nodes of the VMA tree in tests. `freehold-model` and the scenes of the test programs pass
//! the result of [`nodes_for`] as `Config::vma_nodes`, so that a design is tested with the same width
//! everywhere.

use freehold::{
    engine::NodeWidth,
    space::{Locking, Write},
};

/// Returns the node width with which tests run a design. If range writers make all changes, the nodes are
/// narrow, so that neighbouring VMAs are mostly in different leaves.
#[must_use]
pub fn nodes_for(locking: Locking) -> NodeWidth {
    match locking.write {
        Write::RangesOnly => NodeWidth::Narrow,
        Write::Whole | Write::Ranges => NodeWidth::Wide,
    }
}
