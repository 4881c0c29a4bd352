//! Where VMAs come from: a type-stable slab with per-CPU caches.
//!
//! A freed VMA is reused at once, by other address spaces too, without waiting for a grace period. What makes that safe:
//! memory that was a `Vma` stays a `Vma` until the slab is dropped, and the lock word of a free VMA is 0 (detached), so
//! that a reader which still has its address cannot lock it, or locks its next life and then notices that it does not belong there.
#![expect(
    unsafe_code,
    reason = "owns raw chunks of VMAs and hands out references that outlive a borrow of the slab"
)]

use super::{Family, LastLine, Vma, flags::VmFlags};
use crate::{
    counted::Counted, error::NoMemory, hugetlb::tables::HugetlbVma, object::Object, platform::Platform,
    uffd::Context,
};
use allocator_api2::{boxed::Box, vec::Vec};
use core::{
    cell::UnsafeCell,
    ops::{Deref, Range},
    ptr::{NonNull, null_mut},
};
use freehold_range::IntervalLink;
use freehold_sync::{
    PerCpu, Rank, SpinLock, VmaCount, VmaSeq,
    atomic::{AtomicPtr, AtomicU64, AtomicUsize, CHECKED, Ordering::Relaxed},
};

/// VMAs allocated at a time.
const CHUNK: usize = if CHECKED { 4 } else { 32 };
/// VMAs that a CPU keeps for itself before it gives half of them back.
const CACHE: usize = if CHECKED { 4 } else { 32 };

/// A CPU's free list; only that CPU reads or writes it, inside `with_cpu`, with plain loads and stores.
struct Cache<P: Platform> {
    head: AtomicPtr<Vma<P>>,
    len: AtomicUsize,
}

/// What all CPUs share.
struct Depot<P: Platform> {
    head: *mut Vma<P>,
    chunks: Vec<Box<[Vma<P>]>>,
}

// SAFETY: the pointers lead to VMAs of `chunks`, which may be used by any thread.
unsafe impl<P: Platform> Send for Depot<P> {}

/// The slab of one engine.
pub(crate) struct Slab<P: Platform> {
    caches: PerCpu<Cache<P>, P>,
    depot: SpinLock<Depot<P>>,
}

/// A VMA that is in no tree and that nobody else can lock: new, or detached. Goes back to the slab when dropped.
///
/// # Invariants
///
/// The VMA is detached and this is the only owner.
pub(crate) struct OwnedVma<'e, P: Platform> {
    vma: &'e Vma<P>,
    slab: &'e Slab<P>,
}

impl<P: Platform> Slab<P> {
    pub fn try_new() -> Result<Self, NoMemory> {
        let caches =
            PerCpu::try_new(|_| Cache { head: AtomicPtr::new(null_mut()), len: AtomicUsize::new(0) })?;
        Ok(Slab { caches, depot: SpinLock::new(Depot { head: null_mut(), chunks: Vec::new() }, Rank::Slab) })
    }

