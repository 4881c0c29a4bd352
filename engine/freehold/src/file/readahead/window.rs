//! The size and place of the next window of pages that readahead reads. This file only computes; `mod.rs` has
//! the state of an open file and reads the pages.
//!
//! ```text
//! first window      pages already asked for | pages ahead      the mark is the first page ahead
//! next windows      all pages are ahead                        the mark is the first page
//! around a fault    half before | half behind the fault        the mark is in the last quarter
//! ```
//!
//! The first access to the page with the mark reads the next window, which begins at the end of this one. So
//! the next window is read while the program still uses this one. Windows grow up to a maximum while the
//! accesses are sequential. An access elsewhere reads only its own pages and leaves the window as it is, so
//! the sequence can continue. A sequence that finds a page missing in the middle of its window has lost pages
//! to a shortage of memory, and begins again with a small window.
//!
//! The rules are those of Fengguang Wu and others, "On the design of a new Linux readahead framework" (2008),
//! which Linux uses. The tests below have the answers of Linux 6.18, with a maximum of 32 pages, in mincore.
//! Two rules differ from Linux 6.18. Linux moves the ends of windows to multiples of the sizes of large
//! folios, which the engine does not have. After MADV_SEQUENTIAL, the mark is in the middle of a window, and
//! not on a page that is already mapped, so that a sequential reader need not wait for each window.
//!
//! `tests/files/readahead.rs` (`engine/freehold`) tests the windows of open files.

use freehold_vmspace::{PageCount, PageIndex, PageRange};

/// Number of faults without a neighbour in the cache after which a fault reads only its own page.
pub(super) const MANY_MISSES: u32 = 100;

/// The order of access that a program has announced for a mapping (MADV_NORMAL, MADV_RANDOM,
/// MADV_SEQUENTIAL).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AccessOrder {
    /// No order is known.
    #[default]
    Any,
    /// Random: pages that were not asked for are not read.
    Random,
    /// Ascending.
    Sequential,
}

/// Consecutive pages that are read together. The first window of an open file is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::file) struct Window {
    /// The first page.
    pub start: PageIndex,
    /// Number of pages.
    pub size: u32,
    /// Number of pages at the end that are read ahead. The first of them has the mark. With 0, no page has
    /// the mark, and the window does not become the window of the open file.
    pub ahead: u32,
}

impl Window {
    /// Returns the window of these pages, without a mark.
    pub fn unmarked(start: PageIndex, pages: u64) -> Self {
        Window { start, size: count(pages), ahead: 0 }
    }

    /// Returns the window of these pages, without a mark.
    pub fn of_pages(pages: PageRange) -> Self {
        Window::unmarked(pages.start, pages.len().get())
    }

    /// Returns the pages that lie before `end`.
    pub fn pages_before(self, end: PageIndex) -> PageRange {
        PageRange::new(self.start, self.end().min(end))
    }

    /// Returns the index after the last page.
    fn end(self) -> PageIndex {
        self.start.saturating_add(self.size.into())
    }

    /// Returns the page that has the mark.
    fn mark(self) -> Option<PageIndex> {
        (self.ahead > 0).then(|| self.start + u64::from(self.size - self.ahead))
    }

    /// Returns the same window with its mark where it was put.
    pub(super) fn with_mark(self, mark: &Mark) -> Self {
        let ahead = mark.put.map_or(self.ahead, |put| count((self.end() - put).get()));
        Window { ahead, ..self }
    }

    /// Returns the first window of a sequence that begins with a request for `wanted` pages.
    fn first(start: PageIndex, wanted: u64, max: u64) -> Self {
        let rounded = wanted.next_power_of_two();
        let factor = if rounded * 32 <= max { 4 } else { 2 };
        let size = (rounded * factor).min(max).max(wanted);
        let ahead = if size > wanted { size - wanted } else { size };
        Window { start, size: count(size), ahead: count(ahead) }
    }

    /// Returns the window that follows this one, for a request of `wanted` pages.
    fn next(self, wanted: u64, max: u64) -> Self {
        let size = count(grown(self.size.into(), max).max(wanted.min(max)));
        Window { start: self.end(), size, ahead: size }
    }

