//! The range writer: the right to change one part of an address space while other tasks change other parts.
//!
//! This file implements the end of a range writer. `claim.rs` has the first three steps,
//! `docs/guide/ranges.md` the protocol.
//!
//! | step | by | holds afterwards |
//! | --- | --- | --- |
//! | enter the gate | `MmapLock::enter_range_writer` | the gate, which excludes the exclusive writer and readers of the mmap lock |
//! | reserve | `Counters::reserve_limits` | a reservation of the amounts that the change may add to limited sizes |
//! | claim | `ClaimWriter::claim`, `claim_hole` | the VMAs of a range and those that touch it; or a hole |
//! | change | the operation | write-locked VMAs, and a write set with the future entries of the tree |
//! | unlock | end of the [`WriteGuard`](super::locking::WriteGuard) | VMAs in their final state, unlocked |
//! | publish | end of [`RangeWriter`] | nothing that is claimed: the write set is in the tree, the claim is released, waiters are notified |
//! | leave | end of the guard of the gate | nothing |
//!
//! A range writer unlocks its VMAs before it publishes its write set, because another range writer may claim
//! them as soon as the write set is visible. A lookup between the two steps can reach a VMA through an old
//! tree entry. The lookup then sees bounds that do not match, or a detached VMA, and falls back to the mmap
//! lock.
//!
//! The steps must stay in this order. `ranges::every_pair_of_concurrent_changes` (`shuttle_engine`) runs all
//! pairs of range writers, and fails if a writer publishes before it unlocks, or leaves a waiter asleep.
#![expect(unsafe_code, reason = "claims in the tree of VMAs, and unlinks page tables")]

use super::AddressSpace;
use crate::{
    VirtAddr, features::RangeWriters, platform::Platform, space::state::counters::LimitReservation, vma::Vma,
};
use core::{cell::Cell, ptr::null};
use freehold_pagetable::{Format, Level, VaRange};
use freehold_range::{ClaimWriter, WriteSet};
use freehold_sync::{
    MmapRangeWriteGuard, MmapWriteProof,
    atomic::{
        AtomicBool,
        Ordering::{Acquire, Relaxed, Release},
    },
};
use freehold_vmspace::{UserRange, VmGather};

/// The state of a range writer: its write set, and the work to do when it ends. The caller keeps this value
/// on its stack. [`RangeWriter`] is moved between functions and refers to this value, so the value is not a
/// part of it.
#[derive(Default)]
pub(crate) struct RangeWriterState {
    /// The future entries of the claimed part of the tree.
    pub(super) write_set: WriteSet,
    /// The amounts that this writer has reserved from the limits of the address space.
    pub(super) reserved: LimitReservation,
    /// The range that the write set [removes](RangeWriter::remove), if it removes one.
    removed: Cell<Option<UserRange>>,
}

/// The right of a range writer. Publishes the write set when dropped.
pub(crate) struct RangeWriter<'s, P: Platform> {
    pub(crate) space: &'s AddressSpace<P>,
    pub(super) map: ClaimWriter<'s, P>,
    pub(super) state: &'s RangeWriterState,
    /// The right to move the break, if this writer has taken it.
    heap: Option<HeapLock<'s>>,
    /// VMAs that are not in the write set any more, linked through `Vma::chain`. They are attached and
    /// write-locked until the end of this writer.
    discarded: Cell<*const Vma<P>>,
    _feature: RangeWriters,
    /// Dropped last: leaves the gate.
    pub(super) gate: MmapRangeWriteGuard<'s, P>,
}

/// The right to move the break. `heap_locked` is true while a range writer has this right.
struct HeapLock<'s> {
    heap_locked: &'s AtomicBool,
}

impl<'s> HeapLock<'s> {
    /// Takes the right to move the break. Returns `None` if another range writer has it.
    fn try_lock(heap_locked: &'s AtomicBool) -> Option<Self> {
        // Acquire: pairs with the Release store in `drop`. The changes of the previous owner happen before
        // those of this owner.
        let is_taken = heap_locked.swap(true, Acquire);
        if is_taken { None } else { Some(HeapLock { heap_locked }) }
    }
}

impl Drop for HeapLock<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: pairs with the Acquire swap in `try_lock`. This owner's changes happen before those of the
        // next one.
        self.heap_locked.store(false, Release);
    }
}

impl<P: Platform> Drop for RangeWriter<'_, P> {
    #[inline]
    fn drop(&mut self) {
        self.end();
    }
}

impl<'s, P: Platform> RangeWriter<'s, P> {
    /// Makes a range writer that has claimed nothing yet.
    #[cfg_attr(feature = "inline", inline(always))]
    pub(super) fn new(
        space: &'s AddressSpace<P>,
        map: ClaimWriter<'s, P>,
        state: &'s RangeWriterState,
        gate: MmapRangeWriteGuard<'s, P>,
        feature: RangeWriters,
    ) -> Self {
        RangeWriter { space, map, state, heap: None, discarded: Cell::new(null()), _feature: feature, gate }
    }
}

