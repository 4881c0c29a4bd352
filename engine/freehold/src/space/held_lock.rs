//! The lock under which a step works, if the step allows several.

use super::locking::ReadGuard;
use crate::platform::Platform;

/// The lock that keeps a VMA unchanged during an attempt.
pub(crate) enum HeldLock<'h, 's, P: Platform> {
    /// Only the VMA's own lock.
    Vma,
    /// The mmap lock.
    Mmap(&'h ReadGuard<'s, P>),
}

impl<P: Platform> Clone for HeldLock<'_, '_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for HeldLock<'_, '_, P> {}
