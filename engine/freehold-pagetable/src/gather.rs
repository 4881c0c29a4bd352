//! The gather: what a change of the tables owes before it is finished.
//!
//! The removal of translations or rights leaves three debts, to be paid in this order: flush the TLBs; give
//! up the frames that were mapped; free the tables that were unlinked. A [`Gather`] collects all three and
//! pays them in batches, in room of its own. A flush that interrupts other processors costs each of them more
//! than it costs the one that asks: for large ranges a caller gives the gather [more
//! room](Gather::use_buffer).
//!
//! # Two gathers at once (hazard C-4)
//!
//! A thread may find an entry already empty because another gather cleared it and has not flushed yet. It
//! must not report "done" on the other's promise. So every gather counts itself in the space's
//! [`GatherState`] before its first change, and a gather that finds another one counted when it finishes
//! flushes everything, walk caches included.
//!
//! | pending | state |
//! | --- | --- |
//! | 0 | nothing that was changed is unflushed |
//! | n | n gathers have changed, or are about to change, entries that they have not flushed |
//!
//! Why that is enough: a clears an entry, b finds it empty. a counted itself before it cleared, and b saw
//! the clear through the table's lock or an acquire load, so b also sees the count, unless a has left
//! again; and a leaves only after its flush, so then there is nothing stale.

#![expect(unsafe_code, reason = "frees tables, of which it knows that nothing leads to them")]

use crate::addr::{Level, Pfn, VaRange, VirtAddr};
use crate::table::StaleTranslations;
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use freehold_sync::atomic::{AtomicU32, Ordering};

/// What has to vanish from the TLBs of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// The first address.
    pub start: VirtAddr,
    /// The address after the last.
    pub end: VirtAddr,
    /// Everything, whatever `start` and `end` say.
    pub all: bool,
    /// Tables were unlinked: what the walk caches hold of the range must vanish as well, and walkers that
    /// use no lock must have gone when the flush returns.
    pub tables_freed: bool,
}

/// A frame whose mapping was removed, and how large the mapping was.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct UnmappedFrame(u64);

impl UnmappedFrame {
    /// Bits of the level; above them one that says whether the entry was dirty, then the frame.
    const LEVEL_BITS: u32 = 3;
    const DIRTY: u64 = 1 << Self::LEVEL_BITS;
    const SHIFT: u32 = Self::LEVEL_BITS + 1;

    /// The mapping of `pfn` by a leaf of `level`.
    #[inline]
    pub const fn new(pfn: Pfn, level: Level) -> Self {
        UnmappedFrame(pfn.get() << Self::SHIFT | level.number() as u64)
    }

    /// The first frame.
    #[inline]
    pub const fn pfn(self) -> Pfn {
        Pfn::new(self.0 >> Self::SHIFT)
    }

    /// The level of the leaf.
    #[inline]
    pub const fn level(self) -> Level {
        Level::from_number(self.0 as usize & ((1 << Self::LEVEL_BITS) - 1))
    }

    /// The same, of an entry that was dirty. The owner of the contents is told after the flush, since until
    /// then processors may store through what they remember.
    #[inline]
    #[must_use]
    pub const fn dirty(self) -> Self {
        UnmappedFrame(self.0 | Self::DIRTY)
    }

    /// Whether the entry was dirty.
    #[inline]
    pub const fn is_dirty(self) -> bool {
        self.0 & Self::DIRTY != 0
    }
}

impl core::fmt::Debug for UnmappedFrame {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?} ({:?})", self.pfn(), self.level())
    }
}

/// Where a gather pays its debts.
pub trait Tlb {
    /// Removes translations; returns when no processor can use one that `what` covers.
    fn flush(&self, what: &Flush);

    /// Gives up what these mappings held. Called after the flush that covers them, with no table locked
    /// by the gather.
    fn release(&self, frames: &[UnmappedFrame]);

    /// Frees unlinked, empty tables.
    ///
    /// # Safety
    ///
    /// They are tables of the space that this is for, nothing leads to them any more, and what was
    /// [flushed](Self::flush) since covers them.
    unsafe fn free_tables(&self, tables: &[Pfn]);

    /// Whether this thread is unwinding from a panic, where a host has such a thing: a gather that is
    /// dropped then does not complain that it was lost.
    fn is_unwinding(&self) -> bool {
        false
    }
}

/// How many gathers of one space are under way. A space has one; zeroed is none.
#[repr(align(64))]
#[derive(Debug)]
pub struct GatherState {
    /// See the [module](self)'s table. Own cache line: only gathers write it.
    pending: AtomicU32,
}

impl GatherState {
    /// None under way.
    pub fn new() -> Self {
        GatherState { pending: AtomicU32::new(0) }
    }

    fn enter(&self) {
        // Orders nothing by itself: the clear that follows is a release, and published by the table's unlock
        // as well, and the count is sequenced before it. See `others`.
        self.pending.fetch_add(1, Ordering::Relaxed);
    }

