//! An interval tree of VMAs under a lock: by what they map, not by where.
//!
//! | held | gives |
//! | --- | --- |
//! | for reading ([`VmaTree::read`], [`VmaTree::try_read`]) | the VMAs in the tree keep their bounds, stay linked, and so do their address spaces and page tables; entries may be cleared, never filled |
//! | for writing ([`VmaTree::edit`]) | the right to link, unlink and rekey; one section may do several, and nobody sees it half done (hazard C-37) |
//!
//! A VMA is linked before its first page can be mapped and unlinked after its last fault: a walk of the tree
//! meets every entry that maps a page. An address space unlinks all its VMAs before it goes away.
#![expect(unsafe_code, reason = "the tree links VMAs by pointers, under a lock that does not own it")]

pub(crate) mod lock;
pub(crate) mod root;

use crate::{counted::Shared, platform::Platform};
use core::{cell::UnsafeCell, marker::PhantomData, ptr::NonNull};
use freehold_range::{IntervalAdapter, IntervalLink, IntervalTree};
use freehold_sync::atomic::CHECKED;
use freehold_vmspace::{PageCount, PageIndex, PageRange, UserRange, VmSpace};
use lock::TreeLock;

/// A VMA, as the trees know it.
///
/// # Safety
///
/// `owner_addr` returns the exposed address of a [`VmSpace`] that lives as long as the node is linked.
pub(crate) unsafe trait RmapNode: Send + Sync {
    /// Returns its first address.
    fn start(&self) -> u64;
    /// Returns the page offset of its start in what it maps.
    fn pgoff(&self) -> PageIndex;
    /// Returns its length.
    fn pages(&self) -> PageCount;
    /// Returns the address of the [`VmSpace`] that it belongs to.
    fn owner_addr(&self) -> usize;
}

/// A kind of tree: what is linked in it by which link, its lock, and what the pages belong to. The VMA
/// implements this for both kinds.
///
/// # Safety
///
/// At `offset` a node has an [`IntervalLink`] that nothing but the trees of this kind uses.
pub(crate) unsafe trait RmapKind: 'static {
    /// The lock of a tree.
    type Lock<P: Platform>: TreeLock;
    /// What is linked: the VMA.
    type Node<P: Platform>: RmapNode;
    /// What the pages belong to besides: the file.
    type Owner<P: Platform>: Shared + Send + Sync;
    /// Returns the offset of the link in a node, in bytes.
    fn offset<P: Platform>() -> usize;
}

/// The tree of the VMAs that map a file.
pub(crate) struct IMmap;

/// The tree of the VMAs that may map the same anonymous pages.
pub(crate) struct AnonPages;

/// Entries that a walk over many pages looks at before it lets others have the lock: some tens of
/// microseconds of work.
const ENTRIES: u64 = if CHECKED { 2 } else { 1 << 13 };

/// Finds the link in a VMA.
struct ByLink<P, W>(PhantomData<fn() -> (P, W)>);

// SAFETY: the promise of `RmapKind`; a node that is linked stays where it is.
unsafe impl<P: Platform, W: RmapKind> IntervalAdapter for ByLink<P, W> {
    type Object = W::Node<P>;

    fn link(object: NonNull<W::Node<P>>) -> NonNull<IntervalLink> {
        // SAFETY: the offset of a field inside the object.
        unsafe { object.byte_add(W::offset::<P>()).cast() }
    }

    fn object(link: NonNull<IntervalLink>) -> NonNull<W::Node<P>> {
        // SAFETY: every link in a tree of this adapter is that field of a node.
        unsafe { link.byte_sub(W::offset::<P>()).cast() }
    }
}

/// The tree and its lock.
///
/// # Invariants
///
/// The tree is read only with the lock held, and changed only with it held for writing.
pub(crate) struct VmaTree<P: Platform, W: RmapKind> {
    lock: W::Lock<P>,
    tree: UnsafeCell<IntervalTree<ByLink<P, W>>>,
}

// SAFETY: the lock governs the tree, and nodes may be used by any thread.
unsafe impl<P: Platform, W: RmapKind> Sync for VmaTree<P, W> {}
// SAFETY: as above.
unsafe impl<P: Platform, W: RmapKind> Send for VmaTree<P, W> {}

/// The lock held for reading.
pub(crate) struct RmapReadGuard<'m, P: Platform, W: RmapKind> {
    tree: &'m IntervalTree<ByLink<P, W>>,
    _lock: <W::Lock<P> as TreeLock>::Read<'m>,
}

