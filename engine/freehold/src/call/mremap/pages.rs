//! The page-table side of a move by mremap: prepares the target's tables, then moves the entries of a
//! mapping.
//!
//! `move_vma` in `mod.rs` calls `prepare_pages` before its first change and `move_pages` after it.
//! `move_pages` must therefore need no memory: all tables of the target exist by then. The caller has
//! write-locked the source, so no fault adds an entry. The functions that move single entries and whole
//! tables are `move_entries` of `freehold-vmspace` and, for huge pages of pools, `hugetlb/moves.rs`.
//!
//! A walk of the reverse map must meet each page at its old or at its new place (hazards C-39, C-40).
//! `shuttle_engine/mremap.rs` and `shuttle_engine/stack.rs` move concurrently with faults, truncation and
//! migration.

use crate::space::{change::split_merge::NewMapping, locking::WriteGuard};
use crate::{
    error::MremapError,
    file::{Object, VmaInfo},
    hugetlb::sharing::HugeMove,
    platform::Platform,
    rmap::edit::RmapEdit,
    vma::Vma,
    wait::Rounds,
};
use freehold_vmspace::{MoveGather, TableMoves, UserRange};

impl<P: Platform> WriteGuard<'_, P> {
    /// Allocates the target's page tables. Returns the prepared move if the mapping consists of huge pages of
    /// a pool. Calls the hook of a special mapping last.
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
                assert!(size.is_none(), "a mapping of huge pages merges with no other VMA");
                let mut rounds = Rounds::new();
                let again = || rounds.again::<P>().map_err(MremapError::from);
                self.space.vm.prepare_entries(from, target.start(), movable(source), again)?;
                None
            }
        };
        self.ask_hook(source, from, target).map(|()| huge)
    }

    /// Calls the hook of an embedder's special mapping. The hook may refuse the move. The hook is the last
    /// check, because it may record the new place of the mapping.
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

    /// Moves the entries of `from` to the addresses from `to` on. `landing` is the target's VMA; `fresh` is
    /// true if the target did not merge with another VMA. Flushes the TLB entries of the source before it
    /// returns.
    pub(super) fn move_pages(
        &self,
        source: &Vma<P>,
        (landing, fresh): (&Vma<P>, bool),
        huge: Option<HugeMove<P>>,
        from: UserRange,
        to: u64,
    ) {
        // A walk of the reverse map visits the source first and a new target later, so it meets each page.
        // Walks must be excluded in two cases. In the first case, a merge placed the target in a VMA that is
        // visited before the source. In the second case, whole page tables move, and a walk may be in one of
        // them.
        let exposed = !fresh && landing.pgoff() <= source.pgoff();
        let mut gather: MoveGather<'_, P> = self.space.vm.gather(from.va());
        if let Some(huge) = huge {
            self.space.move_huge_pages(huge, source, from, to, &mut gather);
            return gather.finish();
        }
        let exclude = |tables| (exposed || tables == TableMoves::Allowed).then(|| RmapEdit::of(source));
        self.space.vm.move_entries(from, to, movable(source), &mut gather, exclude);
        gather.finish();
    }
}

/// Returns `Allowed` if whole page tables may move with this VMA.
fn movable<P: Platform>(source: &Vma<P>) -> TableMoves {
    if source.is_anonymous() { TableMoves::Allowed } else { TableMoves::Never }
}
