//! VMAs on their way out: gathered under the write lock, then detached, then given back.
#![expect(unsafe_code, reason = "owns detached VMAs through an intrusive list")]

use crate::space::AddressSpace;
use crate::{platform::Platform, vma::Vma};
use core::ptr::null_mut;
use freehold_sync::atomic::Ordering::Relaxed;

/// VMAs in address order, linked through themselves.
///
/// # Invariants
///
/// Every member is owned by the list's owner: gathered under the write lock, or detached. So the links are
/// relaxed throughout: one task reads and writes them.
pub(super) struct VmaList<P: Platform> {
    head: *const Vma<P>,
    tail: *const Vma<P>,
}

impl<P: Platform> VmaList<P> {
    pub fn new() -> Self {
        VmaList { head: null_mut(), tail: null_mut() }
    }

    pub fn push(&mut self, vma: &Vma<P>) {
        vma.chain().store(null_mut(), Relaxed);
        let link = core::ptr::from_ref(vma);
        match self.tail.is_null() {
            true => self.head = link,
            // SAFETY: a member is a live VMA.
            false => unsafe { &*self.tail }.chain().store(link.cast_mut(), Relaxed),
        }
        self.tail = link;
    }

    /// Puts `other` behind this list.
    pub fn append(&mut self, other: Self) {
        match self.tail.is_null() {
            true => *self = other,
            false if other.head.is_null() => {}
            false => {
                // SAFETY: a member is a live VMA.
                unsafe { &*self.tail }.chain().store(other.head.cast_mut(), Relaxed);
                self.tail = other.tail;
            }
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Vma<P>> {
        let mut at = self.head;
        core::iter::from_fn(move || {
            // SAFETY: null or a member; members are live VMAs.
            let vma = unsafe { at.as_ref() }?;
            at = vma.chain().load(Relaxed);
            Some(vma)
        })
    }
}

/// Detached VMAs, which go back to the slab in the end.
pub(super) struct OwnedList<'s, P: Platform> {
    pub space: &'s AddressSpace<P>,
    pub list: VmaList<P>,
}

impl<P: Platform> Drop for OwnedList<'_, P> {
    #[inline]
    fn drop(&mut self) {
        let mut at = self.list.head;
        // SAFETY: null or a member of the list, which owns it, detached.
        while let Some(vma) = unsafe { at.as_ref() } {
            at = vma.chain().load(Relaxed);
            vma.close_hook(&self.space.vm);
            vma.end_reservations(self.space.engine.memory());
            // SAFETY: as above; nobody else takes it.
            drop(unsafe { self.space.engine.slab.own(vma) });
        }
    }
}
