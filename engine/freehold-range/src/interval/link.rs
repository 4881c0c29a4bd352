//! The link that an object embeds, and access to its fields.
//!
//! Only the files of this folder use links: `mod.rs` and `balance.rs` change links; `search.rs` and
//! `check.rs` read links. The lock that guards the tree guards these fields while the object is linked;
//! otherwise the fields belong to the owner of the object. The fields are plain cells, not atomics, so an
//! access without the lock is a data race. All access to the memory of a link goes through [`get`]. A new
//! field is set in `new` and in `link`. If the field describes the place in the tree, `take_place_of` copies
//! the field.
#![expect(unsafe_code, reason = "objects are linked by pointers")]

use core::ptr::{NonNull, null_mut};
use freehold_sync::atomic::PlainCell;

/// A pointer to a link. See [`get`] for its validity.
pub(super) type Ptr = NonNull<IntervalLink>;

/// The link that an object embeds so that an [`IntervalTree`](super::IntervalTree) can hold the object.
pub struct IntervalLink {
    /// The parent. The lowest bit of the address is set if the rank of this link is odd; see
    /// [`balance`](super::balance).
    parent: PlainCell<*mut IntervalLink>,
    pub(super) left: PlainCell<Option<Ptr>>,
    pub(super) right: PlainCell<Option<Ptr>>,
    /// First key. Greater than `last` if and only if the link is not in a tree.
    pub(super) first: PlainCell<u64>,
    pub(super) last: PlainCell<u64>,
    /// The largest `last` of the links at and below this one.
    pub(super) max: PlainCell<u64>,
}

const _: () =
    assert!(align_of::<IntervalLink>() > IntervalLink::RANK_IS_ODD, "the lowest bit of an address is in use");

// SAFETY: the fields are accessed only by methods of the tree under the lock that guards it, or by the owner
// of the object while the link is not in a tree.
unsafe impl Send for IntervalLink {}
// SAFETY: see `Send` above. `IntervalTree::contains` documents the same requirement.
unsafe impl Sync for IntervalLink {}

impl Default for IntervalLink {
    fn default() -> Self {
        Self::new()
    }
}

impl IntervalLink {
    const RANK_IS_ODD: usize = 1;

    /// Returns a link that is not in a tree.
    pub const fn new() -> Self {
        Self {
            parent: PlainCell::new(null_mut()),
            left: PlainCell::new(None),
            right: PlainCell::new(None),
            first: PlainCell::new(1),
            last: PlainCell::new(0),
            max: PlainCell::new(0),
        }
    }

    #[inline]
    pub(super) fn parent(&self) -> Option<Ptr> {
        NonNull::new(self.parent.get().map_addr(|addr| addr & !Self::RANK_IS_ODD))
    }

    #[inline]
    pub(super) fn set_parent(&self, parent: Option<Ptr>) {
        let odd = self.parent.get().addr() & Self::RANK_IS_ODD;
        self.parent.set(parent.map_or(null_mut(), NonNull::as_ptr).map_addr(|addr| addr | odd));
    }

    /// Returns true if the rank is odd.
    #[inline]
    pub(super) fn is_rank_odd(&self) -> bool {
        self.parent.get().addr() & Self::RANK_IS_ODD != 0
    }

    /// Adds one to the rank or subtracts one from it. Only the parity is stored.
    #[inline]
    pub(super) fn flip_rank(&self) {
        self.parent.set(self.parent.get().map_addr(|addr| addr ^ Self::RANK_IS_ODD));
    }

    /// Returns true if the link is in a tree.
    pub(super) fn is_linked(&self) -> bool {
        self.first.get() <= self.last.get()
    }

    /// Links the object as a leaf of rank 0 without a parent.
    pub(super) fn link(&self, first: u64, last: u64) {
        assert!(!self.is_linked(), "the object is in a tree already");
        assert!(first <= last, "an interval that ends before it begins");
        self.parent.set(null_mut());
        self.left.set(None);
        self.right.set(None);
        self.first.set(first);
        self.last.set(last);
        self.max.set(last);
    }

    /// Marks the link as not being in a tree.
    pub(super) fn unlink(&self) {
        self.parent.set(null_mut());
        self.first.set(1);
        self.last.set(0);
    }

    /// Takes over the parent, children, rank and largest end of another link. The keys stay.
    pub(super) fn take_place_of(&self, other: &IntervalLink) {
        self.parent.set(other.parent.get());
        self.left.set(other.left.get());
        self.right.set(other.right.get());
        self.max.set(other.max.get());
    }

    /// Returns the largest `last` at and below this link, from its own key and the stored `max` of its
    /// children.
    pub(super) fn subtree_max(&self) -> u64 {
        let below = |link: Option<Ptr>| link.map_or(0, |link| get(link).max.get());
        self.last.get().max(below(self.left.get())).max(below(self.right.get()))
    }
}

/// Returns the link behind a pointer. The link is in a tree or about to be inserted.
#[inline]
pub(super) fn get<'l>(link: Ptr) -> &'l IntervalLink {
    // SAFETY: every pointer in a tree leads to a linked object, which is valid until it is removed. Callers
    // guarantee that any other pointer also leads to a valid object. The reference is not kept beyond the
    // call.
    unsafe { link.as_ref() }
}
