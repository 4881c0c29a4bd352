//! MADV_COLLAPSE: replaces small pages by huge pages immediately.
//!
//! A call processes all aligned 2 MiB areas of each VMA's part of the range, as on Linux 6.18. The call stops
//! at the first area that cannot be collapsed. There is one exception: if pages of the area are only
//! temporarily in use, the call continues and fails at the end. The call also fails for a VMA in which no
//! huge page fits.
//!
//! This file checks the VMAs and takes the locks for each area. `fault/collapse.rs` replaces the pages of
//! anonymous memory. Shared memory gets no huge page: its small pages are brought into the cache without a
//! lock and then mapped (`map_window` in `fault/file.rs`). Each lock is released before the next one is
//! taken, so the VMA is looked up and checked again under each lock.
//!
//! `tests/huge/collapse.rs` has the answers of Linux. `shuttle_engine/collapse.rs` collapses concurrently
//! with stores, reverse map walks and pins.

use crate::{
    error::MadviseError,
    fault::{FaultError, huge::HUGE},
    file::{Object, Wanted},
    platform::Platform,
    space::{AddressSpace, ThpDisable, change::vma_ranges::VmaRanges, shortage::ShortageRounds},
    vma::{Vma, flags::VmFlags},
};
use freehold_vmspace::{PageRange, UserRange};

/// Flags of VMAs in which small pages are never collapsed.
const NO_COLLAPSE: VmFlags = VmFlags::SPECIAL.union(VmFlags::HUGETLB).union(VmFlags::NOHUGEPAGE);
/// Number of small pages in a huge page.
const PAGES_PER_HUGE: u64 = HUGE / crate::PAGE_SIZE;

impl<P: Platform> AddressSpace<P> {
    /// Collapses all small pages of `range` for which a huge page is possible. Takes the mmap lock itself,
    /// killably; the caller holds no lock.
    pub(crate) fn advise_collapse(&self, range: UserRange) -> Result<(), MadviseError> {
        let (mut at, mut no_holes) = (range.start(), true);
        while at < range.end() {
            let guard = self.read_killable()?;
            let Some((vma, part)) = guard.first_range(range.rest(at)) else {
                no_holes = false;
                break;
            };
            no_holes &= part.start() == at;
            at = part.end();
            self.check_collapse(vma)?;
            drop(guard);
            self.collapse_part(part)?;
        }
        if no_holes { Ok(()) } else { Err(MadviseError::NotMapped) }
    }

    /// Fails if even MADV_COLLAPSE must not make huge pages in `vma`.
    fn check_collapse(&self, vma: &Vma<P>) -> Result<(), MadviseError> {
        let first = vma.start().next_multiple_of(HUGE);
        let fits = first.checked_add(HUGE).is_some_and(|end| end <= vma.end());
        let aligned = match vma.object() {
            Object::Anonymous | Object::Zeroes(_) => true,
            Object::File(file) => {
                file.mapping().is_shmem() && vma.pgoff_of(first).get().is_multiple_of(PAGES_PER_HUGE)
            }
            _ => false,
        };
        let refused = vma.flags().intersects(NO_COLLAPSE) || self.thp_disable() == ThpDisable::Everywhere;
        if fits && aligned && !refused { Ok(()) } else { Err(MadviseError::Invalid) }
    }

    /// Collapses all aligned 2 MiB areas of `part`, each under its own locks.
    fn collapse_part(&self, part: UserRange) -> Result<(), MadviseError> {
        let (first, end) = (part.start().next_multiple_of(HUGE), part.end() - part.end() % HUGE);
        if first > end {
            return Err(MadviseError::Invalid);
        }
        let mut result = Ok(());
        for at in (first..end).step_by(HUGE as usize) {
            let rounds = ShortageRounds::of_order(PAGES_PER_HUGE.trailing_zeros());
            match self.retry_when_short_by(rounds, || self.collapse_one(at)) {
                Ok(()) => {}
                Err(MadviseError::InUse) => result = Err(MadviseError::InUse),
                Err(error) => return Err(error),
            }
        }
        result
    }

    /// Collapses the 2 MiB at `first`, a multiple of 2 MiB. Looks the VMA up and checks it again, because it
    /// may have changed since the check under the earlier lock.
    fn collapse_one(&self, first: u64) -> Result<(), MadviseError> {
        let range = UserRange::at(first, HUGE);
        let guard = self.write_exclusive_range(range)?;
        let vma = guard.find(first).filter(|vma| vma.end() >= range.end()).ok_or(MadviseError::Invalid)?;
        self.check_collapse(vma)?;
        // Empty entries would become zeroes.
        if self.may_have_lost_pages(vma) {
            return Err(MadviseError::Invalid);
        }
        let Object::File(file) = vma.object() else { return self.collapse(&guard, vma, first) };
        let file = file.clone();
        let index = vma.pgoff_of(first);
        drop(guard);
        let pages = PageRange::new(index, (index + PAGES_PER_HUGE).min(file.mapping().end()));
        if !pages.into_iter().any(|index| file.mapping().has_data(index)) {
            return Err(MadviseError::Invalid);
        }
        for index in pages {
            self.fill(&file, Wanted::alone(index), first).map_err(fill_failure)?;
        }
        let guard = self.read_killable()?;
        let same = |vma: &&Vma<P>| {
            vma.end() >= range.end()
                && vma.object().file().is_some_and(|now| core::ptr::eq(&**now, &*file))
                && vma.pgoff_of(first) == index
        };
        let vma = guard.find(first).filter(same).ok_or(MadviseError::Invalid)?;
        if self.map_window(vma, range)? { Ok(()) } else { Err(MadviseError::Invalid) }
    }
}

/// Converts the error of a fault on a page of shared memory.
fn fill_failure(error: FaultError) -> MadviseError {
    match error {
        FaultError::Killed => MadviseError::Killed,
        FaultError::OutOfMemory => MadviseError::OutOfMemory,
        _ => MadviseError::Invalid,
    }
}
