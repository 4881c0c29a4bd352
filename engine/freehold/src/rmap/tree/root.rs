//! The home of pages: the VMAs that may map the pages, and the file to which the pages belong, if any.
//!
//! A page of a file has the home of that file: all VMAs that map the file. An anonymous page has the home of
//! the VMA in which it was made. That VMA shares its home with all VMAs that come from it by split, mremap or
//! fork. The page has an *index* in its home: the offset in the file, or for anonymous memory the page number
//! of its address before any move of the VMA (`Vma::pgoff`). Splits, merges and moves change bounds, but
//! never the relation between addresses and offsets. A forked child's VMA joins the home of the parent's VMA.
//! Pages that the child makes in this VMA have the same home.
//!
//! A walk therefore finds every entry of a page. The walk also visits the VMA of another process of the fork
//! tree if this VMA has another page at the same offset. For a page of a server with 1,000 children, these
//! visits cost at most a thousand reads of page tables. A separate home for each forked process would avoid
//! these reads, but would need a list of homes in every VMA.
//!
//! Lifetime: each linked VMA, the file, and each walker hold a reference; pages do not. A VMA that maps an
//! anonymous page keeps the home until the entry of the page is removed. The file keeps the home for the
//! pages in its cache. The memory of a home is freed after a grace period. A task in a read section may
//! therefore find the address of a home in the record of a frame, and try to take a reference.
//! `AddressSpace::check` (`report/check.rs`) compares the record of each mapped frame with the home of the
//! VMA.
#![expect(unsafe_code, reason = "counts references that VMAs store as plain words")]

use super::{RmapKind, RmapReadGuard, VmaTree};
use crate::{
    counted::{Counted, drop_reference},
    error::NoMemory,
    platform::Platform,
    uprobe::state::Registry,
};
use allocator_api2::boxed::Box;
use core::{
    mem::offset_of,
    ops::Deref,
    ptr::{NonNull, null_mut},
};
use freehold_sync::{
    RcuHead,
    atomic::{AtomicUsize, Ordering::Relaxed, announce},
    publish::Published,
};

/// Bit that marks the address of a file's home in a frame's record. Homes are aligned, so the bit is free.
pub(crate) const FILE: usize = 1;

/// The home of pages; the head of this file explains it.
pub(crate) struct RmapRoot<P: Platform, W: RmapKind> {
    /// Number of references. Each reference is a word in a VMA or a file, or on the stack of a walker, so the
    /// number cannot exceed the number of words in memory.
    refs: AtomicUsize,
    /// The file that the pages belong to, if any. Cleared before the file is freed, while the tree's lock is
    /// held for writing.
    mapping: Published<W::Owner<P>>,
    vmas: VmaTree<P, W>,
    /// The probes in the file. Stored in the home because a thread that hits a probe may have found the home
    /// without a lock.
    pub(crate) probes: Registry,
    head: RcuHead,
}

/// A counted reference to a home.
///
/// # Invariants
///
/// The home is alive, and its count includes this reference.
pub(crate) struct RmapRootRef<P: Platform, W: RmapKind>(NonNull<RmapRoot<P, W>>);

// SAFETY: any thread may use a home, and any thread may free it.
unsafe impl<P: Platform, W: RmapKind> Send for RmapRootRef<P, W> {}
// SAFETY: any thread may use a home, and any thread may free it.
unsafe impl<P: Platform, W: RmapKind> Sync for RmapRootRef<P, W> {}

impl<P: Platform, W: RmapKind> RmapRoot<P, W> {
    /// Creates a home, for a VMA that is about to get its first anonymous page, or for a file.
    ///
    /// # Errors
    ///
    /// Fails with [`NoMemory`] if there is no memory.
    pub fn try_new(lock: W::Lock<P>) -> Result<RmapRootRef<P, W>, NoMemory> {
        let home = RmapRoot {
            refs: AtomicUsize::new(1),
            mapping: Published::new(),
            vmas: VmaTree::new(lock),
            probes: Registry::new(),
            head: RcuHead::new(),
        };
        let home = Box::try_new(home)?;
        announce!("RmapRoot", &raw const *home, 1, RmapRoot<P, W> {
            refs: refs,
            mapping: mapping,
            vmas: vmas,
            probes: probes,
        });
        Ok(RmapRootRef(NonNull::from(Box::leak(home))))
    }

    /// Takes another reference, for a caller whose own reference stays alive during the call.
    pub fn hold(&self) -> RmapRootRef<P, W> {
        // Relaxed: the caller's reference keeps the count above zero.
        self.refs.fetch_add(1, Relaxed);
        RmapRootRef(NonNull::from(self))
    }

    /// Sets the file that the pages belong to.
    pub fn set_mapping(&self, mapping: &Counted<W::Owner<P>>) {
        self.mapping.publish(Counted::as_ptr(mapping).cast_mut());
    }

