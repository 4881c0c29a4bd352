//! Ranges of whole pages of a space.
//!
//! A call of `freehold` converts the numbers of a program to a [`UserRange`] once, with the rounding and the
//! checks that Linux does for that call, and passes the range on. Code that gets a range therefore need not
//! test its alignment or its order again. `tests/every_call/lengths.rs` of `freehold` tests the conversions
//! with lengths at every edge.

use crate::PageCount;
use core::{fmt, ops::Range};
use freehold_pagetable::{PAGE_SIZE, VaRange, VirtAddr};

/// A range of consecutive whole pages of a space.
///
/// Programs pass plain numbers. A call that has checked the numbers uses this type.
///
/// # Invariants
///
/// Both ends are multiples of the page size, and the range does not end before it starts.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct UserRange {
    start: u64,
    end: u64,
}

impl UserRange {
    /// Every page that can exist.
    pub const ALL: UserRange = UserRange { start: 0, end: !(PAGE_SIZE - 1) };
    /// No page.
    pub const EMPTY: UserRange = UserRange { start: 0, end: 0 };

    /// Returns the range from `start` to `end` (exclusive).
    ///
    /// # Panics
    ///
    /// Panics if the invariants do not hold and debug assertions are on.
    #[inline]
    pub const fn new(start: u64, end: u64) -> Self {
        debug_assert!(start.is_multiple_of(PAGE_SIZE) && end.is_multiple_of(PAGE_SIZE) && start <= end);
        UserRange { start, end }
    }

    /// Returns the range from `start` to `end` (exclusive), or `None` if that is not a range of whole pages.
    pub const fn try_new(start: u64, end: u64) -> Option<Self> {
        let whole = start.is_multiple_of(PAGE_SIZE) && end.is_multiple_of(PAGE_SIZE);
        if whole && start <= end { Some(UserRange { start, end }) } else { None }
    }

    /// Returns the pages that a program names by an address and a length. The length is rounded up to whole
    /// pages. Returns `None` if the address is not a multiple of the page size, or if the end overflows.
    #[inline]
    pub const fn decode(addr: u64, len: u64) -> Option<Self> {
        let Some(len) = len.checked_next_multiple_of(PAGE_SIZE) else { return None };
        match addr.checked_add(len) {
            Some(end) => Self::try_new(addr, end),
            None => None,
        }
    }

    /// Returns the pages that a program names by an address and a length, for the calls of Linux that round
    /// the length without a check: mbind, msync, set_mempolicy_home_node. A length that overflows when it is
    /// rounded up becomes zero. Returns `None` if the address is not a multiple of the page size, or if the
    /// end overflows.
    #[inline]
    pub const fn decode_wrapping(addr: u64, len: u64) -> Option<Self> {
        match len.checked_next_multiple_of(PAGE_SIZE) {
            Some(len) => Self::decode(addr, len),
            None => Self::decode(addr, 0),
        }
    }

    /// Returns the whole pages in `len` bytes from `start` on, or all pages from `start` on if the end
    /// overflows.
    ///
    /// # Panics
    ///
    /// Panics like [`new`](Self::new).
    #[inline]
    pub const fn clipped(start: u64, len: u64) -> Self {
        Self::new(start, start.saturating_add(len) & !(PAGE_SIZE - 1))
    }

    /// Returns the range of `len` bytes from `start` on. Panics like [`new`](Self::new).
    #[inline]
    pub const fn at(start: u64, len: u64) -> Self {
        Self::new(start, start + len)
    }

    /// Returns the range of the one page at `start`.
    #[inline]
    pub const fn page(start: u64) -> Self {
        Self::at(start, PAGE_SIZE)
    }

    /// Returns the first address.
    #[inline]
    pub const fn start(self) -> u64 {
        self.start
    }

    /// Returns the address after the last.
    #[inline]
    pub const fn end(self) -> u64 {
        self.end
    }

    /// Returns the number of bytes.
    #[inline]
    pub const fn len(self) -> u64 {
        self.end - self.start
    }

    /// Returns the number of pages.
    #[inline]
    pub const fn pages(self) -> PageCount {
        PageCount::of_bytes(self.len())
    }

    /// Returns true if the range has no page.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Returns true if `addr` is in the range.
    #[inline]
    pub const fn contains(self, addr: u64) -> bool {
        self.start <= addr && addr < self.end
    }

    /// Returns the pages that are in both ranges; the result is empty if there are none.
    #[inline]
    pub fn intersection(self, other: UserRange) -> UserRange {
        let start = self.start.max(other.start);
        UserRange { start, end: self.end.min(other.end).max(start) }
    }

    /// Returns the range with another start.
    #[inline]
    pub const fn with_start(self, start: u64) -> Self {
        Self::new(start, self.end)
    }

    /// Returns the part of the range from `at` on. The part is empty if `at` is not below the end.
    #[inline]
    pub fn rest(self, at: u64) -> Self {
        Self::new(at.min(self.end), self.end)
    }

    /// Returns the range with another end.
    #[inline]
    pub const fn with_end(self, end: u64) -> Self {
        Self::new(self.start, end)
    }

    /// Returns the range of the same length that starts at `start`.
    #[inline]
    pub const fn moved_to(self, start: u64) -> Self {
        Self::at(start, self.len())
    }

    /// Returns the addresses of the pages, ascending.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = u64> + Clone {
        (self.start..self.end).step_by(PAGE_SIZE as usize)
    }

    /// Returns the range in the type that walks of page tables take.
    #[inline]
    pub const fn va(self) -> VaRange {
        VaRange::new(VirtAddr::new(self.start), VirtAddr::new(self.end))
    }

    /// Returns the addresses as a range of numbers.
    #[inline]
    pub const fn addresses(self) -> Range<u64> {
        self.start..self.end
    }
}

impl fmt::Debug for UserRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..{:#x}", self.start, self.end)
    }
}

impl PartialEq<Range<u64>> for UserRange {
    fn eq(&self, other: &Range<u64>) -> bool {
        self.addresses() == *other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAST: u64 = !(PAGE_SIZE - 1);

    #[test]
    fn decode_accepts_ranges_that_programs_can_name() {
        let decoded = |addr, len| UserRange::decode(addr, len).map(UserRange::addresses);
        assert_eq!(decoded(PAGE_SIZE, 0), Some(PAGE_SIZE..PAGE_SIZE));
        assert_eq!(decoded(PAGE_SIZE, 1), Some(PAGE_SIZE..2 * PAGE_SIZE));
        assert_eq!(decoded(0, LAST), Some(0..LAST));
        assert_eq!(decoded(LAST, 0), Some(LAST..LAST));
        for (addr, len) in [(1, PAGE_SIZE), (0, LAST + 1), (0, u64::MAX), (PAGE_SIZE, LAST), (LAST, 1)] {
            assert_eq!(decoded(addr, len), None, "{addr:#x}, {len:#x}");
        }
    }

    #[test]
    fn clipped_range_ends_at_the_last_page() {
        assert_eq!(UserRange::clipped(PAGE_SIZE, PAGE_SIZE), PAGE_SIZE..2 * PAGE_SIZE);
        for len in [LAST - PAGE_SIZE, LAST] {
            assert_eq!(UserRange::clipped(PAGE_SIZE, len), PAGE_SIZE..LAST);
        }
    }
}
