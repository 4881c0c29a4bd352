//! An interval tree linked through the objects it holds: the reverse map of a file.
//!
//! Each object embeds an [`IntervalLink`]; an [`IntervalAdapter`] says where. Intervals are `first..=last` (page
//! offsets, say), may overlap and may be equal. The tree is a treap: ordered by `first`, a heap by a number derived
//! from the link's address, so that it is balanced without storing or drawing anything. Every link also knows the
//! largest `last` below it, which lets a search for overlaps skip what ends too early.
//!
//! Equal firsts stay in the order of their insertion, unless [`IntervalTree::insert_after`] says otherwise: fork puts
//! the child behind its parent, so that a walk meets the parent before the child.
//!
//! # Who guards what
//!
//! All fields of a link belong to the lock that guards its tree: `&mut` methods need it exclusively, `&` methods
//! shared. An unlinked link belongs to the owner of its object. Keys change only by removal and insertion.
#![expect(unsafe_code, reason = "objects are linked by pointers")]

use core::cell::Cell;
use core::marker::PhantomData;
use core::ptr::NonNull;

type Ptr = NonNull<IntervalLink>;

/// What an object embeds to be held by an [`IntervalTree`].
pub struct IntervalLink {
    parent: Cell<Option<Ptr>>,
    left: Cell<Option<Ptr>>,
    right: Cell<Option<Ptr>>,
    /// Above `last` exactly while the link is in no tree.
    first: Cell<u64>,
    last: Cell<u64>,
    /// Largest `last` of the links at and below this one.
    max: Cell<u64>,
}

// SAFETY: the fields are accessed only by methods of the tree, under the lock that guards it, or by the object's owner
// while the link is in no tree.
unsafe impl Send for IntervalLink {}
// SAFETY: as above; `is_linked` documents the same demand.
unsafe impl Sync for IntervalLink {}

impl Default for IntervalLink {
    fn default() -> Self {
        Self::new()
    }
}

impl IntervalLink {
    /// A link that is in no tree.
    pub const fn new() -> Self {
        Self {
            parent: Cell::new(None),
            left: Cell::new(None),
            right: Cell::new(None),
            first: Cell::new(1),
            last: Cell::new(0),
            max: Cell::new(0),
        }
    }

    /// A pseudo-random number: parents have larger ones than their children.
    fn rank(&self) -> u64 {
        // Fibonacci hashing; the fold brings the well mixed high bits down to where equal ones are told apart.
        let product = ((&raw const *self).addr() as u64 >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        product ^ (product >> 32)
    }

    fn max_of(&self) -> u64 {
        let below = |link: Option<Ptr>| link.map_or(0, |link| get(link).max.get());
        self.last.get().max(below(self.left.get())).max(below(self.right.get()))
    }
}

/// Finds the link in an object and the object around a link.
///
/// # Safety
///
/// The two functions are inverse to each other, and the link stays where it is as long as the object does. The link
/// is accessed by nobody but trees of this adapter.
pub unsafe trait IntervalAdapter {
    /// What the tree holds.
    type Object;
    /// The object's link.
    fn link(object: NonNull<Self::Object>) -> NonNull<IntervalLink>;
    /// The object around a link.
    fn object(link: NonNull<IntervalLink>) -> NonNull<Self::Object>;
}

/// Intervals `first..=last` over objects that embed an [`IntervalLink`]. Allocates nothing; dropping it touches no
/// object.
///
/// # Invariants
///
/// Every linked object is valid until it is removed: that is what the `unsafe` of insertion promises.
pub struct IntervalTree<A: IntervalAdapter> {
    root: Option<Ptr>,
    adapter: PhantomData<fn() -> A>,
}

// SAFETY: the tree owns no object; access to the links is governed by exclusive and shared borrows of the tree.
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
        Self { root: None, adapter: PhantomData }
    }

    /// Whether the tree holds nothing.
    pub fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Whether an object is in a tree of this adapter, which must be this one if it is in any.
    ///
    /// # Safety
    ///
    /// The object is valid, and no other tree that may hold it changes meanwhile.
    pub unsafe fn holds(&self, object: NonNull<A::Object>) -> bool {
        is_linked(get(A::link(object)))
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
        fill(new, first, last);
        let Some(mut at) = self.root else {
            self.root = Some(new);
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
        get(new).parent.set(Some(at));
        self.rise(new);
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
        assert!(is_linked(get(old)), "the sibling is in no tree");
        let last = get(old).last.get();
        fill(new, get(old).first.get(), last);
        // The place behind `old`: its right child, or the leftmost below that.
        let mut at = old;
        let mut side = &get(at).right;
        while let Some(below) = side.get() {
            at = below;
            side = &get(at).left;
        }
        side.set(Some(new));
        get(new).parent.set(Some(at));
        let mut above = Some(at);
        while let Some(link) = above.map(get) {
            link.max.set(link.max.get().max(last));
            above = link.parent.get();
        }
        self.rise(new);
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
        assert!(is_linked(link), "the object is in no tree");
        while let Some(child) = higher(link.left.get(), link.right.get()) {
            self.rotate_up(child);
        }
        let parent = link.parent.get();
        self.relink(parent, old, None);
        let mut above = parent;
        while let Some(link) = above.map(get) {
            let max = link.max_of();
            if link.max.replace(max) == max {
                break;
            }
            above = link.parent.get();
        }
        link.parent.set(None);
        link.first.set(1);
        link.last.set(0);
    }

    /// The objects whose intervals meet `first..=last`, in the tree's order. Costs the depth of the tree and a
    /// constant for each.
    pub fn overlapping(&self, first: u64, last: u64) -> Overlapping<'_, A> {
        let next = self
            .root
            .filter(|&root| get(root).max.get() >= first)
            .and_then(|root| leftmost(root, first, last));
        Overlapping { next, first, last, tree: PhantomData }
    }

    /// All objects in the tree's order.
    pub fn iter(&self) -> Overlapping<'_, A> {
        self.overlapping(0, u64::MAX)
    }

    /// Moves a new leaf up to where its rank wants it.
    fn rise(&mut self, new: Ptr) {
        while get(new).parent.get().is_some_and(|parent| get(parent).rank() < get(new).rank()) {
            self.rotate_up(new);
        }
    }

    /// Exchanges a link with its parent, keeping the order.
    fn rotate_up(&mut self, at: Ptr) {
        let link = get(at);
        let Some(parent) = link.parent.get() else { return };
        let old = get(parent);
        let above = old.parent.get();
        let (from, to) =
            if old.left.get() == Some(at) { (&old.left, &link.right) } else { (&old.right, &link.left) };
        let moved = to.get();
        from.set(moved);
        if let Some(moved) = moved {
            get(moved).parent.set(Some(parent));
        }
        to.set(Some(parent));
        old.parent.set(Some(at));
        self.relink(above, parent, Some(at));
        link.parent.set(above);
        old.max.set(old.max_of());
        link.max.set(link.max_of());
    }

    /// Lets `parent` (or the root) point to `new` where it pointed to `old`.
    fn relink(&mut self, parent: Option<Ptr>, old: Ptr, new: Option<Ptr>) {
        match parent.map(get) {
            None => self.root = new,
            Some(parent) if parent.left.get() == Some(old) => parent.left.set(new),
            Some(parent) => parent.right.set(new),
        }
    }

    /// Verifies the whole tree.
    ///
    /// # Panics
    ///
    /// With what is wrong.
    pub fn check(&self) {
        if let Some(root) = self.root {
            assert!(get(root).parent.get().is_none(), "the root has a parent");
            check(root, 0, u64::MAX);
        }
    }
}

