//! Guard pages: markers in the page tables, at no cost in VMAs.

use super::super::{AddressSpace, Rss, RssKind, zap::SpaceTlb};
use crate::{
    error::MadviseError,
    platform::Platform,
    rmap::MOVING,
    vma::{Vma, flags::VmFlags},
};
use core::ops::{ControlFlow, Range};
use freehold_pagetable::{
    Absent, ENTRIES, Format, Gather, Kind, Large, LeafGuard, Level, MarkerKind, NotCached, OutOfTables,
    PAGE_SIZE, Pte, PteFlags, PteGuard, TableMemory, UnmappedFrame, VaRange, VirtAddr, Visitor, Walked,
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
    /// Page and guard change places under the table's lock, so whoever faults pages meanwhile finds the page or the guard, and
    /// nothing has to be done twice (Linux tries three times, and then makes the call start over).
    ///
    /// # Errors
    ///
    /// No memory for a table: what lies before is guarded.
    ///
    /// # Locks
    ///
    /// The caller holds the lock of `vma`, or the mmap lock.
    pub(super) fn install_guards(&self, vma: &Vma<P>, part: Range<u64>) -> Result<(), MadviseError> {
        vma.note_guards();
        let tlb = SpaceTlb { space: self };
        let mut gather = Gather::new(&tlb, &self.gathers);
        let mut installer = Installer {
            platform: self.platform(),
            shared: vma.flags().contains(VmFlags::MAYSHARE),
            gather: &mut gather,
            rss: Rss::default(),
        };
        let walked = self.table.walk(self.platform(), VaRange::of(part.start, part.end), &mut installer);
        self.counters.count_rss(&installer.rss);
        // Also where nothing was mapped: a slot that was found empty may have been emptied by somebody who has not flushed yet
        // (hazard C-4), and an access through what a TLB still holds would pass the guard.
        gather.finish();
        let walked = walked?;
        debug_assert_eq!(walked, Walked::All, "large leaves are split");
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

/// Puts a guard into every slot.
struct Installer<'i, 'g, 't, P: Platform> {
    platform: &'i P,
    /// Stores reach a file: an entry's dirty bit must not be lost.
    shared: bool,
    gather: &'i mut Gather<'g, SpaceTlb<'t, P>>,
    /// Resident pages taken, negative.
    rss: Rss,
}

impl<P: Platform> Installer<'_, '_, '_, P> {
    /// What a guard has taken the place of.
    fn let_go(&mut self, old: Pte<P::Format>) {
        let (pfn, flags) = match old.kind(Level::Pte) {
            Kind::Leaf { pfn, flags } if !flags.contains(PteFlags::SPECIAL) => (pfn, flags),
            Kind::Marker { kind: MarkerKind::Migration, .. } => return self.rss.add(MOVING, -1),
            Kind::Leaf { .. } | Kind::None | Kind::Marker { .. } | Kind::Table { .. } => return,
        };
        let (frame, mut what) = (self.platform.frame(pfn), UnmappedFrame::new(pfn, Level::Pte));
        if self.shared && !frame.is_anon() && flags.contains(PteFlags::DIRTY) {
            // As in a zap: before the flush for who writes the page back, and after it again.
            frame.set_dirty();
            what = what.dirty();
        }
        self.rss.add(RssKind::of(frame), -1);
        frame.sub_map();
        self.gather.unmapped(what);
    }
}

impl<P: Platform> Visitor<P::Format, P> for Installer<'_, '_, '_, P> {
    const ABSENT: Absent = Absent::Make;
    const LARGE: Large = Large::Split;

    fn unlocked(&mut self) {
        self.gather.make_room(ENTRIES);
    }

    fn table(&mut self, mut table: PteGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        let mut at = range.start().get();
        while at < range.end().get() {
            let address = VirtAddr::new(at);
            if table.get(address) != guard() {
                let old = table.replace(address, guard(), self.gather);
                self.let_go(old);
            }
            at += PAGE_SIZE;
        }
        ControlFlow::Continue(())
    }

    fn large(&mut self, _: LeafGuard<'_, P::Format, P>, _: VaRange) -> ControlFlow<()> {
        // Nothing puts a marker above the lowest level.
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
