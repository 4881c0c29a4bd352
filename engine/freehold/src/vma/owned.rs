//! VMAs from the slab that belong to one thread.
//!
//! A freed VMA is reused at once, also by other address spaces, without waiting for a grace period. Two
//! properties make that safe:
//!
//! - Memory that was a `Vma` stays a `Vma` until a grace period after its [chunk has left the
//!   slab](super::slab).
//! - The lock word of a free VMA is 0 (detached). A reader that still has the VMA's address cannot lock it,
//!   or locks the memory's next VMA and then notices that this is a different VMA.
//!
//! `space/change/split_merge.rs` allocates VMAs. `split_merge.rs`, `vma_list.rs` and `space/claim.rs` take
//! ownership of VMAs that they have detached, to free them. The owner must detach a VMA before it takes
//! ownership; `OwnedVma` checks this with debug assertions. A new field of `Vma` needs its value in `blank`,
//! and a reset in `drop` if it holds a reference.
#![expect(unsafe_code, reason = "returns references to objects of the slab")]

use super::{
    AnonVma, LastLine, Vma,
    flags::VmFlags,
    locked_list::LockedLinks,
    slab::{Item, Links, Slab},
};
use crate::{
    counted::Counted, error::NoMemory, file::Object, hugetlb::state::vma_lock::HugetlbVma,
    platform::Platform, uffd::state::Context,
};
use core::{
    cell::UnsafeCell,
    ops::Deref,
    ptr::{NonNull, null_mut},
};
use freehold_range::IntervalLink;
use freehold_sync::{
    VmaCount, VmaSeq,
    atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::Relaxed, announce},
    publish::Published,
};
use freehold_vmspace::{PageIndex, UserRange};

/// The VMAs of one engine.
pub(crate) type VmaSlab<P> = Slab<Vma<P>, P>;

/// A VMA that is not in a tree and that no other task can lock: a new VMA or a detached VMA. Dropping the
/// `OwnedVma` returns the VMA to the slab.
///
/// # Invariants
///
/// The VMA is detached and this is its only owner.
pub(crate) struct OwnedVma<'e, P: Platform> {
    vma: &'e Vma<P>,
    slab: &'e VmaSlab<P>,
}

/// Initial values of a VMA.
pub(crate) struct VmaInit<'a, P: Platform> {
    pub range: UserRange,
    pub pgoff: PageIndex,
    pub flags: VmFlags,
    pub anon: AnonVma<'a, P>,
    pub policy: u64,
    pub object: &'a Object<P>,
    pub hugetlb: Option<Counted<HugetlbVma<P>>>,
    pub uffd: Option<&'a Counted<Context<P>>>,
    /// Address of the space's `VmSpace`.
    pub owner: usize,
}

impl<P: Platform> VmaSlab<P> {
    /// Allocates a detached VMA with the given attributes.
    // Inlined, so that the attributes are stored directly in their places.
    #[cfg_attr(feature = "inline", inline(always))]
    pub fn alloc(&self, init: VmaInit<'_, P>) -> Result<OwnedVma<'_, P>, NoMemory> {
        let vma = self.take()?;
        // SAFETY: `take` has just returned the VMA, so this is the only owner, and its memory stays valid
        // until the owner frees the VMA.
        let vma = unsafe { vma.as_ref() };
        vma.set_bounds(init.range, init.pgoff);
        vma.set_flags(init.flags);
        vma.set_anon_vma(init.anon);
        vma.set_policy(init.policy);
        vma.set_uffd(init.uffd.cloned());
        vma.owner.store(init.owner, Relaxed);
        // SAFETY: the VMA is detached and owned, so no reader uses the object. A free VMA holds `Anonymous`,
        // which needs no drop.
        unsafe { vma.set_object(init.object.clone(), init.hugetlb) };
        init.object.opened(init.flags);
        vma.lock().init_detached();
        Ok(OwnedVma { vma, slab: self })
    }

    /// Takes ownership of a VMA that was just detached from its tree.
    ///
    /// # Safety
    ///
    /// The VMA came from this slab, is detached and not in a tree of the reverse map, and no other code takes
    /// ownership of it. References to it that still exist are not used after the returned value is dropped,
    /// because the memory may be freed then.
    pub unsafe fn own<'e>(&'e self, vma: &'e Vma<P>) -> OwnedVma<'e, P> {
        OwnedVma { vma, slab: self }
    }
}

impl<'e, P: Platform> OwnedVma<'e, P> {
    /// Adds an external lock to the VMA, for an address space whose VMAs have external locks.
    ///
    /// # Errors
    ///
    /// Fails with [`NoMemory`] if there is no memory for the lock. The VMA is then freed.
    pub fn with_lock_beside(self) -> Result<Self, NoMemory> {
        self.vma.state.count.make_external_rwsem::<P>()?;
        Ok(self)
    }

