//! A copy of a VMA's attributes, for code that must not refer to the VMA itself.
//!
//! Hooks of drivers and special mappings (`file/kinds/`) get a `VmaInfo`, and lookups without a lock
//! (`space/speculate.rs`) return a `VmaInfo`. The copy does not keep the VMA unchanged: the VMA may be
//! changed or unmapped as soon as the caller's lock is released. This file is a layer below files and VMAs,
//! so it must use neither files nor VMAs. `shuttle_engine/speculative_lookup.rs` tests lookups without a
//! lock.

use super::flags::VmFlags;
use crate::{PAGE_SHIFT, PAGE_SIZE};
use freehold_vmspace::{PageCount, PageIndex, UserRange};

/// The attributes that a VMA had at one moment.
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
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, PageCount, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// assert_eq!(space.vma_info(at).unwrap().pages(), PageCount::new(4));
    /// ```
    pub fn pages(&self) -> PageCount {
        self.range.pages()
    }

    /// Returns the offset of the address `addr` in the mapped object, in bytes. `addr` lies in the range.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::{File, FileAccess, Mapping}, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let memory = Mapping::memfd(&engine, 8 * PAGE_SIZE).unwrap();
    /// # let file = File::new(&memory, FileAccess::READ, "/it").unwrap();
    /// let offset = 2 * PAGE_SIZE;
    /// let at = space.mmap(0, 4 * PAGE_SIZE, Prot::READ, MapFlags::SHARED, Some(&file), offset).unwrap();
    /// let info = space.vma_info(at).unwrap();
    /// assert_eq!(info.offset_of(at + PAGE_SIZE + 5), 3 * PAGE_SIZE + 5);
    /// ```
    pub fn offset_of(&self, addr: u64) -> u64 {
        let page = self.pgoff.wrapping_add(addr.wrapping_sub(self.range.start()) >> PAGE_SHIFT);
        page.byte() + addr % PAGE_SIZE
    }
}