impl<P: Platform> RangeWriter<'_, P> {
    /// Publishes the write set, releases the break and the reservation, and wakes waiters.
    // Not inlined, so that the end of a guard is short for the exclusive writer.
    #[inline(never)]
    fn end(&mut self) {
        if RangeWriters::get().is_none() {
            return;
        }
        match self.state.removed.get() {
            None => self.map.publish(None),
            Some(range) => {
                self.state.removed.set(None);
                self.space.with_edge_tables_unlinked(range, |unlink| {
                    self.map.publish(Some((range.start(), unlink)));
                });
            }
        }
        self.free_discarded();
        // The published mappings now agree with the break, so another task may use the break.
        self.heap = None;
        self.space.counters.release_limits(&self.state.reserved);
        self.space.notify_waiters(&self.map);
    }

    /// Frees a write-locked VMA at the end of this writer, when the VMA is not in the tree any more.
    pub(super) fn discard(&self, vma: &Vma<P>) {
        vma.chain().store(self.discarded.get().cast_mut(), Relaxed);
        self.discarded.set(vma);
    }

    /// Detaches and frees the discarded VMAs.
    #[inline]
    fn free_discarded(&self) {
        let mut at = self.discarded.replace(null());
        // SAFETY: null, or a VMA that this writer has write-locked and that is still attached.
        while let Some(vma) = unsafe { at.as_ref() } {
            at = vma.chain().load(Relaxed);
            self.space.detach_and_free(vma, &self.gate);
        }
    }

    /// Returns true if nothing is claimed.
    pub(super) fn has_no_claim(&self) -> bool {
        self.map.claimed_range() == (0, 0)
    }

    /// Removes everything in `range` from the write set. When the write set is published, the page tables at
    /// the ends of `range` are unlinked if nothing else needs them.
    pub(super) fn remove(&self, range: UserRange) {
        let before = self.state.removed.replace(Some(range));
        debug_assert!(before.is_none(), "a range writer removed a second range");
        self.map.replace(range.start(), range.end(), &[]);
    }

    /// Takes the right to move the break until this writer ends. Returns false if another range writer has
    /// it.
    pub(crate) fn lock_heap(&mut self) -> bool {
        if self.heap.is_none() {
            self.heap = HeapLock::try_lock(&self.space.heap_locked);
        }
        self.heap.is_some()
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Detaches and frees a VMA that has left the tree. The caller has write-locked it. Waits for readers
    /// that have raised the VMA's count and have not yet seen that the VMA is write-locked.
    #[inline]
    pub(super) fn detach_and_free(&self, vma: &Vma<P>, right: &impl MmapWriteProof<P>) {
        vma.lock().detach::<P>(right);
        // SAFETY: the VMA was just detached, so no other task takes ownership.
        drop(unsafe { self.engine.slab.own(vma) });
    }

    /// Wakes the tasks that wait for the claim or closing reservation that has just ended.
    #[inline]
    fn notify_waiters(&self, map: &ClaimWriter<'_, P>) {
        if map.had_waiters() || self.closings.has_waiters() {
            self.closings.notify::<P>();
        }
    }

    /// Ends a closing reservation as a range writer: removes its entry from the tree, and unlinks the page
    /// tables at its edges if nothing else needs them. `counted` is true if an exclusive writer inserted the
    /// entry.
    pub(super) fn end_closing_as_range_writer(&self, span: UserRange, counted: bool) {
        let _inside = self.mmap_lock.enter_range_writer();
        let write_set = WriteSet::new();
        // SAFETY: the gate excludes all writers except range writers.
        let map = unsafe { self.tree.claim_writer(&write_set) };
        self.remove_closing(&map, span);
        if counted {
            self.closings.uncount();
        }
        self.notify_waiters(&map);
    }

    /// Removes a closing reservation from the tree, and unlinks the page tables at its edges if nothing else
    /// needs them. The caller then wakes waiters, or ends a [`RangeWriter`], which wakes them.
    pub(super) fn remove_closing(&self, map: &ClaimWriter<'_, P>, span: UserRange) {
        self.with_edge_tables_unlinked(span, |unlink| {
            map.remove_reservation(span.start(), span.end(), Some((span.start(), unlink)));
        });
    }

    /// Returns true if the lowest page table at either end of `span` lies inside `hole`.
    #[inline]
    pub(super) fn has_empty_edge_tables(&self, span: UserRange, hole: VaRange) -> bool {
        const TABLE: u64 = Level::Pte.table_span();
        let goes = |at: u64| {
            let at = VirtAddr::new(at);
            let (_, level) = self.vm.peek(at);
            level < P::Format::ROOT && hole.covers(VaRange::entry(at, level.above()))
        };
        let last = span.end() - 1;
        goes(span.start()) || (span.start() / TABLE != last / TABLE && goes(last))
    }

    /// Calls `end` with a function that unlinks the page tables at the ends of `span`. `end` calls that
    /// function with the bounds of the hole that contains `span`, while no entry can be inserted in the hole.
    /// Only tables inside the hole are unlinked.
    fn with_edge_tables_unlinked(&self, span: UserRange, end: impl FnOnce(&mut dyn FnMut(u64, u64))) {
        let mut gathered: Option<VmGather<'_, P, 1>> = None;
        end(&mut |before, behind| {
            // The hole is empty, and may be larger than the span.
            let part = UserRange::new(span.start().max(before), span.end().min(behind));
            let hole = VaRange::of(before, behind);
            if part.is_empty() || !self.has_empty_edge_tables(part, hole) {
                return;
            }
            // SAFETY: the pages in `span` are zapped and its VMAs unlinked. The hole is empty, and no entry
            // can be inserted there while this function runs. A fresh gather has room for the tables at two
            // edges, so it does not flush here.
            //
            // The gather is exclusive, although other tasks may map memory at these addresses before the
            // gather has flushed. An exclusive gather is correct here because the tables are empty:
            // translations that processors cache from them lead to no page, and no other gather finds an
            // entry that this one has cleared. A shared gather would increment the space's count of gathers.
            // All writers would then share the cache line of the count, and each of them would have to flush
            // everything.
            unsafe {
                self.vm.unlink_tables(part.va(), hole, gathered.insert(self.vm.exclusive_table_gather()))
            };
        });
        if let Some(mut gather) = gathered {
            gather.finish();
        }
    }
}

#[cfg(all(test, loom))]
#[path = "range_writer_loom_tests.rs"]
mod loom_tests;
