//! Swap entries: markers in place of anonymous pages that are on a swap device or in the swap cache.
//!
//! A marker names a *slot* of a device, which counts the markers. `swap/` of `freehold` has the slots, and
//! this crate reaches them through [`SwapSlots`]. Each marker holds one count of its slot. A task that
//! removes a marker therefore [releases](SwapSlots::release) the slot, and a task that copies a marker
//! [duplicates](SwapSlots::duplicate) the count first, both under the lock of the marker's table. A marker
//! counts as a swapped page of its space (`Rss::swap`). The head of `reclaim/swap_out.rs` of `freehold` has
//! the whole protocol, and `docs/guide/swap.md` describes it.
//!
//! | task | function here | the slot's count |
//! | --- | --- | --- |
//! | swap-out, after the page was unmapped | [`end_migration_by_swap`](VmSpace::end_migration_by_swap) | + 1 for each marker |
//! | fault | [`map_swapped`](VmSpace::map_swapped) | - 1; the fault takes the page from the cache |
//! | fork | `copy.rs` | + 1 for the child |
//! | munmap, exit, MADV_DONTNEED, a guard | `zap.rs`, `guard.rs` | - 1 |
//!
//! A release may return a reference to the frame of the page. The reference goes to the gather of the task,
//! because no frame is freed under the lock of a table. `tests/swapped/` of `freehold` tests this file.

use crate::{
    AnonPage, MigrationEntry, Pfn, Rss, RssKind, UserRange, VirtAddr, VmGather, VmSpace, platform::Platform,
};
use core::ops::ControlFlow;
use freehold_pagetable::{
    Format, Kind, LargeLeafPolicy, LeafGuard, Level, MarkerKind, NotCached, PAYLOAD_BITS, Pte, PteFlags,
    PteGuard, PteTable, UnmappedFrame, VaRange, Visitor,
};

/// Number of payload bits that name the slot.
const SLOT_BITS: u32 = 45;
const UFFD_WP: u64 = 1 << SLOT_BITS;
const SOFT_DIRTY: u64 = 1 << (SLOT_BITS + 1);
const _: () = assert!(SLOT_BITS + 2 <= PAYLOAD_BITS, "a marker has room for the slot and the flags");

/// The slots of all swap devices of a [`Memory`](crate::Memory). A slot is a number below 2<sup>45</sup>.
#[doc(hidden)]
pub trait SwapSlots: Send + Sync {
    /// Counts another marker of the slot. The caller has locked the table of a marker that stays during the
    /// call. Returns false and counts nothing if there are too many.
    fn duplicate(&self, slot: u64) -> bool;

    /// Drops the count of a marker that the caller removes, with its table locked. Returns a reference to a
    /// frame, which the caller drops without the lock.
    #[must_use = "the caller drops the reference"]
    fn release(&self, slot: u64) -> Option<Pfn>;

    /// Returns true if the page of the slot is in a frame. A hint.
    fn is_cached(&self, slot: u64) -> bool;

    /// Returns the number of markers of the slot. A hint.
    fn entries(&self, slot: u64) -> u32;
}

/// The slots of a memory without swap devices.
pub(crate) struct NoSlots;

impl SwapSlots for NoSlots {
    fn duplicate(&self, _: u64) -> bool {
        false
    }

    fn release(&self, _: u64) -> Option<Pfn> {
        None
    }

    fn is_cached(&self, _: u64) -> bool {
        false
    }

    fn entries(&self, _: u64) -> u32 {
        0
    }
}

/// The contents of a marker in place of a page that was swapped out.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwapMark {
    /// The slot of the page.
    pub slot: u64,
    /// A userfaultfd has write-protected the page.
    pub uffd_wp: bool,
    /// The page was written since the soft-dirty bits were last cleared.
    pub soft_dirty: bool,
}

