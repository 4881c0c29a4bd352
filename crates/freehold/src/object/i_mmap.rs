//! Who maps a file: the interval tree of its VMAs and the i_mmap lock.
//!
//! | held | gives |
//! | --- | --- |
//! | for reading ([`IMmap::read`]) | the VMAs in the tree keep their bounds, stay linked, and so do their address spaces and page tables; entries may be cleared, never filled |
//! | for writing ([`IMmap::edit`]) | the right to link, unlink and rekey; one section may do several, and nobody sees it half done (hazard C-37) |
//!
//! A VMA is linked before its first page can be mapped and unlinked after its last fault: whoever walks the tree meets every
//! entry that maps a page of the file. An address space unlinks all its VMAs before it goes away.
#![expect(unsafe_code, reason = "the tree links VMAs by pointers, under a lock that does not own it")]

use crate::{platform::Platform, space::AddressSpace, vma::Vma};
use core::{cell::UnsafeCell, marker::PhantomData, mem::offset_of, ops::Range, ptr::NonNull};
use freehold_range::{IntervalAdapter, IntervalLink, IntervalTree};
use freehold_sync::{Rank, RwSem, RwSemReadGuard, RwSemWriteGuard};

/// Finds the link in a VMA.
struct ByLink<P>(PhantomData<fn() -> P>);

// SAFETY: the link lies at a fixed offset inside the VMA, which stays where it is; nothing but the trees here uses it.
unsafe impl<P: Platform> IntervalAdapter for ByLink<P> {
    type Object = Vma<P>;

    fn link(object: NonNull<Vma<P>>) -> NonNull<IntervalLink> {
        // SAFETY: the offset of a field inside the object.
        unsafe { object.byte_add(offset_of!(Vma<P>, link)).cast() }
    }

    fn object(link: NonNull<IntervalLink>) -> NonNull<Vma<P>> {
        // SAFETY: every link in a tree of this adapter is that field of a VMA.
        unsafe { link.byte_sub(offset_of!(Vma<P>, link)).cast() }
    }
}

/// The tree and its lock.
///
/// # Invariants
///
/// The tree is read only with the lock held, and changed only with it held for writing.
pub(crate) struct IMmap<P: Platform> {
    lock: RwSem<P>,
    tree: UnsafeCell<IntervalTree<ByLink<P>>>,
}

// SAFETY: the lock governs the tree, and VMAs may be used by any thread.
unsafe impl<P: Platform> Sync for IMmap<P> {}
// SAFETY: as above.
unsafe impl<P: Platform> Send for IMmap<P> {}

/// The lock held for reading.
pub(crate) struct Lookups<'m, P: Platform> {
    tree: &'m IntervalTree<ByLink<P>>,
    _lock: RwSemReadGuard<'m, P>,
}

/// The lock held for writing.
pub(crate) struct Edit<'m, P: Platform> {
    tree: &'m mut IntervalTree<ByLink<P>>,
    _lock: RwSemWriteGuard<'m, P>,
}

/// A VMA met in the tree, and what of it maps the pages that were asked for.
pub(crate) struct Mapper<'t, P: Platform> {
    pub space: &'t AddressSpace<P>,
    pub vma: &'t Vma<P>,
    /// Addresses; not empty.
    pub range: Range<u64>,
}

impl<P: Platform> IMmap<P> {
    pub fn new() -> Self {
        IMmap { lock: RwSem::new(Rank::IMmap), tree: UnsafeCell::new(IntervalTree::new()) }
    }

    /// Takes the lock for reading.
    pub fn read(&self) -> Lookups<'_, P> {
        let lock = self.lock.read();
        // SAFETY: the lock is held, so nobody changes the tree while the guard lives.
        Lookups { tree: unsafe { &*self.tree.get() }, _lock: lock }
    }

    /// Takes the lock for writing.
    pub fn edit(&self) -> Edit<'_, P> {
        let lock = self.lock.write();
        // SAFETY: the lock is held for writing, so nobody else uses the tree while the guard lives.
        Edit { tree: unsafe { &mut *self.tree.get() }, _lock: lock }
    }
}

impl<P: Platform> Lookups<'_, P> {
    /// Whether nobody maps the file.
    pub fn is_empty(&self) -> bool {
        self.tree.is_empty()
    }

    /// The VMAs that map any page of `pages`, parents before the children that fork gave them.
    pub fn mappers(&self, pages: Range<u64>) -> impl Iterator<Item = Mapper<'_, P>> {
        let found = (!pages.is_empty()).then(|| self.tree.overlapping(pages.start, pages.end - 1));
        found.into_iter().flatten().map(move |vma| {
            // SAFETY: linked VMAs are live, and stay linked while the lock is held.
            let vma: &Vma<P> = unsafe { vma.as_ref() };
            let space = core::ptr::with_exposed_provenance::<AddressSpace<P>>(vma.owner_addr());
            // SAFETY: an address space exposes its address to its VMAs and unlinks them before it goes away.
            Mapper { space: unsafe { &*space }, vma, range: addresses(vma, &pages) }
        })
    }

    /// Verifies the tree.
    ///
    /// # Panics
    ///
    /// With what is wrong.
    pub fn check(&self) {
        self.tree.check();
    }
}

/// Where `vma` maps `pages`, of which it maps some.
fn addresses<P: Platform>(vma: &Vma<P>, pages: &Range<u64>) -> Range<u64> {
    let first = pages.start.max(vma.pgoff()) - vma.pgoff();
    let end = pages.end.min(vma.pgoff() + vma.pages()) - vma.pgoff();
    debug_assert!(first < end, "a VMA was found that maps none of the pages");
    vma.start() + (first << crate::PAGE_SHIFT)..vma.start() + (end << crate::PAGE_SHIFT)
}

impl<P: Platform> Edit<'_, P> {
    /// Links a VMA of this file.
    pub fn insert(&mut self, vma: &Vma<P>) {
        // SAFETY: VMAs live in a slab that outlives the file's engine reference, and are unlinked before they are reused.
        unsafe { self.tree.insert(NonNull::from(vma), vma.pgoff(), vma.pgoff() + vma.pages() - 1) };
    }

    /// Links the copy that fork made of `parent`, behind it, so that a walk meets the parent first. A child with other bounds
    /// than its parent's, or of an unlinked one, goes where it belongs.
    pub fn insert_after(&mut self, parent: &Vma<P>, child: &Vma<P>) {
        if parent.pgoff() == child.pgoff() && parent.pages() == child.pages() && self.holds(parent) {
            // SAFETY: as in `insert`; the parent was just seen to be in the tree.
            unsafe { self.tree.insert_after(NonNull::from(parent), NonNull::from(child)) };
        } else {
            self.insert(child);
        }
    }

    /// Unlinks a VMA of this file; nothing happens if it was not linked.
    pub fn remove(&mut self, vma: &Vma<P>) {
        if self.holds(vma) {
            // SAFETY: it is in this tree: a VMA is linked only with the file that it maps.
            unsafe { self.tree.remove(NonNull::from(vma)) };
        }
    }

    /// Changes the bounds of a VMA of this file, which stays linked if it was.
    pub fn rekey(&mut self, vma: &Vma<P>, range: Range<u64>, pgoff: u64) {
        let linked = self.holds(vma);
        self.remove(vma);
        vma.set_bounds(range, pgoff);
        if linked {
            self.insert(vma);
        }
    }

    fn holds(&self, vma: &Vma<P>) -> bool {
        // SAFETY: the VMA is live; a VMA is linked only with the file that it maps, so no other tree holds it.
        unsafe { self.tree.holds(NonNull::from(vma)) }
    }
}
