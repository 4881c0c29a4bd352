//! Positions and counts of pages in files, as types that cannot be confused with addresses and bytes.
//! `freehold` uses them for files, page caches, VMAs and the reverse map. `user_range.rs` has ranges of
//! addresses.
//!
//! The types are plain numbers, without a lock. If the result of a method might not fit, the name of the
//! method says whether it checks, saturates, or wraps. The operators panic on overflow if overflow checks are
//! on, and wrap otherwise.

use core::{
    fmt,
    ops::{Add, AddAssign, Range, Sub, SubAssign},
};
use freehold_pagetable::{PAGE_SHIFT, PAGE_SIZE};

/// The number of a page of an object, counted from 0.
///
/// A page has 4 KiB, also in the offset of a VMA in its object (Linux's `pgoff`). The cache of a hugetlb file
/// is the only exception: there a page has the page size of the file.
///
/// # Examples
///
/// ```
/// use freehold_vmspace::{PageCount, PageIndex};
///
/// let page = PageIndex::of_byte(0x5678);
/// assert_eq!((page, page.byte()), (PageIndex::new(5), 0x5000));
/// assert_eq!((page.align_down(4), page.align_up(4)), (PageIndex::new(4), Some(PageIndex::new(8))));
/// assert_eq!(page + PageCount::new(2) - page, PageCount::new(2));
/// assert_eq!(u64::from(page), 5);
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct PageIndex(u64);

impl PageIndex {
    /// The first page.
    pub const ZERO: PageIndex = PageIndex(0);
    /// The position above every page.
    pub const END: PageIndex = PageIndex(u64::MAX);

    /// Returns page number `index`.
    #[inline]
    pub const fn new(index: u64) -> Self {
        PageIndex(index)
    }

    /// Returns the page that contains the byte at `offset`.
    #[inline]
    pub const fn of_byte(offset: u64) -> Self {
        PageIndex(offset / PAGE_SIZE)
    }

    /// Returns the number.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the offset of the page's first byte. Bits beyond 64 are lost.
    #[inline]
    pub const fn byte(self) -> u64 {
        self.0 << PAGE_SHIFT
    }

    /// Returns the number of the block of 2<sup>`order`</sup> pages that contains the page. A huge page is
    /// such a block of pages of 4 KiB.
    #[inline]
    pub const fn block(self, order: u32) -> Self {
        PageIndex(self.0 >> order)
    }

    /// Returns the first page of this block of 2<sup>`order`</sup> pages. This is the inverse of
    /// [`block`](Self::block).
    #[inline]
    pub const fn first_in_block(self, order: u32) -> Self {
        PageIndex(self.0 << order)
    }

    /// Returns the page that is `pages` pages later, or `None` if there is none.
    #[inline]
    pub const fn checked_add(self, pages: u64) -> Option<Self> {
        match self.0.checked_add(pages) {
            Some(index) => Some(PageIndex(index)),
            None => None,
        }
    }

    /// Returns the page that is `pages` pages earlier, or `None` if there is none.
    #[inline]
    pub const fn checked_sub(self, pages: u64) -> Option<Self> {
        match self.0.checked_sub(pages) {
            Some(index) => Some(PageIndex(index)),
            None => None,
        }
    }

    /// Returns the page that is `pages` pages later, or [`END`](Self::END) if there is none.
    #[inline]
    pub const fn saturating_add(self, pages: u64) -> Self {
        PageIndex(self.0.saturating_add(pages))
    }

    /// Returns true if the number is a multiple of `pages`, a power of two.
    #[inline]
    pub const fn is_aligned(self, pages: u64) -> bool {
        debug_assert!(pages.is_power_of_two());
        self.0 & (pages - 1) == 0
    }

    /// Returns the last page up to this one whose number is a multiple of `pages`, a power of two.
    #[inline]
    pub const fn align_down(self, pages: u64) -> Self {
        debug_assert!(pages.is_power_of_two());
        PageIndex(self.0 & !(pages - 1))
    }

