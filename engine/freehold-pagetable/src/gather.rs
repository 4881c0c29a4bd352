//! The gather: the work that a change of the tables must do before it is finished.
//!
//! The removal of translations or rights requires three steps, in this order: flush the TLBs, release the
//! frames that were mapped, and free the tables that were unlinked. A [`Gather`] collects this work in
//! storage of its own and does it in batches. A flush that interrupts other processors costs each interrupted
//! processor more than it costs the requesting processor. For large ranges, a caller therefore gives the
//! gather [a larger buffer](Gather::use_buffer). Frames in this buffer are *kept*: the gather has moved them
//! there instead of flushing, and releases them after the next flush.
//!
//! # Overlapping gathers (hazard C-4)
//!
//! A thread may find an empty entry that another gather has cleared and not flushed yet. The thread must not
//! report its own operation as done before that flush. So every gather counts itself in the space's
//! [`GatherState`] before its first change. If a gather finishes and finds another gather counted, it flushes
//! everything, including the walk caches.
//!
//! | pending | state |
//! | --- | --- |
//! | 0 | every change is flushed |
//! | n | n gathers are about to change entries, or have changed entries and not flushed the changes yet |
//!
//! This is sufficient for the following reason. Let gather A clear an entry that gather B finds empty. A
//! counted itself before A cleared the entry. B saw the cleared entry through the table's lock or an acquire
//! load. So B also sees that A is counted, unless A has already left. A leaves only after its flush, and then
//! there is no stale translation.
//!
//! `tests/gather.rs` tests the order of the work, and `tests/loom.rs` tests overlapping gathers.
//!
//! # Announced changes
//!
//! A device or a hypervisor may keep translations of its own, which no flush of a TLB removes. A gather for a
//! change that such a user must hear about is created after the [announcement](Gather::announced), and [ends
//! the change](Tlb::end_change) after its last flush. A change outside the announced range panics in test
//! builds.
//!
//! To add a kind of pending work, record it without a flush, count it in `has_pending`, and do it in
//! `release_and_free`. Frames are released and tables are freed only while the caller holds no table lock;
//! only [`Gather::flush`] may be called under a table lock.

#![expect(unsafe_code, reason = "frees tables that no entry points to")]

use crate::addr::{ENTRIES, Level, Levels, PAGE_SIZE, Pfn, VaRange, VirtAddr};
use crate::table::StaleTranslations;
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use freehold_sync::atomic::{AtomicU32, Ordering};

/// The translations to be removed from the TLBs of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// The first address.
    pub start: VirtAddr,
    /// The address after the last one to be flushed.
    pub end: VirtAddr,
    /// Set if everything is flushed; `start` and `end` are then ignored.
    pub all: bool,
    /// The levels of the entries that were changed, in the whole range. Each span of such an entry overlaps
    /// the range, and only translations of these levels have to be removed. On a format without
    /// [break-before-make](crate::Format::BREAK_BEFORE_MAKE), a TLB may also hold a larger translation of the
    /// range, which was split without a flush and has to be removed, too.
    pub levels: Levels,
    /// Set if tables were unlinked. The levels of their entries are in `levels`. The flush must then also
    /// empty the walk caches for the range, and must wait until lock-free walkers have left the tables.
    pub tables_freed: bool,
}

impl Flush {
    /// A flush of everything, after which tables may be freed.
    pub const EVERYTHING: Flush = Flush {
        start: VirtAddr::new(0),
        end: VirtAddr::new(u64::MAX),
        all: true,
        levels: Levels::ALL,
        tables_freed: true,
    };

    /// Returns the flush of one page of 4 KiB.
    #[inline]
    pub const fn page(address: VirtAddr) -> Self {
        Self::leaves(VaRange::entry(address, Level::Pte), Level::Pte)
    }

    /// Returns the flush of a range whose leaves of one level were changed.
    #[inline]
    pub const fn leaves(range: VaRange, level: Level) -> Self {
        Flush {
            start: range.start(),
            end: range.end(),
            all: false,
            levels: Levels::of(level),
            tables_freed: false,
        }
    }

