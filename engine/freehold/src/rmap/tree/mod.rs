//! An interval tree of VMAs under a lock, ordered by the mapped offsets and not by addresses.
//!
//! | held | effect |
//! | --- | --- |
//! | for reading ([`VmaTree::read`], [`VmaTree::try_read`]) | the VMAs in the tree keep their bounds and stay linked; their address spaces and page tables stay; entries may be cleared, but never filled |
//! | for writing ([`VmaTree::edit`]) | the holder may link, unlink and rekey VMAs; walkers see several such changes under one hold as one step (hazard C-37) |
//!
//! A VMA must be linked before its first page can be mapped, and unlinked after its last fault. A walk of the
//! tree therefore visits every entry that maps a page. An address space unlinks all its VMAs before it is
//! freed.
//!
//! `rmap/edit.rs` changes the trees; `rmap/walk.rs` and the functions of files (`file/change/`) read the
//! trees. `root.rs` has the home, which contains one tree and is the only owner of that tree. `lock.rs` has
//! the kinds of locks. A change of the tree while only a read lock is held is unsound: the iterator of
//! `mappers` follows the links. `Mapping::check` verifies the tree of a file.
#![expect(unsafe_code, reason = "the tree links VMAs by pointers, under a lock that does not own it")]

pub(crate) mod lock;
pub(crate) mod root;

use crate::{counted::Shared, platform::Platform};
use core::{cell::UnsafeCell, marker::PhantomData, ptr::NonNull};
use freehold_range::{IntervalAdapter, IntervalLink, IntervalTree};
use freehold_sync::atomic::CHECKED;
use freehold_vmspace::{PageCount, PageIndex, PageRange, UserRange, VmSpace};
use lock::TreeLock;

/// A VMA as a node of these trees.
///
/// # Safety
///
/// `owner_addr` returns the exposed address of a [`VmSpace`] that lives as long as the node is linked.
pub(crate) unsafe trait RmapNode: Send + Sync {
    /// Returns the first address of the VMA.
    fn start(&self) -> u64;
    /// Returns the page offset of the start of the VMA in the mapped object.
    fn pgoff(&self) -> PageIndex;
    /// Returns the length of the VMA.
    fn pages(&self) -> PageCount;
    /// Returns the address of the VMA's [`VmSpace`].
    fn owner_addr(&self) -> usize;
}

/// A kind of tree: the type of its nodes, the link in a node that the tree uses, the type of its lock, and
/// the type of the owner of the pages. `vma/rmap_node.rs` implements this trait for both kinds.
///
/// # Safety
///
/// At `offset` a node has an [`IntervalLink`] that only the trees of this kind use.
pub(crate) unsafe trait RmapKind: 'static {
    /// The lock of a tree.
    type Lock<P: Platform>: TreeLock;
    /// The type of the nodes: the VMA.
    type Node<P: Platform>: RmapNode;
    /// The type of the file to which the pages belong, if they belong to a file.
    type Owner<P: Platform>: Shared + Send + Sync;
    /// Returns the offset of the link in a node, in bytes.
    fn offset<P: Platform>() -> usize;
}

/// The tree of the VMAs that map a file.
pub(crate) struct IMmap;

/// The tree of the VMAs that may map the same anonymous pages.
pub(crate) struct AnonPages;

/// Maximum number of entries that a walk over many pages visits before it releases the lock: some tens of
/// microseconds of work.
const ENTRIES: u64 = if CHECKED { 2 } else { 1 << 13 };

/// Adapter that finds the link in a VMA.
struct ByLink<P, W>(PhantomData<fn() -> (P, W)>);

// SAFETY: the link is at the offset that `RmapKind` promises, and a linked node does not move.
unsafe impl<P: Platform, W: RmapKind> IntervalAdapter for ByLink<P, W> {
    type Object = W::Node<P>;

    fn link(object: NonNull<W::Node<P>>) -> NonNull<IntervalLink> {
        // SAFETY: the offset is that of a field inside the object.
        unsafe { object.byte_add(W::offset::<P>()).cast() }
    }

    fn object(link: NonNull<IntervalLink>) -> NonNull<W::Node<P>> {
        // SAFETY: every link in a tree of this adapter is the field at this offset in a node.
        unsafe { link.byte_sub(W::offset::<P>()).cast() }
    }
}

/// A tree and its lock.
///
/// # Invariants
///
/// The tree is read only with the lock held, and changed only with the lock held for writing.
pub(crate) struct VmaTree<P: Platform, W: RmapKind> {
    lock: W::Lock<P>,
    tree: UnsafeCell<IntervalTree<ByLink<P, W>>>,
}

