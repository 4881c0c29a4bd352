//! An interval tree that is linked through the objects it holds. The reverse map keeps the VMAs of a file, or
//! of related anonymous memory, in such a tree (`rmap/tree/` of `freehold`). Address spaces without an MMU
//! keep their mappings in such a tree.
//!
//! Each object embeds an [`IntervalLink`]; an [`IntervalAdapter`] finds the link in the object. Intervals are
//! `first..=last` (for example page offsets). Intervals may overlap and may be equal. The tree is ordered by
//! `first`. Every link stores the largest `last` at and below it, so that a search for overlaps can skip
//! subtrees that end too early.
//!
//! A hostile user of the system can choose the keys, their order and, with enough attempts, the addresses of
//! the links. So the balance does not depend on any of these. The tree is a weak AVL tree: it is never deeper
//! than twice the logarithm of its size. See [`balance`].
//!
//! Links with an equal `first` stay in the order of their insertion, unless [`IntervalTree::insert_after`] is
//! used. fork inserts the child behind its parent, so that a walk visits the parent before the child.
//!
//! # Locking
//!
//! The lock that guards a tree guards all fields of the links in it. `&mut` methods need that lock
//! exclusively; `&` methods need it shared. A link that is not in a tree belongs to the owner of its object.
//! Only [`IntervalTree::rekey`] changes the keys of a linked object. `tests/interval.rs` compares the tree
//! with a list.
//!
//! This file links and unlinks. It corrects the largest `last` of each link, and then calls `balance.rs`,
//! which restores the ranks. `search.rs` only reads, `link.rs` has the fields, and `check.rs` checks the
//! invariants. A new field needs a check there. A new change of the tree belongs in this file and a new
//! search in `search.rs`; both get an operation in `tests/interval.rs`.
#![expect(unsafe_code, reason = "objects are linked by pointers")]

pub mod balance;
mod check;
mod link;
mod search;

use core::marker::PhantomData;
use core::ptr::NonNull;
use freehold_sync::atomic::PlainCell;

pub use self::link::IntervalLink;
use self::link::{Ptr, get};
pub use self::search::Overlapping;

/// Finds the link in an object, and the object around a link.
///
/// # Safety
///
/// The two functions are inverse to each other. The link stays at the same address as long as the object
/// exists. Only trees of this adapter access the link.
pub unsafe trait IntervalAdapter {
    /// The type of the objects in the tree.
    type Object;
    /// Returns the link of an object.
    fn link(object: NonNull<Self::Object>) -> NonNull<IntervalLink>;
    /// Returns the object around a link.
    fn object(link: NonNull<IntervalLink>) -> NonNull<Self::Object>;
}

/// Intervals `first..=last` over objects that embed an [`IntervalLink`]. Allocates nothing. Dropping the tree
/// touches no object.
///
/// # Invariants
///
/// Every linked object is valid until it is removed. The callers of the `unsafe` insertion methods promise
/// this.
pub struct IntervalTree<A: IntervalAdapter> {
    root: PlainCell<Option<Ptr>>,
    adapter: PhantomData<fn() -> A>,
}

// SAFETY: the tree owns no object. Access to the links follows the exclusive and shared borrows of the tree.
unsafe impl<A: IntervalAdapter> Send for IntervalTree<A> {}
// SAFETY: see `Send` above.
unsafe impl<A: IntervalAdapter> Sync for IntervalTree<A> {}

impl<A: IntervalAdapter> Default for IntervalTree<A> {
    fn default() -> Self {
        Self::new()
    }
}

impl<A: IntervalAdapter> IntervalTree<A> {
    /// Returns an empty tree.
    pub const fn new() -> Self {
        Self { root: PlainCell::new(None), adapter: PhantomData }
    }

    /// Returns true if the tree holds no object.
    pub fn is_empty(&self) -> bool {
        self.root.get().is_none()
    }

    /// Returns true if an object is in a tree of this adapter. The object must not be in another tree.
    ///
    /// # Safety
    ///
    /// The object is valid. No other tree that may hold the object changes during the call.
    pub unsafe fn contains(&self, object: NonNull<A::Object>) -> bool {
        get(A::link(object)).is_linked()
    }

    /// Inserts an object with the keys `first..=last`, behind the objects with an equal `first`.
    ///
    /// # Safety
    ///
    /// The object stays valid and at the same address until it is removed.
    ///
    /// # Panics
    ///
    /// Panics if the object is in a tree already, or if `first > last`.
    pub unsafe fn insert(&mut self, object: NonNull<A::Object>, first: u64, last: u64) {
        let new = A::link(object);
        get(new).link(first, last);
        let Some(mut at) = self.root.get() else {
            self.root.set(Some(new));
            return;
        };
        loop {
            let link = get(at);
            link.max.set(link.max.get().max(last));
            let side = if first < link.first.get() { &link.left } else { &link.right };
            match side.get() {
                Some(below) => at = below,
                None => {
                    side.set(Some(new));
                    break;
                }
            }
        }
        get(new).set_parent(Some(at));
        self.rebalance_after_insert(new);
    }