    /// A VMA with the given attributes, detached.
    pub fn alloc(&self, init: VmaInit<'_, P>) -> Result<OwnedVma<'_, P>, NoMemory> {
        let vma = match self.pop_cached() {
            Some(vma) => vma,
            None => self.refill()?,
        };
        // SAFETY: from the free list, so this is the only owner; chunks live as long as the slab.
        let vma = unsafe { vma.as_ref() };
        vma.set_bounds(init.range, init.pgoff);
        vma.set_flags(init.flags);
        vma.set_family(init.anon);
        vma.set_policy(init.policy);
        vma.set_uffd(init.uffd.cloned());
        vma.owner.store(init.owner, Relaxed);
        // SAFETY: detached and owned: nobody reads the object. A free VMA holds `Anonymous`, which needs no drop.
        unsafe { vma.set_object(init.object.clone(), init.hugetlb) };
        init.object.opened(init.flags);
        vma.lock().init_detached();
        Ok(OwnedVma { vma, slab: self })
    }

    /// Takes ownership of a VMA that was just detached from its tree.
    ///
    /// # Safety
    ///
    /// The VMA came from this slab, is detached, and nobody else will take it.
    pub unsafe fn own<'e>(&'e self, vma: &'e Vma<P>) -> OwnedVma<'e, P> {
        OwnedVma { vma, slab: self }
    }

    fn pop_cached(&self) -> Option<NonNull<Vma<P>>> {
        self.caches.with(|cache| {
            let head = NonNull::new(cache.head.load(Relaxed))?;
            // SAFETY: a member of a free list is a live `Vma` that the list owns.
            cache.head.store(unsafe { head.as_ref() }.chain().load(Relaxed), Relaxed);
            cache.len.store(cache.len.load(Relaxed) - 1, Relaxed);
            Some(head)
        })
    }

    /// Takes one from the depot and moves some more to this CPU's cache; makes a chunk when the depot is empty.
    fn refill(&self) -> Result<NonNull<Vma<P>>, NoMemory> {
        let mut batch = null_mut();
        let mut taken = None;
        {
            let mut depot = self.depot.lock::<P>();
            if depot.head.is_null() {
                depot.grow()?;
            }
            for _ in 0..CACHE / 2 {
                let Some(vma) = NonNull::new(depot.head) else { break };
                // SAFETY: as in `pop_cached`.
                depot.head = unsafe { vma.as_ref() }.chain().load(Relaxed);
                match taken {
                    None => taken = Some(vma),
                    Some(_) => {
                        // SAFETY: ours now.
                        unsafe { vma.as_ref() }.chain().store(batch, Relaxed);
                        batch = vma.as_ptr();
                    }
                }
            }
        }
        while let Some(vma) = NonNull::new(batch) {
            // SAFETY: ours until pushed.
            batch = unsafe { vma.as_ref() }.chain().load(Relaxed);
            self.push_cached(vma);
        }
        taken.ok_or(NoMemory)
    }

    fn push_cached(&self, vma: NonNull<Vma<P>>) {
        // SAFETY: owned by the caller.
        let chain = unsafe { vma.as_ref() }.chain();
        let surplus = self.caches.with(|cache| {
            let len = cache.len.load(Relaxed);
            chain.store(cache.head.load(Relaxed), Relaxed);
            cache.head.store(vma.as_ptr(), Relaxed);
            cache.len.store(len + 1, Relaxed);
            (len >= CACHE).then(|| cache.cut(CACHE / 2))
        });
        if let Some((first, last)) = surplus {
            let mut depot = self.depot.lock::<P>();
            // SAFETY: the cut part belongs to us until it hangs in the depot.
            unsafe { last.as_ref() }.chain().store(depot.head, Relaxed);
            depot.head = first.as_ptr();
        }
    }
}

impl<P: Platform> Cache<P> {
    /// Takes `count` VMAs off the front; the list holds more than that. Returns the first and the last.
    fn cut(&self, count: usize) -> (NonNull<Vma<P>>, NonNull<Vma<P>>) {
        let first = NonNull::new(self.head.load(Relaxed)).expect("the cache holds more than `count`");
        let mut last = first;
        for _ in 1..count {
            // SAFETY: a member of a free list is a live `Vma` that the list owns.
            last = NonNull::new(unsafe { last.as_ref() }.chain().load(Relaxed)).expect("as above");
        }
        // SAFETY: as above.
        self.head.store(unsafe { last.as_ref() }.chain().load(Relaxed), Relaxed);
        self.len.store(self.len.load(Relaxed) - count, Relaxed);
        (first, last)
    }
}

impl<P: Platform> Depot<P> {
    fn grow(&mut self) -> Result<(), NoMemory> {
        let mut chunk = Vec::new();
        chunk.try_reserve_exact(CHUNK).map_err(|_| NoMemory)?;
        self.chunks.try_reserve(1).map_err(|_| NoMemory)?;
        chunk.extend((0..CHUNK).map(|_| Vma::free()));
        let chunk = chunk.into_boxed_slice();
        for vma in chunk.iter().rev() {
            vma.chain().store(self.head, Relaxed);
            self.head = core::ptr::from_ref(vma).cast_mut();
        }
        self.chunks.push(chunk);
        Ok(())
    }
}

/// How a VMA begins.
pub(crate) struct VmaInit<'a, P: Platform> {
    pub range: Range<u64>,
    pub pgoff: u64,
    pub flags: VmFlags,
    pub anon: Family<'a, P>,
    pub policy: u64,
    pub object: &'a Object<P>,
    pub hugetlb: Option<Counted<HugetlbVma<P>>>,
    pub uffd: Option<&'a Counted<Context<P>>>,
    /// Address of the owning space.
    pub owner: usize,
}

impl<'e, P: Platform> OwnedVma<'e, P> {
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
    fn drop(&mut self) {
        debug_assert!(self.vma.lock().is_detached(), "an attached VMA goes back to the slab");
        self.vma.object().closed(self.vma.flags());
        // SAFETY: detached and owned: nobody reads the object.
        unsafe { self.vma.set_object(Object::Anonymous, None) };
        self.vma.set_family(Family::NONE);
        self.vma.set_uffd(None);
        self.slab.push_cached(NonNull::from(self.vma));
    }
}

impl<P: Platform> Vma<P> {
    /// A VMA as it lies in the free list.
    fn free() -> Self {
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
            policy: AtomicU64::new(0),
            link: IntervalLink::new(),
            anon_link: IntervalLink::new(),
            state: LastLine {
                count: VmaCount::new(),
                tree: AtomicPtr::new(null_mut()),
                uffd: UnsafeCell::new(None),
                chain: AtomicPtr::new(null_mut()),
            },
        }
    }

    /// The list it hangs in while detached.
    pub(crate) fn chain(&self) -> &AtomicPtr<Vma<P>> {
        &self.state.chain
    }
}