    /// Returns the distance in bytes of the addresses to flush: `start`, `start` plus this distance, and so
    /// on. The distance is the span of the smallest entries that were changed, and `start` is a multiple of
    /// it. Each of these entries, and each larger translation that must be removed, contains one of the
    /// addresses.
    ///
    /// ```
    /// use freehold_pagetable::{Flush, Level, VaRange};
    ///
    /// let huge = Flush::leaves(VaRange::of(0, 4 << 20), Level::Pmd);
    /// assert_eq!((huge.stride(), huge.visits().len()), (2 << 20, 2));
    /// ```
    #[inline]
    pub const fn stride(&self) -> u64 {
        match self.levels.lowest() {
            Some(level) => level.span(),
            None => PAGE_SIZE,
        }
    }

    /// Returns the addresses to flush, in ascending order: one in each [stride](Self::stride) of the range.
    pub fn visits(&self) -> impl ExactSizeIterator<Item = VirtAddr> + use<> {
        let (first, end, stride) = (self.start.get(), self.end.get(), self.stride());
        let count = end.saturating_sub(first).div_ceil(stride) as usize;
        (0..count).map(move |n| VirtAddr::new(first + n as u64 * stride))
    }
}

/// A frame whose mapping was removed, and the level of the mapping.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct UnmappedFrame(u64);

impl UnmappedFrame {
    /// Number of bits for the level. The next bit says whether the entry was dirty. The bits above hold the
    /// frame.
    const LEVEL_BITS: u32 = 3;
    const DIRTY: u64 = 1 << Self::LEVEL_BITS;
    const SHIFT: u32 = Self::LEVEL_BITS + 1;

    /// Returns the value for a mapping of `pfn` by a leaf of `level`.
    #[inline]
    pub const fn new(pfn: Pfn, level: Level) -> Self {
        UnmappedFrame(pfn.get() << Self::SHIFT | level.number() as u64)
    }

    /// Returns the first frame.
    #[inline]
    pub const fn pfn(self) -> Pfn {
        Pfn::new(self.0 >> Self::SHIFT)
    }

    /// Returns the level of the leaf.
    #[inline]
    pub const fn level(self) -> Level {
        Level::from_number(self.0 as usize & ((1 << Self::LEVEL_BITS) - 1))
    }

    /// Returns the value for an entry that was dirty. The owner of the contents is notified after the flush,
    /// because processors may store through cached translations until then.
    #[inline]
    #[must_use]
    pub const fn dirty(self) -> Self {
        UnmappedFrame(self.0 | Self::DIRTY)
    }

    /// Returns true if the entry was dirty.
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

/// The receiver of the work of a gather.
pub trait Tlb {
    /// Removes translations. Returns when no processor can use a translation that `what` covers.
    fn flush(&self, what: &Flush);

    /// Releases the frames of these mappings. Called after the flush that covers these mappings, while the
    /// gather holds no table lock.
    fn release(&self, frames: &[UnmappedFrame]);

    /// Frees unlinked, empty tables.
    ///
    /// # Safety
    ///
    /// The tables belong to the space of this `Tlb`. No entry points to the tables any more, and a
    /// [flush](Self::flush) after the unlinking covers the tables.
    unsafe fn free_tables(&self, tables: &[Pfn]);

    /// Ends a change of `range` that was announced to users of translations that no flush reaches, for
    /// example devices. `heard` is the number that the gather [got](Gather::announced) for these users.
    fn end_change(&self, range: VaRange, heard: u32) {
        let _ = (range, heard);
    }

    /// Returns true if this thread is unwinding from a panic, on a host with unwinding. A gather that is
    /// dropped during unwinding does not panic.
    fn is_unwinding(&self) -> bool {
        false
    }
}

/// The number of unfinished gathers of one space. Each space has one `GatherState`. All bytes zero is a state
/// without gathers.
#[repr(align(64))]
#[derive(Debug)]
pub struct GatherState {
    /// The count; see the table in the [module](self). The count has a cache line of its own, so that writes
    /// of gathers do not slow accesses to the data next to it.
    pending: AtomicU32,
}

impl GatherState {
    /// Returns a state without gathers.
    pub fn new() -> Self {
        GatherState { pending: AtomicU32::new(0) }
    }

