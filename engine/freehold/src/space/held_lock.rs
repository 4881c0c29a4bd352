//! Which lock a step works under that any of several allows.

use super::locking::ReadGuard;
use crate::platform::Platform;

/// What keeps the VMA still during an attempt.
pub(crate) enum HeldLock<'h, 's, P: Platform> {
    /// Its own lock alone.
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
