//! Guard markers: every access to a guarded page ends in a signal.
//!
//! A marker is an entry that maps nothing, so hardware faults on it. Installing and removing hold the lock of
//! one table at a time. `call/madvise/guard.rs` of `freehold` decides where guards are allowed, and a fault
//! at a marker ends in a signal (`fault/` of `freehold`). `zap.rs` keeps or clears guards, and `copy.rs`
//! copies them. `tests/guards.rs` of `freehold` tests guards.

use crate::{
    Memory, NoMemory, PAGE_SIZE, Rss, UserRange, VirtAddr, VmGather, VmSpace,
    frame::MIGRATION_RSS,
    platform::{Platform, TableMemory},
    swap_entry::release_slot,
};
use core::ops::ControlFlow;
use freehold_pagetable::{
    AbsentPolicy, ENTRIES, Format, Kind, LargeLeafPolicy, LeafGuard, Level, MarkerKind, NotCached, Pte,
    PteFlags, PteGuard, UnmappedFrame, VaRange, Visitor, Walked,
};

/// Returns the guard marker.
fn guard<F: Format>() -> Pte<F> {
    Pte::marker(MarkerKind::Guard, 0)
}

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Replaces every page of `range` by a guard marker. `shared` says that stores reach a file.
    ///
    /// The guard replaces the page under the table's lock, so a concurrent fault finds either the page or the
    /// guard, and no step is repeated. (Linux tries three times and then restarts the call.)
    ///
    /// # Errors
    ///
    /// Fails if there is no memory for a table. The pages before the failure are guarded.
    pub fn install_guards(&self, range: UserRange, shared: bool) -> Result<(), NoMemory> {
        let mut gather = self.gather(range.va());
        let mut installer =
            Installer { memory: self.memory(), shared, gather: &mut gather, rss: Rss::default() };
        let walked = self.walk(range.va(), &mut installer);
        self.count_rss(&installer.rss);
        // Flush also if nothing was mapped: another call may have emptied a slot and not flushed yet (hazard
        // C-4). An access through an entry that a TLB still holds would bypass the guard.
        gather.finish();
        let walked = walked?;
        debug_assert_eq!(walked, Walked::All, "large leaves are split");
        Ok(())
    }

    /// Removes every guard marker in `range`.
    pub fn remove_guards(&self, range: UserRange) {
        let walked = self.walk(range.va(), &mut Remover);
        debug_assert!(walked.is_ok(), "removing markers ran out of memory");
    }
}

/// A visitor that puts a guard marker into every slot.
struct Installer<'i, 'g, P: Platform> {
    memory: &'i Memory<P>,
    /// True if stores reach a file. The dirty bit of an entry must then not be lost.
    shared: bool,
    gather: &'i mut VmGather<'g, P>,
    /// Change of the counts of resident pages; never positive.
    rss: Rss,
}

impl<P: Platform> Installer<'_, '_, P> {
    /// Releases the page or marker `old` that a guard replaced.
    fn release_old(&mut self, old: Pte<P::Format>) {
        let (pfn, flags) = match old.kind(Level::Pte) {
            Kind::Leaf { pfn, flags } if !flags.contains(PteFlags::SPECIAL) => (pfn, flags),
            Kind::Marker { kind: MarkerKind::Migration, .. } => return self.rss.add(MIGRATION_RSS, -1),
            Kind::Marker { kind: MarkerKind::Swap, payload } => {
                return release_slot(self.memory.swap_slots(), payload, &mut self.rss, self.gather);
            }
            Kind::Leaf { .. } | Kind::None | Kind::Marker { .. } | Kind::Table { .. } => return,
        };
        let (frame, mut what) = (self.memory.platform().frame(pfn), UnmappedFrame::new(pfn, Level::Pte));
        if self.shared && !frame.is_anon() && flags.contains(PteFlags::DIRTY) {
            // As in a zap, the bit is set before the flush, for a concurrent write-back, and again after the
            // flush.
            self.memory.set_dirty_late(frame);
            what = what.dirty();
        }
        self.rss.add(frame.kind(), -1);
        frame.sub_map();
        self.gather.add_unmapped(what);
    }
}

impl<P: Platform> Visitor<P::Format, P> for Installer<'_, '_, P> {
    const ABSENT: AbsentPolicy = AbsentPolicy::Make;
    const LARGE: LargeLeafPolicy = LargeLeafPolicy::Split;

    fn unlocked(&mut self, _: VaRange) {
        self.gather.make_capacity(ENTRIES);
    }

    fn table(&mut self, mut table: PteGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        let mut at = range.start().get();
        while at < range.end().get() {
            let address = VirtAddr::new(at);
            if table.get(address) != guard() {
                let old = table.replace(address, guard(), self.gather);
                self.release_old(old);
            }
            at += PAGE_SIZE;
        }
        ControlFlow::Continue(())
    }

    fn large(&mut self, _: LeafGuard<'_, P::Format, P>, _: VaRange) -> ControlFlow<()> {
        // Only huge pages of pools have markers above the lowest level.
        ControlFlow::Break(())
    }
}

/// A visitor that empties the slots that hold a guard marker.
struct Remover;

impl<F: Format, M: TableMemory> Visitor<F, M> for Remover {
    const LARGE: LargeLeafPolicy = LargeLeafPolicy::Skip;

    fn table(&mut self, mut table: PteGuard<'_, F, M>, range: VaRange) -> ControlFlow<()> {
        // No TLB caches a marker.
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
