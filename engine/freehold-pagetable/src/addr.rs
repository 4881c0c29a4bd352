//! Virtual addresses ([`VirtAddr`], [`VaRange`]), frame numbers ([`Pfn`]) and levels of tables ([`Level`],
//! [`Levels`]).
//! All conversions between these types are in this file. `phys_addr.rs` has physical addresses, and the
//! arithmetic that both kinds of address share.
//!
//! All crates above this one use these types in place of integers. The types do not depend on a format: a
//! format says how many levels exist (`Format::LEVELS`), and `TABLE_BITS` gives the sizes. Addresses come
//! from callers and may have any value; no function in this file checks that an address is a user address.
//! Sums of addresses that can overflow are checked or saturate. [`Pfn::add`] does not check its sum, because
//! the numbers of existing frames are small. A function that can panic documents the condition.
//! `tests/format.rs` tests the sizes of the levels.

use crate::format::table_bits::{self, TABLE_BITS};
use core::fmt;

/// The base-2 logarithm of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = table_bits::PAGE_SHIFT;
/// Number of bytes in the smallest page.
pub const PAGE_SIZE: u64 = 1 << PAGE_SHIFT;
/// Mask of the address bits inside a page.
pub const PAGE_MASK: u64 = PAGE_SIZE - 1;
/// Number of entries of one table.
pub const ENTRIES: usize = 1 << TABLE_BITS;

/// A virtual address from any source, unchecked until it is looked up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct VirtAddr(u64);

impl VirtAddr {
    /// Returns the address with this number.
    #[inline]
    pub const fn new(address: u64) -> Self {
        VirtAddr(address)
    }

    /// Returns the address as a number.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the start of the address's 4 KiB page.
    #[inline]
    pub const fn page_down(self) -> Self {
        VirtAddr(self.0 & !PAGE_MASK)
    }

    /// Returns the start of the span that the entry of `level` for this address covers.
    #[inline]
    pub const fn span_down(self, level: Level) -> Self {
        VirtAddr(self.0 & !(level.span() - 1))
    }

    /// Returns the start of the next span of `level`, or `None` if that start is past the last address.
    #[inline]
    pub const fn next_span(self, level: Level) -> Option<Self> {
        match self.span_down(level).0.checked_add(level.span()) {
            Some(next) => Some(VirtAddr(next)),
            None => None,
        }
    }

    /// Returns the index of the entry of a table of `level` that translates this address.
    #[inline]
    pub const fn index(self, level: Level) -> usize {
        (self.0 >> level.shift()) as usize & (ENTRIES - 1)
    }

    /// Returns the number of bytes from the start of the 4 KiB page to the address.
    #[inline]
    pub const fn page_offset(self) -> u64 {
        self.0 & PAGE_MASK
    }

    /// Returns the index of the address's 4 KiB frame inside a leaf of `level`. The first frame of the leaf
    /// has index 0.
    #[inline]
    pub const fn frame_in_leaf(self, level: Level) -> u64 {
        (self.0 & (level.span() - 1)) >> PAGE_SHIFT
    }
}

/// The number of a 4 KiB frame of physical memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Pfn(u64);

impl Pfn {
    /// Returns the frame with this number.
    #[inline]
    pub const fn new(number: u64) -> Self {
        Pfn(number)
    }

    /// Returns the number.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the number as an index into an array of frames.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the frame whose number is `frames` higher. The sum must fit in 64 bits.
    #[inline]
    pub const fn add(self, frames: u64) -> Self {
        Pfn(self.0 + frames)
    }

    /// Returns true if a leaf of `level` may start at this frame.
    #[inline]
    pub const fn is_aligned(self, level: Level) -> bool {
        self.0 & (level.frames() - 1) == 0
    }

    /// Returns the highest frame, not above this frame, at which a leaf of `level` may start.
    #[inline]
    pub const fn align_down(self, level: Level) -> Self {
        Pfn(self.0 & !(level.frames() - 1))
    }

    /// Returns the lowest frame, not below this frame, at which a leaf of `level` may start. Returns `None`
    /// if no such frame exists.
    #[inline]
    pub const fn align_up(self, level: Level) -> Option<Self> {
        match self.0.checked_next_multiple_of(level.frames()) {
            Some(number) => Some(Pfn(number)),
            None => None,
        }
    }
}

impl fmt::Debug for Pfn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pfn {:#x}", self.0)
    }
}

/// The level of a table, counted from the leaves. An entry of a [`Level::Pte`] table maps 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// 4 KiB per entry.
    Pte = 0,
    /// 2 MiB per entry.
    Pmd = 1,
    /// 1 GiB per entry.
    Pud = 2,
    /// 512 GiB per entry. The root level of formats with four levels.
    P4d = 3,
    /// 256 TiB per entry. The root level of formats with five levels.
    Pgd = 4,
}

impl Level {
    const ALL: [Level; 5] = [Level::Pte, Level::Pmd, Level::Pud, Level::P4d, Level::Pgd];

    /// Returns the level with this number, counted from the leaves.
    ///
    /// # Panics
    /// Panics if there is no such level.
    #[inline]
    pub const fn from_number(number: usize) -> Level {
        Level::ALL[number]
    }

    /// Returns the number, counted from the leaves.
    #[inline]
    pub const fn number(self) -> usize {
        self as usize
    }

    /// Returns the base-2 logarithm of [`span`](Self::span).
    #[inline]
    pub const fn shift(self) -> u32 {
        PAGE_SHIFT + TABLE_BITS * self as u32
    }

    /// Returns the number of bytes that one entry of this level covers.
    #[inline]
    pub const fn span(self) -> u64 {
        1 << self.shift()
    }