impl SwapMark {
    /// Returns the marker as an entry.
    pub fn entry<F: Format>(self) -> Pte<F> {
        let flag = |set: bool, bit: u64| if set { bit } else { 0 };
        let payload = self.slot | flag(self.uffd_wp, UFFD_WP) | flag(self.soft_dirty, SOFT_DIRTY);
        Pte::marker(MarkerKind::Swap, payload)
    }

    /// Returns the mark that has this payload.
    #[inline]
    pub fn of(payload: u64) -> Self {
        SwapMark {
            slot: payload & ((1 << SLOT_BITS) - 1),
            uffd_wp: payload & UFFD_WP != 0,
            soft_dirty: payload & SOFT_DIRTY != 0,
        }
    }

    /// Returns the mark of an entry, if the entry is one.
    #[inline]
    pub fn of_entry<F: Format>(pte: Pte<F>) -> Option<Self> {
        match pte.kind(Level::Pte) {
            Kind::Marker { kind: MarkerKind::Swap, payload } => Some(SwapMark::of(payload)),
            Kind::None | Kind::Leaf { .. } | Kind::Table { .. } | Kind::Marker { .. } => None,
        }
    }
}

/// Releases the slot of a marker that is being removed with its table locked. Counts the page, and leaves the
/// reference to its frame to the gather.
pub(crate) fn release_slot<P: Platform, const N: usize>(
    slots: &dyn SwapSlots,
    payload: u64,
    rss: &mut Rss,
    gather: &mut VmGather<'_, P, N>,
) {
    rss.add(RssKind::Swap, -1);
    if let Some(pfn) = slots.release(SwapMark::of(payload).slot) {
        gather.add_unmapped(UnmappedFrame::new(pfn, Level::Pte));
    }
}

/// The page that a fault puts in place of a marker.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct SwappedPage {
    /// The frame. The caller has a reference, which the entry gets.
    pub pfn: Pfn,
    /// No other task can reach the frame.
    pub is_exclusive: bool,
    /// A reference to another frame, which is dropped after the lock is released.
    pub other: Option<Pfn>,
}

