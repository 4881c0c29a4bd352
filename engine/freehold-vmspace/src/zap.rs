//! Removing pages from page tables. `Zap` selects the entries that are removed.
//!
//! A zap takes the lock of one table at a time and records the frames in a gather. The gather flushes before
//! it releases a frame. Tables stay linked during a zap: only `discard_with_tables` reclaims empty tables,
//! and `space.rs` unlinks the tables of a removed mapping. Munmap, exit, truncation and MADV_DONTNEED all
//! remove pages here. `tests/munmap/` and `tests/files/` of `freehold` test zaps. A further choice of entries
//! is a field of [`Zap`] with its case in the visitor `Zapper`.
#![expect(unsafe_code, reason = "reclaims tables")]

use crate::{
    Memory, MigrationEntry, PAGE_SIZE, Pfn, Rss, SwapMark, UserRange, VmGather, VmSpace,
    frame::MIGRATION_RSS, platform::Platform, swap_entry::release_slot,
};
use alloc::vec::Vec;
use core::ops::ControlFlow;
use freehold_pagetable::{
    ENTRIES, Kind, LargeLeafPolicy, LeafGuard, Level, MarkerKind, Pte, PteFlags, PteGuard, UnmappedFrame,
    VaRange, VirtAddr, Visitor, ZapEntry,
};

/// The entries and pages that a zap removes.
#[derive(Clone, Copy, Debug)]
pub struct Zap {
    /// True if stores reach a file. The dirty bit of an entry must then not be lost.
    shared: bool,
    /// True if guard markers are kept.
    keep_guards: bool,
    /// True if write protection by a userfaultfd is kept, as a marker.
    keep_wp: bool,
    /// True if private copies are kept, so that the zap removes only pages of the file itself. Truncation
    /// uses this for pages that were never copied.
    file_pages_only: bool,
}

impl Zap {
    /// Selects everything, including guard markers. `shared` says that stores reach a file.
    pub fn new(shared: bool) -> Self {
        Zap { shared, keep_guards: false, keep_wp: false, file_pages_only: false }
    }

    /// Keeps guard markers.
    #[inline]
    pub fn keep_guards(self) -> Self {
        Zap { keep_guards: true, ..self }
    }

    /// Returns true if private copies are kept.
    #[inline]
    pub fn keeps_private_copies(self) -> bool {
        self.file_pages_only
    }

    /// Returns true if write protection by a userfaultfd is kept.
    #[inline]
    pub fn keeps_wp(self) -> bool {
        self.keep_wp
    }

    /// Sets whether write protection by a userfaultfd is kept. If the protection is kept, a protected page is
    /// protected again when it is mapped again.
    #[inline]
    pub fn keep_wp(self, keep: bool) -> Self {
        Zap { keep_wp: keep, ..self }
    }

    /// Selects only pages of the mapped file. Keeps guard markers.
    #[inline]
    pub fn file_pages_only(self) -> Self {
        Zap { file_pages_only: true, keep_guards: true, ..self }
    }
}

