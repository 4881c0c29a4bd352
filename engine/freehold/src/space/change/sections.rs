//! Taking a range away section by section (step 0 of docs/designs.md).

use super::unmap::Decoded;
use crate::{
    error::MunmapError,
    platform::Platform,
    space::{AddressSpace, locking::WriteGuard},
    vma::flags::VmFlags,
};
use freehold_vmspace::UserRange;

impl<P: Platform> AddressSpace<P> {
    /// Unmaps `range`: each section goes through all five steps before the lock is let go, so that
    /// nothing is ever half gone. What would fail half-way is looked for before the first section;
    /// waiting for the lock again cannot be interrupted.
    ///
    /// A later section cuts at its end with a VMA that the one before it gave back: memory runs out there
    /// only if others take it meanwhile, and then the sections before are gone. So they are when somebody
    /// seals a later one meanwhile.
    pub(super) fn unmap_sections<'s>(
        &'s self,
        mut guard: WriteGuard<'s, P>,
        range: &Decoded,
        bytes: u64,
    ) -> Result<(), MunmapError> {
        let (mut start, end) = (range.range().start(), range.range().end());
        if guard.vmas(UserRange::new(start, end)).any(|vma| vma.flags().contains(VmFlags::SEALED)) {
            // As far as the other designs come.
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
            let unmapped = guard.unmap(&Decoded::trusted::<P>(section))?;
            drop(guard);
            unmapped.retire();
            if section.end() == end {
                return Ok(());
            }
            guard = self.write_range_unkillable(UserRange::new(section.end(), end));
            // Straight on to the next mapping: a hole may be as large as the address space.
            match guard.first_in(section.end()..end) {
                Some(vma) => start = vma.start().max(section.end()),
                None => return Ok(()),
            }
        }
    }
}

impl<P: Platform> WriteGuard<'_, P> {
    /// Where the section that begins at `start` ends: at a multiple of its size, so that a table belongs to
    /// one section; or behind a VMA that must not be cut there.
    fn section_end(&self, start: u64, bytes: u64) -> u64 {
        let at = (start / bytes + 1) * bytes;
        self.find(at).filter(|vma| !vma.object().may_split(vma, at)).map_or(at, |vma| vma.end())
    }
}
