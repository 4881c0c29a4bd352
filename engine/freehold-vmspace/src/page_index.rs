//! Pages by their place in a file, not to be confused with addresses and bytes.

use core::{
    fmt,
    ops::{Add, AddAssign, Range, Sub},
};
use freehold_pagetable::{PAGE_SHIFT, PAGE_SIZE};

/// Which page of an object, counted from 0.
///
/// Pages are of 4 KiB, also where a VMA says at which page of its object it begins (Linux's `pgoff`); those
/// of a hugetlb file's cache alone are of the file's own size.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct PageIndex(u64);

impl PageIndex {
    /// The first page.
    pub const ZERO: PageIndex = PageIndex(0);
    /// Above every page.
    pub const END: PageIndex = PageIndex(u64::MAX);

    /// Page number `index`.
    #[inline]
    pub const fn new(index: u64) -> Self {
        PageIndex(index)
    }

    /// The page that a byte lies in.
    #[inline]
    pub const fn of_byte(offset: u64) -> Self {
        PageIndex(offset / PAGE_SIZE)
    }

    /// The number.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The offset of the page's first byte; what does not fit in 64 bits is lost.
    #[inline]
    pub const fn byte(self) -> u64 {
        self.0 << PAGE_SHIFT
    }

    /// The block of 2<sup>`order`</sup> pages that it lies in, counted in such blocks: of a page of 4 KiB,
    /// the huge page.
    #[inline]
    pub const fn block(self, order: u32) -> Self {
        PageIndex(self.0 >> order)
    }

    /// The first page of this block of 2<sup>`order`</sup> pages: [`block`](Self::block) undone.
    #[inline]
    pub const fn first_in_block(self, order: u32) -> Self {
        PageIndex(self.0 << order)
    }

    /// The page so many pages after it, if there is one.
    #[inline]
    pub const fn checked_add(self, pages: u64) -> Option<Self> {
        match self.0.checked_add(pages) {
            Some(index) => Some(PageIndex(index)),
            None => None,
        }
    }

    /// The page so many pages before it, if there is one.
    #[inline]
    pub const fn checked_sub(self, pages: u64) -> Option<Self> {
        match self.0.checked_sub(pages) {
            Some(index) => Some(PageIndex(index)),
            None => None,
        }
    }

    /// As [`checked_add`](Self::checked_add), or [`END`](Self::END).
    #[inline]
    pub const fn saturating_add(self, pages: u64) -> Self {
        PageIndex(self.0.saturating_add(pages))
    }

    /// The page so many pages after it, modulo 2<sup>64</sup>: places of anonymous memory are what its
    /// addresses are, and may be moved below 0.
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

impl Sub<u64> for PageIndex {
    type Output = PageIndex;

    #[inline]
    fn sub(self, pages: u64) -> PageIndex {
        PageIndex(self.0 - pages)
    }
}

/// How many pages lie between.
impl Sub for PageIndex {
    type Output = PageCount;

    #[inline]
    fn sub(self, earlier: PageIndex) -> PageCount {
        PageCount(self.0 - earlier.0)
    }
}

/// Pages of an object that follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageRange {
    /// The first.
    pub start: PageIndex,
    /// The one after the last.
    pub end: PageIndex,
}

impl PageRange {
    /// All pages.
    pub const ALL: PageRange = PageRange { start: PageIndex::ZERO, end: PageIndex::END };

    /// From `start` to before `end`.
    #[inline]
    pub const fn new(start: PageIndex, end: PageIndex) -> Self {
        PageRange { start, end }
    }

    /// This page alone.
    #[inline]
    pub fn one(index: PageIndex) -> Self {
        PageRange { start: index, end: index + 1 }
    }

    /// So many pages from `start` on.
    #[inline]
    pub fn at(start: PageIndex, pages: PageCount) -> Self {
        PageRange { start, end: start + pages }
    }

    /// How many.
    #[inline]
    pub fn len(self) -> PageCount {
        PageCount(self.end.get().saturating_sub(self.start.get()))
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.start >= self.end
    }

    /// Whether this page is one of them.
    #[inline]
    pub fn contains(self, index: PageIndex) -> bool {
        self.start <= index && index < self.end
    }

    /// Their numbers.
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

/// How many pages, not to be confused with bytes.
///
/// Pages are of 4 KiB. As with [`PageIndex`], those of a hugetlb file's cache alone are of the file's own
/// size.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct PageCount(u64);

impl PageCount {
    /// None.
    pub const ZERO: PageCount = PageCount(0);
    /// A single one.
    pub const ONE: PageCount = PageCount(1);
    /// As many as 64 bits can say: no limit.
    pub const MAX: PageCount = PageCount(u64::MAX);

    /// So many pages.
    #[inline]
    pub const fn new(pages: u64) -> Self {
        PageCount(pages)
    }

    /// The pages that so many bytes are, which must be whole pages.
    #[inline]
    pub const fn of_bytes(bytes: u64) -> Self {
        debug_assert!(bytes.is_multiple_of(PAGE_SIZE));
        PageCount(bytes >> PAGE_SHIFT)
    }

    /// The pages of a block of this order.
    #[inline]
    pub const fn block(order: u32) -> Self {
        PageCount(1 << order)
    }

    /// The number.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Bytes; what does not fit in 64 bits is lost.
    #[inline]
    pub const fn bytes(self) -> u64 {
        self.0 << PAGE_SHIFT
    }

    /// Both together, or as many as 64 bits can say.
    #[inline]
    pub const fn saturating_add(self, more: PageCount) -> Self {
        PageCount(self.0.saturating_add(more.0))
    }

    /// What is left without `less`, if there are so many.
    #[inline]
    pub const fn checked_sub(self, less: PageCount) -> Option<Self> {
        match self.0.checked_sub(less.0) {
            Some(pages) => Some(PageCount(pages)),
            None => None,
        }
    }

    /// What is left without `less`, or none.
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
