//! When two neighbours are one: the rules by which Linux merges VMAs.
//!
//! ```text
//!   |---- left ----|---- right ----|      ->      |------------ one ------------|
//!     same flags (sticky ones joined), same object, offsets that continue, same policy,
//!     same userfaultfd, anon_vmas of anonymous pages that agree
//! ```

use super::{AnonId, AnonVma, Vma, flags::VmFlags};
use crate::{
    PAGE_SHIFT, counted::Counted, file::Object, hugetlb::state::reserves::Reserves, platform::Platform,
    uffd::state::Context,
};
use freehold_vmspace::PageIndex;

/// What decides whether a range may join a neighbour.
pub(crate) struct Attrs<'a, P: Platform> {
    pub flags: VmFlags,
    pub object: &'a Object<P>,
    /// Page offset of the first page.
    pub pgoff: PageIndex,
    pub anon: AnonVma<'a, P>,
    pub policy: u64,
    /// What reservations of huge pages it has a part in; no matter for merges, which huge pages take no part
    /// in.
    pub reserves: Option<&'a Counted<Reserves>>,
    /// With which userfaultfd it is registered.
    pub uffd: Option<&'a Counted<Context<P>>>,
}

impl<'a, P: Platform> Attrs<'a, P> {
    /// Those of a new mapping.
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

/// Whether the anon_vmas of two ranges can become one: equal, or one side has none and the other was not made
/// by fork (a forked VMA also holds its parent's pages, and a merge would extend that to pages that are not).
pub(crate) fn anon_agree(a: AnonId, b: AnonId) -> bool {
    match (a.is_some(), b.is_some()) {
        (false, false) => true,
        (true, false) => !a.is_forked(),
        (false, true) => !b.is_forked(),
        (true, true) => a.same(b),
    }
}

/// Whether two ranges that each agree with what lies between them can be one with it.
pub(crate) fn anon_compatible(a: AnonId, b: AnonId) -> bool {
    !a.is_some() || !b.is_some() || a.same(b)
}

/// Everything but anon_vmas and position.
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

/// Whether `range` (with `attrs`) may be appended to `left`, which ends where it starts.
pub(crate) fn can_append<P: Platform>(left: &Vma<P>, attrs: &Attrs<'_, P>) -> bool {
    left.pgoff() + left.pages() == attrs.pgoff && alike(left, attrs) && anon_agree(left.anon(), attrs.anon.id)
}

/// Whether a range of `bytes` with `attrs` may be put in front of `right`, which starts where it ends.
pub(crate) fn can_prepend<P: Platform>(attrs: &Attrs<'_, P>, bytes: u64, right: &Vma<P>) -> bool {
    attrs.pgoff + (bytes >> PAGE_SHIFT) == right.pgoff()
        && alike(right, attrs)
        && anon_agree(attrs.anon.id, right.anon())
}
