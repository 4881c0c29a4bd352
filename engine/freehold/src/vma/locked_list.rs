//! The VMAs that one task has write-locked. The task unlocks all of them together.
//!
//! A writer locks its VMAs one after another and unlocks them at the end of the change. The list records the
//! VMAs without an allocation, and unlocks them when it is dropped. Only the task that owns the list uses it
//! and the members' links, so no other lock guards them. `vma/mod.rs` has the lock of a VMA itself.
//!
//! `WriteGuard` (`space/locking.rs`) contains the list, and its methods `lock_vma`, `attach` and `detach`
//! call the functions here. The VMAs must be unlocked before the right of the writer ends; the order of the
//! fields of `WriteGuard` guarantees this. `mmap::merging::memory_merge_marks_all_mergeable_vmas`
//! (`engine/freehold/tests`) fails if a VMA that was detached stays in the list.
#![expect(unsafe_code, reason = "finds the VMAs through an intrusive list")]

use super::Vma;
use crate::platform::Platform;
use core::{cell::Cell, marker::PhantomData, ptr::null};
use freehold_sync::{Killed, MmapWriteProof, atomic::PlainCell};

/// A list of write-locked VMAs, linked through their own fields. The first member is the VMA that was locked
/// last. Dropping the list unlocks them.
///
/// # Invariants
///
/// Every member is attached and was write-locked by the owner of the list. Only the owner may detach a
/// member, and first removes the member from the list. Every member is therefore a live VMA, and only the
/// owner uses the members' links.
pub(crate) struct LockedVmas<'s, P: Platform> {
    first: Cell<*const Vma<P>>,
    space: PhantomData<&'s Vma<P>>,
}

/// The links of a VMA in the list.
pub(super) struct LockedLinks<T> {
    prev: PlainCell<*const T>,
    next: PlainCell<*const T>,
}

impl<T> LockedLinks<T> {
    /// Creates links that are not in a list.
    pub fn new() -> Self {
        LockedLinks { prev: PlainCell::new(null()), next: PlainCell::new(null()) }
    }
}

impl<P: Platform> LockedVmas<'_, P> {
    pub fn none() -> Self {
        LockedVmas { first: Cell::new(null()), space: PhantomData }
    }

    /// Locks a VMA for writing if it is not locked yet. Waits for its readers.
    #[inline]
    pub fn lock(&self, vma: &Vma<P>, guard: &impl MmapWriteProof<P>) {
        match vma.lock().write::<P>(guard) {
            true => self.push(vma),
            false => {
                debug_assert!(self.contains(vma), "another writer has write-locked a VMA of this writer")
            }
        }
    }

    /// Locks an unlocked VMA for writing, if it certainly has no reader. Returns true if it is locked. Never
    /// waits, so the caller may hold a spin lock.
    #[inline]
    pub fn try_lock_unread(&self, vma: &Vma<P>, guard: &impl MmapWriteProof<P>) -> bool {
        let locked = vma.lock().try_write_unread::<P>(guard);
        if locked {
            self.push(vma);
        }
        locked
    }

    /// Locks a VMA for writing like [`lock`](Self::lock). Fails with [`Killed`] if a fatal signal arrives
    /// first.
    pub fn lock_killable(&self, vma: &Vma<P>, guard: &impl MmapWriteProof<P>) -> Result<(), Killed> {
        if vma.lock().write_killable::<P>(guard)? {
            self.push(vma);
        }
        Ok(())
    }

    /// Attaches a detached VMA that no lookup can find yet, and leaves it unlocked.
    #[inline]
    pub fn attach_unlocked(vma: &Vma<P>, guard: &impl MmapWriteProof<P>) {
        vma.lock().attach::<P>(guard);
        vma.lock().unlock_write();
    }

    /// Undoes [`attach_unlocked`](Self::attach_unlocked), while no lookup can have found the VMA.
    #[cold]
    pub fn detach_unfound(vma: &Vma<P>, guard: &impl MmapWriteProof<P>) {
        vma.lock().write::<P>(guard);
        vma.lock().detach::<P>(guard);
    }

    /// Attaches a detached VMA, and leaves it write-locked.
    #[inline]
    pub fn attach(&self, vma: &Vma<P>, guard: &impl MmapWriteProof<P>) {
        if vma.lock().attach::<P>(guard) {
            self.push(vma);
        }
    }

    /// Detaches a VMA that this list has write-locked. Waits for readers that have raised the VMA's count and
    /// have not yet seen that it is write-locked.
    pub fn detach(&self, vma: &Vma<P>, guard: &impl MmapWriteProof<P>) {
        self.take_out(vma);
        vma.lock().detach::<P>(guard);
    }

    /// Returns true if the list has no member. For checks.
    pub fn is_empty(&self) -> bool {
        self.first.get().is_null()
    }

    /// Returns true if the VMA is a member. For checks.
    fn contains(&self, vma: &Vma<P>) -> bool {
        let mut at = self.first.get();
        // SAFETY: null or a member.
        while let Some(member) = unsafe { at.as_ref() } {
            if core::ptr::eq(member, vma) {
                return true;
            }
            at = member.state.locked.next.get();
        }
        false
    }

    #[inline]
    fn push(&self, vma: &Vma<P>) {
        let (links, next) = (&vma.state.locked, self.first.get());
        links.prev.set(null());
        links.next.set(next);
        // SAFETY: null or a member.
        if let Some(next) = unsafe { next.as_ref() } {
            next.state.locked.prev.set(vma);
        }
        self.first.set(vma);
    }

    /// Removes a member from the list, and leaves it write-locked.
    #[inline]
    pub fn take_out(&self, vma: &Vma<P>) {
        let (prev, next) = (vma.state.locked.prev.get(), vma.state.locked.next.get());
        // SAFETY: null or a member, because the neighbours of a member are members.
        match unsafe { prev.as_ref() } {
            Some(prev) => prev.state.locked.next.set(next),
            None => self.first.set(next),
        }
        // SAFETY: null or a member, because the neighbours of a member are members.
        if let Some(next) = unsafe { next.as_ref() } {
            next.state.locked.prev.set(prev);
        }
    }
}

impl<P: Platform> LockedVmas<'_, P> {
    /// Unlocks all VMAs of the list.
    #[inline]
    pub fn unlock_all(&self) {
        let mut at = self.first.replace(null());
        // SAFETY: null or a member. A member stays attached until it is unlocked, so its memory stays a `Vma`
        // until then. The link of a member is read before the member is unlocked, because another task may
        // change the VMA afterwards.
        while let Some(vma) = unsafe { at.as_ref() } {
            at = vma.state.locked.next.get();
            vma.lock().unlock_write();
        }
    }
}

impl<P: Platform> Drop for LockedVmas<'_, P> {
    #[inline]
    fn drop(&mut self) {
        self.unlock_all();
    }
}
