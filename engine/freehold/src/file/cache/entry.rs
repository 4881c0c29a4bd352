//! The word that a page has in the tree of its file's page cache: the frame of the page, two state bits, and
//! the order of its block.
//!
//! `mapping.rs` has the table of the states and of the lock that each change needs; a new state needs a row
//! there and a function of [`Word`]. This file only encodes and decodes values; it reads and writes no word.
//! Code that changes a word must use these functions, because the bits of the block's order must survive a
//! change of the frame.

use crate::Pfn;

/// The cache holds the page, visible or hidden.
const PRESENT: u64 = 1 << 0;
/// The page is leaving the cache or moving.
pub(in crate::file) const LEAVING: u64 = 1 << 1;
/// The frame number begins at this bit.
const FRAME_SHIFT: u32 = 2;
/// The bits from here on hold the order of the block with which the page was added; see `mthp.rs`. Frame
/// numbers need only the bits below.
const ORDER_SHIFT: u32 = 60;
/// The page's memory failed; the table in `mapping.rs` describes this value.
pub(crate) const LOST: u64 = LEAVING;

/// The value of a page's word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word(pub(crate) u64);

impl Word {
    /// Returns the word of a visible single page in this frame.
    pub(crate) fn present(pfn: Pfn) -> Self {
        Word(pfn.get() << FRAME_SHIFT | PRESENT)
    }

    /// Returns the frame, if lookups see the page.
    pub(crate) fn visible(self) -> Option<Pfn> {
        (self.0 & (PRESENT | LEAVING) == PRESENT).then(|| self.frame())
    }

    /// Returns the frame, if the page is leaving or moving.
    pub(super) fn hidden(self) -> Option<Pfn> {
        (self.0 & (PRESENT | LEAVING) == PRESENT | LEAVING).then(|| self.frame())
    }

    /// Returns the frame, if the cache holds the page, visible or not.
    pub(crate) fn held(self) -> Option<Pfn> {
        (self.0 & PRESENT != 0).then(|| self.frame())
    }

    /// Returns the frame number of a word that has one.
    fn frame(self) -> Pfn {
        Pfn::new((self.0 & ((1 << ORDER_SHIFT) - 1)) >> FRAME_SHIFT)
    }

    /// Returns the word of the same page as part of a block of this order.
    pub(in crate::file) fn in_block(self, order: u32) -> Self {
        Word(self.0 & ((1 << ORDER_SHIFT) - 1) | u64::from(order) << ORDER_SHIFT)
    }

    /// Returns the order of the block that the page is part of; 0 for a single page.
    pub(in crate::file) fn order(self) -> u32 {
        (self.0 >> ORDER_SHIFT) as u32
    }
}
