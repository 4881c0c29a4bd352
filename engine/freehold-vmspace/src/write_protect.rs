//! Write protection of single pages for a userfaultfd: a flag of entries, or a marker if there is no page.
//!
//! The functions here only change entries, under the lock of one table at a time. `uffd/protect.rs` of
//! `freehold` decides which ranges may be protected and wakes waiting faults. The documentation of the module
//! `uffd` there says when the flag and the marker exist. `large.rs` does the same for huge pages of pools,
//! and `protect_reported.rs` protects the pages that a report has shown.
//! `tests/uffd/protect.rs` of `freehold` tests the protection.

use crate::{
    MigrationEntry, NoMemory, PAGE_SIZE, SwapMark, UserRange, VirtAddr, VmGather, VmSpace,
    platform::{Platform, TableMemory},
};
use core::ops::ControlFlow;
use freehold_pagetable::{
    AbsentPolicy, Format, Kind, LargeLeafPolicy, LeafGuard, Level, MarkerKind, NotCached, Pte, PteFlags,
    PteGuard, VaRange, Visitor,
};

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Removes the right to write from the pages of `range`, so that the next store to each page faults. With
    /// `mark`, also puts a marker into every empty slot. When this returns, no processor stores to the pages.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory for a table. The pages before the failure are protected.
    pub fn write_protect(&self, range: UserRange, mark: bool) -> Result<(), NoMemory> {
        let range = range.va();
        let mut gather = self.gather(range);
        let walked = match mark {
            true => self.walk(range, &mut Marking(&mut gather)),
            false => self.walk(range, &mut Protecting(&mut gather)),
        };
        // Also flushes entries that other tasks have removed but not flushed yet, because no processor may
        // store to the range after this function has returned.
        gather.finish();
        Ok(walked.map(|_| ())?)
    }

    /// Ends the write protection of the pages of `range`. The next store to a page faults and determines
    /// whether the page may be written.
    pub fn write_unprotect(&self, range: UserRange) {
        let walked = self.walk(range.va(), &mut Unprotecting);
        debug_assert!(walked.is_ok(), "removing marks ran out of memory");
    }
}

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Ends the write protection of the page at `address`, of any size, like
    /// [`write_unprotect`](Self::write_unprotect). Does nothing if the table was reclaimed.
    pub fn write_unprotect_page(&self, address: VirtAddr) {
        let (_, level) = self.peek(address);
        self.write_unprotect_leaf(address, level);
    }

    /// Ends the write protection of the entry of `level` at `address`.
    pub(crate) fn write_unprotect_leaf(&self, address: VirtAddr, level: Level) {
        let Some(mut leaf) = self.lock_leaf(address, level) else { return };
        // No flush is needed: a TLB does not cache markers, and a protected entry lacks the right to write
        // before and after the change.
        match is_wp_marker(leaf.pte()) {
            true => _ = leaf.replace(Pte::NONE, &mut NotCached),
            false => _ = leaf.change(&mut NotCached, |pte| unprotected(pte, level)),
        }
    }
}

/// Returns the write-protected form of an entry.
pub(crate) fn protected<F: Format>(pte: Pte<F>, level: Level) -> Pte<F> {
    match pte.kind(level) {
        Kind::Leaf { flags, .. } => pte.with_flags(level, (flags - PteFlags::WRITE) | PteFlags::UFFD_WP),
        Kind::Marker { kind: MarkerKind::Migration, payload } => {
            MigrationEntry { write: false, uffd_wp: true, ..MigrationEntry::of(payload) }.entry()
        }
        Kind::Marker { kind: MarkerKind::Swap, payload } => {
            SwapMark { uffd_wp: true, ..SwapMark::of(payload) }.entry()
        }
        Kind::None | Kind::Table { .. } | Kind::Marker { .. } => pte,
    }
}

