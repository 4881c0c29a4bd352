//! Operations on one entry that the reverse map found, for `rmap/` of `freehold`: removing it, cleaning it,
//! and testing its accessed bit.
//!
//! The reverse map says where a page may be mapped, but only the lock of the entry's table makes certain that
//! the entry still maps the frame in question. Every operation therefore takes that lock and compares the
//! frame number, or the marker, before it changes anything. The caller holds a lock of the reverse map, which
//! keeps the table linked until the operation ends. `tests/rmap/` of `freehold` tests these operations
//! through calls of `freehold`.

use crate::{
    BatchGather, Pfn, VirtAddr, VmGather, VmSpace,
    clean::{cleaned, keep_dirty},
    platform::Platform,
};
use freehold_pagetable::{
    Format, Kind, LeafGuard, Level, MarkerKind, NotCached, Pte, PteFlags, StaleTranslations, UnmappedFrame,
    VaRange,
};

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Calls `f` with the table locked if the entry of `level` at `address` maps `pfn`. If a huge page covers
    /// the address of a small one, the huge page is split first. A huge page of a pool is not split: the
    /// result is then `None`.
    ///
    /// The caller holds a lock of the reverse map, which keeps the table linked.
    pub fn with_entry<R>(
        &self,
        address: VirtAddr,
        level: Level,
        pfn: Pfn,
        f: impl FnOnce(&mut LeafGuard<'_, P::Format, P>) -> R,
    ) -> Option<R> {
        let (pte, found) = self.peek(address);
        if found > level && pte.is_leaf(found) {
            if self.platform().frame(pte.pfn()).hugetlb().is_some() {
                return None;
            }
            // Cannot fail: a table is deposited for the split.
            let split = self.pmd_table(address).map(|table| self.split_pmd_leaf(table, address));
            debug_assert!(!matches!(split, Some(Err(_))), "a huge page without a table to split it");
        }
        let mut leaf = self.lock_leaf(address, level)?;
        match leaf.kind() {
            Kind::Leaf { pfn: found, .. } if found == pfn => Some(f(&mut leaf)),
            _ => None,
        }
    }

    /// Replaces the entry at `address` by `instead` (nothing or a marker) if the entry maps `pfn`. Returns
    /// true if the entry was replaced. The caller has a reference to `pfn`. When this returns, no processor
    /// uses the old entry, and the frame's dirty bit records every store through the entry.
    pub fn take_entry(&self, address: VirtAddr, level: Level, pfn: Pfn, instead: Pte<P::Format>) -> bool {
        let mut gather: VmGather<'_, _, 1> = self.gather(VaRange::entry(address, level));
        let written = self.remove_entry(address, level, pfn, instead, &mut gather);
        if let Some(written) = written {
            let what = UnmappedFrame::new(pfn, level);
            gather.add_unmapped(if written { what.dirty() } else { what });
        }
        gather.finish();
        written.is_some()
    }

    /// Removes the entry of a page of a file at `address` if the entry maps `pfn`, but leaves the flush to
    /// `gather`. Until then, processors may use the old entry. The caller has a reference to `pfn`, and keeps
    /// it until the flush. Returns true if the entry was dirty. The caller then marks the frame as dirty
    /// [again](crate::Memory::set_dirty_late) after the flush.
    pub fn gather_entry(&self, address: VirtAddr, pfn: Pfn, gather: &mut BatchGather<'_, P>) -> bool {
        let Some(written) = self.remove_entry(address, Level::Pte, pfn, Pte::NONE, gather) else {
            return false;
        };
        let last = self.platform().frame(pfn).put();
        debug_assert!(!last, "the caller has no reference");
        written
    }

    /// Replaces the entry at `address` by `instead` if it maps `pfn`. The caller gets the entry's reference
    /// to the frame, and drops the reference after the flush of `gather`. Returns `None` if no entry was
    /// replaced. Otherwise returns true if the entry was dirty, and the page is one of a file.
    fn remove_entry(
        &self,
        address: VirtAddr,
        level: Level,
        pfn: Pfn,
        instead: Pte<P::Format>,
        gather: &mut impl StaleTranslations,
    ) -> Option<bool> {
        self.with_entry(address, level, pfn, |leaf| {
            // A write protection by a userfaultfd outlives the page: a marker keeps it.
            let marked = instead.is_none() && leaf.pte().flags().contains(PteFlags::UFFD_WP);
            let instead = if marked { Pte::marker(MarkerKind::UffdWp, 0) } else { instead };
            let old = leaf.replace(instead, gather);
            let frame = self.platform().frame(pfn);
            if level == Level::Pte {
                self.count_page(frame.kind(), -1);
            }
            frame.sub_map();
            let written = !frame.is_anon() && old.flags().contains(PteFlags::DIRTY);
            if written {
                // The bit is set before the flush and again after it; `cleaned` and `keep_dirty` give the
                // reasons.
                self.memory().set_dirty_late(frame);
            }
            written
        })
    }

    /// Clears the write permission and the dirty bit of the entry at `address` if the entry maps `pfn`, so
    /// that the next store through the entry faults. Returns true if the entry changed.
    pub fn clean_entry(&self, address: VirtAddr, pfn: Pfn) -> bool {
        let mut gather: VmGather<'_, _, 1> = self.gather(VaRange::entry(address, Level::Pte));
        let changed = self.with_entry(address, Level::Pte, pfn, |leaf| {
            let (old, new) = leaf.change(&mut gather, |pte| cleaned(self.platform(), pte));
            if old.flags().contains(PteFlags::DIRTY) {
                keep_dirty(self.platform(), pfn, &mut gather);
            }
            old != new
        });
        gather.finish();
        changed == Some(true)
    }

    /// Clears the accessed bit of the entry at `address` if the entry maps `pfn`, also that of the listeners
    /// of the space. Returns true if one was set.
    pub fn take_accessed(&self, address: VirtAddr, pfn: Pfn) -> bool {
        if let Some(table) = self.pmd_table(address) {
            // A query does not split a huge page.
            let is_huge = |pte: Pte<P::Format>| match pte.kind(Level::Pmd) {
                Kind::Leaf { pfn: first, .. } => first.add(address.frame_in_leaf(Level::Pmd)) == pfn,
                Kind::None | Kind::Table { .. } | Kind::Marker { .. } => false,
            };
            if is_huge(table.peek(address)) {
                let mut guard = table.lock();
                if is_huge(guard.get(address)) {
                    // No flush, here and below: see `Engine::referenced`.
                    let young = self.clear_young(VaRange::entry(address, Level::Pmd));
                    let changed = guard.change(address, &mut NotCached, |pte| unused(pte, Level::Pmd));
                    return was_accessed(changed) || young;
                }
            }
        }
        let Some(mut guard) = self.lock_pte_table(address) else { return false };
        match guard.get(address).kind(Level::Pte) {
            Kind::Leaf { pfn: found, .. } if found == pfn => {
                let young = self.clear_young(VaRange::entry(address, Level::Pte));
                was_accessed(guard.change(address, &mut NotCached, |pte| unused(pte, Level::Pte))) || young
            }
            _ => false,
        }
    }

    /// Returns true if `marker`, the marker of a page whose memory failed, is at `address`. Removes the
    /// marker unless the page is `lost`.
    pub fn resolve_poison(
        &self,
        address: VirtAddr,
        level: Level,
        marker: Pte<P::Format>,
        lost: bool,
    ) -> bool {
        let Some(mut leaf) = self.lock_leaf(address, level) else { return false };
        let found = leaf.pte() == marker;
        if found && !lost {
            // No TLB caches a marker.
            leaf.replace(Pte::NONE, &mut NotCached);
        }
        found
    }
}

/// Returns the entry without the accessed bit.
fn unused<F: Format>(pte: Pte<F>, level: Level) -> Pte<F> {
    pte.with_flags(level, pte.flags() - PteFlags::ACCESSED)
}

/// Returns true if the old entry of a change had the accessed bit.
fn was_accessed<F: Format>((old, _): (Pte<F>, Pte<F>)) -> bool {
    old.flags().contains(PteFlags::ACCESSED)
}
