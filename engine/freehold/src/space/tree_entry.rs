//! Encoding of the entries of the VMA tree. An entry of the tree (`RangeMap`) has a start, an end and a word.
//! An entry is a VMA, a closing reservation (`closing.rs`) or a boundary (`cpu_arena.rs`):
//!
//! | entry | word | created by |
//! | --- | --- | --- |
//! | VMA | the address of the [`Vma`], whose alignment of 64 leaves bits 0 to 5 clear | [`entry`], [`entry_at`] |
//! | closing reservation | [`RESERVED`] | [`closing_entry`] |
//! | boundary | [`RESERVED`] and [`PERMANENT`] | [`boundary_entry`] |
//!
//! Only this file converts between entries and words. The tree adds marks, such as the bit of a claim, to a
//! word; `decode` ignores them. [`PERMANENT`] is bit 6, which an address may also have set, so only
//! [`RESERVED`] distinguishes a VMA from the other entries.
//!
//! The caller of `decode` must keep the VMA of the entry from being freed, by a lock or by an RCU read
//! section. The guards (`locking.rs`) and the lookups without a lock (`vma_lock.rs`, `speculate.rs`) do so;
//! `decode` has no other callers. Within a read section the VMA may already be detached, have other bounds
//! than the entry, or belong to another space; the lookups check this.
//!
//! Every test of VMAs uses this file. The tests `cpu_arena` (`engine/freehold/tests`) test boundaries, and
//! the tests `munmap` (`shuttle_engine`) test closing reservations.
#![expect(unsafe_code, reason = "turns words of the tree into references")]

use crate::{UserRange, platform::Platform, vma::Vma};
use core::num::NonZeroU64;
use freehold_range::{Entry, MARKS, PERMANENT, RESERVED};

/// The content of an entry of the tree.
pub(crate) enum TreeEntry<'g, P: Platform> {
    /// A mapped area.
    Vma(&'g Vma<P>),
    /// A range whose munmap is under way. Nothing is mapped there, and nothing may be mapped yet.
    Closing(UserRange),
    /// A [boundary](super::cpu_arena). Nothing is mapped there. A call that places a mapping there first
    /// removes the boundary.
    Boundary(UserRange),
}

impl<'g, P: Platform> TreeEntry<'g, P> {
    /// Returns the VMA, or `None` for other entries.
    pub fn vma(self) -> Option<&'g Vma<P>> {
        match self {
            TreeEntry::Vma(vma) => Some(vma),
            TreeEntry::Closing(_) | TreeEntry::Boundary(_) => None,
        }
    }

    /// Returns the addresses of the entry.
    pub fn range(&self) -> UserRange {
        match self {
            TreeEntry::Vma(vma) => vma.range(),
            TreeEntry::Closing(range) | TreeEntry::Boundary(range) => *range,
        }
    }
}

/// The tree's word for a closing reservation. The bits that the tree reserves for marks are zero in a VMA's
/// word, because VMAs are aligned.
const CLOSING: NonZeroU64 = NonZeroU64::new(RESERVED).unwrap();

/// The tree's word for a boundary.
const BOUNDARY: NonZeroU64 = NonZeroU64::new(RESERVED | PERMANENT).unwrap();

/// Returns the tree's word for a VMA.
fn word<P: Platform>(vma: &Vma<P>) -> NonZeroU64 {
    NonZeroU64::new(core::ptr::from_ref(vma).expose_provenance() as u64).expect("a reference is not null")
}

/// Decodes a word of the tree.
///
/// # Safety
///
/// The entry was read from a tree, and the caller keeps its VMA from being freed for `'g`: by a lock, or
/// within an RCU read section.
#[cfg_attr(feature = "inline", inline(always))]
pub(super) unsafe fn decode<'g, P: Platform>(entry: &Entry) -> TreeEntry<'g, P> {
    let word = entry.value.get();
    if word & RESERVED != 0 {
        let range = UserRange::new(entry.start, entry.end);
        return if word & PERMANENT == 0 { TreeEntry::Closing(range) } else { TreeEntry::Boundary(range) };
    }
    let vma = core::ptr::with_exposed_provenance::<Vma<P>>((word & !MARKS) as usize);
    // SAFETY: every other word is the address of a VMA of the engine's slab. The caller guarantees that the
    // memory of the VMA stays a `Vma` for `'g`.
    TreeEntry::Vma(unsafe { &*vma })
}

/// Returns a tree entry for a VMA at its current bounds.
pub(crate) fn entry<P: Platform>(vma: &Vma<P>) -> Entry {
    Entry { start: vma.start(), end: vma.end(), value: word(vma) }
}

/// Returns a tree entry for a VMA whose bounds will change to `range`.
pub(crate) fn entry_at<P: Platform>(vma: &Vma<P>, range: UserRange) -> Entry {
    Entry { start: range.start(), end: range.end(), value: word(vma) }
}

/// Returns a tree entry for a boundary.
pub(super) fn boundary_entry(range: UserRange) -> Entry {
    Entry { start: range.start(), end: range.end(), value: BOUNDARY }
}

/// Returns a tree entry for a closing reservation.
pub(crate) fn closing_entry(range: UserRange) -> Entry {
    Entry { start: range.start(), end: range.end(), value: CLOSING }
}