/// Returns the entry without write protection. The next store faults and determines whether the page may be
/// written.
#[doc(hidden)]
pub fn unprotected<F: Format>(pte: Pte<F>, level: Level) -> Pte<F> {
    match pte.kind(level) {
        Kind::Leaf { flags, .. } => pte.with_flags(level, flags - PteFlags::UFFD_WP),
        Kind::Marker { kind: MarkerKind::Migration, payload } => {
            MigrationEntry { uffd_wp: false, ..MigrationEntry::of(payload) }.entry()
        }
        Kind::Marker { kind: MarkerKind::Swap, payload } => {
            SwapMark { uffd_wp: false, ..SwapMark::of(payload) }.entry()
        }
        Kind::None | Kind::Table { .. } | Kind::Marker { .. } => pte,
    }
}

/// A visitor that protects the pages that are present.
struct Protecting<'p, 'g, P: Platform>(&'p mut VmGather<'g, P, 1>);

impl<P: Platform> Visitor<P::Format, P> for Protecting<'_, '_, P> {
    // A table is deposited for the split of each huge page. A part of a huge page can be protected
    // separately.
    const LARGE: LargeLeafPolicy = LargeLeafPolicy::Split;

    fn table(&mut self, mut table: PteGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        table.change_each(range, self.0, |_, pte| protected(pte, Level::Pte));
        ControlFlow::Continue(())
    }

    fn large(&mut self, _: LeafGuard<'_, P::Format, P>, _: VaRange) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// A visitor that protects the pages that are present, and marks the pages that are not present.
struct Marking<'p, 'g, P: Platform>(&'p mut VmGather<'g, P, 1>);

impl<P: Platform> Visitor<P::Format, P> for Marking<'_, '_, P> {
    const ABSENT: AbsentPolicy = AbsentPolicy::Make;
    const LARGE: LargeLeafPolicy = LargeLeafPolicy::Split;

    fn table(&mut self, mut table: PteGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        table.change_each(range, self.0, |_, pte| protected(pte, Level::Pte));
        for page in (range.start().get()..range.end().get()).step_by(PAGE_SIZE as usize) {
            // Entries that are present were protected above; `install` fails for them.
            let _ = table.install(VirtAddr::new(page), Pte::marker(MarkerKind::UffdWp, 0));
        }
        ControlFlow::Continue(())
    }

    fn large(&mut self, _: LeafGuard<'_, P::Format, P>, _: VaRange) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// A visitor that ends protection and removes markers.
struct Unprotecting;

impl<F: Format, M: TableMemory> Visitor<F, M> for Unprotecting {
    // Huge pages are never protected as a whole.
    const LARGE: LargeLeafPolicy = LargeLeafPolicy::Skip;

    fn table(&mut self, mut table: PteGuard<'_, F, M>, range: VaRange) -> ControlFlow<()> {
        // No flush is needed: a TLB does not cache markers, and a protected entry lacks the right to write
        // before and after the change.
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

/// Returns true if a page is write-protected, whether it is present, being moved, swapped out, or not
/// present.
pub(crate) fn is_protected<F: Format>(pte: Pte<F>, level: Level) -> bool {
    match pte.kind(level) {
        Kind::Leaf { flags, .. } => flags.contains(PteFlags::UFFD_WP),
        Kind::Marker { kind: MarkerKind::Migration, payload } => MigrationEntry::of(payload).uffd_wp,
        Kind::Marker { kind: MarkerKind::Swap, payload } => SwapMark::of(payload).uffd_wp,
        Kind::Marker { kind, .. } => kind == MarkerKind::UffdWp,
        Kind::None | Kind::Table { .. } => false,
    }
}

/// Returns true if an entry is the marker of a write-protected page that is not present. Markers have the
/// same form at every level.
#[doc(hidden)]
pub fn is_wp_marker<F: Format>(pte: Pte<F>) -> bool {
    matches!(pte.kind(Level::Pte), Kind::Marker { kind: MarkerKind::UffdWp, .. })
}
