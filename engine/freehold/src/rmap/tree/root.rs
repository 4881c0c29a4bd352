//! Where a page is at home: the VMAs that may map it, and the file if it is a file's.
//!
//! A page of a file has the home of that file: the VMAs that map it. An anonymous page has that of the VMA it
//! was made in, which the VMA shares with everything that came of it by split, mremap or fork. The page knows
//! the *index* by which the VMAs of its home know it: the offset in the file, or for anonymous memory the
//! page number that the first VMA was made at. Splits, merges and moves change bounds, never the relation
//! between addresses and offsets; a forked child's VMA joins its parent's home, and so do the pages that the
//! child makes there. So a walk finds every entry of a page, and beside them the VMAs of other processes of
//! the fork tree that have another page at this offset: for a page of a server with 1,000 children a thousand
//! looks into page tables at most. A home per process and generation would spare those looks, for a list of
//! homes in every VMA.
//!
//! Life: each VMA that is linked, the file, and each walker hold a reference; pages do not. An anonymous page
//! that is mapped is mapped by a VMA that keeps the home until that entry is gone; a page of a file is in its
//! cache. The memory goes after a grace period: a task that finds the address in the record of such a frame,
//! within a read section, may try for a reference.
#![expect(unsafe_code, reason = "references that frames do not count")]

use super::{RmapKind, RmapReadGuard, VmaTree};
use crate::{counted::Counted, error::NoMemory, platform::Platform, uprobe::state::Registry};
use allocator_api2::boxed::Box;
use core::{
    mem::offset_of,
    ops::Deref,
    ptr::{NonNull, null_mut},
};
use freehold_sync::{
    RcuHead,
    atomic::{
        AtomicPtr, AtomicUsize,
        Ordering::{Acquire, Relaxed, Release},
        announce, fence,
    },
};

/// Marks the address of a file's home in a frame's record; homes are aligned.
pub(crate) const FILE: usize = 1;

/// See the module.
pub(crate) struct RmapRoot<P: Platform, W: RmapKind> {
    /// Each is a word in a VMA or a file, or on the stack of a walker: no more of them than memory has
    /// words.
    refs: AtomicUsize,
    /// Whose pages they are, if a file's; gone before the file goes, under the lock for writing.
    mapping: AtomicPtr<W::Owner<P>>,
    vmas: VmaTree<P, W>,
    /// Of a file, the probes in it: here, since a thread that runs into one may have found this without a
    /// lock.
    pub(crate) probes: Registry,
    head: RcuHead,
}

/// A counted reference to a tree.
///
/// # Invariants
///
/// The tree is alive, and its count includes this reference.
pub(crate) struct RmapRootRef<P: Platform, W: RmapKind>(NonNull<RmapRoot<P, W>>);

// SAFETY: a tree may be used by any thread, and be freed by any.
unsafe impl<P: Platform, W: RmapKind> Send for RmapRootRef<P, W> {}
// SAFETY: as above.
unsafe impl<P: Platform, W: RmapKind> Sync for RmapRootRef<P, W> {}

impl<P: Platform, W: RmapKind> RmapRoot<P, W> {
    /// For a VMA that is to have its first anonymous page, or for a file.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn try_new(lock: W::Lock<P>) -> Result<RmapRootRef<P, W>, NoMemory> {
        let home = RmapRoot {
            refs: AtomicUsize::new(1),
            mapping: AtomicPtr::new(null_mut()),
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

    /// One reference more, for a caller that has access by another one, which stays meanwhile.
    pub fn hold(&self) -> RmapRootRef<P, W> {
        // Relaxed: the count cannot reach zero beside this.
        self.refs.fetch_add(1, Relaxed);
        RmapRootRef(NonNull::from(self))
    }

    /// The pages of this home are a file's.
    pub fn set_mapping(&self, mapping: &Counted<W::Owner<P>>) {
        // Release pairs with the acquire in `mapping`.
        self.mapping.store(Counted::as_ptr(mapping).cast_mut(), Release);
    }

    /// The file is about to go.
    pub fn clear_mapping(&self) {
        let _walkers_out = self.edit();
        // Relaxed: readers hold the lock for reading.
        self.mapping.store(null_mut(), Relaxed);
    }

    /// The file whose pages they are, kept as long as the lock.
    pub fn mapping<'l>(&'l self, _lookups: &'l RmapReadGuard<'_, P, W>) -> Option<&'l W::Owner<P>> {
        // SAFETY: the file clears the pointer, under the lock for writing, before it goes.
        unsafe { self.mapping.load(Acquire).as_ref() }
    }

    /// The file, if it is not just about to go.
    ///
    /// # Locks
    ///
    /// That of the tree for reading.
    pub fn hold_mapping(&self) -> Option<Counted<W::Owner<P>>> {
        let _stays = self.read();
        let mapping = NonNull::new(self.mapping.load(Acquire))?;
        // SAFETY: from `as_ptr`; as in `mapping`, it is there as long as the lock.
        unsafe { Counted::get_unless_zero(mapping) }
    }

    /// A reference for a caller that found the address in the record of a frame that is mapped, or in the
    /// cache of a file; nothing if the home is about to go.
    ///
    /// # Safety
    ///
    /// Within `_rcu`, such a frame's record named `tree`.
    pub unsafe fn find(_rcu: &P::RcuGuard, tree: NonNull<Self>) -> Option<RmapRootRef<P, W>> {
        // SAFETY: a VMA or a file kept it when the read section had begun, so the memory stays for as long as
        // it lasts.
        let refs = unsafe { &tree.as_ref().refs };
        let mut seen = refs.load(Relaxed);
        while seen != 0 {
            // Relaxed: what it holds is read under its lock.
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
    /// Hands the reference over to a word.
    pub fn into_raw(self) -> *mut RmapRoot<P, W> {
        let tree = self.0.as_ptr();
        core::mem::forget(self);
        tree
    }

    /// Takes a reference back from a word.
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
        // SAFETY: the type's invariant.
        unsafe { self.0.as_ref() }
    }
}

impl<P: Platform, W: RmapKind> Drop for RmapRootRef<P, W> {
    fn drop(&mut self) {
        // Release pairs with the fence: every use of the tree happens before its end.
        if self.refs.fetch_sub(1, Release) == 1 {
            fence(Acquire);
            // SAFETY: the last reference is gone, so nobody uses the head.
            unsafe {
                let head = self.0.byte_add(offset_of!(RmapRoot<P, W>, head)).cast();
                P::rcu_defer(head, free::<P, W>);
            }
        }
    }
}

/// Frees a tree after the grace period.
///
/// # Safety
///
/// The head is that of a tree that nobody can find any more.
unsafe fn free<P: Platform, W: RmapKind>(head: NonNull<RcuHead>) {
    // SAFETY: the caller's promise; the tree came from `Box::leak`.
    unsafe {
        drop(Box::from_raw(head.byte_sub(offset_of!(RmapRoot<P, W>, head)).cast::<RmapRoot<P, W>>().as_ptr()))
    };
}