    /// Clears the reference to the file, which is about to be freed.
    pub fn clear_mapping(&self) {
        let _walkers_out = self.edit();
        self.mapping.publish(null_mut());
    }

    /// Returns the file that the pages belong to. The file stays as long as the lock is held.
    pub fn mapping<'l>(&'l self, _lookups: &'l RmapReadGuard<'_, P, W>) -> Option<&'l W::Owner<P>> {
        // SAFETY: before the file is freed, the pointer is cleared under the tree's lock for writing.
        unsafe { self.mapping.get().as_ref() }
    }

    /// Returns a reference to the file, if the file is not about to be freed.
    ///
    /// # Locks
    ///
    /// The tree's lock for reading.
    pub fn hold_mapping(&self) -> Option<Counted<W::Owner<P>>> {
        self.hold_mapping_within(&self.read())
    }

    /// Returns a reference to the file like [`hold_mapping`](Self::hold_mapping), for a caller that has the
    /// lock.
    pub fn hold_mapping_within(&self, _lookups: &RmapReadGuard<'_, P, W>) -> Option<Counted<W::Owner<P>>> {
        let mapping = NonNull::new(self.mapping.get())?;
        // SAFETY: the pointer came from `as_ptr`, and the file is alive as long as the lock is held, as in
        // `mapping`.
        unsafe { Counted::get_unless_zero(mapping) }
    }

    /// Returns a counted reference to the file, for a caller that has borrowed the file. Returns `None` if
    /// the file is about to be freed.
    pub fn hold_borrowed(&self, file: &W::Owner<P>) -> Option<Counted<W::Owner<P>>> {
        let mapping = NonNull::new(self.mapping.get())
            .filter(|own| own.as_ptr().addr() == core::ptr::from_ref(file).addr())?;
        // SAFETY: the pointer came from `as_ptr`. It points to the file that the caller has borrowed, so the
        // file's memory is not freed during the call.
        unsafe { Counted::get_unless_zero(mapping) }
    }

    /// Returns a reference to the home whose address the caller found in the record of a frame. The frame is
    /// mapped or in a file's cache. Returns `None` if the home is about to be freed.
    ///
    /// # Safety
    ///
    /// At some moment of the read section `_rcu`, the record of such a frame contained the address `tree`.
    pub unsafe fn find(_rcu: &P::RcuGuard, tree: NonNull<Self>) -> Option<RmapRootRef<P, W>> {
        // SAFETY: a VMA or a file held a reference at some moment of the read section, so the memory stays
        // valid until the section ends.
        let refs = unsafe { &tree.as_ref().refs };
        let mut seen = refs.load(Relaxed);
        while seen != 0 {
            // Relaxed: the content of the home is read under its lock.
            match refs.compare_exchange_weak(seen, seen + 1, Relaxed, Relaxed) {
                Ok(_) => return Some(RmapRootRef(tree)),
                Err(now) => seen = now,
            }
        }
        None
    }
}

impl<P: Platform, W: RmapKind> Deref for RmapRoot<P, W> {
    type Target = VmaTree<P, W>;
    fn deref(&self) -> &Self::Target {
        &self.vmas
    }
}

impl<P: Platform, W: RmapKind> RmapRootRef<P, W> {
    /// Converts the reference to a pointer, to be stored in a word.
    pub fn into_raw(self) -> *mut RmapRoot<P, W> {
        let tree = self.0.as_ptr();
        core::mem::forget(self);
        tree
    }

    /// Converts a pointer from a word back to a reference.
    ///
    /// # Safety
    ///
    /// The pointer came from [`into_raw`](Self::into_raw), or is null, and is not used again.
    pub unsafe fn from_raw(tree: *mut RmapRoot<P, W>) -> Option<Self> {
        NonNull::new(tree).map(RmapRootRef)
    }
}

impl<P: Platform, W: RmapKind> Deref for RmapRootRef<P, W> {
    type Target = RmapRoot<P, W>;
    fn deref(&self) -> &RmapRoot<P, W> {
        // SAFETY: by the type's invariant the home is alive.
        unsafe { self.0.as_ref() }
    }
}

impl<P: Platform, W: RmapKind> Drop for RmapRootRef<P, W> {
    fn drop(&mut self) {
        if drop_reference(&self.refs) {
            // SAFETY: this was the last reference, so no other task uses the head.
            unsafe {
                let head = self.0.byte_add(offset_of!(RmapRoot<P, W>, head)).cast();
                P::rcu_defer(head, free::<P, W>);
            }
        }
    }
}

/// Frees a home after the grace period.
///
/// # Safety
///
/// The head belongs to a home without references, and a grace period has passed since the last reference was
/// dropped.
unsafe fn free<P: Platform, W: RmapKind>(head: NonNull<RcuHead>) {
    // SAFETY: the caller's promise; the home came from `Box::leak`.
    unsafe {
        drop(Box::from_raw(head.byte_sub(offset_of!(RmapRoot<P, W>, head)).cast::<RmapRoot<P, W>>().as_ptr()))
    };
}