    /// Returns the window of a read call that does not find page `index` in the cache. The rest of the call
    /// wants `wanted` pages from there on. The last call ended in page `position`. `max` is the maximum, and
    /// at least `wanted`; `usual` is the maximum without regard to this call. `before` returns the number of
    /// pages in the cache directly before page `index`, up to its argument.
    pub fn of_read(
        self,
        index: PageIndex,
        wanted: u64,
        position: PageIndex,
        usual: u64,
        before: impl FnOnce(u64) -> u64,
    ) -> Self {
        let max = usual.max(wanted);
        if self.ahead > 0 && index == self.end() {
            return self.next(wanted, max);
        }
        let follows = index.get().wrapping_sub(position.get()) <= 1;
        if index == PageIndex::ZERO || follows || wanted > usual {
            return Window::first(index, wanted, max);
        }
        // Another sequence may have replaced the window, but its pages are in the cache.
        match before(max) {
            seen if seen <= wanted => Window::unmarked(index, wanted),
            seen => {
                let seen = if seen >= index.get() { 2 * seen } else { seen };
                Window { start: index, size: count((seen + wanted).min(max)), ahead: 1 }
            }
        }
    }

    /// Returns the window of a fault that does not find page `index` in the cache, after `misses` such
    /// faults.
    pub fn of_fault(self, index: PageIndex, order: AccessOrder, max: u64, misses: u32) -> Self {
        match order {
            AccessOrder::Random => Window::unmarked(index, 1),
            _ if self.ahead > 0 && index == self.end() => self.next(max, max),
            AccessOrder::Sequential => Window { start: index, size: count(max), ahead: count(max / 2) },
            AccessOrder::Any if misses > MANY_MISSES => Window::unmarked(index, 1),
            AccessOrder::Any => {
                let start = PageIndex::new(index.get().saturating_sub(max / 2));
                Window { start, size: count(max), ahead: count(max / 4) }
            }
        }
    }

    /// Returns the window that the first access to the marked page `index` reads. The access wants `wanted`
    /// pages from there on. `absent` returns the first page of a range that is not in the cache. Returns
    /// `None` if no page is to be read.
    pub fn at_mark(
        self,
        index: PageIndex,
        wanted: u64,
        usual: u64,
        absent: impl FnOnce(PageRange) -> Option<PageIndex>,
    ) -> Option<Self> {
        let max = usual.max(wanted);
        if self.mark() == Some(index) {
            return Some(self.next(wanted, max));
        }
        // The mark is that of another sequence. The pages that follow it in the cache are its window.
        let start = absent(PageRange::at(index + 1, PageCount::new(max)))?;
        let size = count(grown((start - index).get() + wanted, max));
        Some(Window { start, size, ahead: size })
    }
}

/// The mark of a window, while reads of the pages of the window start. The first page that starts to be read
/// at the planned place or behind it gets the mark, because the planned page may be in the cache already.
pub(in crate::file) struct Mark {
    /// The planned place, until a page has the mark.
    planned: Option<PageIndex>,
    /// The page that has the mark.
    put: Option<PageIndex>,
}

impl Mark {
    /// Creates the mark of a window.
    pub fn of(window: Window) -> Self {
        Mark { planned: window.mark(), put: None }
    }

    /// Returns true if the read of page `index`, which is about to start, gets the mark.
    pub fn belongs_to(&self, index: PageIndex) -> bool {
        self.planned.is_some_and(|planned| planned <= index)
    }

    /// Records that page `index` has the mark.
    pub fn set(&mut self, index: PageIndex) {
        (self.planned, self.put) = (None, Some(index));
    }
}

/// Returns the size of the window after one of `size` pages.
fn grown(size: u64, max: u64) -> u64 {
    let factor = if size * 16 < max { 4 } else { 2 };
    (size * factor).min(max)
}