    /// Counts a gather, before its first change.
    fn enter(&self) {
        // Relaxed: this thread clears entries only after it has counted. Clearing an entry and unlocking its
        // table are releases, so they publish the count. See `others`.
        self.pending.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a gather from the count, after its last flush.
    fn leave(&self) {
        // Release: pairs with the acquire in `others`. Another gather that finds this gather no longer
        // counted also sees the effect of its flush.
        let before = self.pending.fetch_sub(1, Ordering::Release);
        debug_assert!(before > 0, "a gather leaves without having entered");
    }

    /// Returns true if a gather is counted besides the caller, which is counted `own` times (0 or 1).
    fn others(&self, own: u32) -> bool {
        // Acquire: pairs with `leave`. If the count does not include another gather, that gather has left or
        // has not entered. If the other gather has left, its flush is visible here. If the other gather has
        // not entered, it has cleared no entry that this thread saw.
        self.pending.load(Ordering::Acquire) > own
    }
}

impl Default for GatherState {
    fn default() -> Self {
        Self::new()
    }
}

/// The range of a gather whose changes were not announced.
const NOTHING: VaRange = VaRange::of(0, 0);

/// Number of frames that a gather holds before it must flush, unless its type says otherwise: room for one
/// table, in 8 bytes for each frame.
pub const GATHER_FRAMES: usize = if ENTRIES > 512 { ENTRIES } else { 512 };

/// Maximum number of tables that most gathers hold before they must flush.
const MAX_TABLES: usize = 32;

/// A change of a space's tables that is in progress. `FRAMES` and `TABLES` are the numbers of frames and of
/// tables that the gather holds before it must flush.
///
/// A gather without frames and tables is for changes after which the caller keeps the frames until the flush.
/// It is small, so a task can have several.
///
/// A gather must be [finished](Gather::finish). Dropping a gather with pending work panics in test builds,
/// and does the work in other builds.
#[must_use = "a gather has pending work until it is finished"]
pub struct Gather<'a, T: Tlb, const FRAMES: usize = GATHER_FRAMES, const TABLES: usize = MAX_TABLES> {
    tlb: &'a T,
    /// The count of gathers. `None` if no other gather can touch the range.
    state: Option<&'a GatherState>,
    entered: bool,
    /// Start of the range that was changed since the last flush. `u64::MAX` if the range is empty.
    start: VirtAddr,
    end: VirtAddr,
    /// The levels of the entries that were changed since the last flush.
    levels: Levels,
    tables_freed: bool,
    frames: ArrayVec<UnmappedFrame, FRAMES>,
    /// The caller's buffer for kept frames. `None` if the caller has given none.
    kept: Option<&'a mut Vec<UnmappedFrame>>,
    /// Number of small pages of the kept frames, and the maximum of this number.
    kept_pages: u64,
    max_kept_pages: u64,
    tables: ArrayVec<Pfn, TABLES>,
    /// The number for [`Tlb::end_change`], or 0 if no change was announced; and the announced range.
    heard: u32,
    announced: VaRange,
}

impl<'a, T: Tlb, const FRAMES: usize, const TABLES: usize> Gather<'a, T, FRAMES, TABLES> {
    /// Returns a gather that may overlap other gathers of the same space. Does not write to shared memory
    /// before the first change.
    #[inline]
    pub fn new(tlb: &'a T, state: &'a GatherState) -> Self {
        Self::with(tlb, Some(state), NOTHING, 0)
    }

    /// Returns a gather for a range that no other gather touches before the returned gather is finished. An
    /// example is a range of a space that no other task uses. The gather is not counted.
    #[inline]
    pub fn exclusive(tlb: &'a T) -> Self {
        Self::with(tlb, None, NOTHING, 0)
    }

    /// Returns a gather for changes in `range`, which were announced. After its last flush, the gather passes
    /// `heard` to [`Tlb::end_change`]; if `heard` is 0, there was nothing to announce. Without `state`, the
    /// gather is [exclusive](Self::exclusive).
    #[inline]
    pub fn announced(tlb: &'a T, state: Option<&'a GatherState>, range: VaRange, heard: u32) -> Self {
        Self::with(tlb, state, range, heard)
    }

