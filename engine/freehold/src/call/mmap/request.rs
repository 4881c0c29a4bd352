//! The arguments of mmap ([`MmapRequest`]), decoded and completed step by step.
//!
//! `decode_mmap` in `mod.rs` creates a request. The later steps replace its flags and its object by those of
//! the new VMA. A request belongs to one call, so no lock guards it. `shm.rs` and `remap_file_pages.rs` also
//! create requests. Reservations for files of huge pages are made here, as the last step that can fail:
//! `refused_mmap_changes_nothing` in `tests/hugetlb/failed_calls.rs` tests that.

use crate::{
    call::ksm::with_mergeable,
    counted::Counted,
    error::MmapError,
    file::{File, FillError, Object, VmaInfo, Writing, kinds::huge::Reserving},
    platform::Platform,
    space::map_flags::{MapFlags, SHARED, SHARED_VALIDATE, TYPE},
    vma::{flags::VmFlags, merge::Attrs},
};
use freehold_vmspace::{PageIndex, UserRange};

/// Decoded arguments of one call.
pub(in crate::call) struct MmapRequest<P: Platform> {
    /// Page-aligned hint, or the fixed address as passed.
    pub(super) addr: u64,
    /// Length in bytes: a multiple of `unit`, not zero.
    pub(super) len: u64,
    /// Size of a page in bytes.
    pub(super) unit: u64,
    /// Flags that the caller passed. `FIXED_NOREPLACE` implies `FIXED`.
    pub(super) flags: MapFlags,
    /// Flags of the VMA. The checks of prepare complete them.
    pub(super) vm_flags: VmFlags,
    /// The memory that the VMA will map.
    pub(super) object: Object<P>,
    /// Offset of the mapping in the object, in pages of 4 KiB.
    pub(super) pgoff: PageIndex,
    /// Keeps the file from being sealed against writing until the VMA exists. `None` if the mapping cannot
    /// write to a file that can be sealed.
    pub(super) writing: Option<Writing<P>>,
}

impl<P: Platform> MmapRequest<P> {
    /// Returns true if other mappings of the same object see the stores of this one.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self.flags.bits() & TYPE, SHARED | SHARED_VALIDATE)
    }

    /// Returns true if a file of huge pages reserves pages for the mapping. Such a file reserves pages only
    /// for shared mappings.
    fn wants_reservation(&self) -> bool {
        self.is_shared() && !self.flags.contains(MapFlags::NORESERVE)
    }

    /// Returns the file of huge pages that the mapping maps, if the mapping reserves pages of the file or may
    /// enlarge the file.
    pub(super) fn file_to_reserve(&self) -> Option<&Counted<File<P>>> {
        if !self.vm_flags.contains(VmFlags::HUGETLB) {
            return None;
        }
        self.object.file().filter(|_| self.wants_reservation() || self.vm_flags.contains(VmFlags::WRITE))
    }

    /// Reserves pages for a shared mapping of a file of huge pages, and enlarges the file if the mapping is
    /// writable. All other checks are complete, including rights and the maximum size of the file.
    pub(super) fn reserve(&self, reserving: &Reserving<'_, P>) -> Result<(), MmapError> {
        let start = self.pgoff.byte();
        let enlarge = self.vm_flags.contains(VmFlags::WRITE);
        let reserved = reserving.reserve(start..start + self.len, self.wants_reservation(), enlarge);
        reserved.map_err(|error| match error {
            FillError::NoHugePages => MmapError::NoHugePages,
            _ => MmapError::OutOfMemory,
        })
    }

    /// Returns the attributes that determine merges with neighbours.
    pub(super) fn attrs(&self) -> Attrs<'_, P> {
        Attrs::new(self.vm_flags, &self.object, self.pgoff)
    }

    /// Returns the description of the mapping for a driver.
    pub(super) fn vma_info(&self, range: UserRange) -> VmaInfo {
        VmaInfo { range, pgoff: self.pgoff, flags: self.vm_flags }
    }

    /// Returns the request with the object and the flags of a driver's answer.
    pub(super) fn answered(&self, object: Object<P>, vm_flags: VmFlags) -> Self {
        let vm_flags = with_mergeable(vm_flags, &object);
        MmapRequest { object, vm_flags, writing: None, ..*self }
    }
}
