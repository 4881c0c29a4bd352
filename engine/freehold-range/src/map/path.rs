//! The path that a change goes, from the root to a leaf.
#![expect(unsafe_code, reason = "leaves the levels above the root unwritten")]

use core::mem::MaybeUninit;

use super::entry::MAX_LEVELS;
use super::node::Node;

/// One level of a path.
#[derive(Clone, Copy)]
pub(super) struct Step<'n, const SLOTS: usize> {
    pub(super) node: &'n Node<SLOTS>,
    /// The slot the path goes through; in the leaf possibly one behind the last.
    pub(super) at: usize,
    /// End of the entry before this node's first.
    pub(super) lo: u64,
}

/// The way from the root (at `top`) to a leaf (at 0).
pub(super) struct Path<'n, const SLOTS: usize> {
    /// Written from 0 to `top`.
    steps: [MaybeUninit<Step<'n, SLOTS>>; MAX_LEVELS],
    /// Level of the root.
    pub(super) top: usize,
}

impl<'n, const SLOTS: usize> Path<'n, SLOTS> {
    /// To be filled in, for a root at the level `top`.
    #[inline]
    pub(super) fn new(top: usize) -> Self {
        Self { steps: [MaybeUninit::uninit(); _], top }
    }

    #[inline]
    pub(super) fn step(&self, level: usize) -> Step<'n, SLOTS> {
        debug_assert!(level <= self.top);
        // SAFETY: `ExclusiveWriter::path` and `raise_root` write every element up to `top`, and nobody asks
        // for one above it.
        unsafe { self.steps[level].assume_init() }
    }

    #[inline]
    pub(super) fn set(&mut self, level: usize, step: Step<'n, SLOTS>) {
        self.steps[level].write(step);
    }
}