    /// Releases the VMA to the tree: from here on the address space owns it.
    pub fn into_ref(self) -> &'e Vma<P> {
        let vma = self.vma;
        core::mem::forget(self);
        vma
    }
}

impl<P: Platform> Deref for OwnedVma<'_, P> {
    type Target = Vma<P>;
    fn deref(&self) -> &Vma<P> {
        self.vma
    }
}

impl<P: Platform> Drop for OwnedVma<'_, P> {
    #[cfg_attr(feature = "inline", inline(always))]
    fn drop(&mut self) {
        debug_assert!(self.vma.lock().is_detached(), "an attached VMA was freed");
        self.vma.object().closed(self.vma.flags());
        // SAFETY: the VMA is detached and owned, so no reader uses the object.
        unsafe { self.vma.set_object(Object::Anonymous, None) };
        self.vma.set_anon_vma(AnonVma::NONE);
        self.vma.set_uffd(None);
        if cfg!(debug_assertions) {
            // A task that wrongly continues to use the VMA finds an empty VMA.
            self.vma.set_bounds(UserRange::EMPTY, PageIndex::ZERO);
        }
        // SAFETY: by the type's invariant this is the only owner, and no tree contains the VMA. The contract
        // of `own` rules out later uses of references to it.
        unsafe { self.slab.give(NonNull::from(self.vma)) };
    }
}

impl<P: Platform> Item for Vma<P> {
    fn announce(first: *const Self, count: usize) {
        announce!("Vma", first, count, Vma<P> {
            start: start,
            end: end,
            owner: owner,
            flags: flags,
            pgoff: pgoff,
            anon: anon,
            file_home: file_home,
            seq: seq,
            object: object,
            hugetlb: hugetlb,
            tree: tree,
            policy: policy,
            link: link,
            anon_link: anon_link,
            count: state.count,
            uffd: state.uffd,
            links: state.links,
            locked: state.locked,
        });
    }

    fn blank() -> Self {
        Vma {
            start: AtomicU64::new(0),
            end: AtomicU64::new(0),
            owner: AtomicUsize::new(0),
            flags: AtomicU64::new(0),
            pgoff: AtomicU64::new(0),
            anon: AtomicU64::new(0),
            seq: VmaSeq::new(),
            file_home: Published::new(),
            object: UnsafeCell::new(Object::Anonymous),
            hugetlb: UnsafeCell::new(None),
            tree: AtomicPtr::new(null_mut()),
            policy: AtomicU64::new(0),
            link: IntervalLink::new(),
            anon_link: IntervalLink::new(),
            state: LastLine {
                count: VmaCount::new(),
                uffd: UnsafeCell::new(None),
                links: Links::new(),
                locked: LockedLinks::new(),
            },
        }
    }

    fn links(&self) -> &Links<Self> {
        &self.state.links
    }
}

impl<P: Platform> Vma<P> {
    /// Returns the link of the list that the VMA is in while it is detached.
    pub(crate) fn chain(&self) -> &AtomicPtr<Vma<P>> {
        self.state.links.chain()
    }
}