    /// Returns the first page from this one on whose number is a multiple of `pages`, a power of two. Returns
    /// `None` if there is none.
    #[inline]
    pub const fn align_up(self, pages: u64) -> Option<Self> {
        debug_assert!(pages.is_power_of_two());
        match self.0.checked_next_multiple_of(pages) {
            Some(index) => Some(PageIndex(index)),
            None => None,
        }
    }

    /// Returns the page that is `pages` pages later, modulo 2<sup>64</sup>. The index of an anonymous page is
    /// at first the page number of its address, and a move may take the index below 0.
    #[inline]
    pub const fn wrapping_add(self, pages: u64) -> Self {
        PageIndex(self.0.wrapping_add(pages))
    }
}

impl fmt::Debug for PageIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl Add<PageCount> for PageIndex {
    type Output = PageIndex;

    #[inline]
    fn add(self, pages: PageCount) -> PageIndex {
        self + pages.get()
    }
}

impl Add<u64> for PageIndex {
    type Output = PageIndex;

    #[inline]
    fn add(self, pages: u64) -> PageIndex {
        PageIndex(self.0 + pages)
    }
}

impl AddAssign<u64> for PageIndex {
    #[inline]
    fn add_assign(&mut self, pages: u64) {
        self.0 += pages;
    }
}

impl AddAssign<PageCount> for PageIndex {
    #[inline]
    fn add_assign(&mut self, pages: PageCount) {
        *self += pages.get();
    }
}

impl Sub<PageCount> for PageIndex {
    type Output = PageIndex;

    #[inline]
    fn sub(self, pages: PageCount) -> PageIndex {
        self - pages.get()
    }
}

impl Sub<u64> for PageIndex {
    type Output = PageIndex;

    #[inline]
    fn sub(self, pages: u64) -> PageIndex {
        PageIndex(self.0 - pages)
    }
}

/// Returns the number of pages between two positions.
impl Sub for PageIndex {
    type Output = PageCount;

    #[inline]
    fn sub(self, earlier: PageIndex) -> PageCount {
        PageCount(self.0 - earlier.0)
    }
}

impl From<u64> for PageIndex {
    #[inline]
    fn from(index: u64) -> Self {
        PageIndex(index)
    }
}

impl From<PageIndex> for u64 {
    #[inline]
    fn from(index: PageIndex) -> u64 {
        index.0
    }
}

/// A range of consecutive pages of an object.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageRange {
    /// The first page.
    pub start: PageIndex,
    /// The page after the last.
    pub end: PageIndex,
}

impl PageRange {
    /// All pages.
    pub const ALL: PageRange = PageRange { start: PageIndex::ZERO, end: PageIndex::END };

    /// Returns the range from `start` to `end` (exclusive).
    #[inline]
    pub const fn new(start: PageIndex, end: PageIndex) -> Self {
        PageRange { start, end }
    }

    /// Returns the range of one page.
    #[inline]
    pub fn one(index: PageIndex) -> Self {
        PageRange { start: index, end: index + 1 }
    }

    /// Returns the range of `pages` pages from `start` on.
    #[inline]
    pub fn at(start: PageIndex, pages: PageCount) -> Self {
        PageRange { start, end: start + pages }
    }

    /// Returns the number of pages.
    #[inline]
    pub fn len(self) -> PageCount {
        PageCount(self.end.get().saturating_sub(self.start.get()))
    }

    /// Returns true if the range has no page.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.start >= self.end
    }

    /// Returns true if `index` is in the range.
    #[inline]
    pub fn contains(self, index: PageIndex) -> bool {
        self.start <= index && index < self.end
    }

    /// Returns the numbers of the pages.
    #[inline]
    pub const fn numbers(self) -> Range<u64> {
        self.start.get()..self.end.get()
    }
}

impl fmt::Debug for PageRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.numbers(), f)
    }
}

impl From<Range<u64>> for PageRange {
    #[inline]
    fn from(numbers: Range<u64>) -> Self {
        PageRange { start: PageIndex(numbers.start), end: PageIndex(numbers.end) }
    }
}

