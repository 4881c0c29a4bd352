//! The tree of VMAs as a writer sees it: all of it, or what it has claimed.

use super::part::Part;
use crate::{UserRange, error::NoMemory, platform::Platform};
use core::cell::RefCell;
use freehold_range::{Entry, GapRequest, Writer};

/// What a writer sees of the tree, and changes.
pub(super) enum Tree<'s, P: Platform> {
    /// All of it.
    Whole(RefCell<Writer<'s, P>>),
    /// What it has claimed, as it is to be.
    Part(Part<'s, P>),
}

impl<'s, P: Platform> Tree<'s, P> {
    #[inline(always)]
    pub(super) fn find(&self, addr: u64) -> Option<Entry> {
        match self {
            Tree::Whole(tree) => tree.borrow().find(addr),
            Tree::Part(part) => part.map.find(addr),
        }
    }

    #[inline(always)]
    pub(super) fn next(&self, addr: u64) -> Option<Entry> {
        match self {
            Tree::Whole(tree) => tree.borrow().next(addr),
            Tree::Part(part) => part.map.next(addr),
        }
    }

    #[inline(always)]
    pub(super) fn prev(&self, addr: u64) -> Option<Entry> {
        match self {
            Tree::Whole(tree) => tree.borrow().prev(addr),
            Tree::Part(part) => part.map.prev(addr),
        }
    }

    #[inline(always)]
    pub(super) fn around(&self, range: UserRange) -> (Option<Entry>, Option<Entry>) {
        match self {
            Tree::Whole(tree) => tree.borrow().around(range.start(), range.end()),
            Tree::Part(part) => part.map.around(range.start(), range.end()),
        }
    }

    /// What lies above `addr`, whichever writer has it. The section keeps VMAs that are found.
    #[inline(always)]
    pub(super) fn seen_next(&self, _: &P::RcuGuard, addr: u64) -> Option<Entry> {
        match self {
            Tree::Whole(tree) => tree.borrow().next(addr),
            Tree::Part(part) => part.map.seen_next(addr),
        }
    }

    #[inline(always)]
    pub(super) fn gap(&self, request: &GapRequest, below: impl Fn(&Entry) -> u64) -> Option<u64> {
        match self {
            Tree::Whole(tree) => tree.borrow().gap(request, below),
            Tree::Part(part) => part.map.gap(request, below),
        }
    }

    #[inline(always)]
    pub(super) fn reserve(&self, replaces: usize) -> Result<(), NoMemory> {
        match self {
            Tree::Whole(tree) => tree.borrow_mut().reserve(replaces).map_err(|_| NoMemory),
            // Room was promised with the claim.
            Tree::Part(_) => Ok(()),
        }
    }

    #[inline(always)]
    pub(super) fn replace(&self, range: UserRange, with: &[Entry]) {
        match self {
            Tree::Whole(tree) => tree.borrow_mut().replace(range.start(), range.end(), with),
            Tree::Part(part) => part.map.replace(range.start(), range.end(), with),
        }
    }

    /// For what only a writer of the whole does.
    pub(super) fn whole(&self) -> &RefCell<Writer<'s, P>> {
        match self {
            Tree::Whole(tree) => tree,
            Tree::Part(_) => unreachable!("a writer of a part does not work on the whole"),
        }
    }
}