/// The way in which a fault deals with a marker.
#[doc(hidden)]
pub enum SwapFault {
    /// Maps the page.
    Map(SwappedPage),
    /// Maps nothing. The reference is dropped after the lock is released.
    Leave(Option<Pfn>),
}

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Replaces a migration marker for `pfn` by a swap entry, which is counted. Returns false if there is
    /// such a marker and the slot has too many entries; the marker stays.
    pub fn end_migration_by_swap(&self, address: VirtAddr, pfn: Pfn, slot: u64) -> bool {
        let Some(mut leaf) = self.lock_leaf(address, Level::Pte) else { return true };
        let Kind::Marker { kind: MarkerKind::Migration, payload } = leaf.kind() else { return true };
        let moving = MigrationEntry::of(payload);
        if moving.pfn != pfn {
            return true;
        }
        if !self.memory().swap_slots().duplicate(slot) {
            return false;
        }
        let mark = SwapMark { slot, uffd_wp: moving.uffd_wp, soft_dirty: moving.soft_dirty };
        // No TLB caches a marker.
        leaf.replace(mark.entry(), &mut NotCached);
        drop(leaf);
        self.count_rss(&Rss { anon: -1, swap: 1, ..Rss::default() });
        true
    }

    /// Replaces a migration marker for `pfn`, which is full of zeroes, by an entry of the page of zeroes.
    /// `rights` is called under the table's lock, and returns the rights of the entry.
    pub fn end_migration_by_zero(&self, rights: impl FnOnce() -> PteFlags, address: VirtAddr, pfn: Pfn) {
        let Some(mut leaf) = self.lock_leaf(address, Level::Pte) else { return };
        let Kind::Marker { kind: MarkerKind::Migration, payload } = leaf.kind() else { return };
        let moving = MigrationEntry::of(payload);
        if moving.pfn != pfn {
            return;
        }
        let mut flags = rights() | PteFlags::SPECIAL;
        flags.set(PteFlags::UFFD_WP, moving.uffd_wp);
        flags.set(PteFlags::SOFT_DIRTY, moving.soft_dirty);
        leaf.replace(Pte::page(self.memory().zero(), flags), &mut NotCached);
        drop(leaf);
        self.count_page(RssKind::Anon, -1);
    }

    /// Returns the first swap entry of `range` whose slot `wanted` accepts, with its address.
    pub fn next_swap_entry(
        &self,
        range: UserRange,
        wanted: impl FnMut(u64) -> bool,
    ) -> Option<(VirtAddr, SwapMark)> {
        let mut finder = Finder { wanted, found: None };
        // Splits and makes nothing, so it does not fail.
        let _ = self.walk(range.va(), &mut finder);
        finder.found
    }

    /// Calls `take` with the mark of the swap entry at `address`, if there is one, under the lock of its
    /// table. If `take` returns a page, puts the page in place of the marker: `take` has released the slot.
    /// `rights` are the rights of the entry; it allows stores if `write` is set, the page is exclusive and no
    /// userfaultfd has protected it. Returns `None` if there is no swap entry, and otherwise true if the page
    /// was mapped.
    pub fn map_swapped(
        &self,
        table: PteTable<'_, P::Format, P>,
        address: VirtAddr,
        page: AnonPage,
        (rights, write): (PteFlags, Option<PteFlags>),
        take: impl FnOnce(SwapMark) -> SwapFault,
    ) -> Option<bool> {
        let mut guard = table.lock_linked()?;
        let mark = SwapMark::of_entry(guard.get(address))?;
        let (mapped, rest) = match take(mark) {
            SwapFault::Leave(rest) => (false, rest),
            SwapFault::Map(SwappedPage { pfn, is_exclusive, other }) => {
                let frame = self.platform().frame(pfn);
                // All entries of a slot have the same home and index, so each task that maps the page stores
                // the same words. The words are complete before the page counts as mapped.
                if frame.rmap() != (page.rmap, page.index) {
                    frame.set_rmap(page);
                }
                if is_exclusive {
                    frame.set_exclusive();
                }
                frame.add_map();
                let mut flags = rights;
                flags.set(PteFlags::SOFT_DIRTY, mark.soft_dirty);
                match write {
                    Some(written) if is_exclusive && !mark.uffd_wp => flags |= written,
                    _ => {}
                }
                flags.set(PteFlags::UFFD_WP, mark.uffd_wp);
                guard.set(address, Pte::page(pfn, flags));
                (true, other)
            }
        };
        drop(guard);
        if mapped {
            self.count_rss(&Rss { anon: 1, swap: -1, ..Rss::default() });
        }
        if let Some(pfn) = rest {
            self.memory().put_frame(pfn);
        }
        Some(mapped)
    }
}

/// A visitor that stops at a swap entry.
struct Finder<W> {
    wanted: W,
    found: Option<(VirtAddr, SwapMark)>,
}

impl<P: Platform, W: FnMut(u64) -> bool> Visitor<P::Format, P> for Finder<W> {
    const LARGE: LargeLeafPolicy = LargeLeafPolicy::Skip;

    fn table(&mut self, table: PteGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        table.for_each(range, |address, pte| match SwapMark::of_entry(pte) {
            Some(mark) if (self.wanted)(mark.slot) => {
                self.found = Some((address, mark));
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        })
    }

    fn large(&mut self, _: LeafGuard<'_, P::Format, P>, _: VaRange) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

#[cfg(all(test, not(any(loom, shuttle, sim))))]
mod tests {
    use super::SwapMark;
    use freehold_pagetable::X86_4;

    #[test]
    fn marks_keep_the_slot_and_the_flags() {
        for slot in [0, 1, (1 << 45) - 1] {
            for (uffd_wp, soft_dirty) in [(false, false), (false, true), (true, false), (true, true)] {
                let mark = SwapMark { slot, uffd_wp, soft_dirty };
                assert_eq!(SwapMark::of_entry(mark.entry::<X86_4>()), Some(mark));
            }
        }
    }
}
