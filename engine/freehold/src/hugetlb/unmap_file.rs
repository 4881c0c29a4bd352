//! Taking huge pages out of page tables that are one space's own.

use super::state::{HugePageSize, reserves::Reserves};
use crate::{PAGE_SHIFT, Pfn, file::Mapping, platform::Platform, vma::Vma};
use core::ops::ControlFlow;
use freehold_pagetable::{
    Format, Kind, LargeLeafPolicy, LeafGuard, MarkerKind, Pte, PteFlags, PteGuard, UnmappedFrame, VaRange,
    VirtAddr, Visitor,
};
use freehold_vmspace::{Memory, MigrationEntry, PageRange, UserRange, VmGather, VmSpace, Zap};

struct Zapper<'z, 'g, P: Platform> {
    zap: Zap,
    memory: &'z Memory<P>,
    gather: &'z mut VmGather<'g, P>,
    /// Whose reservations stand again when a page of theirs becomes free, and in which VMA.
    renew: Option<(&'z Reserves, &'z Vma<P>, HugePageSize)>,
}

/// Clears the entries of `range`, whose tables are this space's own. `renew`: whose reservations stand again
/// when a page of theirs becomes free, and in which VMA.
pub(crate) fn zap_own<P: Platform>(
    vm: &VmSpace<P>,
    range: UserRange,
    zap: Zap,
    renew: Option<(&Reserves, &Vma<P>, HugePageSize)>,
    gather: &mut VmGather<'_, P>,
) {
    let mut zapper = Zapper { zap, memory: vm.memory(), gather, renew };
    let walked = vm.walk(range.va(), &mut zapper);
    debug_assert!(walked.is_ok(), "a zap ran out of memory");
}

/// Takes the lock of each table over `range`, and lets go of it: what a fault was about to put there, having
/// looked before this whether it may, is there. The walk itself takes no lock for an empty entry.
fn wait_for_tables<P: Platform>(vm: &VmSpace<P>, range: UserRange, size: HugePageSize) {
    let (level, mut at) = (size.level(), range.start());
    while at < range.end() {
        drop(vm.lock_leaf(VirtAddr::new(at), level));
        at = (at / level.table_span() + 1) * level.table_span();
    }
}

impl<P: Platform> Mapping<P> {
    /// Takes every entry away that maps one of `pages`, page offsets of 4 KiB.
    ///
    /// # Locks
    ///
    /// As [`each_alone`](Self::each_alone).
    pub(crate) fn unmap_huge_pages(&self, pages: PageRange, zap: impl Fn(&Vma<P>) -> Zap) {
        let Some(size) = self.huge_page_size() else { return };
        self.each_alone(pages, |vm, vma, range| {
            wait_for_tables(vm, range, size);
            let mut gather = vm.gather();
            zap_own(vm, range, zap(vma), None, &mut gather);
            gather.finish();
        });
    }
}

impl<P: Platform> Zapper<'_, '_, P> {
    /// The page `pfn`, which was mapped at `range` and is mapped nowhere now, goes back with the reservation
    /// that it came in place of, if it is one of an owner whose reservations are to stand again. Somebody
    /// has a reference to it.
    fn renew(&self, pfn: Pfn, range: VaRange) {
        let Some((reserves, vma, size)) = self.renew else { return };
        let index = vma.pgoff_of(range.start().get()).block(size.level().shift() - PAGE_SHIFT);
        // Without memory the reservation is gone; the page goes back without it, so nothing is lost.
        if reserves.renew::<P>(index).is_ok() {
            self.memory.restore_reservation(pfn, size);
        }
    }
}

impl<P: Platform> Visitor<P::Format, P> for Zapper<'_, '_, P> {
    const LARGE: LargeLeafPolicy = LargeLeafPolicy::Visit;

    fn unlocked(&mut self, _: VaRange) {
        self.gather.make_capacity(1);
    }

    fn table(&mut self, _: PteGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        debug_assert!(false, "small pages at {range:?}, in a VMA of huge ones");
        ControlFlow::Continue(())
    }

    fn large(&mut self, mut leaf: LeafGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        debug_assert_eq!(leaf.span(), range, "a VMA holds huge pages whole");
        debug_assert!(!leaf.is_shared(), "an entry of others is being cleared at {range:?}");
        match leaf.kind() {
            Kind::Marker { kind: MarkerKind::Migration | MarkerKind::Poison, .. }
                if self.zap.keeps_private_copies() => {}
            Kind::Marker { kind: MarkerKind::UffdWp, .. } if self.zap.keeps_wp() => {}
            Kind::Marker { kind, payload } => {
                // It is on the move: the migration has a reference. Others may have it as well if it was not
                // exclusive.
                let moving = Some(MigrationEntry::of(payload)).filter(|_| kind == MarkerKind::Migration);
                let marked = self.zap.keeps_wp() && moving.is_some_and(|moving| moving.uffd_wp);
                leaf.replace(instead(marked), self.gather);
                if let Some(moving) = moving.filter(|moving| moving.exclusive) {
                    self.renew(moving.pfn, range);
                }
            }
            Kind::Leaf { pfn, flags } => {
                let frame = self.memory.platform().frame(pfn);
                if frame.is_anon() && self.zap.keeps_private_copies() {
                    return ControlFlow::Continue(());
                }
                let marked = self.zap.keeps_wp() && flags.contains(PteFlags::UFFD_WP);
                leaf.replace(instead(marked), self.gather);
                frame.sub_map();
                // The last task that still looks at it gives it back with the reservation. One that is just
                // coming back from a move may be mapped again elsewhere, if it was not exclusive.
                if frame.is_anon() && frame.maps() == 0 && (frame.is_exclusive() || !frame.is_locked()) {
                    self.renew(pfn, range);
                }
                self.gather.add_unmapped(UnmappedFrame::new(pfn, leaf.level()));
            }
            Kind::None | Kind::Table { .. } => {}
        }
        ControlFlow::Continue(())
    }
}

/// What takes the place of an entry; `marked`: its write protection stays.
fn instead<F: Format>(marked: bool) -> Pte<F> {
    if marked { Pte::marker(MarkerKind::UffdWp, 0) } else { Pte::NONE }
}
