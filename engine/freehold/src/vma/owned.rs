//! VMAs from the slab, while they are one thread's own.
//!
//! A freed VMA is reused at once, by other address spaces too, without waiting for a grace period. What makes
//! that safe: memory that was a `Vma` stays a `Vma` until a grace period after its [chunk has left the
//! slab](super::slab), and the lock word of a free VMA is 0 (detached), so that a reader which still has its
//! address cannot lock it, or locks its next life and then notices that it does not belong there.
#![expect(unsafe_code, reason = "hands out references to objects of the slab")]

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
};
use freehold_vmspace::{PageIndex, UserRange};

/// The VMAs of one engine.
pub(crate) type VmaSlab<P> = Slab<Vma<P>, P>;

/// A VMA that is in no tree and that nobody else can lock: new, or detached. Goes back to the slab when
/// dropped.
///
/// # Invariants
///
/// The VMA is detached and this is the only owner.
pub(crate) struct OwnedVma<'e, P: Platform> {
    vma: &'e Vma<P>,
    slab: &'e VmaSlab<P>,
}

/// How a VMA begins.
pub(crate) struct VmaInit<'a, P: Platform> {
    pub range: UserRange,
    pub pgoff: PageIndex,
    pub flags: VmFlags,
    pub anon: AnonVma<'a, P>,
    pub policy: u64,
    pub object: &'a Object<P>,
    pub hugetlb: Option<Counted<HugetlbVma<P>>>,
    pub uffd: Option<&'a Counted<Context<P>>>,
    /// Address of the owning space.
    pub owner: usize,
}

impl<P: Platform> VmaSlab<P> {
    /// A VMA with the given attributes, detached.
    // Inlined, so that the attributes go straight to their places.
    #[inline(always)]
    pub fn alloc(&self, init: VmaInit<'_, P>) -> Result<OwnedVma<'_, P>, NoMemory> {
        let vma = self.take()?;
        // SAFETY: just taken, so this is the only owner, and the memory stays as long as it is not given
        // back.
        let vma = unsafe { vma.as_ref() };
        vma.set_bounds(init.range, init.pgoff);
        vma.set_flags(init.flags);
        vma.set_anon_vma(init.anon);
        vma.set_policy(init.policy);
        vma.set_uffd(init.uffd.cloned());
        vma.owner.store(init.owner, Relaxed);
        // SAFETY: detached and owned: nobody reads the object. A free VMA holds `Anonymous`, which needs no
        // drop.
        unsafe { vma.set_object(init.object.clone(), init.hugetlb) };
        init.object.opened(init.flags);
        vma.lock().init_detached();
        Ok(OwnedVma { vma, slab: self })
    }

    /// Takes ownership of a VMA that was just detached from its tree.
    ///
    /// # Safety
    ///
    /// The VMA came from this slab, is detached and in no tree of the reverse map, and nobody else will take
    /// it. What refers to it still is not used once the value that this returns is dropped: the memory may go
    /// then.
    pub unsafe fn own<'e>(&'e self, vma: &'e Vma<P>) -> OwnedVma<'e, P> {
        OwnedVma { vma, slab: self }
    }
}

impl<'e, P: Platform> OwnedVma<'e, P> {
    /// With a lock beside it, for a space whose VMAs have one.
    ///
    /// # Errors
    ///
    /// No memory for it; the VMA is gone.
    pub fn with_lock_beside(self) -> Result<Self, NoMemory> {
        self.vma.state.count.make_external_rwsem::<P>()?;
        Ok(self)
    }

    /// Gives the VMA to the tree: from here on the space owns it.
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
    #[inline(always)]
    fn drop(&mut self) {
        debug_assert!(self.vma.lock().is_detached(), "an attached VMA goes back to the slab");
        self.vma.object().closed(self.vma.flags());
        // SAFETY: detached and owned: nobody reads the object.
        unsafe { self.vma.set_object(Object::Anonymous, None) };
        self.vma.set_anon_vma(AnonVma::NONE);
        self.vma.set_uffd(None);
        if cfg!(debug_assertions) {
            // A task that wrongly goes on using it finds an empty VMA instead of what it was.
            self.vma.set_bounds(UserRange::EMPTY, PageIndex::ZERO);
        }
        // SAFETY: by the type's invariant ours alone, and found in no tree. `own` says that nobody goes on
        // using it.
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
            file_home: AtomicPtr::new(null_mut()),
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
    /// The list it hangs in while detached.
    pub(crate) fn chain(&self) -> &AtomicPtr<Vma<P>> {
        self.state.links.chain()
    }
}
