//! The lock that keeps a VMA unchanged while a task works on the pages of this VMA.
//!
//! A fault, an access to the memory of another process (`remote/`) and a fill of a userfaultfd
//! (`uffd/fill.rs`) get their VMA under one of these locks, and pass the lock on as a value. The code that
//! gets the value is the same for both locks, except where it needs a second lock. If only the VMA's own lock
//! is held, that code must not wait for the mmap lock or a neighbour's lock, because a writer that holds one
//! of them may wait for this VMA (`change/anon.rs`).

use super::locking::ReadGuard;
use crate::platform::Platform;

/// The lock that keeps a VMA unchanged during one attempt to serve an access.
pub(crate) enum HeldLock<'h, 's, P: Platform> {
    /// Only the VMA's own lock, held for reading.
    Vma,
    /// The mmap lock, held for reading.
    Mmap(&'h ReadGuard<'s, P>),
}

impl<P: Platform> Clone for HeldLock<'_, '_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for HeldLock<'_, '_, P> {}
