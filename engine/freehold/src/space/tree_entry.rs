//! What the words mean that a space keeps in its tree.
#![expect(unsafe_code, reason = "turns words of the tree back into references")]

use crate::{UserRange, platform::Platform, vma::Vma};
use core::num::NonZeroU64;
use freehold_range::{Entry, MARKS, PERMANENT, RESERVED};

/// What a range of the tree holds.
pub(crate) enum TreeEntry<'g, P: Platform> {
    /// A mapped area.
    Vma(&'g Vma<P>),
    /// A range whose munmap is not over: nothing is mapped, nothing may be.
    Closing(UserRange),
    /// A [boundary](super::cpu_arena): nothing is mapped; what is to be mapped there takes it out first.
    Boundary(UserRange),
}

impl<'g, P: Platform> TreeEntry<'g, P> {
    /// The VMA, if it is one.
    pub fn vma(self) -> Option<&'g Vma<P>> {
        match self {
            TreeEntry::Vma(vma) => Some(vma),
            TreeEntry::Closing(_) | TreeEntry::Boundary(_) => None,
        }
    }

    /// The addresses it takes.
    pub fn range(&self) -> UserRange {
        match self {
            TreeEntry::Vma(vma) => vma.range(),
            TreeEntry::Closing(range) | TreeEntry::Boundary(range) => *range,
        }
    }
}

/// The tree's word for a closing reservation. The tree marks words where it has several writers; VMAs are
/// aligned, so none of these bits is a VMA's.
const CLOSING: NonZeroU64 = NonZeroU64::new(RESERVED).unwrap();

/// The tree's word for a boundary.
const BOUNDARY: NonZeroU64 = NonZeroU64::new(RESERVED | PERMANENT).unwrap();

/// The tree's word for a VMA.
fn word<P: Platform>(vma: &Vma<P>) -> NonZeroU64 {
    NonZeroU64::new(core::ptr::from_ref(vma).expose_provenance() as u64).expect("a reference is not null")
}

/// What a word of the tree means.
///
/// # Safety
///
/// The entry was read from a tree, and the caller keeps what it found there from being freed for `'g`: by a
/// lock, or in a read section (RCU).
#[inline(always)]
pub(super) unsafe fn decode<'g, P: Platform>(entry: &Entry) -> TreeEntry<'g, P> {
    let word = entry.value.get();
    if word & RESERVED != 0 {
        let range = UserRange::new(entry.start, entry.end);
        return if word & PERMANENT == 0 { TreeEntry::Closing(range) } else { TreeEntry::Boundary(range) };
    }
    let vma = core::ptr::with_exposed_provenance::<Vma<P>>((word & !MARKS) as usize);
    // SAFETY: every other word is the address of a VMA of the engine's slab, whose memory stays a `Vma` as
    // the caller says.
    TreeEntry::Vma(unsafe { &*vma })
}

/// An entry of the tree for a VMA at its present bounds.
pub(crate) fn entry<P: Platform>(vma: &Vma<P>) -> Entry {
    Entry { start: vma.start(), end: vma.end(), value: word(vma) }
}

/// An entry of the tree for a VMA at bounds it is about to get.
pub(crate) fn entry_at<P: Platform>(vma: &Vma<P>, range: UserRange) -> Entry {
    Entry { start: range.start(), end: range.end(), value: word(vma) }
}

/// An entry of the tree for a boundary.
pub(super) fn boundary_entry(range: UserRange) -> Entry {
    Entry { start: range.start(), end: range.end(), value: BOUNDARY }
}

/// An entry of the tree for a closing reservation.
pub(crate) fn closing_entry(range: UserRange) -> Entry {
    Entry { start: range.start(), end: range.end(), value: CLOSING }
}