    /// Returns the number of bytes that one whole table of this level covers.
    #[inline]
    pub const fn table_span(self) -> u64 {
        1 << (self.shift() + TABLE_BITS)
    }

    /// Returns the number of 4 KiB frames that one entry of this level covers.
    #[inline]
    pub const fn frames(self) -> u64 {
        1 << (self.shift() - PAGE_SHIFT)
    }

    /// Returns the next level towards the leaves.
    ///
    /// # Panics
    /// Panics for [`Level::Pte`].
    #[inline]
    pub const fn below(self) -> Level {
        Level::ALL[self as usize - 1]
    }

    /// Returns the next level towards the root.
    ///
    /// # Panics
    /// Panics for [`Level::Pgd`].
    #[inline]
    pub const fn above(self) -> Level {
        Level::ALL[self as usize + 1]
    }
}

/// A set of levels.
///
/// ```
/// use freehold_pagetable::{Level, Levels};
///
/// let both = Levels::of(Level::Pmd).union(Levels::of(Level::Pte));
/// assert_eq!((both.lowest(), both.only()), (Some(Level::Pte), None));
/// assert_eq!(Levels::of(Level::Pmd).only(), Some(Level::Pmd));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct Levels(u8);

impl Levels {
    /// The empty set.
    pub const NONE: Levels = Levels(0);
    /// All levels.
    pub const ALL: Levels = Levels((1 << Level::ALL.len()) - 1);

    /// Returns the set of one level.
    #[inline]
    pub const fn of(level: Level) -> Self {
        Levels(1 << level as u32)
    }

    /// Returns the set with the number that [`bits`](Self::bits) returned. Ignores other bits.
    #[inline]
    pub const fn from_bits(bits: u8) -> Self {
        Levels(bits & Levels::ALL.0)
    }

    /// Returns the set as a number, to be stored in a word.
    #[inline]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Returns the levels that are in one of the two sets.
    #[inline]
    pub const fn union(self, other: Self) -> Self {
        Levels(self.0 | other.0)
    }

    /// Returns true if the set contains `level`.
    #[inline]
    pub const fn contains(self, level: Level) -> bool {
        self.0 & Levels::of(level).0 != 0
    }

    /// Returns the levels from the lowest level of the set on up to the root, or the empty set.
    #[inline]
    pub const fn and_above(self) -> Self {
        let lowest = self.0 & self.0.wrapping_neg();
        Levels(lowest.wrapping_neg() & Levels::ALL.0)
    }

    /// Returns the level of the set that is nearest to the leaves, or `None` if the set is empty.
    #[inline]
    pub const fn lowest(self) -> Option<Level> {
        match self.0 {
            0 => None,
            bits => Some(Level::from_number(bits.trailing_zeros() as usize)),
        }
    }

    /// Returns the level if the set contains exactly one.
    #[inline]
    pub const fn only(self) -> Option<Level> {
        if self.0.is_power_of_two() { self.lowest() } else { None }
    }
}

/// A range of virtual addresses, `start..end`.
///
/// # Invariants
/// `start <= end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VaRange {
    start: VirtAddr,
    end: VirtAddr,
}

impl VaRange {
    /// Returns the range `start..end`.
    ///
    /// # Panics
    /// Panics if `end < start`.
    #[inline]
    pub const fn new(start: VirtAddr, end: VirtAddr) -> Self {
        assert!(start.0 <= end.0, "a range ends before it starts");
        VaRange { start, end }
    }

    /// Returns the range between two numbers; see [`new`](Self::new).
    ///
    /// # Panics
    /// Panics if `end < start`.
    #[inline]
    pub const fn of(start: u64, end: u64) -> Self {
        Self::new(VirtAddr(start), VirtAddr(end))
    }

    /// Returns the first address.
    #[inline]
    pub const fn start(self) -> VirtAddr {
        self.start
    }

    /// Returns the address after the last one of the range.
    #[inline]
    pub const fn end(self) -> VirtAddr {
        self.end
    }

    /// Returns the number of bytes.
    #[inline]
    pub const fn len(self) -> u64 {
        self.end.0 - self.start.0
    }

    /// Returns true if the range contains no address.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.end.0 == self.start.0
    }

    /// Returns true if the range contains `address`.
    #[inline]
    pub const fn contains(self, address: VirtAddr) -> bool {
        self.start.0 <= address.0 && address.0 < self.end.0
    }

    /// Returns true if both ends are multiples of the page size.
    #[inline]
    pub(crate) const fn is_of_pages(self) -> bool {
        (self.start.0 | self.end.0) & PAGE_MASK == 0
    }

    /// Returns true if the range contains all of `other`.
    #[inline]
    pub const fn covers(self, other: VaRange) -> bool {
        self.start.0 <= other.start.0 && other.end.0 <= self.end.0
    }

    /// Returns the whole span of the entry of `level` that contains `address`.
    #[inline]
    pub const fn entry(address: VirtAddr, level: Level) -> Self {
        let start = address.span_down(level);
        VaRange { start, end: VirtAddr(start.0.saturating_add(level.span())) }
    }

    /// Returns true if the range is not empty and one entry of `level` covers all of it.
    #[inline]
    pub(crate) const fn is_below_entry(self, level: Level) -> bool {
        self.start.0 < self.end.0 && self.start.0 >> level.shift() == (self.end.0 - 1) >> level.shift()
    }

    /// Splits the range at the end of the entry of `level` that contains its start. Returns the part inside
    /// the entry and the part behind it.
    #[inline]
    pub(crate) const fn split_at_entry(self, level: Level) -> (VaRange, VaRange) {
        let edge = match self.start.next_span(level) {
            Some(next) if next.0 < self.end.0 => next,
            _ => self.end,
        };
        (VaRange { start: self.start, end: edge }, VaRange { start: edge, end: self.end })
    }
}
