//! `Locked`: a value behind a sleeping reader/writer lock, whose guards give access to the value.
//!
//! Code without an MMU uses `Locked` for the mappings of a space, for the set of all regions and for the tree
//! of a file's regions; each gets its own rank in the lock order (`docs/guide/locking.md`). Code with an MMU
//! does not use `Locked`, because there the locks and the values that they guard are separate. Only these
//! guards may create references to the value.
#![expect(unsafe_code, reason = "a lock hands out access to its contents")]

use crate::platform::Host;
use core::{
    cell::UnsafeCell,
    ops::{Deref, DerefMut},
};
use freehold_sync::{Killed, Rank, RwSem, RwSemReadGuard, RwSemWriteGuard};

/// A value and the lock that guards it.
///
/// # Invariants
///
/// The value is read only with the lock held, and changed only with the lock held for writing.
pub(crate) struct Locked<H: Host, T> {
    lock: RwSem<H>,
    value: UnsafeCell<T>,
}

// SAFETY: readers share `&T` between threads, and writers move access to `T` from thread to thread.
unsafe impl<H: Host, T: Send + Sync> Sync for Locked<H, T> {}

/// The lock held for reading.
pub(crate) struct Read<'l, H: Host, T> {
    value: &'l T,
    _lock: RwSemReadGuard<'l, H>,
}

/// The lock held for writing.
pub(crate) struct Write<'l, H: Host, T> {
    value: &'l mut T,
    _lock: RwSemWriteGuard<'l, H>,
}

impl<H: Host, T> Locked<H, T> {
    /// Creates a lock of this rank around `value`.
    pub fn new(rank: Rank, value: T) -> Self {
        Locked { lock: RwSem::new(rank), value: UnsafeCell::new(value) }
    }

    /// Takes the lock for reading.
    pub fn read(&self) -> Read<'_, H, T> {
        let lock = self.lock.read();
        // SAFETY: the lock is held for reading, so no thread changes the value while the guard lives.
        Read { value: unsafe { &*self.value.get() }, _lock: lock }
    }

    /// Takes the lock for writing.
    pub fn write(&self) -> Write<'_, H, T> {
        self.writing(self.lock.write())
    }

    /// Takes the lock for writing. Fails with [`Killed`] if a fatal signal arrives first.
    pub fn write_killable(&self) -> Result<Write<'_, H, T>, Killed> {
        Ok(self.writing(self.lock.write_killable()?))
    }

    fn writing<'l>(&'l self, lock: RwSemWriteGuard<'l, H>) -> Write<'l, H, T> {
        // SAFETY: the lock of this value is held for writing, so no other thread uses the value while the
        // guard lives.
        Write { value: unsafe { &mut *self.value.get() }, _lock: lock }
    }
}

impl<H: Host, T> Deref for Read<'_, H, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.value
    }
}

impl<H: Host, T> Deref for Write<'_, H, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.value
    }
}

impl<H: Host, T> DerefMut for Write<'_, H, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value
    }
}
