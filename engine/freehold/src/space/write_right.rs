//! The right to change the set of VMAs, and the part of the VMA tree that its holder may use: the whole tree
//! for the exclusive writer, or the claimed part for a range writer.
//!
//! A `WriteGuard` (`locking.rs`) contains this value. Each function here is one operation of the tree, with
//! an arm for each kind of writer. Claims, and the end of a range writer, use the `ClaimWriter` directly
//! (`claim.rs`, `range_writer.rs`). A range writer sees only its write set. The exceptions are
//! `with_next_of_any_writer` and `gap`; a later claim checks their results again.
//! `AddressSpace::enter_range_writer` creates the right of a range writer, and `AddressSpace::writer` creates
//! the right of the exclusive writer.
#![expect(unsafe_code, reason = "reads the tree without counting the borrow")]

use super::range_writer::RangeWriter;
use crate::{UserRange, error::NoMemory, platform::Platform};
use core::cell::RefCell;
use freehold_range::{Entry, ExclusiveWriter, GapRequest};
use freehold_sync::{MmapLock, MmapWriteGuard, MmapWriteProof};

/// The right to change the set of VMAs.
pub(crate) enum WriteRight<'s, P: Platform> {
    /// All VMAs, for the exclusive writer.
    Exclusive { tree: RefCell<ExclusiveWriter<'s, P>>, lock: MmapWriteGuard<'s, P> },
    /// The claimed VMAs, for a range writer.
    Range(RangeWriter<'s, P>),
}

impl<P: Platform> MmapWriteProof<P> for WriteRight<'_, P> {
    #[cfg_attr(feature = "inline", inline(always))]
    fn lock(&self) -> &MmapLock<P> {
        match self {
            WriteRight::Exclusive { lock, .. } => lock.lock(),
            WriteRight::Range(writer) => writer.gate.lock(),
        }
    }
}

/// Borrows the tree for one lookup, without updating the borrow count of the `RefCell`.
///
/// # Safety
///
/// The caller drops the reference before any other use of the tree, and calls no other code while it has the
/// reference.
#[cfg_attr(feature = "inline", inline(always))]
unsafe fn peek<'r, 's, P: Platform>(tree: &'r RefCell<ExclusiveWriter<'s, P>>) -> &'r ExclusiveWriter<'s, P> {
    // SAFETY: by the caller's promise the tree is not borrowed mutably while this reference exists.
    unsafe { tree.try_borrow_unguarded() }.expect("the tree is borrowed for a change")
}

impl<'s, P: Platform> WriteRight<'s, P> {
    #[cfg_attr(feature = "inline", inline(always))]
    pub(super) fn find(&self, addr: u64) -> Option<Entry> {
        match self {
            // SAFETY: the writer only searches for the entry, and copies it.
            WriteRight::Exclusive { tree, .. } => unsafe { peek(tree).find(addr) },
            WriteRight::Range(writer) => writer.map.find(addr),
        }
    }

    #[cfg_attr(feature = "inline", inline(always))]
    pub(super) fn next(&self, addr: u64) -> Option<Entry> {
        match self {
            // SAFETY: the writer only searches for the entry, and copies it.
            WriteRight::Exclusive { tree, .. } => unsafe { peek(tree).next(addr) },
            WriteRight::Range(writer) => writer.map.next(addr),
        }
    }

    #[cfg_attr(feature = "inline", inline(always))]
    pub(super) fn prev(&self, addr: u64) -> Option<Entry> {
        match self {
            // SAFETY: the writer only searches for the entry, and copies it.
            WriteRight::Exclusive { tree, .. } => unsafe { peek(tree).prev(addr) },
            WriteRight::Range(writer) => writer.map.prev(addr),
        }
    }

    #[cfg_attr(feature = "inline", inline(always))]
    pub(super) fn around(&self, range: UserRange) -> (Option<Entry>, Option<Entry>) {
        match self {
            // SAFETY: the writer only searches for the entries, and copies them.
            WriteRight::Exclusive { tree, .. } => unsafe { peek(tree).around(range.start(), range.end()) },
            WriteRight::Range(writer) => writer.map.around(range.start(), range.end()),
        }
    }

    /// Calls `look` with the first entry that ends above `addr`, even if another range writer has claimed it.
    /// The VMA of the entry is readable during the call: no other task removes VMAs while there is an
    /// exclusive writer, and a range writer calls `look` within RCU.
    #[inline]
    pub(crate) fn with_next_of_any_writer<T>(&self, addr: u64, look: impl FnOnce(Option<Entry>) -> T) -> T {
        match self {
            // SAFETY: the writer only searches for the entry, and copies it.
            WriteRight::Exclusive { tree, .. } => look(unsafe { peek(tree).next(addr) }),
            WriteRight::Range(writer) => {
                let _rcu = P::rcu_read();
                look(writer.map.next_in_map(addr))
            }
        }
    }

    #[cfg_attr(feature = "inline", inline(always))]
    pub(super) fn gap(&self, request: &GapRequest, below: impl Fn(&Entry) -> u64) -> Option<u64> {
        match self {
            WriteRight::Exclusive { tree, .. } => tree.borrow().gap(request, below),
            WriteRight::Range(writer) => writer.map.gap(request, below),
        }
    }

    #[cfg_attr(feature = "inline", inline(always))]
    pub(super) fn reserve(&self, replaces: usize) -> Result<(), NoMemory> {
        match self {
            WriteRight::Exclusive { tree, .. } => {
                tree.borrow_mut().preallocate(replaces).map_err(|_| NoMemory)
            }
            // The claim has reserved the nodes.
            WriteRight::Range(_) => Ok(()),
        }
    }

    #[cfg_attr(feature = "inline", inline(always))]
    pub(super) fn replace(&self, range: UserRange, with: &[Entry]) {
        match self {
            WriteRight::Exclusive { tree, .. } => tree.borrow_mut().replace(range.start(), range.end(), with),
            WriteRight::Range(writer) => writer.map.replace(range.start(), range.end(), with),
        }
    }

    #[cfg_attr(feature = "inline", inline(always))]
    pub(super) fn remove(&self, range: UserRange) {
        match self {
            WriteRight::Exclusive { tree, .. } => {
                tree.borrow_mut().replace(range.start(), range.end(), &[]);
            }
            WriteRight::Range(writer) => writer.remove(range),
        }
    }

    /// Returns the whole tree, for operations that only the exclusive writer has. Must not be called for a
    /// range writer.
    pub(super) fn exclusive_tree(&self) -> &RefCell<ExclusiveWriter<'s, P>> {
        match self {
            WriteRight::Exclusive { tree, .. } => tree,
            WriteRight::Range(_) => unreachable!("a range writer cannot use the whole tree"),
        }
    }
}
