//! Guard pages: markers in the page tables, at no cost in VMAs.

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
    /// Puts a guard in place of every page of `part`; the pages go.
    ///
    /// Page and guard change places under the table's lock, so a fault meanwhile finds the page or the guard,
    /// and nothing has to be done twice (Linux tries three times, and then makes the call start over).
    ///
    /// # Errors
    ///
    /// No memory for a table: what lies before is guarded.
    ///
    /// # Locks
    ///
    /// The caller holds the lock of `vma`, or the mmap lock.
    pub(super) fn install_guards(&self, vma: &Vma<P>, part: UserRange) -> Result<(), MadviseError> {
        vma.note_guards();
        Ok(self.vm.install_guards(part, vma.flags().contains(VmFlags::MAYSHARE))?)
    }

    /// Takes every guard in `part` away.
    ///
    /// # Locks
    ///
    /// As for [`install_guards`](Self::install_guards).
    pub(super) fn remove_guards(&self, part: UserRange) {
        self.vm.remove_guards(part);
    }
}
