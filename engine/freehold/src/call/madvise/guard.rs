//! MADV_GUARD_INSTALL and MADV_GUARD_REMOVE: guard pages, which are markers in the page tables and need no
//! VMAs of their own.
//!
//! `pages.rs` calls these functions after its checks, with the VMA locked or the mmap lock held. A fault at a
//! guard raises SIGSEGV (`marker_fault` in `fault/mod.rs`). The flag `MAYBE_GUARD` of a VMA must be set
//! before its first guard is installed, because fork copies the entries of VMAs with this flag. The flag is
//! never cleared. `tests/guards.rs` and `lab/freehold-model/cases/guards.txt` have the tests.

use crate::{
    error::MadviseError,
    platform::Platform,
    space::AddressSpace,
    vma::{Vma, flags::VmFlags},
};
use freehold_pagetable::OutOfTables;
use freehold_vmspace::UserRange;

impl From<OutOfTables> for MadviseError {
    fn from(_: OutOfTables) -> Self {
        MadviseError::OutOfMemory
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Replaces every page of `part` by a guard, and unmaps the pages.
    ///
    /// Each page is replaced by its guard under the lock of the table. A concurrent fault finds either the
    /// page or the guard, so no step has to be repeated. (Linux tries three times, and then restarts the
    /// call.)
    ///
    /// # Errors
    ///
    /// Fails if there is no memory for a page table. The pages below the missing table then have guards.
    ///
    /// # Locks
    ///
    /// The caller holds the lock of `vma`, or the mmap lock.
    pub(super) fn install_guards(&self, vma: &Vma<P>, part: UserRange) -> Result<(), MadviseError> {
        vma.note_guards();
        Ok(self.vm.install_guards(part, vma.flags().contains(VmFlags::MAYSHARE))?)
    }

    /// Removes every guard in `part`.
    ///
    /// # Locks
    ///
    /// The locks of [`install_guards`](Self::install_guards).
    pub(super) fn remove_guards(&self, part: UserRange) {
        self.vm.remove_guards(part);
    }
}
