//! A description of a VMA for callers that hold no lock on it.

use super::flags::VmFlags;
use crate::{PAGE_SHIFT, PAGE_SIZE};
use freehold_vmspace::{PageCount, PageIndex, UserRange};

/// A copy of the attributes that a VMA had at one moment. For hooks, and for callers that read a VMA without
/// a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmaInfo {
    /// The addresses of the VMA.
    pub range: UserRange,
    /// Page offset of the start of the VMA in the mapped object.
    pub pgoff: PageIndex,
    /// Access rights and properties.
    pub flags: VmFlags,
}

impl VmaInfo {
    /// Returns the length in pages.
    pub fn pages(&self) -> PageCount {
        self.range.pages()
    }

    /// Returns the offset in the mapped object of an address in the range, in bytes.
    pub fn offset_of(&self, addr: u64) -> u64 {
        let page = self.pgoff.wrapping_add(addr.wrapping_sub(self.range.start()) >> PAGE_SHIFT);
        page.byte() + addr % PAGE_SIZE
    }
}
