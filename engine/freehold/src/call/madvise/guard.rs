//! Guard pages: markers in the page tables that need no VMAs of their own.

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
    /// A page is exchanged for its guard under the table's lock. A concurrent fault finds either the page or
    /// the guard, so that no step must be repeated. (Linux tries three times, and then restarts the call.)
    ///
    /// # Errors
    ///
    /// Fails if there is no memory for a page table. The pages below are guarded.
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
