//! The pages of a request to a pager, for requests to read (`read.rs`) and requests to write (`write.rs`),
//! and of requests to swap devices (`swap/requests.rs`), whose slots are the pages.
//!
//! A request has a window of [`MAX_PAGES`] pages. A bit of `left` is set for each page that is not complete.
//! Each page is taken once ([`take`](RequestPages::take)), and the request then ends its read or write. A
//! request is owned by one task at a time, so nothing here is atomic.

use crate::Pfn;
use freehold_vmspace::{PageCount, PageIndex, PageRange};

/// Maximum number of pages of a request.
pub(crate) const MAX_PAGES: usize = 32;

/// The pages of a request that are not complete, and their frames.
#[derive(Clone, Copy)]
pub(crate) struct RequestPages {
    /// The page of bit 0 and of the first frame.
    first: PageIndex,
    /// The pages that are not complete: bit `n` is page `first + n`.
    left: u32,
    /// The frames. An element is meaningful while its bit in `left` is set.
    frames: [Pfn; MAX_PAGES],
}

impl RequestPages {
    /// Creates a window without pages that begins at `first`.
    pub fn new(first: PageIndex) -> Self {
        RequestPages { first, left: 0, frames: [Pfn::new(0); MAX_PAGES] }
    }

    /// Adds a page, which lies in the window.
    pub fn add(&mut self, index: PageIndex, pfn: Pfn) {
        let place = (index - self.first).get() as usize;
        self.frames[place] = pfn;
        self.left |= 1 << place;
    }

    /// Returns the range from the first page that is not complete to the last; empty if there is none.
    pub fn range(&self) -> PageRange {
        let end = u64::from(u32::BITS - self.left.leading_zeros());
        let start = u64::from(self.left.trailing_zeros()).min(end);
        PageRange::new(self.first + start, self.first + end)
    }

    /// Returns the number of pages that are not complete.
    pub fn len(&self) -> PageCount {
        PageCount::new(self.left.count_ones().into())
    }

    /// Returns true if all pages are complete.
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Returns the first page that is not complete, and its frame.
    pub fn next(&self) -> Option<(PageIndex, Pfn)> {
        let first = self.range().start;
        self.frame(first).map(|frame| (first, frame))
    }

    /// Returns the frame of a page that is not complete.
    pub fn frame(&self, index: PageIndex) -> Option<Pfn> {
        self.place(index).map(|place| self.frames[place])
    }

    /// Completes a page. Returns its frame, or `None` if the page is complete already or not in the request.
    pub fn take(&mut self, index: PageIndex) -> Option<Pfn> {
        let place = self.place(index)?;
        self.left &= !(1 << place);
        Some(self.frames[place])
    }

    /// Moves the pages from `at` on that are not complete to another window, which begins at the same page.
    pub fn split_off(&mut self, at: PageIndex) -> Self {
        let before = at.get().saturating_sub(self.first.get());
        let moved = self.left & u32::MAX.checked_shl(before.min(u32::BITS.into()) as u32).unwrap_or(0);
        self.left &= !moved;
        RequestPages { left: moved, ..*self }
    }

    /// Returns the bit of a page of the window.
    pub fn bit(&self, index: PageIndex) -> u32 {
        1 << (index - self.first).get()
    }

    /// Returns the place of a page that is not complete.
    fn place(&self, index: PageIndex) -> Option<usize> {
        let place = index.get().checked_sub(self.first.get()).filter(|place| *place < MAX_PAGES as u64)?;
        (self.left >> place & 1 != 0).then_some(place as usize)
    }
}
