//! Taking pages away that the program can do without, for MADV_PAGEOUT and for embedders that are short of
//! memory.
//!
//! Two kinds of pages can be taken. A *discardable* page is anonymous, and its contents are not needed. A
//! page of a page cache leaves the page table only; the cache has the contents. A page stays if any other
//! entry maps it, and a discardable page stays if any other task has a reference to it: a pin, or a transfer
//! in progress.
//!
//! All conditions are checked under the lock of the page's table. A task raises the count of an anonymous
//! page that only one entry maps only under this lock (`frame/mod.rs`), so the count stays during the check.
//! The hardware sets the dirty bit without the lock, so the entry is taken by an exchange, and restored if
//! the exchange returns the bit. A TLB serves a store only if the entry in memory was dirty, and MADV_FREE
//! flushes after it clears dirty bits, so no store is lost. Other tasks skip an empty entry only under the
//! lock, so none skips an entry that is about to be restored (hazard C-61).
//!
//! `call/madvise/pageout.rs` of `freehold` calls this file. `tests/pageout.rs` of `freehold` tests it, and
//! `shuttle_engine/pageout.rs` explores evictions concurrent with stores, pins, fork and moves.

use crate::{PAGE_SIZE, Rss, UserRange, VirtAddr, VmGather, VmSpace, frame::Frame, platform::Platform};
use arrayvec::ArrayVec;
use core::ops::ControlFlow;
use freehold_pagetable::{
    ENTRIES, Kind, LargeLeafPolicy, LeafGuard, Level, MarkerKind, Pfn, Pte, PteFlags, PteGuard,
    UnmappedFrame, VaRange, Visitor, Walked,
};

/// Maximum number of pages of page caches that are unmapped before a flush. Not all pages of a table, because
/// the callers have little stack.
const CACHED: usize = 128;

/// The anonymous pages whose contents are not needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discardable {
    /// Pages that were freed lazily and not written since.
    LazilyFreed,
    /// All pages: the memory is droppable.
    All,
}

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Frees the discardable pages of `range`, which lies in a VMA of anonymous memory. Returns their number.
    /// Frees none if a listener of the space refuses the change: an eviction does not wait for a device,
    /// which may wait for memory.
    ///
    /// A huge page is freed if the range covers it and all of it is discardable. A huge page of which the
    /// range covers a part is split.
    ///
    /// # Locks
    ///
    /// The locks of [`zap`](Self::zap).
    pub fn evict_discardable(&self, range: UserRange, which: Discardable) -> u64 {
        self.evict_anon::<ENTRIES>(range, which)
    }

    /// Frees the page at `address` if it is discardable, like [`evict_discardable`](Self::evict_discardable),
    /// but needs less stack. A huge page is split.
    ///
    /// # Locks
    ///
    /// The locks of [`zap`](Self::zap).
    pub fn evict_discardable_page(&self, address: VirtAddr, which: Discardable) -> u64 {
        self.evict_anon::<1>(UserRange::page(address.get()), which)
    }

    /// Implements [`evict_discardable`](Self::evict_discardable). `range` has at most `FRAMES` pages of each
    /// table.
    // Not inlined, because the gather would make the stack of the caller large.
    #[inline(never)]
    fn evict_anon<const FRAMES: usize>(&self, range: UserRange, which: Discardable) -> u64 {
        let evicted = self.try_change(range.va(), |gather: &mut VmGather<'_, P, FRAMES>| {
            let mut evictor = AnonEvictor { vm: self, which, gather, pages: 0 };
            // Cannot fail: a table is deposited for the split of each huge page.
            let walked = self.walk(range.va(), &mut evictor);
            debug_assert!(walked.is_ok(), "an eviction ran out of memory");
            self.count_rss(&Rss { anon: -(evictor.pages as i64), ..Rss::default() });
            evictor.pages
        });
        evicted.unwrap_or(0)
    }

    /// Unmaps the pages of page caches in `range` that no other entry maps, and appends their addresses to
    /// `runs`, ascending. Returns the address at which to continue: the end of the range, or the first page
    /// for which there was no room. With `keep_wp`, markers keep the write protection by a userfaultfd.
    /// Unmaps none if a listener of the space refuses the change.
    ///
    /// # Locks
    ///
    /// The locks of [`zap`](Self::zap).
    pub fn evict_cached<const RUNS: usize>(
        &self,
        range: UserRange,
        keep_wp: bool,
        runs: &mut ArrayVec<UserRange, RUNS>,
    ) -> u64 {
        let next = self.try_change(range.va(), |gather| {
            let (rss, next) = (Rss::default(), range.end());
            let mut evictor = CachedEvictor { vm: self, keep_wp, gather, rss, runs, next };
            let walked = self.walk(range.va(), &mut evictor);
            debug_assert!(matches!(walked, Ok(Walked::All | Walked::Stopped(_))), "file pages are not split");
            self.count_rss(&evictor.rss);
            evictor.next
        });
        next.unwrap_or(range.end())
    }

    /// Appends the frames of the anonymous pages in `range` that no other entry maps to `pfns`, in ascending
    /// order of their addresses. Returns the address at which to continue: the end of the range, or the first
    /// page for which `pfns` had no room. A page may go elsewhere as soon as the walk has left its table.
    ///
    /// # Locks
    ///
    /// The locks of [`zap`](Self::zap).
    pub fn unshared_pages<const PAGES: usize>(
        &self,
        range: UserRange,
        pfns: &mut ArrayVec<Pfn, PAGES>,
    ) -> u64 {
        let mut finder = UnsharedFinder { vm: self, pfns, next: range.end() };
        let walked = self.walk(range.va(), &mut finder);
        debug_assert!(matches!(walked, Ok(Walked::All | Walked::Stopped(_))), "no page is split");
        finder.next
    }
}

