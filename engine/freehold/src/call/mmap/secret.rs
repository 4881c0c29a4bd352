//! Rules for mappings of secret memory: shared, locked, and omitted from core dumps. `resolve_file` in
//! `mod.rs` calls this file; `file/kinds/secret.rs` creates the memory, and `tests/secret.rs` has the tests.
//! The check of RLIMIT_MEMLOCK belongs here, because the mapping is locked even if the call has no lock
//! flags.

use crate::space::locking::WriteGuard;
use crate::{error::MmapError, platform::Platform, vma::flags::VmFlags};
use freehold_vmspace::PageCount;

impl<P: Platform> WriteGuard<'_, P> {
    /// Checks that a mapping of `len` bytes is allowed, and adds the flags of secret memory.
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