/// A visitor that clears the selected entries.
struct Zapper<'z, 'v, P: Platform> {
    zap: Zap,
    memory: &'z Memory<P>,
    gather: &'z mut VmGather<'v, P>,
    /// Change of the counts of resident pages; never positive.
    rss: Rss,
}

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Clears every entry of `range` that `zap` selects, and adds the frames to `gather`.
    ///
    /// # Locks
    ///
    /// The caller keeps the tables of the range linked: it holds the mmap lock, a VMA's lock or a lock of the
    /// reverse map, or the range is detached and belongs to the caller. Takes the lock of each table, one
    /// after the other.
    pub fn zap(&self, range: UserRange, zap: Zap, gather: &mut VmGather<'_, P>) {
        if range.is_empty() {
            return;
        }
        let mut zapper = Zapper { zap, memory: self.memory(), gather, rss: Rss::default() };
        // Cannot fail: a large leaf is split with the table deposited for it, so every leaf is removed.
        let walked = self.walk(range.va(), &mut zapper);
        debug_assert!(walked.is_ok(), "a zap ran out of memory");
        self.count_rss(&zapper.rss);
    }

    /// Zaps `range` and flushes. The caller holds a lock under which the VMA stays: the mmap lock, the VMA's
    /// lock, or an rmap lock of a tree that contains the VMA.
    pub fn discard(&self, range: UserRange, zap: Zap) {
        self.discard_then(range, zap, |_| {});
    }

    /// Zaps `range`, [reclaims](freehold_pagetable::reclaim) the tables that became empty, and flushes.
    ///
    /// # Locks
    ///
    /// The caller holds the mmap lock or the lock of the VMA that contains `range`.
    pub fn discard_with_tables(&self, range: UserRange, zap: Zap) {
        self.discard_then(range, zap, |gather| self.reclaim_tables(range, gather));
    }

    /// Zaps `range` with a gather of its own, calls `then` before the flush, and flushes.
    fn discard_then(&self, range: UserRange, zap: Zap, then: impl FnOnce(&mut VmGather<'_, P>)) {
        let mut room = Vec::new();
        let mut gather = self.gather(range.va());
        self.set_gather_buffer(&mut gather, &mut room, range);
        self.zap(range, zap, &mut gather);
        then(&mut gather);
        gather.finish();
    }

    /// Unlinks the empty tables of the lowest level whose whole span lies in `range`. This is a separate
    /// walk, so that other zaps do not pay for it.
    fn reclaim_tables(&self, range: UserRange, gather: &mut VmGather<'_, P>) {
        const SPAN: u64 = Level::Pte.table_span();
        let (start, end) = (range.start().next_multiple_of(SPAN), range.end() - range.end() % SPAN);
        if start < end {
            let walked = self.walk(UserRange::new(start, end).va(), &mut Reclaimer { gather });
            debug_assert!(walked.is_ok(), "reclaiming tables ran out of memory");
        }
    }
}

impl<P: Platform> Zapper<'_, '_, P> {
    /// Subtracts one from the count of mappings of the frame `pfn`, and `pages` from the count of resident
    /// pages of its kind.
    fn unmap(&mut self, pfn: Pfn, pages: u64) {
        let frame = self.memory.platform().frame(pfn);
        frame.sub_map();
        self.rss.add(frame.kind(), -(pages as i64));
    }
}

/// A visitor that unlinks empty tables whose whole span lies in the range.
struct Reclaimer<'z, 'v, P: Platform> {
    gather: &'z mut VmGather<'v, P>,
}

impl<P: Platform> Visitor<P::Format, P> for Reclaimer<'_, '_, P> {
    const LARGE: LargeLeafPolicy = LargeLeafPolicy::Skip;

    fn unlocked(&mut self, _: VaRange) {
        // Make room for the table that is about to be reclaimed.
        self.gather.make_capacity(0);
    }

    fn table(&mut self, table: PteGuard<'_, P::Format, P>, _: VaRange) -> ControlFlow<()> {
        // SAFETY: the walk found the table linked. The caller of `discard_with_tables` holds the mmap lock or
        // the VMA's lock. Every other task that finds the table locks it by `lock_linked`, or holds a lock
        // that excludes this caller. Tasks that unlink tables hold such a lock. The gather belongs to this
        // space.
        unsafe { table.reclaim(self.gather) };
        ControlFlow::Continue(())
    }

