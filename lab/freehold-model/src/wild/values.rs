//! Arguments of wild calls, decoded from the bytes of a life: addresses, lengths, flags and indices, most of
//! them near an edge or an overflow.
//!
//! Equal bytes always give equal values. After the last byte, further bytes are zero. Most values are small
//! or near the mappings of the stage, because a life in which most calls fail tests little; `tests/wild.rs`
//! checks the share of calls that succeed. A changed function gives the seeds and the inputs of the fuzzer
//! another meaning.

use freehold::{PAGE_SIZE, UserRange};
use freehold_machine::Process;

/// The first address of the range that most calls use.
pub(super) const BASE: u64 = 0x10_0000_0000;
const HUGE: u64 = 2 << 20;
const GIB: u64 = 1 << 30;
const TASK_SIZE: u64 = <Process>::TASK_SIZE;

/// Values that overflow, or nearly overflow, in some calculation.
const WILD: &[u64] = &[
    0,
    1,
    PAGE_SIZE - 1,
    PAGE_SIZE,
    PAGE_SIZE + 1,
    HUGE - PAGE_SIZE,
    HUGE,
    GIB,
    1 << 32,
    (1 << 32) - 1,
    TASK_SIZE / 3,
    TASK_SIZE - HUGE,
    TASK_SIZE - PAGE_SIZE,
    TASK_SIZE - 1,
    TASK_SIZE,
    TASK_SIZE + 1,
    TASK_SIZE + PAGE_SIZE,
    (1 << 47) - 1,
    1 << 47,
    1 << 48,
    1 << 51,
    1 << 52,
    (1 << 52) - 1,
    1 << 62,
    i64::MAX as u64 - PAGE_SIZE,
    i64::MAX as u64 - (PAGE_SIZE - 1),
    i64::MAX as u64,
    1 << 63,
    (1 << 63) + PAGE_SIZE,
    u64::MAX << 47,
    u64::MAX - GIB + 1,
    u64::MAX - HUGE + 1,
    u64::MAX - 2 * PAGE_SIZE + 1,
    u64::MAX - PAGE_SIZE,
    u64::MAX - PAGE_SIZE + 1,
    u64::MAX - 1,
    u64::MAX,
];

/// A string of bytes. Values are taken from its front.
pub(super) struct Values<'b> {
    bytes: &'b [u8],
}

impl<'b> Values<'b> {
    pub fn new(bytes: &'b [u8]) -> Self {
        Values { bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the next byte, or zero if there are no more.
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        *first
    }

    /// Returns true or false.
    pub fn bit(&mut self) -> bool {
        self.byte() % 2 == 1
    }

    /// Returns a number less than `limit`. `limit` is at most 256.
    pub fn below(&mut self, limit: u64) -> u64 {
        u64::from(self.byte()) % limit
    }

    /// Returns a word of arbitrary bits.
    pub fn word(&mut self) -> u64 {
        let bytes: [u8; 8] = core::array::from_fn(|_| self.byte());
        u64::from_le_bytes(bytes)
    }

    /// Returns one of these values.
    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len().min(256) as u64) as usize]
    }

    /// Returns any number, most often one near an overflow.
    pub fn wild(&mut self) -> u64 {
        match self.below(8) {
            0 => self.word(),
            1 => self.of(WILD).wrapping_neg(),
            2 => self.of(WILD).wrapping_add(self.of(WILD)),
            _ => self.of(WILD),
        }
    }

    /// Returns an address, most often one near the mappings.
    pub fn addr(&mut self) -> u64 {
        match self.below(8) {
            0 | 1 => self.wild(),
            2 => BASE + self.word() % (64 * PAGE_SIZE),
            3 => BASE + self.below(8) * HUGE,
            _ => BASE + self.below(64) * PAGE_SIZE,
        }
    }

    /// Returns a length, most often a few pages.
    pub fn len(&mut self) -> u64 {
        match self.below(8) {
            0 | 1 => self.wild(),
            2 => self.word() % (16 * PAGE_SIZE),
            3 => self.below(4) * HUGE,
            _ => self.below(16) * PAGE_SIZE,
        }
    }

    /// Returns a range whose end may be below its start.
    pub fn range(&mut self) -> core::ops::Range<u64> {
        let start = self.addr();
        if self.bit() { start..start.wrapping_add(self.len()) } else { start..self.addr() }
    }

    /// Returns a range of whole pages at any address.
    pub fn user_range(&mut self) -> UserRange {
        let [one, other] = [self.addr(), self.addr()].map(|addr| addr & !(PAGE_SIZE - 1));
        UserRange::try_new(one.min(other), one.max(other)).expect("aligned, and in order")
    }

    /// Returns a number of pages, or the index of a page of a file.
    pub fn pages(&mut self) -> u64 {
        if self.below(4) == 0 { self.wild() } else { self.below(16) }
    }

    /// Returns an offset in a file.
    pub fn offset(&mut self) -> u64 {
        match self.below(4) {
            0 => self.wild(),
            1 => self.word() % (16 * PAGE_SIZE),
            _ => self.below(16) * PAGE_SIZE,
        }
    }

    /// Returns flags, most often some of the known flags.
    pub fn flags(&mut self, known: u64) -> u64 {
        match self.below(8) {
            0 => self.word(),
            1 => 1 << self.below(64),
            2 => 0,
            3 => known,
            4 => self.word() & self.word() & known,
            _ => self.word() & self.word() & self.word() & known,
        }
    }

    /// Returns the size of a buffer: a few bytes, or more than a page.
    pub fn size(&mut self) -> usize {
        self.of(&[0, 1, 8, 16, 100, 4096, 4097, 9000])
    }
}
