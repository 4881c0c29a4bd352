//! The range that a removal of mappings works on: the result of the step decode of `unmap.rs`.
//!
//! The range consists of whole pages, is not empty, and lies inside user space. munmap, brk, mremap, mmap and
//! shmdt make such ranges. `sections.rs` shortens the range, so that a call that fails between two sections
//! can continue behind them. `tests/munmap/refused_calls.rs` and `tests/shortage.rs` have the tests.

use crate::{PAGE_SIZE, error::MunmapError, platform::Platform, space::AddressSpace};
use freehold_vmspace::UserRange;

/// The result of decode: a range that munmap accepts, which is whole pages, not empty, and inside user space.
#[derive(Clone, Debug)]
pub(crate) struct UnmapRange(UserRange);

impl UnmapRange {
    /// Checks the arguments of munmap. Rounds the length up to whole pages.
    pub fn new<P: Platform>(addr: u64, len: u64) -> Result<Self, MunmapError> {
        let range = UserRange::decode(addr, len).ok_or(MunmapError::Invalid)?;
        let fits = !range.is_empty() && range.end() <= AddressSpace::<P>::TASK_SIZE;
        if fits { Ok(UnmapRange(range)) } else { Err(MunmapError::Invalid) }
    }

    /// Wraps a range that is known to be valid.
    pub fn trusted<P: Platform>(range: UserRange) -> Self {
        let inside = range.start() < range.end() && range.end() <= AddressSpace::<P>::TASK_SIZE;
        debug_assert!(inside && range.start().is_multiple_of(PAGE_SIZE));
        UnmapRange(range)
    }

    /// Returns the range.
    pub fn range(&self) -> UserRange {
        self.0
    }

    /// Removes the part below `end`, which is unmapped.
    pub(super) fn pass(&mut self, end: u64) {
        self.0 = self.0.with_start(end);
    }
}