    fn large(&mut self, _: LeafGuard<'_, P::Format, P>, _: VaRange) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

impl<P: Platform> Visitor<P::Format, P> for Zapper<'_, '_, P> {
    // A huge page that the range covers partly is split with the table deposited for it.
    const LARGE: LargeLeafPolicy = LargeLeafPolicy::SplitPart;

    fn unlocked(&mut self, range: VaRange) {
        // Requests no more capacity than the range can need. So a range that lies in two tables, but has no
        // more pages than one table, is flushed once.
        self.gather.make_capacity((range.len() / PAGE_SIZE).min(ENTRIES as u64) as usize);
    }

    fn table(&mut self, mut table: PteGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        let (zap, memory) = (self.zap, self.memory);
        let platform = memory.platform();
        let mut rss = Rss::default();
        // All cases are in one loop because it runs once per page. The common case is an anonymous frame.
        let gather = &mut *self.gather;
        table.zap_each(range, gather, |_: VirtAddr, slot: &mut ZapEntry<'_, P::Format>, gather| {
            let pte = slot.pte();
            let Kind::Leaf { pfn, flags } = pte.kind(Level::Pte) else {
                if !(zap.keep_guards
                    && matches!(pte.kind(Level::Pte), Kind::Marker { kind: MarkerKind::Guard, .. }))
                {
                    match pte.kind(Level::Pte) {
                        // These markers replace a private page, or a page that the file no longer has.
                        Kind::Marker {
                            kind: MarkerKind::Migration | MarkerKind::Poison | MarkerKind::Swap,
                            ..
                        } if zap.file_pages_only => {
                            return;
                        }
                        Kind::Marker { kind: MarkerKind::UffdWp, .. } if zap.keep_wp => return,
                        Kind::Marker { kind: MarkerKind::Migration, payload } => {
                            rss.add(MIGRATION_RSS, -1);
                            if zap.keep_wp && MigrationEntry::of(payload).uffd_wp {
                                slot.replace(Pte::marker(MarkerKind::UffdWp, 0));
                                return;
                            }
                        }
                        Kind::Marker { kind: MarkerKind::Swap, payload } => {
                            release_slot(memory.swap_slots(), payload, &mut rss, gather);
                            if zap.keep_wp && SwapMark::of(payload).uffd_wp {
                                slot.replace(Pte::marker(MarkerKind::UffdWp, 0));
                                return;
                            }
                        }
                        _ => {}
                    }
                    slot.clear();
                }
                return;
            };
            if flags.contains(PteFlags::SPECIAL) {
                slot.clear();
                return;
            }
            let frame = platform.frame(pfn);
            let mut what = UnmappedFrame::new(pfn, Level::Pte);
            let marked = zap.keep_wp && flags.contains(PteFlags::UFFD_WP);
            if frame.is_anon() {
                if zap.file_pages_only {
                    return;
                }
                // No task will access the page again: accessed and dirty bits may be lost.
                if marked {
                    slot.replace(Pte::marker(MarkerKind::UffdWp, 0));
                } else {
                    slot.clear();
                }
                rss.anon -= 1;
            } else {
                let old = match (marked, zap.shared) {
                    (true, _) => slot.replace(Pte::marker(MarkerKind::UffdWp, 0)),
                    (false, true) => slot.take(),
                    (false, false) => {
                        slot.clear();
                        pte
                    }
                };
                if zap.shared && old.flags().contains(PteFlags::DIRTY) {
                    // The bit is set now, for a concurrent write-back, and again after the flush, because
                    // stores continue until the flush. The frame is usually dirty already.
                    if !frame.is_dirty() {
                        memory.set_dirty_late(frame);
                    }
                    what = what.dirty();
                }
                if flags.contains(PteFlags::ACCESSED) {
                    // Reclaim may not have tested the page since. The next process that maps it is likely to
                    // use it again.
                    frame.mark_accessed();
                }
                rss.add(frame.kind(), -1);
            }
            frame.sub_map();
            gather.add_unmapped(what);
        });
        self.rss.anon += rss.anon;
        self.rss.file += rss.file;
        self.rss.shmem += rss.shmem;
        self.rss.swap += rss.swap;
        ControlFlow::Continue(())
    }

    fn large(&mut self, mut leaf: LeafGuard<'_, P::Format, P>, _: VaRange) -> ControlFlow<()> {
        let level = leaf.level();
        leaf.close(self.gather);
        let old = leaf.take(self.gather);
        let spare = leaf.withdraw();
        if let Kind::Leaf { pfn, flags } = old.kind(level)
            && !flags.contains(PteFlags::SPECIAL)
        {
            for n in 0..level.frames() {
                self.unmap(pfn.add(n), 1);
            }
            self.gather.add_frame(pfn, level);
        }
        // The table deposited for a split is not needed. It is freed after the lock is released.
        drop(leaf);
        drop(spare);
        ControlFlow::Continue(())
    }
}
