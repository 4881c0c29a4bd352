//! The lock of a VMA as callers use it: a guard of the mmap lock proves each right.
//!
//! A caller passes a guard for reading, a guard for writing or the guard of a range writer, and so shows that
//! it may lock or change the VMA. Only `try_read` needs no guard. In a release build the functions make no
//! further check at run time. Each function takes the locking design from the mmap lock and calls its
//! counterpart in `read.rs` or `write.rs`. The protocol is there and in the [module head](super). The callers
//! are in `freehold`: `space/vma_lock.rs`, `space/locking.rs` and `vma/locked_list.rs`. A new function here
//! takes a guard as its proof; its steps belong in `read.rs` or `write.rs`.

use super::{ReadFail, ReaderPlace, VmaLock};
use crate::host::{Host, Killed};
use crate::mmap_lock::{MmapLock, MmapRangeWriteGuard, MmapReadGuard, MmapWriteProof};

impl VmaLock<'_> {
    /// Locks the VMA for reading, without any other lock and without waiting.
    ///
    /// `lock` is the mmap lock of the address space in which the caller looks for the VMA. `is_owner` returns
    /// true if the VMA's own fields name that address space; it is called when the VMA can no longer be
    /// recycled. The caller keeps the memory type-stable during the call. After the call, the caller checks
    /// that the VMA has the expected bounds.
    ///
    /// # Errors
    /// Fails with the reason why the VMA cannot be locked. [`ReadFail::Locked`] may be stale. A call never
    /// succeeds on a write-locked VMA.
    // Inlined, because a fault begins with a call of this function.
    #[inline]
    pub fn try_read<'l, H: Host>(
        self,
        lock: &'l MmapLock<H>,
        is_owner: impl FnOnce() -> bool,
    ) -> Result<ReaderPlace<'l>, ReadFail> {
        self.try_read_with(lock.vma_locking(), is_owner)
    }

    /// Locks an attached VMA for reading under the mmap lock, which keeps writers out.
    ///
    /// # Errors
    /// Fails with [`ReadFail::TooMany`] if the VMA has the maximum number of readers.
    #[inline]
    pub fn read_under<'l, H: Host>(self, guard: &MmapReadGuard<'l, H>) -> Result<ReaderPlace<'l>, ReadFail> {
        self.read_with(guard.lock().vma_locking())
    }

    /// Like [`read_under`](Self::read_under), for a VMA that the caller has claimed and not write-locked. The
    /// claim keeps other tasks from write-locking the VMA.
    ///
    /// # Errors
    /// Fails with [`ReadFail::TooMany`] if the VMA has the maximum number of readers.
    #[inline]
    pub fn read_claimed<'l, H: Host>(
        self,
        guard: &MmapRangeWriteGuard<'l, H>,
    ) -> Result<ReaderPlace<'l>, ReadFail> {
        debug_assert!(!self.is_locked(), "a write-locked VMA is locked for reading");
        self.read_with(guard.lock().vma_locking())
    }

    /// Locks the VMA for writing, until [`unlock_write`](Self::unlock_write) or [`detach`](Self::detach), and
    /// waits for its readers to leave. Returns false if the VMA was already locked.
    ///
    /// # Panics
    /// With debug assertions, panics if the task holds a VMA's read lock or a lock of an inner rank.
    #[inline]
    pub fn write<H: Host>(self, guard: &impl MmapWriteProof<H>) -> bool {
        self.write_with(guard.lock().vma_locking())
    }

    /// Like [`write`](Self::write), but the wait ends if a fatal signal is pending.
    ///
    /// # Errors
    /// Fails with [`Killed`] if a fatal signal is pending; the state of the VMA is unchanged.
    ///
    /// # Panics
    /// Panics like [`write`](Self::write).
    #[inline]
    pub fn write_killable<H: Host>(self, guard: &impl MmapWriteProof<H>) -> Result<bool, Killed> {
        self.write_killable_with(guard.lock().vma_locking())
    }

    /// Locks the VMA for writing like [`write`](Self::write), if it is attached, unlocked and certainly has
    /// no reader. Returns true on success. Never waits, so the caller may hold a spin lock.
    ///
    /// # Panics
    /// With debug assertions, panics if the VMA is write-locked.
    #[inline]
    pub fn try_write_unread<H: Host>(self, _: &impl MmapWriteProof<H>) -> bool {
        self.try_mark_unread()
    }

    /// Returns true if the holder of the guard has locked this VMA for writing.
    #[inline]
    pub fn is_write_locked<H: Host>(self, _: &impl MmapWriteProof<H>) -> bool {
        self.is_locked()
    }

    /// Makes a detached VMA accessible to readers. The VMA is write-locked, so readers fail until it is
    /// unlocked. Returns false if the VMA was already locked.
    ///
    /// The caller sets all fields of the VMA before, and inserts it in the tree afterwards.
    ///
    /// # Panics
    /// With debug assertions, panics if the VMA is attached.
    #[inline]
    pub fn attach<H: Host>(self, guard: &impl MmapWriteProof<H>) -> bool {
        self.attach_with(guard.lock().vma_locking())
    }

    /// Keeps readers out permanently, and waits for transient readers, which do not wait themselves.
    /// Afterwards the VMA belongs to the caller and is not locked.
    ///
    /// # Panics
    /// With debug assertions, panics if the VMA is detached or not write-locked.
    #[inline]
    pub fn detach<H: Host>(self, guard: &impl MmapWriteProof<H>) {
        self.detach_with(guard.lock().vma_locking());
    }
}
