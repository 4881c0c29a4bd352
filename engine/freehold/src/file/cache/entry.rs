//! The word of a page in the tree of words that is its file's cache. What the marks mean: `mapping.rs`.

use crate::Pfn;

/// The page is, or was, in the cache.
const PRESENT: u64 = 1 << 0;
/// The page is going away.
pub(in crate::file) const LEAVING: u64 = 1 << 1;
const FRAME_SHIFT: u32 = 2;
/// From here on: the order of the block that it came with, see `block.rs`. Frames have smaller numbers.
const ORDER_SHIFT: u32 = 60;
/// See the table there.
pub(crate) const LOST: u64 = LEAVING;

/// A word as it says where a page is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word(pub(crate) u64);

impl Word {
    pub(crate) fn present(pfn: Pfn) -> Self {
        Word(pfn.get() << FRAME_SHIFT | PRESENT)
    }

    /// The frame of a page that lookups see.
    pub(crate) fn visible(self) -> Option<Pfn> {
        (self.0 & (PRESENT | LEAVING) == PRESENT).then(|| self.frame())
    }

    /// The frame of a page that is leaving, or moving.
    pub(super) fn hidden(self) -> Option<Pfn> {
        (self.0 & (PRESENT | LEAVING) == PRESENT | LEAVING).then(|| self.frame())
    }

    /// The frame of a page that the cache holds, visible or not.
    pub(crate) fn held(self) -> Option<Pfn> {
        (self.0 & PRESENT != 0).then(|| self.frame())
    }

    fn frame(self) -> Pfn {
        Pfn::new((self.0 & ((1 << ORDER_SHIFT) - 1)) >> FRAME_SHIFT)
    }

    /// The same page as part of a block of this order.
    pub(in crate::file) fn in_block(self, order: u32) -> Self {
        Word(self.0 & ((1 << ORDER_SHIFT) - 1) | u64::from(order) << ORDER_SHIFT)
    }

    /// The order of the block that it is part of; 0 for a page alone.
    pub(in crate::file) fn order(self) -> u32 {
        (self.0 >> ORDER_SHIFT) as u32
    }
}
