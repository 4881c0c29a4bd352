//! The lock of a VMA as callers use it: each right is proved by a guard of the mmap lock.

use super::{ReadFail, ReaderPlace, VmaLock};
use crate::host::{Host, Killed};
use crate::mmap_lock::{MmapLock, MmapRangeWriteGuard, MmapReadGuard, MmapWriteProof};

impl VmaLock<'_> {
    /// Locks the VMA for reading, without any other lock and without waiting.
    ///
    /// `lock` is the mmap lock of the space that the caller looks in, and `is_owner` tells, from the VMA's
    /// own fields, whether that is the VMA's space; it is asked when the VMA can no longer be recycled.
    /// The caller keeps the memory type-stable meanwhile, and afterwards checks that the VMA's bounds are
    /// what it looked for.
    ///
    /// # Errors
    /// Why not. [`ReadFail::Locked`] may be out of date; the lock is never given of a write-locked VMA.
    // Inlined: it has two callers in the engine, of which one is the beginning of every fault.
    #[inline]
    pub fn try_read<'l, H: Host>(
        self,
        lock: &'l MmapLock<H>,
        is_owner: impl FnOnce() -> bool,
    ) -> Result<ReaderPlace<'l>, ReadFail> {
        self.try_read_with(lock.vma_locking(), is_owner)
    }

    /// Locks an attached VMA for reading under the mmap lock, which no writer can prevent.
    ///
    /// # Errors
    /// [`ReadFail::TooMany`].
    #[inline]
    pub fn read_under<'l, H: Host>(self, guard: &MmapReadGuard<'l, H>) -> Result<ReaderPlace<'l>, ReadFail> {
        self.read_with(guard.lock().vma_locking())
    }

    /// As [`read_under`](Self::read_under), of a VMA that the caller has claimed, so that nobody else may
    /// lock it, and has not locked itself.
    ///
    /// # Errors
    /// [`ReadFail::TooMany`].
    #[inline]
    pub fn read_claimed<'l, H: Host>(
        self,
        guard: &MmapRangeWriteGuard<'l, H>,
    ) -> Result<ReaderPlace<'l>, ReadFail> {
        debug_assert!(!self.is_locked(), "a VMA that is locked for writing is locked for reading");
        self.read_with(guard.lock().vma_locking())
    }

    /// Locks the VMA for writing, until [`unlock_write`](Self::unlock_write) or [`detach`](Self::detach), and
    /// waits for its readers to leave. Returns whether it was not locked already.
    ///
    /// # Panics
    /// With debug assertions, when the task holds a VMA's read lock or a lock of an inner rank.
    #[inline]
    pub fn write<H: Host>(self, guard: &impl MmapWriteProof<H>) -> bool {
        self.write_with(guard.lock().vma_locking())
    }

    /// As [`write`](Self::write), unless a fatal signal ends the wait.
    ///
    /// # Errors
    /// [`Killed`]: the VMA is as it was before the call.
    ///
    /// # Panics
    /// As [`write`](Self::write).
    #[inline]
    pub fn write_killable<H: Host>(self, guard: &impl MmapWriteProof<H>) -> Result<bool, Killed> {
        self.write_killable_with(guard.lock().vma_locking())
    }

    /// Whether the holder of the guard has locked this VMA for writing.
    #[inline]
    pub fn is_write_locked<H: Host>(self, _: &impl MmapWriteProof<H>) -> bool {
        self.is_locked()
    }

    /// Opens a detached VMA to readers, write-locked: they find it so until it is unlocked. Returns whether
    /// it was not locked before.
    ///
    /// All its fields are set before; after it may be found in the tree.
    ///
    /// # Panics
    /// With debug assertions, when it is attached.
    #[inline]
    pub fn attach<H: Host>(self, guard: &impl MmapWriteProof<H>) -> bool {
        self.attach_with(guard.lock().vma_locking())
    }

    /// Bars readers for good, and waits for readers in passing, which do not wait themselves. Afterwards the
    /// VMA belongs to the caller alone, and is not locked.
    ///
    /// # Panics
    /// With debug assertions, when it is detached or not write-locked.
    #[inline]
    pub fn detach<H: Host>(self, guard: &impl MmapWriteProof<H>) {
        self.detach_with(guard.lock().vma_locking());
    }
}