/// The lock held for writing.
pub(crate) struct RmapWriteGuard<'m, P: Platform, W: RmapKind> {
    tree: &'m mut IntervalTree<ByLink<P, W>>,
    _lock: <W::Lock<P> as TreeLock>::Write<'m>,
}

/// A VMA met in the tree, and what of it maps the pages that were asked for.
pub(crate) struct Mapper<'t, P: Platform, N> {
    /// Where its entries are.
    pub vm: &'t VmSpace<P>,
    pub vma: &'t N,
    /// Addresses; not empty.
    pub range: UserRange,
}

impl<P: Platform, W: RmapKind> VmaTree<P, W> {
    /// An empty one.
    pub fn new(lock: W::Lock<P>) -> Self {
        VmaTree { lock, tree: UnsafeCell::new(IntervalTree::new()) }
    }

    /// Takes the lock for reading.
    pub fn read(&self) -> RmapReadGuard<'_, P, W> {
        let lock = self.lock.read();
        // SAFETY: the lock is held, so nobody changes the tree while the guard lives.
        RmapReadGuard { tree: unsafe { &*self.tree.get() }, _lock: lock }
    }

    /// Takes the lock for reading if that is possible at once: for a caller that would rather do something
    /// else.
    pub fn try_read(&self) -> Option<RmapReadGuard<'_, P, W>> {
        let lock = self.lock.try_read()?;
        // SAFETY: as in `read`.
        Some(RmapReadGuard { tree: unsafe { &*self.tree.get() }, _lock: lock })
    }

    /// Calls `f` for every VMA that maps any page of `pages`, with what it maps of them; a part of the pages
    /// at a time. The lock is let go of between parts: a task that links or unlinks a VMA waits for a bounded
    /// number of entries, however many pages there are. Each page is met in every VMA that maps it; what need
    /// not be met is a mapping that comes meanwhile.
    ///
    /// # Locks
    ///
    /// The lock for reading, again and again.
    pub fn each_mapper(&self, pages: PageRange, mut f: impl FnMut(&Mapper<'_, P, W::Node<P>>)) {
        let mut at = pages.start;
        loop {
            let lookups = self.read();
            // A file may be larger than can be counted through; only where VMAs are is there anything to be
            // met.
            let Some(first) = lookups.mappers(PageRange::new(at, pages.end)).next() else { return };
            at = at.max(first.vma.pgoff());
            let end = lookups.part_end(PageRange::new(at, pages.end));
            lookups.mappers(PageRange::new(at, end)).for_each(|mapper| f(&mapper));
            at = end;
        }
    }

    /// Takes the lock for writing.
    pub fn edit(&self) -> RmapWriteGuard<'_, P, W> {
        let lock = self.lock.write();
        // SAFETY: the lock is held for writing, so nobody else uses the tree while the guard lives.
        RmapWriteGuard { tree: unsafe { &mut *self.tree.get() }, _lock: lock }
    }
}

impl<P: Platform, W: RmapKind> RmapReadGuard<'_, P, W> {
    /// Whether it holds no VMA.
    pub fn is_empty(&self) -> bool {
        self.tree.is_empty()
    }

    /// The VMAs that map any page of `pages`, parents before the children that fork gave them.
    pub fn mappers(&self, pages: PageRange) -> impl Iterator<Item = Mapper<'_, P, W::Node<P>>> {
        mappers(self.tree, pages)
    }

    /// How far of `pages` to go in one hold: as far as no more than [`ENTRIES`] map them, but one page at
    /// least.
    fn part_end(&self, pages: PageRange) -> PageIndex {
        part_end(self.tree, pages, 1)
    }

    /// Whether a VMA, which is linked with no other tree of this kind, is in it.
    pub fn holds(&self, vma: &W::Node<P>) -> bool {
        // SAFETY: the VMA is live, and in this tree or in none, as the caller says.
        unsafe { self.tree.contains(NonNull::from(vma)) }
    }

    /// Verifies the tree.
    ///
    /// # Panics
    ///
    /// If something is wrong, with a description of it.
    pub fn check(&self) {
        self.tree.check();
    }
}