    fn leave(&self) {
        // Release, pairs with the acquire in `others`: a gather that no longer sees this one sees its flush
        // done.
        let before = self.pending.fetch_sub(1, Ordering::Release);
        debug_assert!(before > 0, "a gather left that never entered");
    }

    fn others(&self, own: u32) -> bool {
        // Acquire, pairs with `leave`. Reading a count without some other gather means that it left (its
        // flush is then complete for us) or has not entered, and then it cleared nothing that we saw.
        self.pending.load(Ordering::Acquire) > own
    }
}

impl Default for GatherState {
    fn default() -> Self {
        Self::new()
    }
}

/// Tables that a gather holds before it must flush.
const MAX_TABLES: usize = 32;

/// A change of a space's tables in progress. `FRAMES` is how many frames it holds before it must flush.
///
/// Must be [finished](Gather::finish). Dropping one that still owes something panics in test
/// builds, and pays in others.
#[must_use = "a gather owes a flush until it is finished"]
pub struct Gather<'a, T: Tlb, const FRAMES: usize = 512> {
    tlb: &'a T,
    /// `None`: nobody else can touch the range.
    state: Option<&'a GatherState>,
    entered: bool,
    /// What was changed since the last flush; empty is `start == u64::MAX`.
    start: VirtAddr,
    end: VirtAddr,
    tables_freed: bool,
    frames: ArrayVec<UnmappedFrame, FRAMES>,
    /// What was in `frames` before, since the last flush.
    kept: Option<&'a mut Vec<UnmappedFrame>>,
    /// How many small pages these are, and how many they may be.
    kept_pages: u64,
    max_kept_pages: u64,
    tables: ArrayVec<Pfn, MAX_TABLES>,
}

impl<'a, T: Tlb, const FRAMES: usize> Gather<'a, T, FRAMES> {
    /// A gather beside which others may run in the same space. Writes nothing shared until something is
    /// changed.
    #[inline]
    pub fn new(tlb: &'a T, state: &'a GatherState) -> Self {
        Self::with(tlb, Some(state))
    }

    /// A gather for a range that no other gather can touch, now or before it is finished: a space that
    /// nobody else uses. It takes no part in the overlap rule.
    #[inline]
    pub fn exclusive(tlb: &'a T) -> Self {
        Self::with(tlb, None)
    }

    #[inline]
    fn with(tlb: &'a T, state: Option<&'a GatherState>) -> Self {
        Gather {
            tlb,
            state,
            entered: false,
            start: VirtAddr::new(u64::MAX),
            end: VirtAddr::new(0),
            tables_freed: false,
            frames: ArrayVec::new(),
            kept: None,
            kept_pages: 0,
            max_kept_pages: 0,
            tables: ArrayVec::new(),
        }
    }

    /// How many more frames fit before a flush.
    #[inline]
    pub fn remaining_capacity(&self) -> usize {
        self.frames.remaining_capacity()
    }

    /// Hands over a frame whose mapping was removed, to be released after the flush.
    ///
    /// # Panics
    /// When there is no [`remaining_capacity`](Self::remaining_capacity): a frame must not be lost.
    #[inline]
    pub fn add_frame(&mut self, pfn: Pfn, level: Level) {
        self.add_unmapped(UnmappedFrame::new(pfn, level));
    }

    /// As [`add_frame`](Self::add_frame), with what else is known of the mapping.
    ///
    /// # Panics
    /// As [`add_frame`](Self::add_frame).
    #[inline]
    pub fn add_unmapped(&mut self, what: UnmappedFrame) {
        self.frames.push(what);
    }

    /// Where the gather's own room does not do, frames of up to `most` small pages go to `kept`, before there
    /// is a flush for them. It is empty now, and gets its memory then; without memory all goes on as before.
    ///
    /// # Panics
    /// When `kept` is not empty, or frames are kept elsewhere: they would be released without a flush, or
    /// never.
    #[inline]
    pub fn use_buffer(&mut self, kept: &'a mut Vec<UnmappedFrame>, most: u64) {
        assert!(kept.is_empty() && self.kept_pages == 0, "frames that are not this gather's to keep");
        self.kept = Some(kept);
        self.max_kept_pages = most;
    }

    /// Has what is there kept, or flushes and pays, if fewer than `frames` fit, or no table. Call it with no
    /// table locked: it waits for other processors.
    #[inline]
    pub fn make_capacity(&mut self, frames: usize) {
        debug_assert!(frames <= FRAMES, "this gather is too small for one table");
        if self.remaining_capacity() < frames || self.tables.is_full() {
            self.keep_or_release();
        }
    }

    #[inline(never)]
    fn keep_or_release(&mut self) {
        if self.tables.is_full() || !self.keep() {
            self.flush_and_release();
        }
    }

