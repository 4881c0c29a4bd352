//! Write protection by the pager: a bit of entries, and markers where nothing is mapped.
//!
//! An entry that has [`UFFD_WP`](PteFlags::UFFD_WP) never has the right to write; code that gives that right,
//! under the table's lock, looks for the bit there. Right and bit change by one exchange, and the old right
//! is gone from all TLBs when the call returns, even if another call took it away (hazard C-53).

use super::{Features, Userfaultfd, decode};
use crate::{
    PAGE_SIZE,
    counted::Counted,
    error::UffdError,
    platform::Platform,
    space::AddressSpace,
    vma::{Vma, flags::VmFlags},
    wait::Rounds,
};
use bitflags::bitflags;
use freehold_vmspace::{HugePageSize, UserRange};

/// Pages between two looks for writers that want the VMA.
const BATCH: u64 = 512;

bitflags! {
    /// What UFFDIO_WRITEPROTECT does, with Linux's numbers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct ProtectMode: u64 {
        /// UFFDIO_WRITEPROTECT_MODE_WP: stores wait from now on; else they do not any more.
        const WP = 1;
        /// UFFDIO_WRITEPROTECT_MODE_DONTWAKE: faults that wait go on waiting.
        const DONTWAKE = 2;
    }
}

impl<P: Platform> Userfaultfd<P> {
    /// UFFDIO_WRITEPROTECT: stores to these pages wait for the pager, or do not any more, and faults that
    /// wait for one go on.
    ///
    /// # Errors
    ///
    /// See [`UffdError`]; what lies left of the cause is done. Holes are passed over, if anything is mapped
    /// at all.
    ///
    /// # Locks
    ///
    /// The lock of each VMA for reading, some pages long; tables' locks.
    pub fn write_protect(&self, start: u64, len: u64, mode: ProtectMode) -> Result<(), UffdError> {
        let context = &self.context;
        if context.is_changing() {
            return Err(UffdError::Changing);
        }
        let range = decode::<P>(start, len).ok_or(UffdError::Invalid)?;
        let protect = mode.contains(ProtectMode::WP);
        let unknown = !ProtectMode::all().contains(mode);
        if unknown || (protect && mode.contains(ProtectMode::DONTWAKE)) {
            return Err(UffdError::Invalid);
        }
        let space = self.space()?;
        let (mut at, mut any, mut rounds) = (range.start(), false, Rounds::new());
        while at < range.end() {
            rounds.again::<P>()?;
            let fits = |vma: &Vma<P>| match vma.uffd().is_some_and(|other| Counted::ptr_eq(other, context)) {
                // Whole huge pages, or none, wherever in the range they lie.
                true if vma.flags().contains(VmFlags::UFFD_WP) => match is_whole(vma, range) {
                    true => Ok(()),
                    false => Err(UffdError::Invalid),
                },
                _ => Err(UffdError::NotRegistered),
            };
            let vma = match space.lock_for_pager(at, false, fits) {
                Err(UffdError::NotRegistered) => {
                    at = space.behind_hole(at)?;
                    continue;
                }
                locked => locked?,
            };
            if context.is_changing() {
                return Err(UffdError::Changing);
            }
            any = true;
            let batch = BATCH * vma.huge_page_size().map_or(PAGE_SIZE, HugePageSize::bytes);
            let part = UserRange::new(at, vma.end().min(range.end()).min(at.saturating_add(batch)));
            at = part.end();
            match protect {
                true => space.protect_part(&vma, part, context.wants(Features::WP_UNPOPULATED))?,
                false => {
                    let _kept = space.keep_tables(&vma);
                    space.unprotect(&vma, part);
                }
            }
        }
        if !any {
            return Err(UffdError::NotRegistered);
        }
        if !protect && !mode.contains(ProtectMode::DONTWAKE) {
            context.wake(range);
        }
        Ok(())
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Where something is mapped behind `at`, where nothing is.
    ///
    /// # Errors
    ///
    /// Something is mapped there.
    fn behind_hole(&self, at: u64) -> Result<u64, UffdError> {
        let guard = self.read_killable()?;
        match guard.next(at).map_or(u64::MAX, Vma::start) {
            start if start <= at => Err(UffdError::NotRegistered),
            start => Ok(start),
        }
    }

    /// Takes the right to write from the pages of `part`. What is not there, and could come otherwise, is
    /// marked: pages of files, and with `unpopulated` anonymous ones.
    fn protect_part(&self, vma: &Vma<P>, part: UserRange, unpopulated: bool) -> Result<(), UffdError> {
        if let Some(size) = vma.huge_page_size() {
            let _kept = self.keep_tables(vma);
            return Ok(self.vm.write_protect_large(size.level(), part, true)?);
        }
        Ok(self.vm.write_protect(part, unpopulated || !vma.is_anonymous())?)
    }

    /// The pages of `part`, in `vma`, are write-protected no more. The next store to one finds out whether it
    /// may be written. The caller has the VMA locked for writing, or keeps its tables.
    pub(crate) fn unprotect(&self, vma: &Vma<P>, part: UserRange) {
        match vma.huge_page_size() {
            Some(size) => self.vm.write_unprotect_large(size.level(), part),
            None => self.vm.write_unprotect(part),
        }
    }
}

/// Whether a range consists of whole pages of a VMA's size.
pub(super) fn is_whole<P: Platform>(vma: &Vma<P>, range: UserRange) -> bool {
    let bytes = vma.huge_page_size().map_or(PAGE_SIZE, HugePageSize::bytes);
    range.start().is_multiple_of(bytes) && range.end().is_multiple_of(bytes)
}
