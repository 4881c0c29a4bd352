//! MADV_HWPOISON and MADV_SOFT_OFFLINE: inject memory failures, for tests of programs that handle such
//! failures.
//!
//! For each page, this file finds the frame in the same way as a read of the page (`hold_page` in
//! `remote/page.rs`), and faults a missing page in. `rmap/failure.rs` then implements the failure: it removes
//! the page from all processes, or moves it to another frame. The mmap lock is not held. If a page changes
//! after its frame was found, the page is looked up again. `tests/rmap/failure.rs` has the tests.

use super::advice::Advice;
use crate::{
    PAGE_SIZE,
    error::{AccessError, MadviseError},
    platform::Platform,
    rmap::MigrateError,
    space::AddressSpace,
};
use freehold_vmspace::UserRange;

impl From<AccessError> for MadviseError {
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::BadAddress | AccessError::TooLong | AccessError::OtherEngine => {
                MadviseError::BadAccess
            }
            AccessError::OutOfMemory => MadviseError::OutOfMemory,
            AccessError::Killed => MadviseError::Killed,
        }
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Injects a failure into each page of `range`, in order. Faults pages in if necessary. Stops at the
    /// first hole, or at the first page that cannot be read or is in use.
    pub(super) fn inject_failures(&self, range: UserRange, advice: Advice) -> Result<(), MadviseError> {
        if !self.may_inject_failure() {
            return Err(MadviseError::NotPermitted);
        }
        let mut at = range.start();
        while at < range.end() {
            // A frame without a reference count is not memory of a program: it is the shared zero page or a
            // driver's frame.
            let pfn = self.hold_page(at)?.ok_or(MadviseError::Busy)?;
            let Some(page) = self.engine.page_of_kept(pfn) else { return Err(MadviseError::Busy) };
            let done = match advice {
                Advice::SoftOffline => page.offline(),
                _ => page.fail().map(|_| ()),
            };
            match done {
                Ok(()) => at += PAGE_SIZE,
                Err(MigrateError::NoPage) => {}
                Err(MigrateError::Busy) => return Err(MadviseError::Busy),
                Err(MigrateError::OutOfMemory) => return Err(MadviseError::OutOfMemory),
            }
        }
        Ok(())
    }
}
