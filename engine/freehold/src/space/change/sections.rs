//! The design `Sectioned` of munmap: a range is unmapped section by section, and other tasks may take the
//! mmap lock between two sections (step 0 of `docs/guide/five-steps.md`).
//!
//! `unmap.rs` calls `unmap_sections` if the design or a special VMA requires it. After each section, every
//! other task must find the section completely mapped or completely unmapped, and all other mappings
//! unchanged. Errors that can be known in advance, such as a seal, are therefore reported before the first
//! section. The tests of `munmap` (`engine/freehold/tests`) run on this design, among others.

use super::unmap::UnmapRange;
use crate::{
    error::MunmapError,
    platform::Platform,
    space::{AddressSpace, locking::WriteGuard},
    vma::flags::VmFlags,
};
use freehold_vmspace::UserRange;

impl<P: Platform> AddressSpace<P> {
    /// Returns true if one call unmaps its range in several holds of the lock, between which other tasks may
    /// take the lock.
    pub(crate) fn unmaps_by_sections(&self) -> bool {
        self.locking.unmap.policy().sections.is_some()
    }

    /// Unmaps `range`. For each section, prepare, commit and settle take place in one hold of the lock, so no
    /// task sees a section partly unmapped; retire follows after the lock is released. The call checks for
    /// seals and splits the VMAs at the edges before the first section. Signals do not end the wait for the
    /// lock between two sections.
    ///
    /// The split at the end of a section may add one VMA; the removal of the previous section has freed at
    /// least one. The call can still fail after some sections are unmapped: while the lock is released, other
    /// tasks may add VMAs up to the limit, or seal a later section. After a failure, `range` is the part that
    /// is not unmapped.
    pub(super) fn unmap_sections<'s>(
        &'s self,
        mut guard: WriteGuard<'s, P>,
        range: &mut UnmapRange,
        bytes: u64,
    ) -> Result<(), MunmapError> {
        let (mut start, end) = (range.range().start(), range.range().end());
        if guard.vmas(UserRange::new(start, end)).any(|vma| vma.flags().contains(VmFlags::SEALED)) {
            // The call fails, but still splits the first VMA: the other designs split it before they find a
            // seal.
            if let Some(vma) = guard.find(start) {
                guard.clip(vma, range.range())?;
            }
            return Err(MunmapError::Sealed);
        }
        for edge in [start, end - 1] {
            if let Some(vma) = guard.find(edge) {
                guard.clip(vma, range.range())?;
            }
        }
        loop {
            let section = UserRange::new(start, guard.section_end(start, bytes).min(end));
            let unmapped = guard.unmap(&UnmapRange::trusted::<P>(section))?;
            drop(guard);
            unmapped.retire();
            if section.end() == end {
                return Ok(());
            }
            range.pass(section.end());
            guard = self.write_exclusive_range_unkillable(UserRange::new(section.end(), end));
            // Continues at the next mapping, because a hole may be as large as the address space.
            match guard.first_in(section.end()..end) {
                Some(vma) => start = vma.start().max(section.end()),
                None => return Ok(()),
            }
        }
    }
}

impl<P: Platform> WriteGuard<'_, P> {
    /// Returns the end of the section that begins at `start`. The end is a multiple of `bytes`, so that each
    /// page table belongs to one section. If a VMA must not be split there, the section ends with that VMA.
    fn section_end(&self, start: u64, bytes: u64) -> u64 {
        let at = (start / bytes + 1) * bytes;
        self.find(at).filter(|vma| !vma.may_split(at)).map_or(at, |vma| vma.end())
    }
}