    #[inline]
    fn with(tlb: &'a T, state: Option<&'a GatherState>, announced: VaRange, heard: u32) -> Self {
        Gather {
            tlb,
            state,
            entered: false,
            start: VirtAddr::new(u64::MAX),
            end: VirtAddr::new(0),
            levels: Levels::NONE,
            tables_freed: false,
            frames: ArrayVec::new(),
            kept: None,
            kept_pages: 0,
            max_kept_pages: 0,
            tables: ArrayVec::new(),
            heard,
            announced,
        }
    }

    /// Returns true if no other task fills the entries that this gather empties before it has flushed.
    #[inline]
    pub(crate) fn is_exclusive(&self) -> bool {
        self.state.is_none()
    }

    /// Returns the number of frames that still fit before a flush.
    #[inline]
    pub fn remaining_capacity(&self) -> usize {
        self.frames.remaining_capacity()
    }

    /// Adds a frame whose mapping was removed. The frame is released after the flush.
    ///
    /// # Panics
    /// Panics if there is no [`remaining_capacity`](Self::remaining_capacity), because a frame must not be
    /// lost.
    #[inline]
    pub fn add_frame(&mut self, pfn: Pfn, level: Level) {
        self.add_unmapped(UnmappedFrame::new(pfn, level));
    }

    /// Adds a frame like [`add_frame`](Self::add_frame), with the properties of its mapping.
    ///
    /// # Panics
    /// Panics in the same cases as [`add_frame`](Self::add_frame).
    #[inline]
    pub fn add_unmapped(&mut self, what: UnmappedFrame) {
        self.frames.push(what);
    }

    /// Lets the gather keep frames of up to `most` small pages in the buffer `kept` when its own storage is
    /// full, instead of flushing. `kept` must be empty; its memory is allocated when it is first needed. If
    /// the allocation fails, the gather flushes instead.
    ///
    /// # Panics
    /// Panics if `kept` is not empty, because its frames would be released without a flush. Panics if another
    /// buffer holds frames, because these would never be released.
    #[inline]
    pub fn use_buffer(&mut self, kept: &'a mut Vec<UnmappedFrame>, most: u64) {
        assert!(kept.is_empty() && self.kept_pages == 0, "frames in the buffer are not this gather's");
        self.kept = Some(kept);
        self.max_kept_pages = most;
    }

    /// Makes room for `frames` frames and one table. If there is too little room, moves the frames of the
    /// gather to the caller's buffer, or flushes and releases them. The caller holds no table lock, because a
    /// flush waits for other processors.
    #[inline]
    pub fn make_capacity(&mut self, frames: usize) {
        debug_assert!(frames <= FRAMES, "this gather is too small for one table");
        if self.remaining_capacity() < frames || self.tables.is_full() {
            self.keep_or_release();
        }
    }

    /// Makes room: moves the frames to the caller's buffer, or flushes and releases them.
    #[inline(never)]
    fn keep_or_release(&mut self) {
        if self.tables.is_full() || !self.keep() {
            self.flush_and_release();
        }
    }

    /// Moves the frames to the caller's buffer, if they fit. Returns true if they were moved.
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

    /// Adds an empty table that was just unlinked from the entry of `level` for `span`.
    pub(crate) fn add_table(&mut self, table: Pfn, span: VaRange, level: Level) {
        self.add_range(span, Levels::of(level), true);
        self.tables.push(table);
        if self.tables.is_full() {
            self.flush_and_release();
        }
    }

    /// Adds a table of the lowest level that was just [reclaimed](crate::reclaim). The caller holds its lock,
    /// so nothing is flushed here.
    ///
    /// # Panics
    /// Panics if there is no room; [`make_capacity`](Self::make_capacity) makes room.
    pub(crate) fn add_reclaimed_table(&mut self, table: Pfn, span: VaRange) {
        self.add_range(span, Levels::of(Level::Pmd), true);
        self.tables.push(table);
    }

    /// Adds entries of these levels over `span` to the next flush.
    #[inline]
    fn add_range(&mut self, span: VaRange, levels: Levels, tables: bool) {
        self.start = self.start.min(span.start());
        self.end = self.end.max(span.end());
        self.levels = self.levels.union(levels);
        self.tables_freed |= tables;
    }