/// Converts a number of pages, which the maximum of a window limits.
fn count(pages: u64) -> u32 {
    u32::try_from(pages).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Position of an open file that was never read.
    const NONE: PageIndex = PageIndex::new(u64::MAX >> 12);

    fn at(index: u64) -> PageIndex {
        PageIndex::new(index)
    }

    fn window(start: u64, end: u64, mark: u64) -> Window {
        Window { start: at(start), size: (end - start) as u32, ahead: (end - mark) as u32 }
    }

    fn none_before(_: u64) -> u64 {
        0
    }

    #[test]
    fn first_window_follows_from_the_request() {
        for (wanted, max, end, mark) in [
            (1, 32, 4, 1),
            (2, 32, 4, 2),
            (3, 32, 8, 3),
            (4, 32, 8, 4),
            (8, 32, 16, 8),
            (12, 32, 32, 12),
            (16, 32, 32, 16),
            (32, 32, 32, 0),
            (1, 640, 4, 1),
            (2, 640, 8, 2),
            (16, 640, 64, 16),
            (32, 640, 64, 32),
            (64, 32, 64, 0),
        ] {
            let found = Window::default().of_read(at(0), wanted, NONE, max, none_before);
            assert_eq!(found, window(0, end, mark), "{wanted} pages, maximum {max}");
        }
    }

    #[test]
    fn windows_double_up_to_the_maximum() {
        let mut last = Window::default().of_read(at(0), 1, NONE, 32, none_before);
        for (start, end) in [(4, 12), (12, 28), (28, 60), (60, 92)] {
            last = last.at_mark(last.mark().unwrap(), 1, 32, |_| panic!("the mark is known")).unwrap();
            assert_eq!(last, window(start, end, start));
        }
        let small = Window::default().of_read(at(0), 1, NONE, 640, none_before);
        assert_eq!(small.next(1, 640), window(4, 20, 4), "small windows grow by four");
    }

    #[test]
    fn read_elsewhere_gets_only_its_pages() {
        let last = window(4, 12, 4);
        for (index, wanted, position) in
            [(100, 1, 1), (100, 16, 1), (200, 1, 203), (500, 1, 498), (1, 1, NONE.get())]
        {
            let found = last.of_read(at(index), wanted, at(position), 32, none_before);
            assert_eq!(found, Window::unmarked(at(index), wanted), "{index}");
        }
        // Pages that follow the last read, directly or behind a page of which a part was read.
        for (index, position) in [(100, 100), (100, 99)] {
            let found = last.of_read(at(index), 1, at(position), 32, none_before);
            assert_eq!(found, window(index, index + 4, index + 1));
        }
        assert_eq!(last.of_read(at(100), 33, NONE, 32, none_before), window(100, 133, 100));
    }

    #[test]
    fn sequence_that_lost_pages_begins_with_a_small_window() {
        let last = window(60, 92, 60);
        assert_eq!(last.of_read(at(70), 1, at(70), 32, none_before), window(70, 74, 71));
        assert_eq!(last.of_read(at(92), 1, at(92), 32, none_before), window(92, 124, 92));
    }

    #[test]
    fn other_sequence_is_known_by_its_pages() {
        let last = window(1000, 1032, 1000);
        let found = |seen: u64| last.of_read(at(102), 1, NONE, 32, |most| seen.min(most));
        assert_eq!(found(1), Window::unmarked(at(102), 1));
        assert_eq!(found(2), window(102, 105, 104));
        assert_eq!(found(90), window(102, 134, 133));
        let from_start = last.of_read(at(6), 1, NONE, 32, |_| 6);
        assert_eq!(from_start, window(6, 19, 18));
        let absent = |pages: PageRange| {
            assert_eq!(pages, PageRange::new(at(105), at(137)));
            Some(at(107))
        };
        assert_eq!(last.at_mark(at(104), 1, 32, absent), Some(window(107, 115, 107)));
        assert_eq!(last.at_mark(at(104), 1, 32, |_| None), None);
    }

    #[test]
    fn faults_read_around_until_many_have_no_neighbour() {
        let last = Window::default();
        let found = |index, order, misses| last.of_fault(at(index), order, 32, misses);
        for (index, start) in [(0, 0), (16, 0), (17, 1), (300, 284)] {
            assert_eq!(found(index, AccessOrder::Any, 100), window(start, start + 32, start + 24));
        }
        assert_eq!(found(300, AccessOrder::Any, 101), Window::unmarked(at(300), 1));
        assert_eq!(found(300, AccessOrder::Random, 0), Window::unmarked(at(300), 1));
        assert_eq!(found(300, AccessOrder::Sequential, 999), window(300, 332, 316));
        assert_eq!(window(0, 32, 24).of_fault(at(32), AccessOrder::Any, 32, 999), window(32, 64, 32));
        assert_eq!(last.of_fault(at(9), AccessOrder::Any, 1, 0), Window::unmarked(at(9), 1));
    }
}
