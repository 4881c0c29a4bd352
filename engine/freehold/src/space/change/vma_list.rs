//! The list of VMAs that one removal collects: gathered under the write lock, then detached, then freed.
//! `unmap.rs` is its only user.
//!
//! The list links VMAs through their own fields (`Vma::chain`), so adding a VMA needs no memory and cannot
//! fail. The task that made the list owns the links: no other code may use `chain` of a VMA that is listed.
//! Dropping an `OwnedList` frees its VMAs, which may drop files and call hooks of drivers, so it is dropped
//! after all locks.
#![expect(unsafe_code, reason = "owns detached VMAs through an intrusive list")]

use crate::space::AddressSpace;
use crate::{platform::Platform, vma::Vma};
use core::ptr::null_mut;
use freehold_sync::atomic::Ordering::Relaxed;

/// VMAs in order of address, linked through their own fields.
///
/// # Invariants
///
/// Every member belongs to the owner of the list: gathered under the write lock, or detached. All accesses to
/// the links are therefore Relaxed: only one task reads and writes them.
pub(super) struct VmaList<P: Platform> {
    head: *const Vma<P>,
    tail: *const Vma<P>,
}

impl<P: Platform> VmaList<P> {
    /// Creates an empty list.
    pub fn new() -> Self {
        VmaList { head: null_mut(), tail: null_mut() }
    }

    /// Adds a VMA at the end.
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

    /// Appends `other` to this list.
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

    /// Returns the VMAs in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &Vma<P>> {
        let mut at = self.head;
        core::iter::from_fn(move || {
            // SAFETY: the pointer is null or a member; members are live VMAs.
            let vma = unsafe { at.as_ref() }?;
            at = vma.chain().load(Relaxed);
            Some(vma)
        })
    }
}

/// Detached VMAs. Dropping the list releases their reservations and files, and frees them to the slab.
pub(super) struct OwnedList<'s, P: Platform> {
    pub space: &'s AddressSpace<P>,
    pub list: VmaList<P>,
}

impl<P: Platform> Drop for OwnedList<'_, P> {
    #[inline]
    fn drop(&mut self) {
        let mut at = self.list.head;
        // SAFETY: the pointer is null or a member of the list, which owns its detached VMAs.
        while let Some(vma) = unsafe { at.as_ref() } {
            P::cond_resched();
            at = vma.chain().load(Relaxed);
            vma.close_hook(&self.space.vm);
            vma.end_reservations(self.space.engine.memory());
            // SAFETY: the list owns the detached VMA, and no other code frees it.
            drop(unsafe { self.space.engine.slab.own(vma) });
        }
    }
}
