//! The word that a page has in the tree of its file's page cache: the frame of the page, the state bits, and
//! the order of its block.
//!
//! `mapping.rs` has the table of the states and of the lock that each change needs; a new state needs a row
//! there and a function of [`Word`]. This file only encodes and decodes values; it reads and writes no word.
//! Code that changes a word must use these functions, because the bits of the block's order must survive a
//! change of the frame. `reading.rs` has the states of a page that is being read.

use crate::{Pfn, swap::SwapEntry};

/// The cache holds the page, visible or hidden.
const PRESENT: u64 = 1 << 0;
/// The page is leaving the cache or moving.
pub(in crate::file) const LEAVING: u64 = 1 << 1;
/// A read of the page is under way, or has failed.
const READING: u64 = 1 << 2;
/// A task may sleep until the read of the page ends.
const WAITED: u64 = 1 << 3;
/// The first access to the page reads the next window of readahead, if `READING` or `PRESENT` is set as well.
/// Without these bits, the page is swapped out.
const MARKED: u64 = 1 << 4;
/// The frame number begins at this bit.
const FRAME_SHIFT: u32 = 5;
/// The bits from here on hold the order of the block with which the page was added; see `mthp.rs`. Frame
/// numbers need only the bits below.
const ORDER_SHIFT: u32 = 60;
/// The page's memory failed; the table in `mapping.rs` describes this value.
pub(crate) const LOST: u64 = LEAVING;
/// The last read of the page failed. The bit `WAITED` may be set as well.
const FAILED: u64 = READING | LEAVING;

/// The bit of a page that is swapped out and is full of zeroes. The bits below it, from `FRAME_SHIFT` on,
/// hold the swap entry of any other page that is swapped out.
const ZEROES: u64 = 1 << (FRAME_SHIFT + SwapEntry::BITS);

/// The place of a page of shared memory that is swapped out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SwappedOut {
    /// The page is in this slot, or in the swap cache. The word has a count of the slot.
    Slot(SwapEntry),
    /// The page is full of zeroes.
    Zeroes,
}

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

    /// Returns the word of a single page that is being read into this frame.
    pub(in crate::file) fn reading(pfn: Pfn) -> Self {
        Word(pfn.get() << FRAME_SHIFT | READING)
    }

    /// Returns the word of a page whose read has failed. `watched` is true if a task waited for the read.
    pub(super) fn failed(watched: bool) -> Self {
        Word(FAILED | if watched { WAITED } else { 0 })
    }

    /// Returns the word of the same read, for which a task waits.
    pub(super) fn waited(self) -> Self {
        Word(self.0 | WAITED)
    }

    /// Returns true if a task may wait for the read, or may have waited for the read that failed.
    pub(super) fn is_waited(self) -> bool {
        self.0 & WAITED != 0
    }

    /// Returns true if the page is being read.
    pub(in crate::file) fn is_reading(self) -> bool {
        self.0 & (PRESENT | LEAVING | READING) == READING
    }

    /// Returns true if the page is being read into this frame.
    pub(super) fn reads_into(self, pfn: Pfn) -> bool {
        self.in_block(0).0 & !(WAITED | MARKED) == Self::reading(pfn).0
    }

    /// Returns true if the last read of the page failed.
    pub(in crate::file) fn has_failed(self) -> bool {
        self.0 & !WAITED == FAILED
    }

    /// Returns the word of a page that is swapped out.
    pub(in crate::file) fn swapped(page: SwappedOut) -> Self {
        Word(match page {
            SwappedOut::Slot(entry) => entry.payload() << FRAME_SHIFT | MARKED,
            SwappedOut::Zeroes => ZEROES | MARKED,
        })
    }

    /// Returns the place of the page, if the page is swapped out. It may be leaving the file.
    pub(in crate::file) fn swapped_out(self) -> Option<SwappedOut> {
        let is_swapped = self.0 & (PRESENT | READING | MARKED) == MARKED;
        is_swapped.then(|| match self.0 & ZEROES {
            0 => SwappedOut::Slot(SwapEntry::from_payload(self.0 >> FRAME_SHIFT)),
            _ => SwappedOut::Zeroes,
        })
    }

    /// Returns true if the word stands for contents: the page is in the cache, visible or not, is being read,
    /// or is swapped out.
    pub(in crate::file) fn has_contents(self) -> bool {
        self.held().is_some() || self.is_reading() || self.swapped_out().is_some()
    }

    /// Returns true if a read of the page may begin: the page is not in the cache, not lost, and not being
    /// read.
    pub(in crate::file) fn is_vacant(self) -> bool {
        self.0 == 0 || self.has_failed()
    }

    /// Returns true if the page has the mark of readahead, and is visible or being read.
    pub(in crate::file) fn is_marked(self) -> bool {
        self.0 & MARKED != 0 && (self.is_reading() || self.visible().is_some())
    }

    /// Returns the word of the same page with or without the mark of readahead.
    pub(in crate::file) fn with_mark(self, marked: bool) -> Self {
        Word(self.0 & !MARKED | if marked { MARKED } else { 0 })
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