    /// Flushes the changes made so far, without releasing frames or freeing tables. A caller that moves an
    /// entry uses this function to remove the old translation before the caller releases its locks (hazard
    /// C-39). The platform must then be able to flush while another processor spins for one of these locks.
    pub fn flush(&mut self) {
        if self.has_pending_flush() {
            self.tlb.flush(&Flush {
                start: self.start,
                end: self.end,
                all: false,
                levels: self.levels,
                tables_freed: self.tables_freed,
            });
            self.clear_range();
        }
    }

    /// Does all pending work: flushes, releases the frames, and frees the tables. Costs one load if nothing
    /// was changed and no other gather is counted.
    ///
    /// The gather has no pending work afterwards, like a new one. (The method does not take `self` by value,
    /// because moving the few KiB of a gather costs more than the rest of a small change.)
    #[inline]
    pub fn finish(&mut self) {
        let overlaps = self.state.is_some_and(|state| state.others(u32::from(self.entered)));
        if overlaps || self.has_pending() || self.heard != 0 {
            self.finish_pending(overlaps);
        }
    }

    /// Finishes a gather that has pending work, or that `overlaps` another gather.
    fn finish_pending(&mut self, overlaps: bool) {
        if overlaps {
            self.tlb.flush(&Flush::EVERYTHING);
            self.clear_range();
        } else {
            self.flush();
        }
        if core::mem::take(&mut self.entered)
            && let Some(state) = self.state
        {
            state.leave();
        }
        self.end_change();
        self.release_and_free();
    }

    /// Ends the announced change, if there is one.
    fn end_change(&mut self) {
        let heard = core::mem::take(&mut self.heard);
        if heard != 0 {
            self.tlb.end_change(self.announced, heard);
        }
    }

    /// Returns true if [`finish`](Self::finish) has anything to do.
    #[inline]
    fn has_pending(&self) -> bool {
        let keeps = self.kept.as_ref().is_some_and(|kept| !kept.is_empty());
        let holds = keeps || !self.frames.is_empty() || !self.tables.is_empty();
        self.entered || self.has_pending_flush() || holds
    }

    /// Returns true if something was changed since the last flush.
    #[inline]
    fn has_pending_flush(&self) -> bool {
        self.start.get() != u64::MAX || self.tables_freed
    }

    /// Forgets the changed range, at a flush.
    fn clear_range(&mut self) {
        self.start = VirtAddr::new(u64::MAX);
        self.end = VirtAddr::new(0);
        self.levels = Levels::NONE;
        self.tables_freed = false;
    }

    // Not inlined, because the inlined code would take registers away from the work for each page.
    #[inline(never)]
    fn flush_and_release(&mut self) {
        self.flush();
        self.release_and_free();
    }

    /// Releases frames and frees tables that no processor can reach any more.
    #[inline]
    fn release_and_free(&mut self) {
        debug_assert!(!self.has_pending_flush(), "frames or tables are released before their flush");
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
            // SAFETY: `unlink_tables` or `reclaim` unlinked the tables and handed each one to one gather. The
            // tables were flushed above. A task that found a reclaimed table earlier does only what
            // `TableMemory` allows for a freed table.
            unsafe { self.tlb.free_tables(&self.tables) };
            self.tables.clear();
        }
    }
}

impl<T: Tlb, const FRAMES: usize, const TABLES: usize> StaleTranslations for Gather<'_, T, FRAMES, TABLES> {
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
    fn add_changed(&mut self, span: VaRange, levels: Levels, tables: bool) {
        debug_assert!(
            self.heard == 0 || self.announced.covers(span),
            "a change of {span:?} outside the announced range {:?}",
            self.announced
        );
        self.add_range(span, levels, tables);
    }
}

impl<T: Tlb, const FRAMES: usize, const TABLES: usize> Drop for Gather<'_, T, FRAMES, TABLES> {
    #[inline]
    fn drop(&mut self) {
        if self.has_pending() && !self.tlb.is_unwinding() {
            debug_assert!(false, "a gather was dropped before it was finished");
            self.finish();
        }
        self.end_change();
    }
}
