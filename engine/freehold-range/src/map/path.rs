//! The path of a change from the root to a leaf, one [`Step`] for each level.
//!
//! `ExclusiveWriter::path` and `RangeMap::latched_path_to` make paths. `insert.rs` and `publish.rs` use a
//! path to update the nodes above a leaf. A path is valid as long as no other change links or unlinks a node
//! on the path. The exclusive writer or the structure lock excludes such changes. Level 0 is the leaf. The
//! path lies on the stack and allocates nothing.
#![expect(unsafe_code, reason = "leaves the levels above the root unwritten")]

use core::mem::MaybeUninit;

use super::entry::MAX_LEVELS;
use super::node::Node;

/// One level of a path.
#[derive(Clone, Copy)]
pub(super) struct Step<'n, const SLOTS: usize> {
    pub(super) node: &'n Node<SLOTS>,
    /// The slot that the path goes through. In the leaf, this may be the slot behind the last slot in use.
    pub(super) at: usize,
    /// End of the entry before this node's first entry.
    pub(super) lo: u64,
}

/// The path from the root (level `top`) to a leaf (level 0).
pub(super) struct Path<'n, const SLOTS: usize> {
    /// Written for the levels from 0 to `top`.
    steps: [MaybeUninit<Step<'n, SLOTS>>; MAX_LEVELS],
    /// The level of the root.
    pub(super) top: usize,
}

impl<'n, const SLOTS: usize> Path<'n, SLOTS> {
    /// Returns a path for a root at level `top`, without steps. The caller sets all steps.
    #[inline]
    pub(super) fn new(top: usize) -> Self {
        Self { steps: [MaybeUninit::uninit(); _], top }
    }

    #[inline]
    pub(super) fn step(&self, level: usize) -> Step<'n, SLOTS> {
        debug_assert!(level <= self.top);
        // SAFETY: `ExclusiveWriter::path`, `RangeMap::latched_path_to` and `raise_root` write every element
        // up to `top`. No caller reads an element above `top`.
        unsafe { self.steps[level].assume_init() }
    }

    #[inline]
    pub(super) fn set(&mut self, level: usize, step: Step<'n, SLOTS>) {
        self.steps[level].write(step);
    }
}