/// Returns the addresses of the pages of a part of a table.
fn pages(range: VaRange) -> impl Iterator<Item = VirtAddr> {
    (range.start().get()..range.end().get()).step_by(PAGE_SIZE as usize).map(VirtAddr::new)
}

/// A visitor that frees discardable pages.
struct AnonEvictor<'g, 'v, P: Platform, const FRAMES: usize> {
    vm: &'v VmSpace<P>,
    which: Discardable,
    gather: &'g mut VmGather<'v, P, FRAMES>,
    /// Number of freed pages.
    pages: u64,
}

impl<P: Platform, const FRAMES: usize> AnonEvictor<'_, '_, P, FRAMES> {
    /// Returns true if the contents of the page are not needed, except for stores that its entry records.
    /// The entry's table is locked.
    fn may_discard(&self, frame: &Frame) -> bool {
        let unneeded = match self.which {
            Discardable::LazilyFreed => frame.is_lazily_freed() && !frame.is_dirty(),
            Discardable::All => true,
        };
        unneeded && frame.is_anon() && frame.refs() == 1
    }

    /// Returns true if the entry records a store that must not be lost.
    fn is_needed(&self, pte: Pte<P::Format>) -> bool {
        self.which == Discardable::LazilyFreed && pte.flags().contains(PteFlags::DIRTY)
    }

    /// Frees the page at `address` if it is discardable.
    fn evict(&mut self, table: &mut PteGuard<'_, P::Format, P>, address: VirtAddr) {
        let pte = table.get(address);
        let Kind::Leaf { pfn, flags } = pte.kind(Level::Pte) else { return };
        if flags.contains(PteFlags::SPECIAL) || self.is_needed(pte) {
            return;
        }
        let frame = self.vm.platform().frame(pfn);
        if !self.may_discard(frame) {
            return;
        }
        let old = table.take(address, self.gather);
        if self.is_needed(old) {
            // Written since it was read above.
            table.set(address, old);
            return;
        }
        frame.sub_map();
        self.gather.add_frame(pfn, Level::Pte);
        self.pages += 1;
    }
}

impl<P: Platform, const FRAMES: usize> Visitor<P::Format, P> for AnonEvictor<'_, '_, P, FRAMES> {
    const LARGE: LargeLeafPolicy = LargeLeafPolicy::SplitPart;

    fn unlocked(&mut self, range: VaRange) {
        self.gather.make_capacity((range.len() / PAGE_SIZE).min(ENTRIES as u64) as usize);
    }

    fn table(&mut self, mut table: PteGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        pages(range).for_each(|address| self.evict(&mut table, address));
        ControlFlow::Continue(())
    }

    fn large(&mut self, mut leaf: LeafGuard<'_, P::Format, P>, _: VaRange) -> ControlFlow<()> {
        let (level, pte) = (leaf.level(), leaf.pte());
        let Kind::Leaf { pfn, flags } = pte.kind(level) else { return ControlFlow::Continue(()) };
        let frame = |n: u64| self.vm.platform().frame(pfn.add(n));
        if flags.contains(PteFlags::SPECIAL)
            || !(0..level.frames()).all(|n| self.may_discard(frame(n)))
            || self.is_needed(pte)
        {
            return ControlFlow::Continue(());
        }
        // An empty entry cannot be restored, because another task may link a table there. So the entry first
        // loses the right to write. After the flush no processor can make it dirty.
        leaf.change(self.gather, |pte| pte.with_flags(level, pte.flags() - PteFlags::WRITE));
        self.gather.flush();
        if self.is_needed(leaf.pte()) {
            leaf.grant(flags & PteFlags::WRITE);
            return ControlFlow::Continue(());
        }
        leaf.close(self.gather);
        leaf.take(self.gather);
        // The table that was deposited for a split is freed after the lock is released.
        let spare = leaf.withdraw();
        (0..level.frames()).for_each(|n| frame(n).sub_map());
        self.gather.add_frame(pfn, level);
        self.pages += level.frames();
        drop(leaf);
        drop(spare);
        ControlFlow::Continue(())
    }
}

