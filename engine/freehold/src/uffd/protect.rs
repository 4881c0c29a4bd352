//! Write protection by the pager (UFFDIO_WRITEPROTECT): a bit in the entries of mapped pages, and markers
//! where no page is mapped.
//!
//! An entry with [`UFFD_WP`](freehold_pagetable::PteFlags::UFFD_WP) never has write permission. Code that
//! grants this permission checks the bit under the table's lock. The permission and the bit change in one
//! exchange. When the call returns, no TLB holds the old permission, even if another call removed the
//! permission from the entry (hazard C-53).
//!
//! The bit and the markers may exist only in VMAs with the flag `UFFD_WP`; `AddressSpace::check` tests this.
//! With the feature `WP_ASYNC`, a store ends the protection of its page without a message (`fault.rs`). The
//! pager finds the written pages by `page_entries`, and protects them again by `protect_entries`
//! (`report/pagemap.rs`).
//!
//! `freehold-vmspace` changes the entries, and this file walks the VMAs. A range may have any length, so the
//! VMA's lock is released after each batch. The tests are `uffd::protect` and `uffd::protect_async`
//! (`engine/freehold/tests`).

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

/// Number of pages after which the VMA's lock is released, so that a waiting writer can take it.
const BATCH: u64 = 512;

bitflags! {
    /// Options of UFFDIO_WRITEPROTECT, with Linux's numbers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct ProtectMode: u64 {
        /// UFFDIO_WRITEPROTECT_MODE_WP: adds the protection, so that stores to the pages wait. Without this
        /// flag, the call removes the protection.
        const WP = 1;
        /// UFFDIO_WRITEPROTECT_MODE_DONTWAKE: waiting faults are not woken.
        const DONTWAKE = 2;
    }
}

impl<P: Platform> Userfaultfd<P> {
    /// Write-protects pages, so that stores to them wait for the pager, or removes the protection and wakes
    /// waiting faults (UFFDIO_WRITEPROTECT).
    ///
    /// # Errors
    ///
    /// Fails with a [`UffdError`]. The pages below the address of the failure have then changed already.
    /// Holes are skipped, but the call fails if nothing is mapped at all.
    ///
    /// # Locks
    ///
    /// The lock of each VMA for reading, for one batch of pages at a time; locks of page tables.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, fault::{Access, FaultError}, space::*, uffd::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// # let uffd = Userfaultfd::new(&space, UffdConfig::new().features(Features::SIGBUS)).unwrap();
    /// space.handle_fault(at, Access::WRITE).unwrap();
    /// uffd.register(at, PAGE_SIZE, RegisterMode::WP).unwrap();
    /// uffd.write_protect(at, PAGE_SIZE, ProtectMode::WP).unwrap();
    /// assert_eq!(space.handle_fault(at, Access::WRITE), Err(FaultError::Bus { addr: at }));
    /// uffd.write_protect(at, PAGE_SIZE, ProtectMode::empty()).unwrap();
    /// assert!(space.handle_fault(at, Access::WRITE).is_ok());
    /// ```
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
                // If any VMA in the range has huge pages, both ends of the range must be multiples of the
                // size of these pages.
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
    /// Returns the start of the first VMA after the hole at `at`.
    ///
    /// # Errors
    ///
    /// Fails with `NotRegistered` if `at` is mapped.
    fn behind_hole(&self, at: u64) -> Result<u64, UffdError> {
        let guard = self.read_killable()?;
        match guard.next(at).map_or(u64::MAX, Vma::start) {
            start if start <= at => Err(UffdError::NotRegistered),
            start => Ok(start),
        }
    }

    /// Removes the write permission from the pages of `part`. Marks absent pages that could be mapped later
    /// without a message: pages of files, and with `unpopulated` also anonymous pages.
    fn protect_part(&self, vma: &Vma<P>, part: UserRange, unpopulated: bool) -> Result<(), UffdError> {
        if let Some(size) = vma.huge_page_size() {
            let _kept = self.keep_tables(vma);
            return Ok(self.vm.write_protect_large(size.level(), part, true)?);
        }
        Ok(self.vm.write_protect(part, unpopulated || !vma.is_anonymous())?)
    }

    /// Removes the pager's write protection from the pages of `part`, in `vma`. Does not grant write
    /// permission: the next store to a page faults, and the fault decides. The caller has write-locked the
    /// VMA, or keeps its tables in place.
    pub(crate) fn unprotect(&self, vma: &Vma<P>, part: UserRange) {
        match vma.huge_page_size() {
            Some(size) => self.vm.write_unprotect_large(size.level(), part),
            None => self.vm.write_unprotect(part),
        }
    }
}

/// Returns true if a range consists of whole pages of the VMA's page size.
pub(super) fn is_whole<P: Platform>(vma: &Vma<P>, range: UserRange) -> bool {
    let bytes = vma.huge_page_size().map_or(PAGE_SIZE, HugePageSize::bytes);
    range.start().is_multiple_of(bytes) && range.end().is_multiple_of(bytes)
}
