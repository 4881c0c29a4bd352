//! An interval tree linked through the objects it holds: the reverse map of a file.
//!
//! Each object embeds an [`IntervalLink`]; an [`IntervalAdapter`] says where. Intervals are `first..=last`
//! (page offsets, say), may overlap and may be equal. The tree is ordered by `first`, and every link knows
//! the largest `last` below it, which lets a search for overlaps skip what ends too early.
//!
//! A user chooses the keys, their order, and by trying often enough the addresses of the links. So the
//! balance depends on none of these: the tree is a weak AVL tree, never deeper than twice the logarithm of
//! its size. See [`balance`].
//!
//! Equal firsts stay in the order of their insertion, unless [`IntervalTree::insert_after`] says otherwise:
//! fork puts the child behind its parent, so that a walk meets the parent before the child.
//!
//! # What guards what
//!
//! All fields of a link belong to the lock that guards its tree: `&mut` methods need it exclusively, `&`
//! methods shared. An unlinked link belongs to the owner of its object. Keys change by
//! [`IntervalTree::rekey`] alone.
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

/// Finds the link in an object and the object around a link.
///
/// # Safety
///
/// The two functions are inverse to each other, and the link stays where it is as long as the object does.
/// The link is accessed by nobody but trees of this adapter.
pub unsafe trait IntervalAdapter {
    /// What the tree holds.
    type Object;
    /// The object's link.
    fn link(object: NonNull<Self::Object>) -> NonNull<IntervalLink>;
    /// The object around a link.
    fn object(link: NonNull<IntervalLink>) -> NonNull<Self::Object>;
}

/// Intervals `first..=last` over objects that embed an [`IntervalLink`]. Allocates nothing; dropping it
/// touches no object.
///
/// # Invariants
///
/// Every linked object is valid until it is removed: that is what the `unsafe` of insertion promises.
pub struct IntervalTree<A: IntervalAdapter> {
    root: PlainCell<Option<Ptr>>,
    adapter: PhantomData<fn() -> A>,
}

// SAFETY: the tree owns no object; access to the links is governed by exclusive and shared borrows of the
// tree.
unsafe impl<A: IntervalAdapter> Send for IntervalTree<A> {}
// SAFETY: as above.
unsafe impl<A: IntervalAdapter> Sync for IntervalTree<A> {}

impl<A: IntervalAdapter> Default for IntervalTree<A> {
    fn default() -> Self {
        Self::new()
    }
}

impl<A: IntervalAdapter> IntervalTree<A> {
    /// An empty tree.
    pub const fn new() -> Self {
        Self { root: PlainCell::new(None), adapter: PhantomData }
    }

    /// Whether the tree holds nothing.
    pub fn is_empty(&self) -> bool {
        self.root.get().is_none()
    }

    /// Whether an object is in a tree of this adapter, which must be this one if it is in any.
    ///
    /// # Safety
    ///
    /// The object is valid, and no other tree that may hold it changes meanwhile.
    pub unsafe fn contains(&self, object: NonNull<A::Object>) -> bool {
        get(A::link(object)).is_linked()
    }

    /// Inserts an object with the keys `first..=last`, behind those with an equal `first`.
    ///
    /// # Safety
    ///
    /// The object stays valid and in place until it is removed.
    ///
    /// # Panics
    ///
    /// If the object is in a tree already, or if `first > last`.
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
    /// The object stays valid and in place until it is removed. `sibling` is in this tree.
    ///
    /// # Panics
    ///
    /// If the object is in a tree already, or if `sibling` is in none.
    pub unsafe fn insert_after(&mut self, sibling: NonNull<A::Object>, object: NonNull<A::Object>) {
        let (old, new) = (A::link(sibling), A::link(object));
        assert!(get(old).is_linked(), "the sibling is in no tree");
        let last = get(old).last.get();
        get(new).link(get(old).first.get(), last);
        // The place behind `old`: its right child, or the leftmost below that.
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
    /// The object is in this tree, if it is in any.
    ///
    /// # Panics
    ///
    /// If the object is in no tree.
    pub unsafe fn remove(&mut self, object: NonNull<A::Object>) {
        let old = A::link(object);
        let link = get(old);
        assert!(link.is_linked(), "the object is in no tree");
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

    /// Gives an object other keys. It stays where it is if the order allows that; else it comes behind those
    /// with an equal `first`.
    ///
    /// # Safety
    ///
    /// The object is in this tree, if it is in any, and stays valid and in place until it is removed.
    ///
    /// # Panics
    ///
    /// If the object is in no tree, or if `first > last`.
    pub unsafe fn rekey(&mut self, object: NonNull<A::Object>, first: u64, last: u64) {
        let at = A::link(object);
        let link = get(at);
        assert!(link.is_linked(), "the object is in no tree");
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
            // SAFETY: the caller's promises.
            unsafe {
                self.remove(object);
                self.insert(object, first, last);
            }
        }
    }

    /// Takes the link behind `old`, which is at or below its right child, out of its place and puts it in
    /// that of `old`. Returns where a link went missing, and the child that has come there.
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
            // Up to its new place they have lost the one, from there on the other.
            self.update_max(parent);
        }
        self.update_max(Some(next));
        (parent, child)
    }

    /// Corrects the largest ends at `at` and above, of which those below are right.
    fn update_max(&self, mut at: Option<Ptr>) {
        while let Some(link) = at.map(get) {
            let max = link.subtree_max();
            if link.max.replace(max) == max {
                return;
            }
            at = link.parent();
        }
    }

    /// The objects whose intervals meet `first..=last`, in the tree's order. Costs the depth of the tree, and
    /// for each object as much again at most.
    pub fn overlapping(&self, first: u64, last: u64) -> Overlapping<'_, A> {
        Overlapping::new(self.root.get(), first, last)
    }

    /// All objects in the tree's order.
    pub fn iter(&self) -> Overlapping<'_, A> {
        self.overlapping(0, u64::MAX)
    }

    /// Lets `parent` (or the root) point to `new` where it pointed to `old`.
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