    /// Inserts an object with the same keys as `sibling`, immediately behind it.
    ///
    /// # Safety
    ///
    /// The object stays valid and at the same address until it is removed. `sibling` is in this tree.
    ///
    /// # Panics
    ///
    /// Panics if the object is in a tree already, or if `sibling` is not in a tree.
    pub unsafe fn insert_after(&mut self, sibling: NonNull<A::Object>, object: NonNull<A::Object>) {
        let (old, new) = (A::link(sibling), A::link(object));
        assert!(get(old).is_linked(), "the sibling is not in a tree");
        let last = get(old).last.get();
        get(new).link(get(old).first.get(), last);
        // The place immediately behind `old` is the leftmost free place in the right subtree of `old`, which
        // may be empty.
        let mut at = old;
        let mut side = &get(at).right;
        while let Some(below) = side.get() {
            at = below;
            side = &get(at).left;
        }
        side.set(Some(new));
        get(new).set_parent(Some(at));
        let mut above = Some(at);
        while let Some(link) = above.map(get).filter(|link| link.max.get() < last) {
            link.max.set(last);
            above = link.parent();
        }
        self.rebalance_after_insert(new);
    }

    /// Removes an object.
    ///
    /// # Safety
    ///
    /// The object is in no tree except this one.
    ///
    /// # Panics
    ///
    /// Panics if the object is not in a tree.
    pub unsafe fn remove(&mut self, object: NonNull<A::Object>) {
        let old = A::link(object);
        let link = get(old);
        assert!(link.is_linked(), "the object is not in a tree");
        let (left, right) = (link.left.get(), link.right.get());
        let (parent, child) = match (left, right) {
            (Some(_), Some(right)) => self.replace_by_successor(old, right),
            _ => {
                let child = left.or(right);
                self.relink(link.parent(), old, child);
                (link.parent(), child)
            }
        };
        self.update_max(parent);
        self.rebalance_after_remove(parent, child);
        link.unlink();
    }

    /// Changes the keys of an object. The object stays at its place if the order allows it. Otherwise it
    /// moves behind the objects with an equal `first`.
    ///
    /// # Safety
    ///
    /// The object is in no tree except this one. The object stays valid and at the same address until it is
    /// removed.
    ///
    /// # Panics
    ///
    /// Panics if the object is not in a tree, or if `first > last`.
    pub unsafe fn rekey(&mut self, object: NonNull<A::Object>, first: u64, last: u64) {
        let at = A::link(object);
        let link = get(at);
        assert!(link.is_linked(), "the object is not in a tree");
        assert!(first <= last, "an interval that ends before it begins");
        let old = link.first.get();
        let stays = first == old
            || if first < old {
                search::predecessor(at).is_none_or(|before| get(before).first.get() <= first)
            } else {
                search::successor(at).is_none_or(|behind| first < get(behind).first.get())
            };
        if stays {
            link.first.set(first);
            link.last.set(last);
            self.update_max(Some(at));
        } else {
            // SAFETY: promised by the caller.
            unsafe {
                self.remove(object);
                self.insert(object, first, last);
            }
        }
    }

    /// Moves the successor of `old` to the place of `old`. The successor is the leftmost link of the subtree
    /// `right`, the right child of `old`. Returns the parent of the place that the successor left, and the
    /// child that moved there.
    fn replace_by_successor(&mut self, old: Ptr, right: Ptr) -> (Option<Ptr>, Option<Ptr>) {
        let mut next = right;
        while let Some(left) = get(next).left.get() {
            next = left;
        }
        let (link, taker) = (get(old), get(next));
        let (above, child) = (taker.parent(), taker.right.get());
        self.relink(above, next, child);
        let parent = if above == Some(old) { Some(next) } else { above };
        taker.take_place_of(link);
        self.relink(link.parent(), old, Some(next));
        for below in [link.left.get(), link.right.get()].into_iter().flatten() {
            get(below).set_parent(Some(next));
        }
        if parent != Some(next) {
            // The subtrees from `parent` up to the new place of `next` no longer contain `next`. The subtrees
            // above that place no longer contain `old`.
            self.update_max(parent);
        }
        self.update_max(Some(next));
        (parent, child)
    }

    /// Recomputes the largest ends of `at` and of the links above it. The caller guarantees that the largest
    /// ends below `at` are correct.
    fn update_max(&self, mut at: Option<Ptr>) {
        while let Some(link) = at.map(get) {
            let max = link.subtree_max();
            if link.max.replace(max) == max {
                return;
            }
            at = link.parent();
        }
    }

    /// Returns the objects whose intervals overlap `first..=last`, in the order of the tree. The cost is at
    /// most the depth of the tree, plus the depth again for each returned object.
    pub fn overlapping(&self, first: u64, last: u64) -> Overlapping<'_, A> {
        Overlapping::new(self.root.get(), first, last)
    }

    /// Returns all objects in the order of the tree.
    pub fn iter(&self) -> Overlapping<'_, A> {
        self.overlapping(0, u64::MAX)
    }

    /// Makes `parent`, or the root, point to `new` instead of `old`.
    fn relink(&mut self, parent: Option<Ptr>, old: Ptr, new: Option<Ptr>) {
        match parent.map(get) {
            None => self.root.set(new),
            Some(above) if above.left.get() == Some(old) => above.left.set(new),
            Some(above) => above.right.set(new),
        }
        if let Some(new) = new {
            get(new).set_parent(parent);
        }
    }
}
