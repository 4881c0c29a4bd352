//! The VMAs that one task has locked for writing, until it lets go of all of them at once.
#![expect(unsafe_code, reason = "comes back to the VMAs through an intrusive list")]

use super::Vma;
use crate::platform::Platform;
use core::{cell::Cell, marker::PhantomData, ptr::null};
use freehold_sync::{Killed, MmapWriteProof, atomic::PlainCell};

/// A list of write-locked VMAs, linked through themselves; the last to be locked is the first. Dropping it
/// unlocks them.
///
/// # Invariants
///
/// Every member is attached and was write-locked by the owner of the list, who alone may detach it and takes
/// it out before. So every member is a live VMA, and its links are the owner's.
pub(crate) struct LockedVmas<'s, P: Platform> {
    first: Cell<*const Vma<P>>,
    space: PhantomData<&'s Vma<P>>,
}

/// A VMA's place in the list.
pub(super) struct LockedLinks<T> {
    prev: PlainCell<*const T>,
    next: PlainCell<*const T>,
}

impl<T> LockedLinks<T> {
    /// In no list.
    pub fn new() -> Self {
        LockedLinks { prev: PlainCell::new(null()), next: PlainCell::new(null()) }
    }
}

impl<P: Platform> LockedVmas<'_, P> {
    pub fn none() -> Self {
        LockedVmas { first: Cell::new(null()), space: PhantomData }
    }

    /// Locks a VMA for writing, if it is not locked yet: waits for its readers.
    #[inline]
    pub fn lock(&self, vma: &Vma<P>, guard: &impl MmapWriteProof<P>) {
        if vma.lock().write::<P>(guard) {
            self.push(vma);
        }
    }

    /// As [`lock`](Self::lock), unless a fatal signal arrives first.
    pub fn lock_killable(&self, vma: &Vma<P>, guard: &impl MmapWriteProof<P>) -> Result<(), Killed> {
        if vma.lock().write_killable::<P>(guard)? {
            self.push(vma);
        }
        Ok(())
    }

    /// Attaches a detached VMA that nobody can find yet, not locked.
    #[inline]
    pub fn attach_unlocked(vma: &Vma<P>, guard: &impl MmapWriteProof<P>) {
        vma.lock().attach::<P>(guard);
        vma.lock().unlock_write();
    }

    /// Undoes [`attach_unlocked`](Self::attach_unlocked), while nobody can have found it.
    #[cold]
    pub fn detach_unfound(vma: &Vma<P>, guard: &impl MmapWriteProof<P>) {
        vma.lock().write::<P>(guard);
        vma.lock().detach::<P>(guard);
    }

    /// Attaches a detached VMA, locked.
    #[inline]
    pub fn attach(&self, vma: &Vma<P>, guard: &impl MmapWriteProof<P>) {
        if vma.lock().attach::<P>(guard) {
            self.push(vma);
        }
    }

    /// Detaches a VMA, which it has locked; waits for readers that are about to notice.
    pub fn detach(&self, vma: &Vma<P>, guard: &impl MmapWriteProof<P>) {
        self.take_out(vma);
        vma.lock().detach::<P>(guard);
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

    #[inline]
    fn take_out(&self, vma: &Vma<P>) {
        let (prev, next) = (vma.state.locked.prev.get(), vma.state.locked.next.get());
        // SAFETY: null or a member, as a member's neighbours are; below too.
        match unsafe { prev.as_ref() } {
            Some(prev) => prev.state.locked.next.set(next),
            None => self.first.set(next),
        }
        // SAFETY: as above.
        if let Some(next) = unsafe { next.as_ref() } {
            next.state.locked.prev.set(prev);
        }
    }
}

impl<P: Platform> Drop for LockedVmas<'_, P> {
    #[inline]
    fn drop(&mut self) {
        let mut at = self.first.get();
        // SAFETY: null or a member. It stays attached until the next task may change it, so a `Vma` until
        // after it is unlocked; the next member is asked for before that.
        while let Some(vma) = unsafe { at.as_ref() } {
            at = vma.state.locked.next.get();
            vma.lock().unlock_write();
        }
    }
}
