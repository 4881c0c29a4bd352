//! Advice that makes memory fail, for tests of programs that have to live with it.

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
    /// Each page of `range` in turn, brought in if need be: the first that cannot be read, a hole too, or
    /// cannot be taken ends it.
    pub(super) fn inject_failures(&self, range: UserRange, advice: Advice) -> Result<(), MadviseError> {
        if !self.may_inject_failure() {
            return Err(MadviseError::NotPermitted);
        }
        let mut at = range.start();
        while at < range.end() {
            // What is not counted is not a program's: zeroes that all share, frames of others.
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
