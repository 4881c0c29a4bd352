//! The anon_vma of a VMA's anonymous pages: its identity, and the tree by which the pages are found.
//!
//! The two are words of their own, in different cache lines. Only `attach_anon_vma` writes them while others
//! read them.
//!
//! | `id` | `tree` | meaning | leaves it by |
//! | --- | --- | --- | --- |
//! | none | null | no anonymous page was ever made here | `attach_anon_vma` or `set`, tree first |
//! | none | set | a fault attaches the anon_vma, under the tree's lock for writing; it links the VMA | the same fault: `id`, release |
//! | some | set | the VMA is linked in the tree | `set`, which has the VMA to itself |
//! | some | null | never seen by a reader | |
//!
//! | release | acquire | so that |
//! | --- | --- | --- |
//! | `attach_anon_vma` stores `id`, last | a load of `id` | a fault that finds an anon_vma finds the tree, and a walk of the tree because of that fault's page finds the VMA linked: the walk takes the lock after the fault that linked |
//! | `attach_anon_vma` exchanges `tree` | a load of `tree`, or another fault's failing exchange | the tree is seen as it was made |
//! | `set` stores both | whatever publishes the VMA or lets readers in | orders nothing beyond that |

use crate::{
    platform::Platform,
    rmap::tree::{AnonPages, root::RmapRoot},
};
use core::ptr::{NonNull, null_mut};
use freehold_sync::atomic::{
    AtomicPtr, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// Which anon_vma of anonymous pages a VMA belongs to: zero while it has none.
///
/// Two VMAs may merge only if their pages can be found the same way from a frame; this identity is what
/// decides it. Bit 0 says that the VMA was made by fork and can also hold pages of its parent's anon_vma.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AnonId(u64);

impl AnonId {
    /// No anonymous page was ever made here.
    pub const NONE: AnonId = AnonId(0);

    /// An anon_vma of its own; `serial` is unique within the engine and not zero.
    pub fn new(serial: u64) -> Self {
        AnonId(serial << 1)
    }

    /// The same anon_vma, seen from a VMA that fork made.
    pub fn forked(self) -> Self {
        AnonId(self.0 | 1)
    }

    /// The same anon_vma, without what fork made of the VMA.
    pub fn unforked(self) -> Self {
        AnonId(self.0 & !1)
    }

    /// Whether there is an anon_vma.
    pub fn is_some(self) -> bool {
        self.0 != 0
    }

    /// Whether the VMA may hold pages of a parent's anon_vma.
    pub fn is_forked(self) -> bool {
        self.0 & 1 != 0
    }

    /// Same anon_vma.
    pub fn same(self, other: Self) -> bool {
        self.0 >> 1 == other.0 >> 1
    }
}

/// A VMA's anon_vma, and the tree by which its anonymous pages are found; both or neither.
pub(crate) struct AnonVma<'a, P: Platform> {
    pub id: AnonId,
    pub tree: Option<&'a RmapRoot<P, AnonPages>>,
}

impl<P: Platform> Clone for AnonVma<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<P: Platform> Copy for AnonVma<'_, P> {}

impl<P: Platform> AnonVma<'_, P> {
    /// No anonymous page was ever made here.
    pub const NONE: Self = AnonVma { id: AnonId::NONE, tree: None };

    /// This one, or the other where there is none.
    pub fn or(self, other: Self) -> Self {
        if self.id.is_some() { self } else { other }
    }
}

/// The two words; see the [module](self).
pub(super) struct AnonVmaWords<'v, T> {
    pub id: &'v AtomicU64,
    pub tree: &'v AtomicPtr<T>,
}

impl<T> AnonVmaWords<'_, T> {
    /// The anon_vma. A fault that finds one finds the tree afterwards, and may make pages there without
    /// looking whether the VMA is linked.
    pub fn id(&self) -> AnonId {
        // Acquire pairs with the release in `attach_anon_vma`.
        AnonId(self.id.load(Acquire))
    }

    /// The tree; null: none.
    pub fn tree(&self) -> *mut T {
        // Acquire pairs with the release half of the exchange in `attach_anon_vma`, and with `set`.
        self.tree.load(Acquire)
    }

    /// Takes over an anon_vma if there is none yet: the tree, then what `link` does, then the anon_vma's
    /// identity. With the tree's lock held for writing.
    ///
    /// # Errors
    ///
    /// The tree of a fault that was faster, which may still be linking the VMA under the lock of that tree.
    /// `link` was not called.
    pub fn attach_anon_vma(&self, id: AnonId, tree: *mut T, link: impl FnOnce()) -> Result<(), NonNull<T>> {
        // Release, and acquire on failure: pairs with itself and with `tree`.
        match self.tree.compare_exchange(null_mut(), tree, AcqRel, Acquire) {
            Ok(_) => {
                link();
                // Release pairs with the acquire in `id`. After the tree: a fault that finds the anon_vma
                // looks for no more. A walk that begins before the VMA is linked waits for
                // the lock that the caller holds.
                self.id.store(id.0, Release);
                Ok(())
            }
            Err(winner) => NonNull::new(winner).map_or(Ok(()), Err),
        }
    }

    /// Replaces both. The caller has the VMA to itself: `attach_anon_vma` is kept out too, which needs the
    /// mmap lock or the VMA's. Returns the old tree.
    pub fn set(&self, id: AnonId, tree: *mut T) -> *mut T {
        // Relaxed: no reader is there; what lets readers in orders it.
        self.id.store(id.0, Relaxed);
        let old = self.tree.load(Relaxed);
        // Release pairs with the acquire in `tree`.
        self.tree.store(tree, Release);
        old
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