// SAFETY: the lock guards the tree, and any thread may use the nodes.
unsafe impl<P: Platform, W: RmapKind> Sync for VmaTree<P, W> {}
// SAFETY: the lock guards the tree, and any thread may use the nodes.
unsafe impl<P: Platform, W: RmapKind> Send for VmaTree<P, W> {}

/// The lock of a tree, held for reading.
pub(crate) struct RmapReadGuard<'m, P: Platform, W: RmapKind> {
    tree: &'m IntervalTree<ByLink<P, W>>,
    _lock: <W::Lock<P> as TreeLock>::Read<'m>,
}

/// The lock of a tree, held for writing.
pub(crate) struct RmapWriteGuard<'m, P: Platform, W: RmapKind> {
    tree: &'m mut IntervalTree<ByLink<P, W>>,
    _lock: <W::Lock<P> as TreeLock>::Write<'m>,
}

/// A VMA found in the tree, with its addresses that map the requested pages.
pub(crate) struct Mapper<'t, P: Platform, N> {
    /// The `VmSpace` that has the VMA's entries.
    pub vm: &'t VmSpace<P>,
    pub vma: &'t N,
    /// Addresses of the requested pages in the VMA; not empty.
    pub range: UserRange,
}

impl<P: Platform, W: RmapKind> VmaTree<P, W> {
    /// Creates an empty tree.
    pub fn new(lock: W::Lock<P>) -> Self {
        VmaTree { lock, tree: UnsafeCell::new(IntervalTree::new()) }
    }

    /// Takes the lock for reading.
    pub fn read(&self) -> RmapReadGuard<'_, P, W> {
        let lock = self.lock.read();
        // SAFETY: the lock is held, so no task changes the tree while the guard lives.
        RmapReadGuard { tree: unsafe { &*self.tree.get() }, _lock: lock }
    }

    /// Takes the lock for reading if that requires no waiting, for a caller that has other work to do.
    pub fn try_read(&self) -> Option<RmapReadGuard<'_, P, W>> {
        let lock = self.lock.try_read()?;
        // SAFETY: the lock is held, so no task changes the tree while the guard lives.
        Some(RmapReadGuard { tree: unsafe { &*self.tree.get() }, _lock: lock })
    }

    /// Calls `f` for every VMA that maps any page of `pages`, with the addresses of these pages. Processes
    /// one part of the pages after the other.
    ///
    /// The lock is released between two parts. A task that links or unlinks a VMA therefore waits for a
    /// bounded number of entries, however many pages there are. `f` is called for each page in every VMA that
    /// maps it during the whole call. A mapping that is created during the call may be skipped.
    ///
    /// # Locks
    ///
    /// The lock for reading, repeatedly.
    pub fn each_mapper(&self, pages: PageRange, mut f: impl FnMut(&Mapper<'_, P, W::Node<P>>)) {
        let mut at = pages.start;
        loop {
            let lookups = self.read();
            // Skips pages that no VMA maps, because a file may have too many pages to visit each of them.
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
        // SAFETY: the lock is held for writing, so no other task uses the tree while the guard lives.
        RmapWriteGuard { tree: unsafe { &mut *self.tree.get() }, _lock: lock }
    }
}

impl<P: Platform, W: RmapKind> RmapReadGuard<'_, P, W> {
    /// Returns true if the tree contains no VMA.
    pub fn is_empty(&self) -> bool {
        self.tree.is_empty()
    }

    /// Returns the VMAs that map any page of `pages`. Parents come before the children that fork made.
    pub fn mappers(&self, pages: PageRange) -> impl Iterator<Item = Mapper<'_, P, W::Node<P>>> {
        mappers(self.tree, pages)
    }

    /// Returns the end of the part of `pages` to process in one hold of the lock. At most [`ENTRIES`] entries
    /// map the part. If more entries map the first page, the part is only this page.
    fn part_end(&self, pages: PageRange) -> PageIndex {
        part_end(self.tree, pages, 1)
    }

    /// Returns true if the tree contains `vma`. The caller knows that no other tree of this kind contains the
    /// VMA.
    pub fn holds(&self, vma: &W::Node<P>) -> bool {
        // SAFETY: the VMA is live, and is in this tree or in none by the caller's promise.
        unsafe { self.tree.contains(NonNull::from(vma)) }
    }

    /// Checks the tree.
    ///
    /// # Panics
    ///
    /// Panics with a description if the tree is inconsistent.
    pub fn check(&self) {
        self.tree.check();
    }
}

