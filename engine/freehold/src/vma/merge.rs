//! Linux's rules for merging two adjacent VMAs.
//!
//! ```text
//!   |---- left ----|---- right ----|      ->      |------------ one ------------|
//!     same flags (sticky ones joined), same object, consecutive offsets, same policy,
//!     same userfaultfd, compatible anon_vmas
//! ```
//!
//! These functions only compare; `space/change/split_merge.rs` performs the merge. Each side is a VMA or a
//! range that does not exist yet (`Attrs`). The caller holds a lock that keeps the VMAs unchanged. *Sticky*
//! flags are those that a merge combines (`VmFlags::STICKY`). A new field of a VMA needs a decision here:
//! VMAs that differ in this field must not merge, or the merge must combine its values.
//! `lab/freehold-model/tests/merges.rs` compares all small layouts with the model, and cases such as
//! `flags-split-merge.txt` with the running kernel.

use super::{AnonId, AnonVma, Vma, flags::VmFlags};
use crate::{
    PAGE_SHIFT, counted::Counted, file::Object, hugetlb::state::reserves::Reserves, platform::Platform,
    uffd::state::Context,
};
use freehold_vmspace::PageIndex;

/// The attributes that decide whether a range may merge with a neighbour.
pub(crate) struct Attrs<'a, P: Platform> {
    /// Access rights and properties.
    pub flags: VmFlags,
    /// The mapped object.
    pub object: &'a Object<P>,
    /// Page offset of the first page.
    pub pgoff: PageIndex,
    /// The anon_vma, or [`AnonVma::NONE`].
    pub anon: AnonVma<'a, P>,
    /// The NUMA policy tag.
    pub policy: u64,
    /// The reservations of huge pages that the range can use. Irrelevant for merges, because VMAs of huge
    /// pages do not merge.
    pub reserves: Option<&'a Counted<Reserves>>,
    /// The userfaultfd with which the range is registered.
    pub uffd: Option<&'a Counted<Context<P>>>,
}

impl<'a, P: Platform> Attrs<'a, P> {
    /// Returns the attributes of a new mapping.
    pub fn new(flags: VmFlags, object: &'a Object<P>, pgoff: PageIndex) -> Self {
        Attrs { flags, object, pgoff, anon: AnonVma::NONE, policy: 0, reserves: None, uffd: None }
    }
}

impl<P: Platform> Clone for Attrs<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<P: Platform> Copy for Attrs<'_, P> {}

/// Returns true if the anon_vmas of two ranges can become one: the anon_vmas are equal, or one range has no
/// anon_vma and the VMA of the other range was not made by fork. A forked VMA may also hold its parent's
/// pages, and a merge would extend this property to pages that are not the parent's.
pub(crate) fn anon_agree(a: AnonId, b: AnonId) -> bool {
    match (a.is_some(), b.is_some()) {
        (false, false) => true,
        (true, false) => !a.is_forked(),
        (false, true) => !b.is_forked(),
        (true, true) => a.same(b),
    }
}

/// Returns true if the anon_vmas of two ranges do not prevent them from merging with each other. Each of the
/// two may merge with the range between them.
pub(crate) fn anon_compatible(a: AnonId, b: AnonId) -> bool {
    !a.is_some() || !b.is_some() || a.same(b)
}

/// Returns true if `vma` and `attrs` agree in everything except anon_vmas and position.
#[inline]
fn alike<P: Platform>(vma: &Vma<P>, attrs: &Attrs<'_, P>) -> bool {
    let flags = vma.flags();
    let differ = (flags ^ attrs.flags) - VmFlags::STICKY;
    differ.is_empty()
        && !flags.intersects(VmFlags::SPECIAL)
        && vma.policy() == attrs.policy
        && vma.object().same(attrs.object)
        && vma.uffd().map(Counted::as_ptr) == attrs.uffd.map(Counted::as_ptr)
}

/// Returns true if a range with `attrs` may be appended to `left`, which ends where the range starts.
pub(crate) fn can_append<P: Platform>(left: &Vma<P>, attrs: &Attrs<'_, P>) -> bool {
    left.pgoff() + left.pages() == attrs.pgoff && alike(left, attrs) && anon_agree(left.anon(), attrs.anon.id)
}

/// Returns true if a range of `bytes` with `attrs` may be prepended to `right`, which starts where the range
/// ends.
pub(crate) fn can_prepend<P: Platform>(attrs: &Attrs<'_, P>, bytes: u64, right: &Vma<P>) -> bool {
    attrs.pgoff + (bytes >> PAGE_SHIFT) == right.pgoff()
        && alike(right, attrs)
        && anon_agree(attrs.anon.id, right.anon())
}
