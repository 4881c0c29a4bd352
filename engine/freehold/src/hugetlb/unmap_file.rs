//! Unmapping huge pages from unshared page tables: the pages of a VMA, or the pages of a file in all VMAs.
//!
//! The functions here clear entries and put the pages into a gather, which flushes and frees them. The
//! functions must not clear entries of a table that other spaces share: `sharing.rs` unshares the tables
//! first, and keeps them unshared during the call. The caller holds the locks that [`hugetlb`](super) lists
//! for the change.
//!
//! `zap.rs` calls [`zap_own`] for one VMA. `file/change/unmap.rs` calls
//! [`unmap_huge_pages`](Mapping::unmap_huge_pages) for truncation, hole punching and moved pages. The
//! reservation of a private page must be restored when its owner discards the page, even if another task
//! still has a reference: `tests/hugetlb/pages_in_use.rs` tests that.

use super::state::{HugePageSize, reserves::Reserves};
use crate::{PAGE_SHIFT, Pfn, file::Mapping, platform::Platform, vma::Vma};
use core::ops::ControlFlow;
use freehold_pagetable::{
    Format, Kind, LargeLeafPolicy, LeafGuard, MarkerKind, Pte, PteFlags, PteGuard, UnmappedFrame, VaRange,
    VirtAddr, Visitor,
};
use freehold_vmspace::{Memory, MigrationEntry, PageRange, UserRange, VmGather, VmSpace, Zap};

/// A walk that clears the entries of huge pages.
struct Zapper<'z, 'g, P: Platform> {
    /// Selects the markers and private copies that stay.
    zap: Zap,
    /// The memory to which the pool belongs.
    memory: &'z Memory<P>,
    /// The pages to be freed after the flush.
    gather: &'z mut VmGather<'g, P>,
    /// Reservations to restore when one of their pages becomes free, and the VMA that owns them.
    renew: Option<(&'z Reserves, &'z Vma<P>, HugePageSize)>,
}

/// Clears the entries of `range`, whose tables are unshared. `renew` holds the reservations to restore when
/// one of their pages becomes free, and the VMA that owns them.
pub(crate) fn zap_own<P: Platform>(
    vm: &VmSpace<P>,
    range: UserRange,
    zap: Zap,
    renew: Option<(&Reserves, &Vma<P>, HugePageSize)>,
    gather: &mut VmGather<'_, P>,
) {
    let mut zapper = Zapper { zap, memory: vm.memory(), gather, renew };
    let walked = vm.walk(range.va(), &mut zapper);
    debug_assert!(walked.is_ok(), "a zap needs no memory");
}

/// Locks and unlocks each table over `range`, to wait for faults that have already checked the file and are
/// about to fill an entry. The walk alone does not wait for such faults, because it takes no lock for an
/// empty entry.
fn wait_for_tables<P: Platform>(vm: &VmSpace<P>, range: UserRange, size: HugePageSize) {
    let (level, mut at) = (size.level(), range.start());
    while at < range.end() {
        drop(vm.lock_leaf(VirtAddr::new(at), level));
        at = (at / level.table_span() + 1) * level.table_span();
    }
}

impl<P: Platform> Mapping<P> {
    /// Clears every entry that maps one of `pages`, which count in units of 4 KiB.
    ///
    /// # Locks
    ///
    /// The locks of [`each_alone`](Self::each_alone).
    pub(crate) fn unmap_huge_pages(&self, pages: PageRange, zap: impl Fn(&Vma<P>) -> Zap) {
        let Some(size) = self.huge_page_size() else { return };
        self.each_alone(pages, |vm, vma, range| {
            wait_for_tables(vm, range, size);
            let mut gather = vm.gather(range.va());
            zap_own(vm, range, zap(vma), None, &mut gather);
            gather.finish();
        });
    }
}

impl<P: Platform> Zapper<'_, '_, P> {
    /// Restores the reservation that the page `pfn` used, if this zap restores reservations of the page's
    /// owner. The page was mapped at `range` and is no longer mapped. Some task still holds a reference,
    /// whose release frees the page together with the reservation.
    fn renew(&self, pfn: Pfn, range: VaRange) {
        let Some((reserves, vma, size)) = self.renew else { return };
        let index = vma.pgoff_of(range.start().get()).block(size.level().shift() - PAGE_SHIFT);
        // If there is no memory for the record, the reservation is lost and the page returns to the pool
        // unreserved.
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
        debug_assert!(false, "small pages at {range:?} in a VMA of huge pages");
        ControlFlow::Continue(())
    }

    fn large(&mut self, mut leaf: LeafGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        debug_assert_eq!(leaf.span(), range, "a part of a huge page is being zapped");
        debug_assert!(!leaf.is_shared(), "an entry of a shared table is being cleared at {range:?}");
        match leaf.kind() {
            Kind::Marker { kind: MarkerKind::Migration | MarkerKind::Poison, .. }
                if self.zap.keeps_private_copies() => {}
            Kind::Marker { kind: MarkerKind::UffdWp, .. } if self.zap.keeps_wp() => {}
            Kind::Marker { kind, payload } => {
                // The page is moving, so the migration holds a reference. If the page was not exclusive,
                // other spaces may map it as well.
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
                // The task that drops the last reference frees the page together with the reservation. A
                // locked page that is not exclusive may be at the end of a move, and may be mapped again
                // elsewhere.
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

/// Returns the entry that replaces a cleared entry. With `marked`, a marker keeps the write protection.
fn instead<F: Format>(marked: bool) -> Pte<F> {
    if marked { Pte::marker(MarkerKind::UffdWp, 0) } else { Pte::NONE }
}