impl IntoIterator for PageRange {
    type Item = PageIndex;
    type IntoIter = core::iter::Map<Range<u64>, fn(u64) -> PageIndex>;

    #[inline]
    fn into_iter(self) -> Self::IntoIter {
        self.numbers().map(PageIndex::new)
    }
}

/// A number of pages, as a type that cannot be confused with a number of bytes.
///
/// A page has 4 KiB, except in the cache of a hugetlb file; see [`PageIndex`].
///
/// # Examples
///
/// ```
/// use freehold_vmspace::PageCount;
///
/// let pages = PageCount::of_bytes(0x3000);
/// assert_eq!((pages.get(), pages.bytes()), (3, 0x3000));
/// assert_eq!(pages.checked_sub(PageCount::new(4)), None);
/// assert_eq!(PageCount::from(3), pages);
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct PageCount(u64);

impl PageCount {
    /// No page.
    pub const ZERO: PageCount = PageCount(0);
    /// One page.
    pub const ONE: PageCount = PageCount(1);
    /// The largest number of pages: no limit.
    pub const MAX: PageCount = PageCount(u64::MAX);

    /// Returns a count of `pages` pages.
    #[inline]
    pub const fn new(pages: u64) -> Self {
        PageCount(pages)
    }

    /// Returns the number of pages in `bytes`, which must be a multiple of the page size.
    #[inline]
    pub const fn of_bytes(bytes: u64) -> Self {
        debug_assert!(bytes.is_multiple_of(PAGE_SIZE));
        PageCount(bytes >> PAGE_SHIFT)
    }

    /// Returns the number of pages in a block of 2<sup>`order`</sup> pages.
    #[inline]
    pub const fn block(order: u32) -> Self {
        PageCount(1 << order)
    }

    /// Returns the number.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the number of bytes. Bits beyond 64 are lost.
    #[inline]
    pub const fn bytes(self) -> u64 {
        self.0 << PAGE_SHIFT
    }

    /// Returns the sum, or [`MAX`](Self::MAX) if the sum overflows.
    #[inline]
    pub const fn saturating_add(self, more: PageCount) -> Self {
        PageCount(self.0.saturating_add(more.0))
    }

    /// Returns the sum, or `None` on overflow.
    #[inline]
    pub const fn checked_add(self, more: PageCount) -> Option<Self> {
        match self.0.checked_add(more.0) {
            Some(pages) => Some(PageCount(pages)),
            None => None,
        }
    }

    /// Returns the difference, or `None` if `less` is larger.
    #[inline]
    pub const fn checked_sub(self, less: PageCount) -> Option<Self> {
        match self.0.checked_sub(less.0) {
            Some(pages) => Some(PageCount(pages)),
            None => None,
        }
    }

    /// Returns the difference, or zero if `less` is larger.
    #[inline]
    pub const fn saturating_sub(self, less: PageCount) -> Self {
        PageCount(self.0.saturating_sub(less.0))
    }
}

impl fmt::Debug for PageCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl Add for PageCount {
    type Output = PageCount;

    #[inline]
    fn add(self, more: PageCount) -> PageCount {
        PageCount(self.0 + more.0)
    }
}

impl AddAssign for PageCount {
    #[inline]
    fn add_assign(&mut self, more: PageCount) {
        self.0 += more.0;
    }
}

impl Sub for PageCount {
    type Output = PageCount;

    #[inline]
    fn sub(self, less: PageCount) -> PageCount {
        PageCount(self.0 - less.0)
    }
}

impl SubAssign for PageCount {
    #[inline]
    fn sub_assign(&mut self, less: PageCount) {
        self.0 -= less.0;
    }
}

impl From<u64> for PageCount {
    #[inline]
    fn from(pages: u64) -> Self {
        PageCount(pages)
    }
}

impl From<PageCount> for u64 {
    #[inline]
    fn from(pages: PageCount) -> u64 {
        pages.0
    }
}