/// Implements [`RmapReadGuard::mappers`]. The lock of the tree is held, in any mode.
fn mappers<P: Platform, W: RmapKind>(
    tree: &IntervalTree<ByLink<P, W>>,
    pages: PageRange,
) -> impl Iterator<Item = Mapper<'_, P, W::Node<P>>> {
    let found = (!pages.is_empty()).then(|| tree.overlapping(pages.start.get(), pages.end.get() - 1));
    found.into_iter().flatten().map(move |vma| {
        // SAFETY: linked VMAs are live, and stay linked while the lock is held.
        let vma: &W::Node<P> = unsafe { vma.as_ref() };
        let vm = core::ptr::with_exposed_provenance::<VmSpace<P>>(vma.owner_addr());
        // SAFETY: the node is linked, so the `VmSpace` is alive by the promise of `RmapNode`.
        Mapper { vm: unsafe { &*vm }, vma, range: addresses(vma, pages) }
    })
}

/// Implements [`RmapWriteGuard::part_end`].
fn part_end<P: Platform, W: RmapKind>(
    tree: &IntervalTree<ByLink<P, W>>,
    pages: PageRange,
    unit: u64,
) -> PageIndex {
    let mut part = ENTRIES.min(pages.len().get().div_ceil(unit));
    loop {
        let end = pages.end.min(pages.start.saturating_add(part * unit));
        let most = (ENTRIES / part) as usize;
        // Counts only as many entries as the decision needs.
        if part <= 1 || mappers(tree, PageRange::new(pages.start, end)).take(most + 1).count() <= most {
            return end;
        }
        part /= 2;
    }
}

/// Returns the addresses at which `vma` maps `pages`. The VMA maps at least one of them.
fn addresses(vma: &impl RmapNode, pages: PageRange) -> UserRange {
    let first = pages.start.max(vma.pgoff()) - vma.pgoff();
    let end = pages.end.min(vma.pgoff() + vma.pages()) - vma.pgoff();
    debug_assert!(first < end, "a VMA was found that maps none of the pages");
    UserRange::new(vma.start() + first.bytes(), vma.start() + end.bytes())
}

impl<P: Platform, W: RmapKind> RmapWriteGuard<'_, P, W> {
    /// Returns the VMAs that map any page of `pages`, like [`RmapReadGuard::mappers`].
    pub fn mappers(&self, pages: PageRange) -> impl Iterator<Item = Mapper<'_, P, W::Node<P>>> {
        mappers(self.tree, pages)
    }

    /// Returns the end of the part of `pages` to process in one hold of the lock. Each entry maps `unit`
    /// pages. At most [`ENTRIES`] entries map the part. If more entries map the first unit, the part is only
    /// this unit.
    pub fn part_end(&self, pages: PageRange, unit: u64) -> PageIndex {
        part_end(self.tree, pages, unit)
    }

    /// Links a VMA that belongs to this tree.
    pub fn insert(&mut self, vma: &W::Node<P>) {
        // SAFETY: a VMA does not move, and is unlinked before it is freed.
        unsafe {
            self.tree.insert(NonNull::from(vma), vma.pgoff().get(), (vma.pgoff() + vma.pages() - 1).get())
        };
    }

    /// Links the copy that fork made of `parent` directly behind `parent`, so that a walk visits the parent
    /// first. If parent and child have different bounds, or the parent is not linked, links the child at its
    /// own place.
    pub fn insert_after(&mut self, parent: &W::Node<P>, child: &W::Node<P>) {
        if parent.pgoff() == child.pgoff() && parent.pages() == child.pages() && self.holds(parent) {
            // SAFETY: as in `insert`; the parent was just seen to be in the tree.
            unsafe { self.tree.insert_after(NonNull::from(parent), NonNull::from(child)) };
        } else {
            self.insert(child);
        }
    }

    /// Unlinks a VMA. Does nothing if the VMA is not linked.
    pub fn remove(&mut self, vma: &W::Node<P>) {
        if self.holds(vma) {
            // SAFETY: the VMA is linked, and a VMA is linked only in the tree that it belongs to, which is
            // this tree.
            unsafe { self.tree.remove(NonNull::from(vma)) };
        }
    }

    /// Moves a VMA in the tree after its bounds have changed. Does nothing if the VMA is not linked.
    pub fn rekey(&mut self, vma: &W::Node<P>) {
        if self.holds(vma) {
            // SAFETY: as in `insert` and `remove`.
            unsafe {
                self.tree.rekey(NonNull::from(vma), vma.pgoff().get(), (vma.pgoff() + vma.pages() - 1).get());
            }
        }
    }

    /// Returns true if a VMA that belongs to this tree is linked.
    pub fn holds(&self, vma: &W::Node<P>) -> bool {
        // SAFETY: the VMA is live. A VMA is linked only where it belongs, so no other tree of this kind
        // contains it.
        unsafe { self.tree.contains(NonNull::from(vma)) }
    }
}
