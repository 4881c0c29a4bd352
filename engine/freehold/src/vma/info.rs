//! What is told of a VMA to callers that have no lock on it.

use super::flags::VmFlags;
use crate::{PAGE_SHIFT, PAGE_SIZE};
use freehold_vmspace::{PageCount, PageIndex, UserRange};

/// A copy of what describes a VMA, as it was at one moment: for hooks, and for callers that looked without a
/// lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmaInfo {
    /// Its addresses.
    pub range: UserRange,
    /// Page offset of its start in what it maps.
    pub pgoff: PageIndex,
    /// Rights and properties.
    pub flags: VmFlags,
}

impl VmaInfo {
    /// Pages.
    pub fn pages(&self) -> PageCount {
        self.range.pages()
    }

    /// Where in what it maps an address of its range is, in bytes.
    pub fn offset_of(&self, addr: u64) -> u64 {
        let page = self.pgoff.wrapping_add(addr.wrapping_sub(self.range.start()) >> PAGE_SHIFT);
        page.byte() + addr % PAGE_SIZE
    }
}
