//! The anon_vma of a VMA's anonymous pages: its identity, and the tree that finds the VMAs of these pages.
//!
//! The identity and the tree are two separate words, in different cache lines. Only `attach_anon_vma` writes
//! these words while other tasks read them.
//!
//! | `id` | `tree` | meaning | change that ends this state |
//! | --- | --- | --- | --- |
//! | none | null | no anonymous page was ever made here | a fault stores `tree` (`attach_anon_vma`); or `set` stores both words |
//! | none | set | a fault attaches the anon_vma, under the tree's lock for writing, and links the VMA | the same fault stores `id` with release order |
//! | some | set | the VMA is linked in the tree | `set` stores both words, while no other task uses the VMA |
//! | some | null | never seen by a reader | |
//!
//! | release | acquire | effect |
//! | --- | --- | --- |
//! | `attach_anon_vma` stores `id`, last | a load of `id` | A fault that finds an anon_vma finds the tree. A walk of the tree for that fault's page finds the VMA linked, because the walk takes the lock after the fault that linked the VMA. |
//! | `attach_anon_vma` exchanges `tree` | a load of `tree`, or another fault's failing exchange | A task that reads the pointer sees the tree completely initialised. |
//! | `set` stores both words | the operation that publishes the VMA or admits readers | No other order is needed. |
//!
//! `Vma` contains the words and calls these functions. `space/change/anon.rs` chooses the anon_vma, and
//! `rmap/tree/` has the tree. loom checks the orders in `anon_vma/loom_tests.rs`.

use crate::{
    platform::Platform,
    rmap::tree::{AnonPages, root::RmapRoot},
};
use core::ptr::{NonNull, null_mut};
use freehold_sync::atomic::{
    AtomicPtr, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// Identity of the anon_vma that a VMA's anonymous pages belong to; zero if the VMA has none.
///
/// Two VMAs may merge only if the reverse map finds the anonymous pages of both through one tree. The
/// comparison of the two identities shows whether this is true. Bit 0 is set if fork made the VMA. Such a VMA
/// can also hold pages of its parent's anon_vma.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AnonId(u64);

impl AnonId {
    /// The identity of a VMA in which no anonymous page was ever made.
    pub const NONE: AnonId = AnonId(0);

    /// Creates a new identity. `serial` must be unique within the engine and not zero.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::vma::AnonId;
    /// let id = AnonId::new(1);
    /// assert!(id.is_some() && !id.is_forked() && id != AnonId::new(2));
    /// ```
    pub fn new(serial: u64) -> Self {
        AnonId(serial << 1)
    }

    /// Returns the identity of this anon_vma in a VMA that fork made.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::vma::AnonId;
    /// let id = AnonId::new(1);
    /// assert!(id.forked().is_forked() && id.forked() != id && id.forked().same(id));
    /// ```
    pub fn forked(self) -> Self {
        AnonId(self.0 | 1)
    }

    /// Returns the identity of this anon_vma in a VMA that fork did not make.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::vma::AnonId;
    /// let id = AnonId::new(1);
    /// assert_eq!(id.forked().unforked(), id);
    /// ```
    pub fn unforked(self) -> Self {
        AnonId(self.0 & !1)
    }

    /// Returns true if there is an anon_vma.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::vma::AnonId;
    /// assert!(AnonId::new(1).is_some() && !AnonId::NONE.is_some());
    /// ```
    pub fn is_some(self) -> bool {
        self.0 != 0
    }

    /// Returns true if the VMA may hold pages of a parent's anon_vma.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, fault::Access, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.handle_fault(at, Access::WRITE).unwrap();
    /// let child = space.fork().unwrap();
    /// assert!(!space.find_vma(at).unwrap().anon().is_forked());
    /// assert!(child.find_vma(at).unwrap().anon().is_forked());
    /// ```
    pub fn is_forked(self) -> bool {
        self.0 & 1 != 0
    }

    /// Returns true if both identities are of the same anon_vma.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::vma::AnonId;
    /// let [first, second] = [1, 2].map(AnonId::new);
    /// assert!(first.same(first.forked()) && !first.same(second));
    /// ```
    pub fn same(self, other: Self) -> bool {
        self.0 >> 1 == other.0 >> 1
    }
}

/// The anon_vma of a VMA, and the tree that finds the VMAs of its anonymous pages. A VMA has both or neither.
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
    /// The value of a VMA in which no anonymous page was ever made.
    pub const NONE: Self = AnonVma { id: AnonId::NONE, tree: None };

    /// Returns this anon_vma, or `other` if there is none.
    pub fn or(self, other: Self) -> Self {
        if self.id.is_some() { self } else { other }
    }
}

/// The two words of an anon_vma; see the [module](self).
pub(super) struct AnonVmaWords<'v, T> {
    pub id: &'v AtomicU64,
    pub tree: &'v AtomicPtr<T>,
}

impl<T> AnonVmaWords<'_, T> {
    /// Returns the identity. A fault that finds an anon_vma finds the tree afterwards, and may make pages
    /// there without checking whether the VMA is linked.
    pub fn id(&self) -> AnonId {
        // Acquire: pairs with the release store in `attach_anon_vma`. A task that reads the new identity also
        // sees the tree and the link.
        AnonId(self.id.load(Acquire))
    }

    /// Returns the tree, or null if there is none.
    pub fn tree(&self) -> *mut T {
        // Acquire: pairs with the release half of the exchange in `attach_anon_vma`, and with the store in
        // `set`. A task that reads the pointer sees the tree completely initialised.
        self.tree.load(Acquire)
    }

    /// Attaches an anon_vma if there is none yet: stores the tree, calls `link`, then stores the identity.
    /// The caller holds the tree's lock for writing.
    ///
    /// # Errors
    ///
    /// Fails with the tree of another fault that was first. That fault may still be linking the VMA, under
    /// the lock of its tree. `link` was not called.
    pub fn attach_anon_vma(&self, id: AnonId, tree: *mut T, link: impl FnOnce()) -> Result<(), NonNull<T>> {
        // Release and, on failure, acquire: pairs with itself and with `tree`.
        match self.tree.compare_exchange(null_mut(), tree, AcqRel, Acquire) {
            Ok(_) => {
                link();
                // Release: pairs with the acquire in `id`. The identity is stored after the tree, because a
                // fault that finds the anon_vma checks nothing else. A walk that begins before the VMA is
                // linked waits for the lock that the caller holds.
                self.id.store(id.0, Release);
                Ok(())
            }
            Err(winner) => NonNull::new(winner).map_or(Ok(()), Err),
        }
    }

    /// Replaces both words, and returns the old tree. No other task uses the VMA; `attach_anon_vma`, which
    /// requires the mmap lock or the VMA's lock, cannot run concurrently.
    pub fn set(&self, id: AnonId, tree: *mut T) -> *mut T {
        // Relaxed: there is no reader. The operation that admits readers orders this store.
        self.id.store(id.0, Relaxed);
        let old = self.tree.load(Relaxed);
        // Release: pairs with the acquire in `tree`.
        self.tree.store(tree, Release);
        old
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
