//! Guard pages: markers in the page tables, at no cost in VMAs.

use super::super::{
    AddressSpace,
    zap::{SpaceTlb, Zap},
};
use crate::{error::MadviseError, platform::Platform, vma::Vma};
use core::ops::{ControlFlow, Range};
use freehold_pagetable::{
    Absent, Format, Gather, Large, LeafGuard, MarkerKind, NotCached, OutOfTables, PAGE_SIZE, Pte, PteGuard,
    TableMemory, VaRange, VirtAddr, Visitor, Walked,
};

impl From<OutOfTables> for MadviseError {
    fn from(_: OutOfTables) -> Self {
        MadviseError::OutOfMemory
    }
}

fn guard<F: Format>() -> Pte<F> {
    Pte::marker(MarkerKind::Guard, 0)
}

impl<P: Platform> AddressSpace<P> {
    /// Puts a guard in place of every page of `part`; the pages go.
    ///
    /// Somebody may fault a page in between taking pages away and putting guards down; then that part is done again.
    ///
    /// # Locks
    ///
    /// The caller holds the lock of `vma`, or the mmap lock.
    pub(super) fn install_guards(&self, vma: &Vma<P>, part: Range<u64>) -> Result<(), MadviseError> {
        vma.note_guards();
        let mut rest = part;
        while let Walked::Stopped(at) =
            self.table.walk(self.platform(), VaRange::of(rest.start, rest.end), &mut Installer)?
        {
            // Everything before is guarded.
            rest.start = at.get();
            self.discard(rest.clone(), Zap::of(vma).keep_guards());
        }
        // A slot that was found empty may have been emptied by somebody who has not flushed yet (hazard C-4), and an access
        // through what a TLB still holds would pass the guard.
        let tlb = SpaceTlb { space: self };
        Gather::<_, 1>::new(&tlb, &self.gathers).finish();
        Ok(())
    }

    /// Takes every guard in `part` away.
    ///
    /// # Locks
    ///
    /// As for [`install_guards`](Self::install_guards).
    pub(super) fn remove_guards(&self, part: Range<u64>) {
        let walked = self.table.walk(self.platform(), VaRange::of(part.start, part.end), &mut Remover);
        debug_assert!(walked.is_ok(), "taking markers away allocates nothing");
    }
}

/// Fills empty slots with guards; stops at a table that holds something else.
struct Installer;

impl<F: Format, M: TableMemory> Visitor<F, M> for Installer {
    const ABSENT: Absent = Absent::Make;

    fn table(&mut self, mut table: PteGuard<'_, F, M>, range: VaRange) -> ControlFlow<()> {
        let mut at = range.start().get();
        while at < range.end().get() {
            match table.install(VirtAddr::new(at), guard()) {
                Ok(()) => {}
                Err(found) if found == guard() => {}
                Err(_) => return ControlFlow::Break(()),
            }
            at += PAGE_SIZE;
        }
        ControlFlow::Continue(())
    }

    fn large(&mut self, _: LeafGuard<'_, F, M>, _: VaRange) -> ControlFlow<()> {
        ControlFlow::Break(())
    }
}

/// Empties slots that hold a guard.
struct Remover;

impl<F: Format, M: TableMemory> Visitor<F, M> for Remover {
    const LARGE: Large = Large::Skip;

    fn table(&mut self, mut table: PteGuard<'_, F, M>, range: VaRange) -> ControlFlow<()> {
        // No TLB holds a marker.
        table.zap_each(range, &mut NotCached, |_, slot, _| {
            if slot.pte() == guard() {
                slot.clear();
            }
        });
        ControlFlow::Continue(())
    }

    fn large(&mut self, _: LeafGuard<'_, F, M>, _: VaRange) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}
