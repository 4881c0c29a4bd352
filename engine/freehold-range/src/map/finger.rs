//! The finger of the exclusive writer: the path to the leaf of its last search.
//!
//! A change of an address space searches the same place several times: it looks up the entry and its
//! neighbours, and then makes the change. The next change is often close to the last change. A search that
//! finds its place in the leaf of the finger does not descend from the root.
//!
//! Only the exclusive writer searches with the finger. The finger is stored in the map, so that it outlives
//! one writer. The finger is valid as long as the nodes on its path stay linked where they are. A change
//! inside one leaf keeps the finger. Every other change makes it [forget](Finger::forget). The finger stores
//! the nodes and slots on the path, and the end of the entry before each node. It stores no contents of the
//! nodes.
#![expect(unsafe_code, reason = "points to a node that is known to be linked")]

use core::ptr;

use freehold_sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use super::entry::MAX_LEVELS;
use super::node::Node;
use super::path::Step;

/// The finger; see the [module](self). Only the exclusive writer reads it. A claim writer makes the finger
/// forget its path, under the structure lock. Every access is relaxed, because the locks that order the
/// writers also order the accesses.
pub(super) struct Finger<const SLOTS: usize> {
    /// The address of the root at the time of the last writer. Compared, but never followed.
    root: AtomicPtr<Node<SLOTS>>,
    /// The steps by level, from the leaf to the root. The leaf's node is null if the finger points nowhere.
    steps: [StoredStep<SLOTS>; MAX_LEVELS],
}

/// A [`Step`] as the finger stores it.
struct StoredStep<const SLOTS: usize> {
    node: AtomicPtr<Node<SLOTS>>,
    at: AtomicUsize,
    lo: AtomicU64,
}

impl<const SLOTS: usize> Finger<SLOTS> {
    pub(super) fn new() -> Self {
        let nowhere = |_| StoredStep {
            node: AtomicPtr::new(ptr::null_mut()),
            at: AtomicUsize::new(0),
            lo: AtomicU64::new(0),
        };
        Self { root: AtomicPtr::new(ptr::null_mut()), steps: core::array::from_fn(nowhere) }
    }

    /// Makes the finger point nowhere. Called before nodes are linked or unlinked.
    pub(super) fn forget(&self) {
        self.steps[0].node.store(ptr::null_mut(), Ordering::Relaxed);
    }

    /// Returns the step to the leaf, if the finger points anywhere. `at` is the slot of the last search; the
    /// entry there may have changed since.
    ///
    /// # Safety
    ///
    /// The nodes of the map stay allocated for `'n`.
    #[inline]
    pub(super) unsafe fn leaf<'n>(&self) -> Option<Step<'n, SLOTS>> {
        let place = &self.steps[0];
        // SAFETY: the pointer is not null, so the node has not been unlinked since the finger was set.
        let node = unsafe { place.node.load(Ordering::Relaxed).as_ref() }?;
        Some(Step { node, at: place.at.load(Ordering::Relaxed), lo: place.lo.load(Ordering::Relaxed) })
    }

    /// Returns the step at `level` of the path to the leaf. In the leaf, `at` is the slot of the last search;
    /// the entry there may have changed since.
    ///
    /// # Safety
    ///
    /// The finger was [set](Self::set) for all levels up to the root's, including this one, and
    /// [`forget`](Self::forget) was not called since. The nodes of the map stay allocated for `'n`.
    #[inline]
    pub(super) unsafe fn step<'n>(&self, level: usize) -> Step<'n, SLOTS> {
        let place = &self.steps[level];
        let (at, lo) = (place.at.load(Ordering::Relaxed), place.lo.load(Ordering::Relaxed));
        // SAFETY: `forget` was not called since the node was stored, so the node is linked.
        Step { node: unsafe { &*place.node.load(Ordering::Relaxed) }, at, lo }
    }

    /// For checks: returns the stored step for `level`, if the finger points anywhere. The step is the node,
    /// the slot, and the end of the entry before the node. The node may be dangling if the finger is wrong.
    pub(super) fn stored_step(&self, level: usize) -> Option<(*const Node<SLOTS>, usize, u64)> {
        let place = &self.steps[level];
        let set = !self.steps[0].node.load(Ordering::Relaxed).is_null();
        let node = place.node.load(Ordering::Relaxed).cast_const();
        set.then(|| (node, place.at.load(Ordering::Relaxed), place.lo.load(Ordering::Relaxed)))
    }

    /// Makes the finger point nowhere if the map has moved in memory since the last writer. The path starts
    /// at the root, which is inside the map.
    #[inline]
    pub(super) fn ensure_root(&self, root: &Node<SLOTS>) {
        if !ptr::eq(self.root.load(Ordering::Relaxed), root) {
            self.reset_root(root);
        }
    }

    /// Makes the finger point nowhere, and records where the map is now.
    #[cold]
    #[inline(never)]
    fn reset_root(&self, root: &Node<SLOTS>) {
        self.forget();
        self.root.store(ptr::from_ref(root).cast_mut(), Ordering::Relaxed);
    }

    /// Records the slot, in the leaf, at which the last search ended.
    #[inline]
    pub(super) fn set_at(&self, at: usize) {
        self.steps[0].at.store(at, Ordering::Relaxed);
    }

    /// Stores `step` as the step at `level`. The leaf is set last.
    #[inline]
    pub(super) fn set(&self, level: usize, step: Step<'_, SLOTS>) {
        let place = &self.steps[level];
        place.node.store(ptr::from_ref(step.node).cast_mut(), Ordering::Relaxed);
        place.at.store(step.at, Ordering::Relaxed);
        place.lo.store(step.lo, Ordering::Relaxed);
    }
}