/// See [`RmapReadGuard::mappers`]. The lock of the tree is held, in any mode.
fn mappers<P: Platform, W: RmapKind>(
    tree: &IntervalTree<ByLink<P, W>>,
    pages: PageRange,
) -> impl Iterator<Item = Mapper<'_, P, W::Node<P>>> {
    let found = (!pages.is_empty()).then(|| tree.overlapping(pages.start.get(), pages.end.get() - 1));
    found.into_iter().flatten().map(move |vma| {
        // SAFETY: linked VMAs are live, and stay linked while the lock is held.
        let vma: &W::Node<P> = unsafe { vma.as_ref() };
        let vm = core::ptr::with_exposed_provenance::<VmSpace<P>>(vma.owner_addr());
        // SAFETY: the promise of `RmapNode`; the node is linked.
        Mapper { vm: unsafe { &*vm }, vma, range: addresses(vma, pages) }
    })
}

/// See [`RmapWriteGuard::part_end`].
fn part_end<P: Platform, W: RmapKind>(
    tree: &IntervalTree<ByLink<P, W>>,
    pages: PageRange,
    unit: u64,
) -> PageIndex {
    let mut part = ENTRIES.min(pages.len().get().div_ceil(unit));
    loop {
        let end = pages.end.min(pages.start.saturating_add(part * unit));
        let most = (ENTRIES / part) as usize;
        // No more of them are counted than decide it.
        if part <= 1 || mappers(tree, PageRange::new(pages.start, end)).take(most + 1).count() <= most {
            return end;
        }
        part /= 2;
    }
}

/// Where `vma` maps `pages`, of which it maps some.
fn addresses(vma: &impl RmapNode, pages: PageRange) -> UserRange {
    let first = pages.start.max(vma.pgoff()) - vma.pgoff();
    let end = pages.end.min(vma.pgoff() + vma.pages()) - vma.pgoff();
    debug_assert!(first < end, "a VMA was found that maps none of the pages");
    UserRange::new(vma.start() + first.bytes(), vma.start() + end.bytes())
}

impl<P: Platform, W: RmapKind> RmapWriteGuard<'_, P, W> {
    /// As [`RmapReadGuard::mappers`].
    pub fn mappers(&self, pages: PageRange) -> impl Iterator<Item = Mapper<'_, P, W::Node<P>>> {
        mappers(self.tree, pages)
    }

    /// How far of `pages` to go in one hold if an entry maps `unit` of them: as far as no more than
    /// [`ENTRIES`] map them, but one entry's at least.
    pub fn part_end(&self, pages: PageRange, unit: u64) -> PageIndex {
        part_end(self.tree, pages, unit)
    }

    /// Links a VMA that belongs here.
    pub fn insert(&mut self, vma: &W::Node<P>) {
        // SAFETY: VMAs stay where they are, and are unlinked before they go back to their slab.
        unsafe {
            self.tree.insert(NonNull::from(vma), vma.pgoff().get(), (vma.pgoff() + vma.pages() - 1).get())
        };
    }

    /// Links the copy that fork made of `parent`, behind it, so that a walk meets the parent first. A child
    /// with other bounds than its parent's, or of an unlinked one, goes where it belongs.
    pub fn insert_after(&mut self, parent: &W::Node<P>, child: &W::Node<P>) {
        if parent.pgoff() == child.pgoff() && parent.pages() == child.pages() && self.holds(parent) {
            // SAFETY: as in `insert`; the parent was just seen to be in the tree.
            unsafe { self.tree.insert_after(NonNull::from(parent), NonNull::from(child)) };
        } else {
            self.insert(child);
        }
    }

    /// Unlinks a VMA; nothing happens if it was not linked.
    pub fn remove(&mut self, vma: &W::Node<P>) {
        if self.holds(vma) {
            // SAFETY: it is in this tree: a VMA is linked only where it belongs.
            unsafe { self.tree.remove(NonNull::from(vma)) };
        }
    }

    /// The bounds of a VMA have changed; nothing happens if it is not linked.
    pub fn rekey(&mut self, vma: &W::Node<P>) {
        if self.holds(vma) {
            // SAFETY: as in `insert` and `remove`.
            unsafe {
                self.tree.rekey(NonNull::from(vma), vma.pgoff().get(), (vma.pgoff() + vma.pages() - 1).get());
            }
        }
    }

    /// Whether a VMA that belongs here is linked.
    pub fn holds(&self, vma: &W::Node<P>) -> bool {
        // SAFETY: the VMA is live; a VMA is linked only where it belongs, so no other tree of this kind holds
        // it.
        unsafe { self.tree.contains(NonNull::from(vma)) }
    }
}