    /// Has what is there kept, if that may be, and returns whether it could.
    fn keep(&mut self) -> bool {
        let Some(kept) = &mut self.kept else { return false };
        let sizes = self.frames.iter().map(|frame| frame.level().frames());
        let pages = self.kept_pages + sizes.sum::<u64>();
        let room = self.max_kept_pages as usize - kept.len();
        if pages > self.max_kept_pages || kept.try_reserve_exact(room).is_err() {
            return false;
        }
        kept.extend_from_slice(&self.frames);
        self.frames.clear();
        self.kept_pages = pages;
        true
    }

    /// Hands over a table that was just unlinked.
    pub(crate) fn add_table(&mut self, table: Pfn, span: VaRange) {
        self.add_changed(span, true);
        self.tables.push(table);
        if self.tables.is_full() {
            self.flush_and_release();
        }
    }

    /// Hands over a table of the lowest level that was just [reclaimed](crate::reclaim), whose lock the
    /// caller holds: so nothing is flushed here.
    ///
    /// # Panics
    /// When there is no room, which [`make_capacity`](Self::make_capacity) makes.
    pub(crate) fn add_reclaimed_table(&mut self, table: Pfn, span: VaRange) {
        self.add_changed(span, true);
        self.tables.push(table);
    }

    /// Flushes what was changed up to now, without giving anything up. With locks held this is how a
    /// moved entry's old translation vanishes before the lock is let go (hazard C-39); the platform must
    /// then be able to flush while another processor spins for that lock.
    pub fn flush(&mut self) {
        if self.has_pending_flush() {
            self.tlb.flush(&Flush {
                start: self.start,
                end: self.end,
                all: false,
                tables_freed: self.tables_freed,
            });
            self.clear_range();
        }
    }

    /// Pays everything: flushes, releases the frames, frees the tables. Where nothing was changed and no
    /// other gather is under way, that costs one load.
    ///
    /// The gather owes nothing afterwards, like a new one. (It is not taken by value because moving its few
    /// KiB costs more than all the rest of a small change.)
    #[inline]
    pub fn finish(&mut self) {
        let overlaps = self.state.is_some_and(|state| state.others(u32::from(self.entered)));
        if overlaps || self.has_pending() {
            self.finish_pending(overlaps);
        }
    }

    /// Finishes a gather that has something pending, or that `overlaps` another one.
    fn finish_pending(&mut self, overlaps: bool) {
        if overlaps {
            self.tlb.flush(&Flush {
                start: VirtAddr::new(0),
                end: VirtAddr::new(u64::MAX),
                all: true,
                tables_freed: true,
            });
            self.clear_range();
        } else {
            self.flush();
        }
        if core::mem::take(&mut self.entered)
            && let Some(state) = self.state
        {
            state.leave();
        }
        self.release_and_free();
    }

    #[inline]
    fn has_pending(&self) -> bool {
        let keeps = self.kept.as_ref().is_some_and(|kept| !kept.is_empty());
        let holds = keeps || !self.frames.is_empty() || !self.tables.is_empty();
        self.entered || self.has_pending_flush() || holds
    }

    #[inline]
    fn has_pending_flush(&self) -> bool {
        self.start.get() != u64::MAX || self.tables_freed
    }

    fn clear_range(&mut self) {
        self.start = VirtAddr::new(u64::MAX);
        self.end = VirtAddr::new(0);
        self.tables_freed = false;
    }

    // Not inlined: it would take registers away from what is done for each page.
    #[inline(never)]
    fn flush_and_release(&mut self) {
        self.flush();
        self.release_and_free();
    }

    /// Gives up what no processor can reach any more.
    #[inline]
    fn release_and_free(&mut self) {
        debug_assert!(!self.has_pending_flush(), "what is given up may still be reached");
        if let Some(kept) = &mut self.kept
            && !kept.is_empty()
        {
            self.tlb.release(kept);
            kept.clear();
            self.kept_pages = 0;
        }
        if !self.frames.is_empty() {
            self.tlb.release(&self.frames);
            self.frames.clear();
        }
        if !self.tables.is_empty() {
            // SAFETY: unlinked by `unlink_tables` or `reclaim`, which hand each table to one gather, and
            // flushed above. A task that found a reclaimed table before only does what `TableMemory` allows
            // of a free one.
            unsafe { self.tlb.free_tables(&self.tables) };
            self.tables.clear();
        }
    }
}

impl<T: Tlb, const FRAMES: usize> StaleTranslations for Gather<'_, T, FRAMES> {
    #[inline]
    fn begin_change(&mut self) {
        if !self.entered {
            self.entered = true;
            if let Some(state) = self.state {
                state.enter();
            }
        }
    }

    #[inline]
    fn add_changed(&mut self, span: VaRange, tables: bool) {
        self.start = self.start.min(span.start());
        self.end = self.end.max(span.end());
        self.tables_freed |= tables;
    }
}

impl<T: Tlb, const FRAMES: usize> Drop for Gather<'_, T, FRAMES> {
    #[inline]
    fn drop(&mut self) {
        if self.has_pending() && !self.tlb.is_unwinding() {
            debug_assert!(false, "a gather was dropped before it was finished");
            self.finish();
        }
    }
}
