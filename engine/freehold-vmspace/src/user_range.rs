//! Whole pages of a space that follow each other.

use crate::PageCount;
use core::{fmt, ops::Range};
use freehold_pagetable::{PAGE_SIZE, VaRange, VirtAddr};

/// Whole pages of a space, from one address to before another.
///
/// What programs pass are bare words; a call that has checked them goes on with this.
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
    /// Every page there can be.
    pub const ALL: UserRange = UserRange { start: 0, end: !(PAGE_SIZE - 1) };
    /// No page.
    pub const EMPTY: UserRange = UserRange { start: 0, end: 0 };

    /// From `start` to before `end`.
    ///
    /// # Panics
    ///
    /// With debug assertions, when that is against the invariants.
    #[inline]
    pub const fn new(start: u64, end: u64) -> Self {
        debug_assert!(start.is_multiple_of(PAGE_SIZE) && end.is_multiple_of(PAGE_SIZE) && start <= end);
        UserRange { start, end }
    }

    /// From `start` to before `end`, if that is a range of whole pages.
    pub const fn try_new(start: u64, end: u64) -> Option<Self> {
        let whole = start.is_multiple_of(PAGE_SIZE) && end.is_multiple_of(PAGE_SIZE);
        if whole && start <= end { Some(UserRange { start, end }) } else { None }
    }

    /// The pages that a program names by an address and a length, which is rounded up to whole pages. `None`:
    /// the address is not that of a page, or the end overflows.
    #[inline]
    pub const fn decode(addr: u64, len: u64) -> Option<Self> {
        let Some(len) = len.checked_next_multiple_of(PAGE_SIZE) else { return None };
        match addr.checked_add(len) {
            Some(end) => Self::try_new(addr, end),
            None => None,
        }
    }

    /// Returns the pages that a program names by an address and a length, as Linux does where it rounds the
    /// length without a check: for mbind, msync, set_mempolicy_home_node. A length that overflows when it is
    /// rounded up becomes zero. `None`: the address is not that of a page, or the end overflows.
    #[inline]
    pub const fn decode_wrapping(addr: u64, len: u64) -> Option<Self> {
        match len.checked_next_multiple_of(PAGE_SIZE) {
            Some(len) => Self::decode(addr, len),
            None => Self::decode(addr, 0),
        }
    }

    /// So many bytes of whole pages from `start` on, or all pages from there, if the end overflows.
    ///
    /// # Panics
    ///
    /// As [`new`](Self::new).
    #[inline]
    pub const fn clipped(start: u64, len: u64) -> Self {
        Self::new(start, start.saturating_add(len) & !(PAGE_SIZE - 1))
    }

    /// So many bytes from `start` on, as [`new`](Self::new).
    #[inline]
    pub const fn at(start: u64, len: u64) -> Self {
        Self::new(start, start + len)
    }

    /// The page at `start` alone.
    #[inline]
    pub const fn page(start: u64) -> Self {
        Self::at(start, PAGE_SIZE)
    }

    /// The first address.
    #[inline]
    pub const fn start(self) -> u64 {
        self.start
    }

    /// The address after the last.
    #[inline]
    pub const fn end(self) -> u64 {
        self.end
    }

    /// Bytes.
    #[inline]
    pub const fn len(self) -> u64 {
        self.end - self.start
    }

    /// Pages.
    #[inline]
    pub const fn pages(self) -> PageCount {
        PageCount::of_bytes(self.len())
    }

    /// Whether there is none.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Whether `addr` is inside.
    #[inline]
    pub const fn contains(self, addr: u64) -> bool {
        self.start <= addr && addr < self.end
    }

    /// What is in both; empty if that is nothing.
    #[inline]
    pub fn intersection(self, other: UserRange) -> UserRange {
        let start = self.start.max(other.start);
        UserRange { start, end: self.end.min(other.end).max(start) }
    }

    /// The range with another start.
    #[inline]
    pub const fn with_start(self, start: u64) -> Self {
        Self::new(start, self.end)
    }

    /// What is left of it from `at` on, which may lie behind its end: nothing.
    #[inline]
    pub fn rest(self, at: u64) -> Self {
        Self::new(at.min(self.end), self.end)
    }

    /// The range with another end.
    #[inline]
    pub const fn with_end(self, end: u64) -> Self {
        Self::new(self.start, end)
    }

    /// The same length from `start` on.
    #[inline]
    pub const fn moved_to(self, start: u64) -> Self {
        Self::at(start, self.len())
    }

    /// The addresses of its pages, ascending.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = u64> + Clone {
        (self.start..self.end).step_by(PAGE_SIZE as usize)
    }

    /// As walks of page tables take it.
    #[inline]
    pub const fn va(self) -> VaRange {
        VaRange::new(VirtAddr::new(self.start), VirtAddr::new(self.end))
    }

    /// Its addresses, as a range of numbers.
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
    fn a_range_behind_the_last_page_is_clipped() {
        assert_eq!(UserRange::clipped(PAGE_SIZE, PAGE_SIZE), PAGE_SIZE..2 * PAGE_SIZE);
        for len in [LAST - PAGE_SIZE, LAST] {
            assert_eq!(UserRange::clipped(PAGE_SIZE, len), PAGE_SIZE..LAST);
        }
    }
}