/// Objects that meet an interval. See [`IntervalTree::overlapping`].
pub struct Overlapping<'t, A: IntervalAdapter> {
    next: Option<Ptr>,
    first: u64,
    last: u64,
    tree: PhantomData<&'t IntervalTree<A>>,
}

impl<A: IntervalAdapter> Iterator for Overlapping<'_, A> {
    type Item = NonNull<A::Object>;

    fn next(&mut self) -> Option<Self::Item> {
        let found = self.next?;
        self.next = following(found, self.first, self.last);
        Some(A::object(found))
    }
}

/// A link of a tree, or one about to be inserted.
#[inline(always)]
fn get<'l>(link: Ptr) -> &'l IntervalLink {
    // SAFETY: every pointer in a tree leads to a linked object, valid until it is removed; the others were passed in
    // by callers who promised the same. The reference is not kept beyond the call.
    unsafe { link.as_ref() }
}

fn is_linked(link: &IntervalLink) -> bool {
    link.first.get() <= link.last.get()
}

fn fill(new: Ptr, first: u64, last: u64) {
    let link = get(new);
    assert!(!is_linked(link), "the object is in a tree already");
    assert!(first <= last, "an interval that ends before it begins");
    link.parent.set(None);
    link.left.set(None);
    link.right.set(None);
    link.first.set(first);
    link.last.set(last);
    link.max.set(last);
}

/// The one of two children that ranks higher.
fn higher(left: Option<Ptr>, right: Option<Ptr>) -> Option<Ptr> {
    match (left, right) {
        (Some(left), Some(right)) if get(left).rank() < get(right).rank() => Some(right),
        (left, right) => left.or(right),
    }
}

/// The first link at or below `at` that meets `first..=last`, given that something there ends at or behind `first`.
fn leftmost(mut at: Ptr, first: u64, last: u64) -> Option<Ptr> {
    let reaches = |side: &Cell<Option<Ptr>>| side.get().filter(|&below| get(below).max.get() >= first);
    // The leftmost link that ends at or behind `first` is the answer, or else it begins behind `last`, and so does
    // everything on its right.
    loop {
        let link = get(at);
        if let Some(left) = reaches(&link.left) {
            at = left;
        } else if link.first.get() > last {
            return None;
        } else if link.last.get() >= first {
            return Some(at);
        } else {
            at = reaches(&link.right)?;
        }
    }
}

/// The next link behind `at` that meets `first..=last`.
fn following(mut at: Ptr, first: u64, last: u64) -> Option<Ptr> {
    loop {
        if let Some(right) = get(at).right.get().filter(|&right| get(right).max.get() >= first) {
            return leftmost(right, first, last);
        }
        // Up, until we come from the left.
        loop {
            let from = at;
            at = get(at).parent.get()?;
            if get(at).left.get() == Some(from) {
                break;
            }
        }
        if get(at).first.get() > last {
            return None;
        }
        if get(at).last.get() >= first {
            return Some(at);
        }
    }
}

/// Verifies a subtree whose firsts must lie in `low..=high`.
fn check(at: Ptr, low: u64, high: u64) {
    let link = get(at);
    let (first, last) = (link.first.get(), link.last.get());
    assert!(first <= last && low <= first && first <= high, "out of order: {first}..={last}");
    assert_eq!(link.max.get(), link.max_of(), "the largest last is wrong at {first}..={last}");
    for (child, low, high) in [(link.left.get(), low, first), (link.right.get(), first, high)] {
        if let Some(child) = child {
            assert_eq!(get(child).parent.get(), Some(at), "a parent is wrong");
            assert!(get(child).rank() <= link.rank(), "a child outranks its parent");
            check(child, low, high);
        }
    }
}
