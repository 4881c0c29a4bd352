//! The range writer: what it holds, and how it ends. `claim.rs` has the first three steps, `docs/ranges.md`
//! the protocol.
//!
//! | step | by | holds afterwards |
//! | --- | --- | --- |
//! | enter the gate | `MmapLock::enter_range_writer` | the right not to meet the exclusive writer, or readers of the mmap lock |
//! | reserve | `Counters::reserve_limits` | what may be added to sizes that have limits |
//! | claim | `ClaimWriter::claim`, `claim_hole` | the VMAs of a range and those that touch it; or a hole |
//! | change | the operation | write-locked VMAs; a write set of what the tree is to hold |
//! | unlock | end of the [`WriteGuard`] | VMAs that are as they will stay |
//! | publish | end of [`RangeWriter`] | the write set is in the tree, the claim released; waiters are notified |
//! | leave | end of the guard of the gate | nothing |
//!
//! VMAs are unlocked before the tree says where they are now: another writer may have them as soon as it
//! does. Meanwhile a lookup that comes to a VMA by an old entry finds the VMA elsewhere, or detached, and
//! climbs.
#![expect(unsafe_code, reason = "claims in the tree of VMAs, and unlinks page tables")]

use super::AddressSpace;
use crate::{VirtAddr, platform::Platform, space::state::counters::LimitReservation};
use core::cell::Cell;
use freehold_pagetable::{Format, Level, VaRange};
use freehold_range::{ClaimWriter, WriteSet};
use freehold_sync::{
    MmapRangeWriteGuard,
    atomic::{
        AtomicBool,
        Ordering::{Acquire, Release},
    },
};
use freehold_vmspace::{UserRange, VmGather};

/// The state of a range writer: its write set of the tree, and what it does when it ends. It is apart from
/// the writer, which is moved.
#[derive(Default)]
pub(crate) struct RangeWriterState {
    pub(super) write_set: WriteSet,
    pub(super) reserved: LimitReservation,
    /// The range that the write set [removes](RangeWriter::remove), if it removes one.
    removed: Cell<Option<UserRange>>,
}

/// A range writer. Dropping it publishes its write set.
pub(crate) struct RangeWriter<'s, P: Platform> {
    pub(crate) space: &'s AddressSpace<P>,
    pub(super) map: ClaimWriter<'s, P>,
    pub(super) state: &'s RangeWriterState,
    /// The right to move the break, once it is taken.
    heap: Option<HeapLock<'s>>,
    /// Dropped last: it leaves the gate.
    pub(super) gate: MmapRangeWriteGuard<'s, P>,
}

/// The right to move the break, of which `heap_locked` says that it is taken.
struct HeapLock<'s> {
    heap_locked: &'s AtomicBool,
}

impl<'s> HeapLock<'s> {
    /// Takes the right to move the break, unless another range writer has it.
    fn try_lock(heap_locked: &'s AtomicBool) -> Option<Self> {
        // Acquire: pairs with the drop. What the last owner did happens before what is done now.
        let is_taken = heap_locked.swap(true, Acquire);
        if is_taken { None } else { Some(HeapLock { heap_locked }) }
    }
}

impl Drop for HeapLock<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: pairs with `try_lock`.
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
    #[inline(always)]
    pub(super) fn new(
        space: &'s AddressSpace<P>,
        map: ClaimWriter<'s, P>,
        state: &'s RangeWriterState,
        gate: MmapRangeWriteGuard<'s, P>,
    ) -> Self {
        RangeWriter { space, map, state, heap: None, gate }
    }
}

impl<P: Platform> RangeWriter<'_, P> {
    // Not inlined, so that the end of a guard is short for the exclusive writer.
    #[inline(never)]
    fn end(&mut self) {
        match self.state.removed.take() {
            None => self.map.publish(None),
            Some(range) => self.space.with_edge_tables_unlinked(range, |unlink| {
                self.map.publish(Some((range.start(), unlink)));
            }),
        }
        // The mappings agree with the break from here on.
        self.heap = None;
        self.space.counters.release_limits(&self.state.reserved);
        self.space.notify_waiters(&self.map);
    }

    /// Returns true if it has claimed nothing.
    pub(super) fn has_no_claim(&self) -> bool {
        self.map.claimed_range() == (0, 0)
    }

    /// Removes everything in `range` from the write set. When that is published, page tables at the ends of
    /// `range` are unlinked if nothing else needs them.
    pub(super) fn remove(&self, range: UserRange) {
        let before = self.state.removed.replace(Some(range));
        debug_assert!(before.is_none(), "a range writer removes one range");
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
    /// Somebody may wait for a claim that has ended.
    #[inline]
    fn notify_waiters(&self, map: &ClaimWriter<'_, P>) {
        if map.had_waiters() || self.closings.has_waiters() {
            self.closings.notify::<P>();
        }
    }

    /// Ends a closing reservation as a range writer: takes it out of the tree, and with it the tables at
    /// its edges that nobody else needs by now. `counted`: it began as the exclusive writer's.
    pub(super) fn end_closing_as_range_writer(&self, span: UserRange, counted: bool) {
        let _inside = self.mmap_lock.enter_range_writer();
        let write_set = WriteSet::new();
        // SAFETY: within the gate there are range writers only.
        let map = unsafe { self.tree.claim_writer(&write_set) };
        self.with_edge_tables_unlinked(span, |unlink| {
            map.remove_reservation(span.start(), span.end(), Some((span.start(), unlink)));
        });
        if counted {
            self.closings.uncount();
        }
        self.notify_waiters(&map);
    }

    /// Whether the lowest table at an end of `span` lies inside `hole`.
    #[inline]
    fn has_empty_edge_tables(&self, span: UserRange, hole: VaRange) -> bool {
        const TABLE: u64 = Level::Pte.table_span();
        let goes = |at: u64| {
            let at = VirtAddr::new(at);
            let (_, level) = self.vm.peek(at);
            level < P::Format::ROOT && hole.covers(VaRange::entry(at, level.above()))
        };
        let last = span.end() - 1;
        goes(span.start()) || (span.start() / TABLE != last / TABLE && goes(last))
    }

    /// Calls `end` with a function for it to call with the hole that `span` is then in, while nothing can
    /// come into that hole. It unlinks the tables at the ends of `span` that lie inside of the hole.
    fn with_edge_tables_unlinked(&self, span: UserRange, end: impl FnOnce(&mut dyn FnMut(u64, u64))) {
        let mut gathered: Option<VmGather<'_, P, 1>> = None;
        end(&mut |before, behind| {
            // Nothing is in the hole, which may be more than the span.
            let part = UserRange::new(span.start().max(before), span.end().min(behind));
            let hole = VaRange::of(before, behind);
            if part.is_empty() || !self.has_empty_edge_tables(part, hole) {
                return;
            }
            // SAFETY: what was in `span` is zapped and unlinked; nothing is in the hole, and nothing comes
            // there while this runs. A fresh gather has room for the tables at two edges: it does not flush.
            //
            // An exclusive gather, although others may map there before it has flushed: the tables are empty,
            // so what processors remember of them translates nothing, and no other gather finds an entry
            // empty that this one has cleared. The space's count of gathers would be a line that all writers
            // pass around, and would make each of them flush everything.
            unsafe { self.vm.unlink_tables(part.va(), hole, gathered.insert(self.vm.exclusive_gather())) };
        });
        if let Some(mut gather) = gathered {
            gather.finish();
        }
    }
}