/// A visitor that unmaps pages of page caches.
struct CachedEvictor<'r, 'v, P: Platform, const RUNS: usize> {
    vm: &'v VmSpace<P>,
    /// True if write protection by a userfaultfd is kept, as a marker.
    keep_wp: bool,
    gather: &'r mut VmGather<'v, P, CACHED>,
    /// Change of the counts of resident pages; never positive.
    rss: Rss,
    /// The unmapped pages.
    runs: &'r mut ArrayVec<UserRange, RUNS>,
    /// The address at which to continue.
    next: u64,
}

impl<P: Platform, const RUNS: usize> CachedEvictor<'_, '_, P, RUNS> {
    /// Adds a page to the unmapped pages. Returns false if there is no room.
    fn record(&mut self, page: UserRange) -> bool {
        match self.runs.last_mut() {
            Some(last) if last.end() == page.start() => {
                *last = last.with_end(page.end());
                true
            }
            _ => self.runs.try_push(page).is_ok(),
        }
    }

    /// Returns the frame of an entry that can be unmapped: a page of a cache that no other entry maps.
    fn evictable(&self, pte: Pte<P::Format>) -> Option<Pfn> {
        let Kind::Leaf { pfn, flags } = pte.kind(Level::Pte) else { return None };
        if flags.contains(PteFlags::SPECIAL) {
            return None;
        }
        let frame = self.vm.platform().frame(pfn);
        (!frame.is_anon() && frame.maps() == 1).then_some(pfn)
    }
}

impl<P: Platform, const RUNS: usize> Visitor<P::Format, P> for CachedEvictor<'_, '_, P, RUNS> {
    const LARGE: LargeLeafPolicy = LargeLeafPolicy::Skip;

    fn unlocked(&mut self, _: VaRange) {
        // The pages of the table before this one are flushed if they are many.
        self.gather.make_capacity(CACHED / 2);
    }

    fn table(&mut self, mut table: PteGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        for address in pages(range) {
            let pte = table.get(address);
            let Some(pfn) = self.evictable(pte) else { continue };
            let has_room = self.gather.remaining_capacity() > 0;
            if !has_room || !self.record(UserRange::page(address.get())) {
                self.next = address.get();
                return ControlFlow::Break(());
            }
            let protected = self.keep_wp && pte.flags().contains(PteFlags::UFFD_WP);
            let instead = if protected { Pte::marker(MarkerKind::UffdWp, 0) } else { Pte::NONE };
            let old = table.replace(address, instead, self.gather);
            let (frame, mut what) = (self.vm.platform().frame(pfn), UnmappedFrame::new(pfn, Level::Pte));
            if old.flags().contains(PteFlags::DIRTY) {
                // As in a zap, the bit is set before the flush, for a concurrent write-back, and again after
                // the flush.
                frame.set_dirty();
                what = what.dirty();
            }
            self.rss.add(frame.kind(), -1);
            frame.sub_map();
            self.gather.add_unmapped(what);
        }
        ControlFlow::Continue(())
    }

    fn large(&mut self, _: LeafGuard<'_, P::Format, P>, _: VaRange) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// A visitor that finds the anonymous pages that no other entry maps.
struct UnsharedFinder<'r, 'v, P: Platform, const PAGES: usize> {
    vm: &'v VmSpace<P>,
    pfns: &'r mut ArrayVec<Pfn, PAGES>,
    /// The address at which to continue.
    next: u64,
}

impl<P: Platform, const PAGES: usize> UnsharedFinder<'_, '_, P, PAGES> {
    /// Adds the page that an entry of `level` maps at `address`, if it qualifies. Ends the walk if there is
    /// no room.
    fn add(&mut self, pte: Pte<P::Format>, level: Level, address: VirtAddr) -> ControlFlow<()> {
        let Kind::Leaf { pfn, flags } = pte.kind(level) else { return ControlFlow::Continue(()) };
        let pfn = pfn.add(address.frame_in_leaf(level));
        if flags.contains(PteFlags::SPECIAL) {
            return ControlFlow::Continue(());
        }
        let frame = self.vm.platform().frame(pfn);
        if !frame.is_anon() || frame.maps() != 1 {
            return ControlFlow::Continue(());
        }
        match self.pfns.try_push(pfn) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => {
                self.next = address.get();
                ControlFlow::Break(())
            }
        }
    }
}

impl<P: Platform, const PAGES: usize> Visitor<P::Format, P> for UnsharedFinder<'_, '_, P, PAGES> {
    const LARGE: LargeLeafPolicy = LargeLeafPolicy::Visit;

    fn table(&mut self, table: PteGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        pages(range).try_for_each(|address| self.add(table.get(address), Level::Pte, address))
    }

    fn large(&mut self, leaf: LeafGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        pages(range).try_for_each(|address| self.add(leaf.pte(), leaf.level(), address))
    }
}
