//! Searches: [`Overlapping`] finds the intervals that overlap another interval; [`predecessor`] and
//! [`successor`] find the neighbours of a link.
//!
//! The reverse map uses [`Overlapping`] to find the VMAs that map a page. A search only reads links and needs
//! the tree's lock shared. It skips a subtree whose largest `last` lies before the interval, so its cost
//! depends on the number of results and on the depth. The iterator follows parent pointers instead of keeping
//! a stack, so it allocates nothing. `tests/interval.rs` compares the results with those of a list.

use core::marker::PhantomData;
use core::ptr::NonNull;
use freehold_sync::atomic::PlainCell;

use super::link::{IntervalLink, Ptr, get};
use super::{IntervalAdapter, IntervalTree};

/// Iterator over the objects that overlap an interval. See [`IntervalTree::overlapping`].
pub struct Overlapping<'t, A: IntervalAdapter> {
    next: Option<Ptr>,
    first: u64,
    last: u64,
    tree: PhantomData<&'t IntervalTree<A>>,
}

impl<A: IntervalAdapter> Overlapping<'_, A> {
    pub(super) fn new(root: Option<Ptr>, first: u64, last: u64) -> Self {
        let root = root.filter(|&root| get(root).max.get() >= first);
        Self {
            next: root.and_then(|root| first_overlapping(root, first, last)),
            first,
            last,
            tree: PhantomData,
        }
    }
}

impl<A: IntervalAdapter> Iterator for Overlapping<'_, A> {
    type Item = NonNull<A::Object>;

    fn next(&mut self) -> Option<Self::Item> {
        let found = self.next?;
        self.next = next_overlapping(found, self.first, self.last);
        Some(A::object(found))
    }
}

/// Returns the first link at or below `at` that overlaps `first..=last`. Some link there must end at or
/// behind `first`.
fn first_overlapping(mut at: Ptr, first: u64, last: u64) -> Option<Ptr> {
    let reaches = |side: &PlainCell<Option<Ptr>>| side.get().filter(|&below| get(below).max.get() >= first);
    // The loop finds the leftmost link that ends at or behind `first`. If this link begins behind `last`, all
    // links to its right also begin behind `last`, so there is no result. Otherwise the link is the result.
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

/// Returns the next link behind `at` that overlaps `first..=last`.
fn next_overlapping(mut at: Ptr, first: u64, last: u64) -> Option<Ptr> {
    loop {
        if let Some(right) = get(at).right.get().filter(|&right| get(right).max.get() >= first) {
            return first_overlapping(right, first, last);
        }
        // Go up until the last step was from a left child to its parent.
        loop {
            let from = at;
            at = get(at).parent()?;
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

/// Returns the link before `at` in the order of the tree.
pub(super) fn predecessor(at: Ptr) -> Option<Ptr> {
    neighbour(at, |link| &link.left, |link| &link.right)
}

/// Returns the link behind `at` in the order of the tree.
pub(super) fn successor(at: Ptr) -> Option<Ptr> {
    neighbour(at, |link| &link.right, |link| &link.left)
}

/// Returns the next link on one side.
#[inline]
fn neighbour(
    mut at: Ptr,
    towards: impl Fn(&IntervalLink) -> &PlainCell<Option<Ptr>>,
    away: impl Fn(&IntervalLink) -> &PlainCell<Option<Ptr>>,
) -> Option<Ptr> {
    if let Some(mut below) = towards(get(at)).get() {
        while let Some(next) = away(get(below)).get() {
            below = next;
        }
        return Some(below);
    }
    loop {
        let above = get(at).parent()?;
        if towards(get(above)).get() != Some(at) {
            return Some(above);
        }
        at = above;
    }
}
