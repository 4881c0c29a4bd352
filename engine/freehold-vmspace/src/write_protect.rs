//! Write protection of single pages, for a userfaultfd: a flag of entries, and a marker where no page is.

use crate::{
    MigrationEntry, NoMemory, PAGE_SIZE, UserRange, VirtAddr, VmGather, VmSpace,
    platform::{Platform, TableMemory},
};
use core::ops::ControlFlow;
use freehold_pagetable::{
    AbsentPolicy, Format, Kind, LargeLeafPolicy, LeafGuard, Level, MarkerKind, NotCached, Pte, PteFlags,
    PteGuard, VaRange, Visitor,
};

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Takes the right to write from the pages of `range`, so that the next store to each faults; with `mark`
    /// also what is not there is marked. When this returns nobody stores.
    ///
    /// # Errors
    ///
    /// No memory for a table; what lies before is protected.
    pub fn write_protect(&self, range: UserRange, mark: bool) -> Result<(), NoMemory> {
        let range = range.va();
        let mut gather = self.gather();
        let walked = match mark {
            true => self.walk(range, &mut Marking(&mut gather)),
            false => self.walk(range, &mut Protecting(&mut gather)),
        };
        // Also what others have taken away, and not flushed: nobody stores when this returns.
        gather.finish();
        Ok(walked.map(|_| ())?)
    }

    /// The pages of `range` are write-protected no more. The next store to one finds out whether it may be
    /// written.
    pub fn write_unprotect(&self, range: UserRange) {
        let walked = self.walk(range.va(), &mut Unprotecting);
        debug_assert!(walked.is_ok(), "taking marks away allocates nothing");
    }
}

/// The entry, write-protected.
pub(crate) fn protected<F: Format>(pte: Pte<F>, level: Level) -> Pte<F> {
    match pte.kind(level) {
        Kind::Leaf { flags, .. } => pte.with_flags(level, (flags - PteFlags::WRITE) | PteFlags::UFFD_WP),
        Kind::Marker { kind: MarkerKind::Migration, payload } => {
            MigrationEntry { write: false, uffd_wp: true, ..MigrationEntry::of(payload) }.entry()
        }
        Kind::None | Kind::Table { .. } | Kind::Marker { .. } => pte,
    }
}

/// The entry, not write-protected. The next store finds out what may be written.
#[doc(hidden)]
pub fn unprotected<F: Format>(pte: Pte<F>, level: Level) -> Pte<F> {
    match pte.kind(level) {
        Kind::Leaf { flags, .. } => pte.with_flags(level, flags - PteFlags::UFFD_WP),
        Kind::Marker { kind: MarkerKind::Migration, payload } => {
            MigrationEntry { uffd_wp: false, ..MigrationEntry::of(payload) }.entry()
        }
        Kind::None | Kind::Table { .. } | Kind::Marker { .. } => pte,
    }
}

/// Protects what is there.
struct Protecting<'p, 'g, P: Platform>(&'p mut VmGather<'g, P, 1>);

impl<P: Platform> Visitor<P::Format, P> for Protecting<'_, '_, P> {
    // For each huge page a table is kept; a part of one can be protected alone.
    const LARGE: LargeLeafPolicy = LargeLeafPolicy::Split;

    fn table(&mut self, mut table: PteGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        table.change_each(range, self.0, |_, pte| protected(pte, Level::Pte));
        ControlFlow::Continue(())
    }

    fn large(&mut self, _: LeafGuard<'_, P::Format, P>, _: VaRange) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Protects what is there, and marks what is not.
struct Marking<'p, 'g, P: Platform>(&'p mut VmGather<'g, P, 1>);

impl<P: Platform> Visitor<P::Format, P> for Marking<'_, '_, P> {
    const ABSENT: AbsentPolicy = AbsentPolicy::Make;
    const LARGE: LargeLeafPolicy = LargeLeafPolicy::Split;

    fn table(&mut self, mut table: PteGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        table.change_each(range, self.0, |_, pte| protected(pte, Level::Pte));
        for page in (range.start().get()..range.end().get()).step_by(PAGE_SIZE as usize) {
            // What is there is protected by now.
            let _ = table.install(VirtAddr::new(page), Pte::marker(MarkerKind::UffdWp, 0));
        }
        ControlFlow::Continue(())
    }

    fn large(&mut self, _: LeafGuard<'_, P::Format, P>, _: VaRange) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Undoes both.
struct Unprotecting;

impl<F: Format, M: TableMemory> Visitor<F, M> for Unprotecting {
    // Nothing protects a huge page as a whole.
    const LARGE: LargeLeafPolicy = LargeLeafPolicy::Skip;

    fn table(&mut self, mut table: PteGuard<'_, F, M>, range: VaRange) -> ControlFlow<()> {
        // No TLB holds a marker, nor more rights than an entry that has none to write.
        table.zap_each(range, &mut NotCached, |_, slot, _| {
            if is_wp_marker(slot.pte()) {
                slot.clear();
            }
        });
        table.change_each(range, &mut NotCached, |_, pte| unprotected(pte, Level::Pte));
        ControlFlow::Continue(())
    }

    fn large(&mut self, _: LeafGuard<'_, F, M>, _: VaRange) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Whether a page is write-protected: there, on the move, or not there.
pub(crate) fn is_protected<F: Format>(pte: Pte<F>, level: Level) -> bool {
    match pte.kind(level) {
        Kind::Leaf { flags, .. } => flags.contains(PteFlags::UFFD_WP),
        Kind::Marker { kind: MarkerKind::Migration, payload } => MigrationEntry::of(payload).uffd_wp,
        Kind::Marker { kind, .. } => kind == MarkerKind::UffdWp,
        Kind::None | Kind::Table { .. } => false,
    }
}

/// Whether an entry says that the page is write-protected, and not there. A marker is the same at any level.
#[doc(hidden)]
pub fn is_wp_marker<F: Format>(pte: Pte<F>) -> bool {
    matches!(pte.kind(Level::Pte), Kind::Marker { kind: MarkerKind::UffdWp, .. })
}
