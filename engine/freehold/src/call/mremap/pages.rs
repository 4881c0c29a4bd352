//! mremap: the entries of a mapping that moves.

use crate::space::{change::split_merge::NewMapping, locking::WriteGuard};
use crate::{
    error::MremapError,
    file::{Object, VmaInfo},
    hugetlb::sharing::HugeMove,
    platform::Platform,
    rmap::edit::RmapEdit,
    vma::Vma,
};
use freehold_vmspace::{MoveGather, TableMoves, UserRange};

impl<P: Platform> WriteGuard<'_, P> {
    /// Makes the target's tables.
    pub(super) fn prepare_pages(
        &self,
        source: &Vma<P>,
        new: &NewMapping<'_, P>,
        from: UserRange,
        target: UserRange,
    ) -> Result<Option<HugeMove<P>>, MremapError> {
        let huge = match (source.huge_page_size(), new) {
            (Some(size), NewMapping::Fresh(landing)) => {
                Some(self.space.prepare_huge_pages(size, source, landing, from, target)?)
            }
            (size, _) => {
                assert!(size.is_none(), "huge pages of pools join no other VMA");
                self.space.vm.prepare_entries(from, target.start(), movable(source))?;
                None
            }
        };
        self.ask_hook(source, from, target).map(|()| huge)
    }

    /// An embedder's hook may refuse. It is asked last: it may note where its mapping will be.
    fn ask_hook(&self, source: &Vma<P>, from: UserRange, target: UserRange) -> Result<(), MremapError> {
        match source.object() {
            Object::Special(special) => {
                let pgoff = source.pgoff_of(from.start());
                let info = VmaInfo { range: from, pgoff, flags: source.flags() };
                special.ops().mremap(self.space.mmu(), &info, target)
            }
            Object::Anonymous | Object::Zeroes(_) | Object::File(_) => Ok(()),
        }
    }

    /// Moves the entries; the source's translations are flushed when this returns.
    pub(super) fn move_pages(
        &self,
        source: &Vma<P>,
        (landing, fresh): (&Vma<P>, bool),
        huge: Option<HugeMove<P>>,
        from: UserRange,
        to: u64,
    ) {
        // A walker of the trees comes to the source first, and to a fresh target later. Where a merge has put
        // the target into a VMA before the source, it has to be kept out; and where whole tables
        // move, for it may be in one.
        let exposed = !fresh && landing.pgoff() <= source.pgoff();
        let mut gather: MoveGather<'_, P> = self.space.vm.gather();
        if let Some(huge) = huge {
            self.space.move_huge_pages(huge, source, from, to, &mut gather);
            return gather.finish();
        }
        let exclude = |tables| (exposed || tables == TableMoves::Allowed).then(|| RmapEdit::of(source));
        self.space.vm.move_entries(from, to, movable(source), &mut gather, exclude);
        gather.finish();
    }
}

/// Whether whole page tables may move with this VMA.
fn movable<P: Platform>(source: &Vma<P>) -> TableMoves {
    if source.is_anonymous() { TableMoves::Allowed } else { TableMoves::Never }
}
