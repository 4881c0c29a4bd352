//! The writer's finger: the way to the leaf where it was last.
//!
//! A change of an address space asks about the same place several times: what lies there, what beside it, and
//! then the change itself; and the next change is often beside it. While the finger points to the right leaf,
//! no search goes down from the root.
//!
//! The finger belongs to the writer alone, and lies in the map so that it outlives one writer. It is right as
//! long as the nodes of the tree stay where they hang: a change inside one leaf keeps it, every other makes
//! it [forget](Finger::forget). Ends and contents of nodes are read when they are asked for.
#![expect(unsafe_code, reason = "points to a node that is known to be linked")]

use core::ptr;

use freehold_sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use super::entry::MAX_LEVELS;
use super::node::Node;
use super::path::Step;

/// See the [module](self). The writer alone touches it, so every access is relaxed; the lock that lets one
/// writer follow another orders them.
pub(super) struct Finger<const SLOTS: usize> {
    /// The root when the last writer came; compared, and never followed.
    root: AtomicPtr<Node<SLOTS>>,
    /// By level, from the leaf to the root. The leaf's node is null when the finger points nowhere.
    steps: [StoredStep<SLOTS>; MAX_LEVELS],
}

/// A [`Step`] at rest.
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

    /// Points nowhere: nodes are about to come or go.
    pub(super) fn forget(&self) {
        self.steps[0].node.store(ptr::null_mut(), Ordering::Relaxed);
    }

    /// The step to the leaf, if the finger points anywhere. `at` is where something was looked for last; what
    /// lies there may have changed since.
    ///
    /// # Safety
    ///
    /// The caller has nodes for `'n`.
    #[inline]
    pub(super) unsafe fn leaf<'n>(&self) -> Option<Step<'n, SLOTS>> {
        let place = &self.steps[0];
        // SAFETY: not null, so the node has not been unlinked since the finger was set.
        let node = unsafe { place.node.load(Ordering::Relaxed).as_ref() }?;
        Some(Step { node, at: place.at.load(Ordering::Relaxed), lo: place.lo.load(Ordering::Relaxed) })
    }

    /// The step at `level` of the way to the leaf. In the leaf itself `at` is where something was looked for
    /// last; what lies there may have changed since.
    ///
    /// # Safety
    ///
    /// The finger was [set](Self::set) for all levels, of which this is one, and has not forgotten since. The
    /// caller has nodes for `'n`.
    #[inline]
    pub(super) unsafe fn step<'n>(&self, level: usize) -> Step<'n, SLOTS> {
        let place = &self.steps[level];
        let (at, lo) = (place.at.load(Ordering::Relaxed), place.lo.load(Ordering::Relaxed));
        // SAFETY: not forgotten, hence linked.
        Step { node: unsafe { &*place.node.load(Ordering::Relaxed) }, at, lo }
    }

    /// What the finger keeps for `level`, if it points anywhere: a node, which may be dangling if it does so
    /// wrongly, the slot, and the end of the entry before the node. For checks.
    pub(super) fn stored_step(&self, level: usize) -> Option<(*const Node<SLOTS>, usize, u64)> {
        let place = &self.steps[level];
        let set = !self.steps[0].node.load(Ordering::Relaxed).is_null();
        let node = place.node.load(Ordering::Relaxed).cast_const();
        set.then(|| (node, place.at.load(Ordering::Relaxed), place.lo.load(Ordering::Relaxed)))
    }

    /// Points nowhere if the map has been moved since the last writer: the root, where the way begins, lies
    /// in the map.
    #[inline]
    pub(super) fn ensure_root(&self, root: &Node<SLOTS>) {
        if !ptr::eq(self.root.load(Ordering::Relaxed), root) {
            self.reset_root(root);
        }
    }

    #[cold]
    #[inline(never)]
    fn reset_root(&self, root: &Node<SLOTS>) {
        self.forget();
        self.root.store(ptr::from_ref(root).cast_mut(), Ordering::Relaxed);
    }

    /// Something was looked for in the leaf, and is, or would be, there.
    #[inline]
    pub(super) fn set_at(&self, at: usize) {
        self.steps[0].at.store(at, Ordering::Relaxed);
    }

    /// Points, at `level`, where `step` goes. The leaf comes last.
    #[inline]
    pub(super) fn set(&self, level: usize, step: Step<'_, SLOTS>) {
        let place = &self.steps[level];
        place.node.store(ptr::from_ref(step.node).cast_mut(), Ordering::Relaxed);
        place.at.store(step.at, Ordering::Relaxed);
        place.lo.store(step.lo, Ordering::Relaxed);
    }
}
