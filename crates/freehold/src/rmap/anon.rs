//! The VMAs that may map the same anonymous pages: one tree for a VMA's first page and everything that came of that VMA, by
//! split, mremap or fork.
//!
//! An anonymous page knows its tree and its *index*: the page offset by which the VMAs of the tree know it. Splits, merges and
//! moves change bounds, never the relation between addresses and offsets; a forked child's VMA joins its parent's tree, and
//! so do the pages that the child makes there. So a walk finds every entry of a page, and beside them the VMAs of other
//! processes of the fork tree that have another page at this offset: for a page of a server with 1,000 children a thousand looks into
//! page tables. A tree per process and generation would spare those looks, for a list of trees in every VMA.
//!
//! Life: each VMA that is linked, and each walker, holds a reference; pages do not. A page that is mapped is mapped by
//! a VMA that keeps the tree until that entry is gone. The memory goes after a grace period: who finds the address in the
//! record of a mapped frame, within a read section, may try for a reference.
#![expect(unsafe_code, reason = "references that frames do not count")]

use super::tree::{ByPages, VmaTree};
use crate::{error::NoMemory, platform::Platform};
use allocator_api2::boxed::Box;
use core::{mem::offset_of, ops::Deref, ptr::NonNull};
use freehold_sync::{
    RcuHead,
    atomic::{
        AtomicU32,
        Ordering::{Acquire, Relaxed, Release},
        fence,
    },
};

/// See the module.
pub(crate) struct AnonTree<P: Platform> {
    refs: AtomicU32,
    vmas: VmaTree<P, ByPages>,
    head: RcuHead,
}

/// A counted reference to a tree.
///
/// # Invariants
///
/// The tree is alive, and its count includes this reference.
pub(crate) struct TreeRef<P: Platform>(NonNull<AnonTree<P>>);

// SAFETY: a tree may be used by any thread, and be freed by any.
unsafe impl<P: Platform> Send for TreeRef<P> {}
// SAFETY: as above.
unsafe impl<P: Platform> Sync for TreeRef<P> {}

impl<P: Platform> AnonTree<P> {
    /// For a VMA that is to have its first anonymous page.
    pub fn try_new() -> Result<TreeRef<P>, NoMemory> {
        let (refs, vmas, head) = (AtomicU32::new(1), VmaTree::new(), RcuHead::new());
        let tree = Box::try_new(AnonTree { refs, vmas, head })?;
        Ok(TreeRef(NonNull::from(Box::leak(tree))))
    }

    /// One reference more, for who has access by another that stays meanwhile.
    pub fn hold(&self) -> TreeRef<P> {
        // Relaxed: the count cannot reach zero beside this.
        self.refs.fetch_add(1, Relaxed);
        TreeRef(NonNull::from(self))
    }

    /// A reference for who found the address in the record of a frame that is mapped; nothing if the tree is about to go.
    ///
    /// # Safety
    ///
    /// Within `_rcu`, a frame was mapped when its record named `tree`.
    pub unsafe fn find(_rcu: &P::RcuGuard, tree: NonNull<Self>) -> Option<TreeRef<P>> {
        // SAFETY: some VMA kept the tree when the read section had begun, so the memory stays for as long as it lasts.
        let refs = unsafe { &tree.as_ref().refs };
        let mut seen = refs.load(Relaxed);
        while seen != 0 {
            // Relaxed: what the tree holds is read under its lock.
            match refs.compare_exchange_weak(seen, seen + 1, Relaxed, Relaxed) {
                Ok(_) => return Some(TreeRef(tree)),
                Err(now) => seen = now,
            }
        }
        None
    }
}

impl<P: Platform> Deref for AnonTree<P> {
    type Target = VmaTree<P, ByPages>;
    fn deref(&self) -> &Self::Target {
        &self.vmas
    }
}

impl<P: Platform> TreeRef<P> {
    /// Hands the reference over to a word.
    pub fn into_raw(self) -> *mut AnonTree<P> {
        let tree = self.0.as_ptr();
        core::mem::forget(self);
        tree
    }

    /// Takes a reference back from a word.
    ///
    /// # Safety
    ///
    /// The pointer came from [`into_raw`](Self::into_raw), or is null, and is not used again.
    pub unsafe fn from_raw(tree: *mut AnonTree<P>) -> Option<Self> {
        NonNull::new(tree).map(TreeRef)
    }
}

impl<P: Platform> Deref for TreeRef<P> {
    type Target = AnonTree<P>;
    fn deref(&self) -> &AnonTree<P> {
        // SAFETY: the type's invariant.
        unsafe { self.0.as_ref() }
    }
}

impl<P: Platform> Drop for TreeRef<P> {
    fn drop(&mut self) {
        // Release pairs with the fence: every use of the tree happens before its end.
        if self.refs.fetch_sub(1, Release) == 1 {
            fence(Acquire);
            // SAFETY: the last reference is gone, so nobody uses the head.
            unsafe {
                let head = self.0.byte_add(offset_of!(AnonTree<P>, head)).cast();
                P::rcu_defer(head, free::<P>);
            }
        }
    }
}

/// Frees a tree after the grace period.
///
/// # Safety
///
/// The head is that of a tree that nobody can find any more.
unsafe fn free<P: Platform>(head: NonNull<RcuHead>) {
    // SAFETY: the caller's promise; the tree came from `Box::leak`.
    unsafe {
        drop(Box::from_raw(head.byte_sub(offset_of!(AnonTree<P>, head)).cast::<AnonTree<P>>().as_ptr()))
    };
}
