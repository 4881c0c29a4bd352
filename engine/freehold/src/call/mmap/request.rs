//! What mmap was asked for, decoded and completed step by step.

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

/// Arguments in the form the steps need them.
pub(in crate::call) struct MmapRequest<P: Platform> {
    /// Page-aligned hint, or the fixed address as passed.
    pub(super) addr: u64,
    /// Whole pages, not zero.
    pub(super) len: u64,
    /// Bytes of a page.
    pub(super) unit: u64,
    pub(super) flags: MapFlags,
    pub(super) vm_flags: VmFlags,
    pub(super) object: Object<P>,
    pub(super) pgoff: PageIndex,
    /// Keeps the file from being sealed.
    pub(super) writing: Option<Writing<P>>,
}

impl<P: Platform> MmapRequest<P> {
    /// Whether others see stores.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self.flags.bits() & TYPE, SHARED | SHARED_VALIDATE)
    }

    /// Whether the file reserves its pages for the mapping, as it does to shared ones.
    fn wants_reservation(&self) -> bool {
        self.is_shared() && !self.flags.contains(MapFlags::NORESERVE)
    }

    /// The file of huge pages, if there is one and the mapping is to have its pages reserved or may enlarge
    /// it.
    pub(super) fn file_to_reserve(&self) -> Option<&Counted<File<P>>> {
        if !self.vm_flags.contains(VmFlags::HUGETLB) {
            return None;
        }
        self.object.file().filter(|_| self.wants_reservation() || self.vm_flags.contains(VmFlags::WRITE))
    }

    /// Reserves pages for a shared mapping of a file of huge pages, and enlarges the file if it may be
    /// written. Everything else has been asked: the rights, and whether the file can be so large.
    pub(super) fn reserve(&self, reserving: &Reserving<'_, P>) -> Result<(), MmapError> {
        let start = self.pgoff.byte();
        let enlarge = self.vm_flags.contains(VmFlags::WRITE);
        let reserved = reserving.reserve(start..start + self.len, self.wants_reservation(), enlarge);
        reserved.map_err(|error| match error {
            FillError::NoHugePages => MmapError::NoHugePages,
            _ => MmapError::OutOfMemory,
        })
    }

    /// What decides whether it joins a neighbour.
    pub(super) fn attrs(&self) -> Attrs<'_, P> {
        Attrs::new(self.vm_flags, &self.object, self.pgoff)
    }

    /// What a driver is told of it.
    pub(super) fn vma_info(&self, range: UserRange) -> VmaInfo {
        VmaInfo { range, pgoff: self.pgoff, flags: self.vm_flags }
    }

    /// The same, of what a driver has answered.
    pub(super) fn answered(&self, object: Object<P>, vm_flags: VmFlags) -> Self {
        let vm_flags = with_mergeable(vm_flags, &object);
        MmapRequest { object, vm_flags, writing: None, ..*self }
    }
}
