//! The windows of readahead from swap devices.
//!
//! A *window* is the page of a fault and the next pages in the direction of the faults:
//!
//! | the last window near here | the next window |
//! | --- | --- |
//! | had one page, and this fault is beside it | 4 pages |
//! | had more pages, fewer than half of which are still swapped out | twice as many, at most 8 |
//! | otherwise | half as many, at least 1 |
//!
//! Sequential accesses thus read 8 pages at a time, and random accesses read single pages. MADV_RANDOM turns
//! readahead off. A space remembers the last window of each of some regions of addresses, so that tasks that
//! work in different regions do not disturb one another. A window is a hint: it is read and written without a
//! lock, and only by faults that read from a device.
//!
//! `fault/swap_ahead.rs` reads the pages of a window. `tests/swapped/ahead.rs` tests both.

use core::ops::Range;
use freehold_sync::atomic::{AtomicU64, Ordering::Relaxed};
use freehold_vmspace::PAGE_SIZE;

/// Number of windows that a space remembers.
const WINDOWS: usize = 8;
/// Number of bits of an address within a region, which has one window: 16 MiB.
const REGION: u32 = 24;

/// The last windows of a space. Each word has the first page of a window and, in the lowest byte, the number
/// of pages; 0 if there was no window.
pub(crate) struct SwapWindows([AtomicU64; WINDOWS]);

impl SwapWindows {
    /// Maximum number of pages of a window.
    pub const LARGEST: u64 = 8;

    /// Returns the windows of a new space.
    pub fn new() -> Self {
        SwapWindows([(); WINDOWS].map(|()| AtomicU64::new(0)))
    }

    /// Returns the window for a fault at page number `page`, and remembers it. `is_swapped` says whether a
    /// page of the last window is still swapped out.
    pub fn next(&self, page: u64, is_swapped: impl Fn(u64) -> bool) -> Range<u64> {
        let region = page >> (REGION - PAGE_SIZE.trailing_zeros());
        let word = &self.0[region as usize % WINDOWS];
        // Relaxed: a hint.
        let last = word.load(Relaxed);
        let (first, count) = (last >> 8, last & 0xff);
        let swapped = (first..first + count).filter(|page| is_swapped(*page)).count() as u64;
        let pages = match count {
            0 => 1,
            1 if page.abs_diff(first) == 1 => 4,
            _ if count > 1 && 2 * swapped < count => (2 * count).min(Self::LARGEST),
            _ => (count / 2).max(1),
        };
        let begin = if page >= first { page } else { (page + 1).saturating_sub(pages) };
        word.store(begin << 8 | pages, Relaxed);
        begin..begin + pages
    }
}
