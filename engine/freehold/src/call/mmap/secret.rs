//! How secret memory is mapped: shared, locked, and in no core dump.

use crate::space::locking::WriteGuard;
use crate::{error::MmapError, platform::Platform, vma::flags::VmFlags};
use freehold_vmspace::PageCount;

impl<P: Platform> WriteGuard<'_, P> {
    /// What follows for the flags of a mapping of `len` bytes, if it may be mapped as it was asked for.
    pub(super) fn apply_secret_flags(&self, len: u64, flags: &mut VmFlags) -> Result<(), MmapError> {
        if !flags.contains(VmFlags::MAYSHARE) {
            return Err(MmapError::Invalid);
        }
        if !self.may_lock_pages(PageCount::of_bytes(len)) {
            return Err(MmapError::LockLimit);
        }
        *flags |= VmFlags::LOCKED | VmFlags::DONTDUMP;
        Ok(())
    }
}
