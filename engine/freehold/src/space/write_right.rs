//! The right to change which VMAs there are, and the tree as its holder sees it: all of it, or what was
//! claimed.
#![expect(unsafe_code, reason = "looks at the tree without counting the look")]

use super::range_writer::RangeWriter;
use crate::{UserRange, error::NoMemory, platform::Platform};
use core::cell::RefCell;
use freehold_range::{Entry, ExclusiveWriter, GapRequest};
use freehold_sync::{MmapLock, MmapWriteGuard, MmapWriteProof};

/// How the set of VMAs may be changed.
pub(crate) enum WriteRight<'s, P: Platform> {
    /// All of it: of the exclusive writer.
    Exclusive { tree: RefCell<ExclusiveWriter<'s, P>>, lock: MmapWriteGuard<'s, P> },
    /// What was claimed: of a range writer.
    Range(RangeWriter<'s, P>),
}

impl<P: Platform> MmapWriteProof<P> for WriteRight<'_, P> {
    #[inline(always)]
    fn lock(&self) -> &MmapLock<P> {
        match self {
            WriteRight::Exclusive { lock, .. } => lock.lock(),
            WriteRight::Range(writer) => writer.gate.lock(),
        }
    }
}

/// The tree, for a look that is not worth being counted.
///
/// # Safety
///
/// The look is over at once, and calls nobody.
#[inline(always)]
unsafe fn peek<'r, 's, P: Platform>(tree: &'r RefCell<ExclusiveWriter<'s, P>>) -> &'r ExclusiveWriter<'s, P> {
    // SAFETY: nobody changes the tree in the course of such a look.
    unsafe { tree.try_borrow_unguarded() }.expect("nobody changes the tree now")
}

impl<'s, P: Platform> WriteRight<'s, P> {
    #[inline(always)]
    pub(super) fn find(&self, addr: u64) -> Option<Entry> {
        match self {
            // SAFETY: the writer searches for the entry, which it copies.
            WriteRight::Exclusive { tree, .. } => unsafe { peek(tree).find(addr) },
            WriteRight::Range(writer) => writer.map.find(addr),
        }
    }

    #[inline(always)]
    pub(super) fn next(&self, addr: u64) -> Option<Entry> {
        match self {
            // SAFETY: the writer searches for the entry, which it copies.
            WriteRight::Exclusive { tree, .. } => unsafe { peek(tree).next(addr) },
            WriteRight::Range(writer) => writer.map.next(addr),
        }
    }

    #[inline(always)]
    pub(super) fn prev(&self, addr: u64) -> Option<Entry> {
        match self {
            // SAFETY: the writer searches for the entry, which it copies.
            WriteRight::Exclusive { tree, .. } => unsafe { peek(tree).prev(addr) },
            WriteRight::Range(writer) => writer.map.prev(addr),
        }
    }

    #[inline(always)]
    pub(super) fn around(&self, range: UserRange) -> (Option<Entry>, Option<Entry>) {
        match self {
            // SAFETY: the writer searches for the entry, which it copies.
            WriteRight::Exclusive { tree, .. } => unsafe { peek(tree).around(range.start(), range.end()) },
            WriteRight::Range(writer) => writer.map.around(range.start(), range.end()),
        }
    }

    /// What lies above `addr`, whichever writer has it. The section keeps VMAs that are found.
    #[inline]
    pub(crate) fn next_of_any_writer(&self, _: &P::RcuGuard, addr: u64) -> Option<Entry> {
        match self {
            WriteRight::Exclusive { tree, .. } => tree.borrow().next(addr),
            WriteRight::Range(writer) => writer.map.next_in_map(addr),
        }
    }

    #[inline(always)]
    pub(super) fn gap(&self, request: &GapRequest, below: impl Fn(&Entry) -> u64) -> Option<u64> {
        match self {
            WriteRight::Exclusive { tree, .. } => tree.borrow().gap(request, below),
            WriteRight::Range(writer) => writer.map.gap(request, below),
        }
    }

    #[inline(always)]
    pub(super) fn reserve(&self, replaces: usize) -> Result<(), NoMemory> {
        match self {
            WriteRight::Exclusive { tree, .. } => {
                tree.borrow_mut().preallocate(replaces).map_err(|_| NoMemory)
            }
            // Room was promised with the claim.
            WriteRight::Range(_) => Ok(()),
        }
    }

    #[inline(always)]
    pub(super) fn replace(&self, range: UserRange, with: &[Entry]) {
        match self {
            WriteRight::Exclusive { tree, .. } => tree.borrow_mut().replace(range.start(), range.end(), with),
            WriteRight::Range(writer) => writer.map.replace(range.start(), range.end(), with),
        }
    }

    #[inline(always)]
    pub(super) fn remove(&self, range: UserRange) {
        match self {
            WriteRight::Exclusive { tree, .. } => {
                tree.borrow_mut().replace(range.start(), range.end(), &[]);
            }
            WriteRight::Range(writer) => writer.remove(range),
        }
    }

    /// For what only an exclusive writer does.
    pub(super) fn exclusive_tree(&self) -> &RefCell<ExclusiveWriter<'s, P>> {
        match self {
            WriteRight::Exclusive { tree, .. } => tree,
            WriteRight::Range(_) => unreachable!("a range writer does not work on the whole"),
        }
    }
}
