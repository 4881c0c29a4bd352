//! Write protection of the pages that a report has shown, for PAGEMAP_SCAN with PM_SCAN_WP_MATCHING.
//!
//! A program that tracks writes gets a report of the written pages, and the same call protects these pages,
//! so that the next report shows later writes. The report comes first and the protection second, under
//! different holds of the table's lock. A page may be written, removed or replaced in between. A page is
//! therefore only protected if its entry still is as reported: not protected, and empty, or mapping a page of
//! the same kind. A page that was written in between has the new contents when the call returns, and was
//! reported as written. A page that was replaced stays unprotected, so the next report shows it as written.
//!
//! `report/pagemap.rs` of `freehold` calls this file. `tests/uffd/protect_async.rs` of `freehold` tests it.

use crate::{
    EntryRun, Memory, NoMemory, PAGE_SIZE, PageEntry, PageKind, UserRange, VirtAddr, VmGather, VmSpace,
    platform::Platform,
    write_protect::{is_protected, protected},
};
use core::ops::ControlFlow;
use freehold_pagetable::{
    AbsentPolicy, Kind, LargeLeafPolicy, LeafGuard, Level, MarkerKind, Pte, PteGuard, VaRange, Visitor,
};

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Write-protects the pages of `range`, a part of `run`, whose entries still are as reported. `level` is
    /// the level of the entries: the lowest, or that of the huge pages of a pool. When this returns, no
    /// processor stores to the pages.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory for a table. The pages before the failure are protected.
    pub fn protect_reported(&self, range: UserRange, run: &EntryRun, level: Level) -> Result<(), NoMemory> {
        if run.write_protected {
            return Ok(());
        }
        let mut gather = self.gather(range.va());
        let done = match level > Level::Pte {
            true => self.protect_reported_large(range, run, level, &mut gather),
            false => {
                let mut reported = Reported { memory: self.memory(), run, gather: &mut gather };
                self.walk(range.va(), &mut reported).map(|_| ()).map_err(NoMemory::from)
            }
        };
        gather.finish();
        done
    }

    /// Protects huge pages of a pool. Leaves out huge pages that lie only partly in the range.
    fn protect_reported_large(
        &self,
        range: UserRange,
        run: &EntryRun,
        level: Level,
        gather: &mut VmGather<'_, P, 1>,
    ) -> Result<(), NoMemory> {
        let mut at = range.start().next_multiple_of(level.span());
        while at < range.end() && range.end() - at >= level.span() {
            let address = VirtAddr::new(at);
            self.large_table(address, level)?;
            if let Some(mut leaf) = self.lock_leaf(address, level) {
                let pte = leaf.pte();
                match is_as_reported(self.memory(), run, pte, level) {
                    true if pte.is_none() => _ = leaf.install(Pte::marker(MarkerKind::UffdWp, 0)),
                    true => _ = leaf.change(gather, |pte| protected(pte, level)),
                    false => {}
                }
            }
            at += level.span();
        }
        Ok(())
    }
}

/// Returns true if an entry still is as the report `run` shows it.
fn is_as_reported<P: Platform>(
    memory: &Memory<P>,
    run: &EntryRun,
    pte: Pte<P::Format>,
    level: Level,
) -> bool {
    !is_protected(pte, level)
        && match (pte.kind(level), run.entry) {
            (Kind::None, PageEntry::Empty) => true,
            (Kind::Leaf { pfn, flags }, PageEntry::Page { kind, .. }) => {
                PageKind::of(memory, pfn, flags) == kind
            }
            (Kind::Marker { kind, .. }, PageEntry::Marker(reported)) => kind == reported,
            _ => false,
        }
}

/// A visitor that protects the small pages that still are as reported.
struct Reported<'r, 'g, P: Platform> {
    memory: &'r Memory<P>,
    run: &'r EntryRun,
    gather: &'r mut VmGather<'g, P, 1>,
}

impl<P: Platform> Visitor<P::Format, P> for Reported<'_, '_, P> {
    const ABSENT: AbsentPolicy = AbsentPolicy::Make;
    const LARGE: LargeLeafPolicy = LargeLeafPolicy::Split;

    fn table(&mut self, mut table: PteGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        let (memory, run) = (self.memory, self.run);
        if run.entry == PageEntry::Empty {
            for page in (range.start().get()..range.end().get()).step_by(PAGE_SIZE as usize) {
                // Fails if the entry is no longer empty.
                let _ = table.install(VirtAddr::new(page), Pte::marker(MarkerKind::UffdWp, 0));
            }
            return ControlFlow::Continue(());
        }
        table.change_each(range, self.gather, |_, pte| match is_as_reported(memory, run, pte, Level::Pte) {
            true => protected(pte, Level::Pte),
            false => pte,
        });
        ControlFlow::Continue(())
    }

    fn large(&mut self, _: LeafGuard<'_, P::Format, P>, _: VaRange) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}
