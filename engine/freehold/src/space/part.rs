//! The right to change a part of an address space, beside others who change other parts: how it is got, what
//! it is made of, how it ends. `docs/ranges.md` has the protocol.
//!
//! | step | by | holds afterwards |
//! | --- | --- | --- |
//! | enter the gate | `MmapLock::write_range` | the right not to meet the writer, or readers of the whole |
//! | reserve | `Counters::reserve` | what may be added to sizes that have limits |
//! | claim | `SharedWriter::claim`, `claim_hole` | the VMAs of a range and those that touch it; or a hole |
//! | change | the operation | write-locked VMAs; a draft of what the tree is to hold |
//! | unlock | end of the [`WriteGuard`] | VMAs that are as they will stay |
//! | publish | end of [`Part`] | the draft is in the tree, the claim given up; waiters are told |
//! | leave | end of the guard of the gate | nothing |
//!
//! VMAs are unlocked before the tree says where they are now: another writer may have them as soon as it
//! does. Meanwhile a lookup that comes to a VMA by an old entry finds the VMA elsewhere, or detached, and
//! climbs.
#![expect(unsafe_code, reason = "claims in the tree of VMAs, and unlinks page tables")]

use super::{
    AddressSpace, Write,
    counters::{Needs, Reserved, Size},
    locking::{NeedMmapLock, VmaRead, WriteGuard, entry},
    right::Right,
};
use crate::{
    VirtAddr,
    platform::Platform,
    vma::{Vma, flags::VmFlags, locked_list::LockedVmas, owned::OwnedVma},
};
use core::cell::Cell;
use freehold_pagetable::{Format, Level, VaRange};
use freehold_range::{Draft, Entry, Refused, SharedWriter};
use freehold_sync::{
    Killed, MmapRangeGuard, Rank,
    atomic::Ordering::{Acquire, Release},
    rank,
};
use freehold_vmspace::{PageCount, UserRange, VmGather};

/// How often a task waits for a claim that is in its way before it works on the whole: so it waits for a
/// bounded number of others, and then for its turn.
const WAITS: usize = 4;

/// Room for what a writer of a part has, if there comes to be one; the writer itself is moved about.
#[derive(Default)]
pub(crate) struct PartRoom {
    draft: Draft,
    pub(super) reserved: Reserved,
    /// Where VMAs went: page tables at its ends may have to go too.
    emptied: Cell<Option<UserRange>>,
    /// A VMA could not be [stored](WriteGuard::store_alone) without a claim.
    pub(crate) needs_claim: Cell<bool>,
    /// It is the one writer of a part that moves the [break](super::brk).
    pub(crate) moves_heap: Cell<bool>,
    /// Where a mapping moves to, if that is claimed.
    target: Cell<Option<u64>>,
}

impl PartRoom {
    /// Whether a VMA could not be [stored](WriteGuard::store_alone) without a claim. Says so once.
    pub(crate) fn needs_claim(&self) -> bool {
        self.needs_claim.take()
    }
}

/// What a writer of a part has of its address space. Dropping it publishes its draft.
pub(crate) struct Part<'s, P: Platform> {
    pub(crate) space: &'s AddressSpace<P>,
    pub(super) map: SharedWriter<'s, P>,
    pub(crate) room: &'s PartRoom,
    /// Dropped last: it leaves the gate.
    pub(super) gate: MmapRangeGuard<'s, P>,
}

impl<P: Platform> Part<'_, P> {
    /// Whether it has claimed nothing.
    pub(crate) fn is_unclaimed(&self) -> bool {
        self.map.span() == (0, 0)
    }

    /// What was in `span` goes.
    pub(super) fn note_emptied(&self, span: UserRange) {
        debug_assert!(self.room.emptied.get().is_none(), "a change of a part empties one range");
        self.room.emptied.set(Some(span));
    }
}

impl<P: Platform> Drop for Part<'_, P> {
    #[inline(always)]
    fn drop(&mut self) {
        self.end();
    }
}

impl<P: Platform> Part<'_, P> {
    // Not inlined, so that the end of a guard is short for the writer of the whole.
    #[inline(never)]
    fn end(&self) {
        match self.room.emptied.take() {
            None => self.map.publish(None),
            Some(span) => self.space.unlinking_edges(span, |unlink| {
                self.map.publish(Some((span.start(), unlink)));
            }),
        }
        self.leave_heap();
        self.space.counters.give_back(&self.room.reserved);
        self.space.tell_waiters(&self.map);
    }
}

impl<P: Platform> Part<'_, P> {
    /// Becomes the one that moves the break, until it [ends](Self::leave_heap), unless there is another.
    pub(crate) fn take_heap(&self) -> bool {
        if !self.room.moves_heap.get() {
            // Acquire: pairs with `leave_heap`. What the last one did comes before what is done now.
            self.room.moves_heap.set(!self.space.heap_moves.swap(true, Acquire));
        }
        self.room.moves_heap.get()
    }

    /// Ends the right to move the break: the mappings agree with it.
    #[inline]
    fn leave_heap(&self) {
        if self.room.moves_heap.replace(false) {
            // Release: pairs with `take_heap`.
            self.space.heap_moves.store(false, Release);
        }
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Takes the right to change `range`: claims what lies there and what touches it, if that can be claimed;
    /// else as [`write_range`](Self::write_range).
    ///
    /// # Errors
    ///
    /// A fatal signal arrived first; nothing is held.
    #[inline(always)]
    pub(crate) fn write_part<'s>(
        &'s self,
        room: &'s PartRoom,
        range: UserRange,
        needs: Needs,
    ) -> Result<WriteGuard<'s, P>, Killed> {
        if let Some(guard) = self.write_alone(range) {
            return Ok(guard);
        }
        self.claim_or_write(room, range, needs)
    }

    /// As [`write_part`](Self::write_part), for a change that is called with the right. Where it is the
    /// writer of the whole, it needs no room.
    #[inline(always)]
    pub(crate) fn with_part<R>(
        &self,
        range: UserRange,
        needs: impl FnOnce() -> Needs,
        change: impl FnOnce(&WriteGuard<'_, P>) -> R,
    ) -> Result<R, Killed> {
        // As `write_alone`, but the guard stays where it is made.
        if self.locking.write != Write::RangesOnly
            && let Some(lock) = self.mmap_lock.try_write_alone()
        {
            let guard = self.writer(lock);
            if range.is_empty() || guard.make_way(range) {
                return Ok(change(&guard));
            }
        }
        self.with_claimed(range, needs, change)
    }

    #[inline(never)]
    fn with_claimed<R>(
        &self,
        range: UserRange,
        needs: impl FnOnce() -> Needs,
        change: impl FnOnce(&WriteGuard<'_, P>) -> R,
    ) -> Result<R, Killed> {
        let room = PartRoom::default();
        let guard = self.claim_or_write(&room, range, needs())?;
        Ok(change(&guard))
    }

    #[inline(never)]
    fn claim_or_write<'s>(
        &'s self,
        room: &'s PartRoom,
        range: UserRange,
        needs: Needs,
    ) -> Result<WriteGuard<'s, P>, Killed> {
        if !range.is_empty() && self.goes_beside() {
            let claim = |guard: &WriteGuard<'s, P>| guard.claim_range(range);
            if let Ok(guard) = self.claim_by(room, || needs, claim)? {
                return Ok(guard);
            }
        }
        let guard = self.write_range(range)?;
        self.had_turn();
        Ok(guard)
    }

    /// The right to change what `claim` claims; or to change all, at a moment when nothing concerned is
    /// `closing`.
    ///
    /// # Errors
    ///
    /// A fatal signal arrived first; nothing is held.
    pub(crate) fn write_claimed<'s>(
        &'s self,
        room: &'s PartRoom,
        needs: impl Fn() -> Needs,
        claim: impl Fn(&WriteGuard<'s, P>) -> Result<(), Refused>,
        closing: impl Fn(&WriteGuard<'s, P>) -> bool,
    ) -> Result<WriteGuard<'s, P>, Killed> {
        if let Some(guard) = self.write_alone(UserRange::EMPTY).filter(|guard| !closing(guard)) {
            return Ok(guard);
        }
        if self.goes_beside()
            && let Ok(guard) = self.claim_by(room, needs, claim)?
        {
            return Ok(guard);
        }
        self.write_open(closing)
    }

    /// Becomes the writer of the whole at a moment when nothing concerned is `closing`.
    ///
    /// # Errors
    ///
    /// A fatal signal arrived first; nothing is held.
    pub(crate) fn write_open<'s>(
        &'s self,
        closing: impl Fn(&WriteGuard<'s, P>) -> bool,
    ) -> Result<WriteGuard<'s, P>, Killed> {
        loop {
            let guard = self.write_killable()?;
            if !closing(&guard) {
                self.had_turn();
                return Ok(guard);
            }
            self.closings.wait_after(guard)?;
        }
    }

    /// Claims the VMA at `addr`, with what touches it, for a look that changes no bounds. `None`: nothing is
    /// mapped there, or it takes the mmap lock.
    ///
    /// # Errors
    ///
    /// A fatal signal arrived first; nothing is held.
    pub(crate) fn claim_vma<'s>(
        &'s self,
        room: &'s PartRoom,
        addr: u64,
    ) -> Result<Option<WriteGuard<'s, P>>, Killed> {
        let claim = |guard: &WriteGuard<'s, P>| {
            // What is closing, or only reserved, is not waited for.
            let (start, end) = self.mapped_at(addr).ok_or(Refused::Whole)?;
            let map = guard.part_map();
            map.claim(start, end, true, false)?;
            if map.find(addr).is_some_and(|found| (found.start, found.end) == (start, end)) {
                return Ok(());
            }
            // It has changed: its neighbours may be others.
            Err(guard.unclaim(Refused::Filled))
        };
        Ok(self.claim_by(room, Needs::default, claim)?.ok())
    }

    /// Whether changes of disjoint ranges may run side by side.
    #[inline]
    pub(crate) fn changes_parts(&self) -> bool {
        self.locking.write != Write::Whole
    }

    /// Whether they do now: a hint.
    #[inline]
    pub(crate) fn is_changed_by_parts(&self) -> bool {
        self.changes_parts() && (self.mmap_lock.is_open() || self.locking.write == Write::RangesOnly)
    }

    /// Becomes the writer of the whole for a change of `range`, if changes do not run side by side now, and
    /// that takes no waiting.
    // Inlined, as what returns guards is: they are large.
    #[inline(always)]
    pub(crate) fn write_alone(&self, range: UserRange) -> Option<WriteGuard<'_, P>> {
        if self.locking.write == Write::RangesOnly {
            return None;
        }
        let guard = self.writer(self.mmap_lock.try_write_alone()?);
        let free = range.is_empty() || guard.make_way(range);
        free.then_some(guard)
    }

    /// Becomes a writer of what `claim` claims. The inner error: it takes the writer of the whole.
    ///
    /// # Errors
    ///
    /// A fatal signal arrived first; nothing is held.
    pub(crate) fn claim_by<'s>(
        &'s self,
        room: &'s PartRoom,
        needs: impl Fn() -> Needs,
        claim: impl Fn(&WriteGuard<'s, P>) -> Result<(), Refused>,
    ) -> Result<Result<WriteGuard<'s, P>, Refused>, Killed> {
        for _ in 0..WAITS {
            let Some(guard) = self.enter_part(room, &needs)? else { return Ok(Err(Refused::Whole)) };
            match claim(&guard) {
                Ok(()) => return Ok(Ok(guard)),
                Err(other @ (Refused::Whole | Refused::NoMemory)) => return Ok(Err(other)),
                Err(Refused::Taken | Refused::Filled) if self.meets() => return Ok(Err(Refused::Whole)),
                // Somebody was faster: another hole will do, and soon.
                Err(Refused::Filled) => continue,
                Err(Refused::Taken) => {}
            }
            // Asked again, with the number known that changes when what is in the way ends.
            let seen = self.closings.ended();
            match claim(&guard) {
                Ok(()) => return Ok(Ok(guard)),
                Err(Refused::Taken) => drop(guard),
                Err(Refused::Filled) => continue,
                Err(other) => return Ok(Err(other)),
            }
            // With nothing held, so claims are in no order of locks.
            rank::will_wait::<P>(Rank::Mmap);
            P::wait_killable(self.closings.ended_word(), seen)?;
        }
        Ok(Err(Refused::Whole))
    }

    /// Becomes a writer of a part that has claimed nothing yet. `None`: a limit may be in the way.
    #[inline(always)]
    pub(crate) fn enter_part<'s>(
        &'s self,
        room: &'s PartRoom,
        needs: impl Fn() -> Needs,
    ) -> Result<Option<WriteGuard<'s, P>>, Killed> {
        let gate = self.mmap_lock.write_range_killable()?;
        if self.counters.reserve(&room.reserved, &needs(), |size| self.limit_of(size)).is_err() {
            return Ok(None);
        }
        // SAFETY: within the gate there are shared writers only.
        let map = unsafe { self.tree.shared_writer(&room.draft) };
        let right = Right::Part(Part { space: self, map, room, gate });
        Ok(Some(WriteGuard { space: self, locked: LockedVmas::none(), right }))
    }

    /// Somebody may wait for a claim that has ended.
    #[inline]
    fn tell_waiters(&self, map: &SharedWriter<'_, P>) {
        if map.was_wanted() || self.closings.is_waited_for() {
            self.closings.tell::<P>();
        }
    }

    /// Ends a closing reservation as a writer of a part: takes it out of the tree, and with it the tables at
    /// its edges that nobody else needs by now. `counted`: it began as the writer of the whole's.
    pub(super) fn end_closing_part(&self, span: UserRange, counted: bool) {
        let _inside = self.mmap_lock.write_range();
        let draft = Draft::new();
        // SAFETY: within the gate there are shared writers only.
        let map = unsafe { self.tree.shared_writer(&draft) };
        self.unlinking_edges(span, |unlink| {
            map.remove_reservation(span.start(), span.end(), Some((span.start(), unlink)));
        });
        if counted {
            self.closings.uncount();
        }
        self.tell_waiters(&map);
    }

    /// Whether the lowest table at an end of `span` lies inside `hole`.
    #[inline]
    fn has_tables_to_go(&self, span: UserRange, hole: VaRange) -> bool {
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
    fn unlinking_edges(&self, span: UserRange, end: impl FnOnce(&mut dyn FnMut(u64, u64))) {
        let mut gathered: Option<VmGather<'_, P, 1>> = None;
        end(&mut |before, behind| {
            // Nothing is in the hole, which may be more than the span.
            let part = UserRange::new(span.start().max(before), span.end().min(behind));
            let hole = VaRange::of(before, behind);
            if part.is_empty() || !self.has_tables_to_go(part, hole) {
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

impl<P: Platform> WriteGuard<'_, P> {
    /// Claims what lies in a range, and what touches it.
    #[inline]
    pub(crate) fn claim_range(&self, range: UserRange) -> Result<(), Refused> {
        self.part_map().claim(range.start(), range.end(), true, true)
    }

    /// Claims the hole that `range` is, with what touches it, and room above it for what a stack keeps free.
    #[inline]
    pub(crate) fn claim_room(&self, range: UserRange) -> Result<(), Refused> {
        self.part_map().claim_hole(range.start(), range.end(), |above| self.kept_below(above))
    }

    /// How many bytes below its start an entry of the tree keeps free.
    // Called within RCU: if the VMA is not there any more, it was.
    #[inline]
    pub(crate) fn kept_below(&self, entry: &Entry) -> u64 {
        entry.start - self.kept_from(entry)
    }

    /// Claims the hole that `range` is, with what touches it, where no other hole will do: if it is none, it
    /// takes the writer of the whole to say so. `kept(entry)` is what the entry above has to keep free.
    pub(crate) fn claim_hole(&self, range: UserRange, kept: impl Fn(&Entry) -> u64) -> Result<(), Refused> {
        match self.part_map().claim_hole(range.start(), range.end(), kept) {
            Err(Refused::Filled) => Err(Refused::Whole),
            other => other,
        }
    }

    /// Reserves `pages` more locked ones, if `flags` are of locked memory: those of a VMA that was not known
    /// before it was claimed. Else the claim is given up.
    pub(crate) fn reserve_locked(&self, flags: VmFlags, pages: PageCount) -> Result<(), Refused> {
        let reserved = self.reserved().filter(|_| flags.contains(VmFlags::LOCKED));
        let limit = self.space.limit_of(Size::Locked);
        match reserved.is_none_or(|reserved| self.space.counters.reserve_locked(reserved, pages, limit)) {
            true => Ok(()),
            false => Err(self.unclaim(Refused::Whole)),
        }
    }

    /// Keeps the anon_vma of a VMA as it is, and returns whether it was so already. The mmap lock held for
    /// writing keeps it where nothing runs beside it; otherwise a fault, which may have begun before, gives
    /// the VMA its first one until it is locked.
    #[inline]
    pub(crate) fn hold_anon(&self, vma: &Vma<P>) -> bool {
        if !self.space.changes_parts() || vma.anon().is_some() {
            return true;
        }
        let _ = self.lock_vma(vma);
        !vma.anon().is_some()
    }

    /// Gives up what is claimed, as it was. Returns why.
    pub(crate) fn unclaim(&self, why: Refused) -> Refused {
        self.part_map().publish(None);
        why
    }

    /// Claims a range for something that takes the place of what is there: the hole that it is, or what is
    /// mapped in all of it.
    pub(crate) fn claim_fixed(&self, range: UserRange) -> Result<(), Refused> {
        let map = self.part_map();
        match map.claim_hole(range.start(), range.end(), |_| 0) {
            Err(Refused::Filled) => {}
            other => return other,
        }
        self.claim_range(range)?;
        let (from, to) = map.span();
        if from <= range.start() && range.end() <= to {
            return Ok(());
        }
        Err(self.unclaim(Refused::Whole))
    }
}

impl<'s, P: Platform> WriteGuard<'s, P> {
    /// What it has, if it is a writer of a part.
    #[inline(always)]
    pub(crate) fn part(&self) -> Option<&Part<'s, P>> {
        match &self.right {
            Right::Whole { .. } => None,
            Right::Part(part) => Some(part),
        }
    }

    /// Locks a VMA that a writer of a part has claimed, and not locked, for reading, so that the claim may
    /// end. Fails only when the VMA has as many readers as can be counted.
    pub(crate) fn lock_claimed(&self, vma: &Vma<P>) -> Result<VmaRead<'s, P>, NeedMmapLock> {
        let Right::Part(part) = &self.right else { unreachable!("a writer of the whole claims nothing") };
        let place = vma.lock().read_claimed::<P>(&part.gate).map_err(|_| NeedMmapLock::Busy)?;
        // SAFETY: locked just now.
        Ok(unsafe { VmaRead::locked(vma, place) })
    }

    /// The tree, of a writer of a part.
    #[inline(always)]
    pub(crate) fn part_map(&self) -> &SharedWriter<'s, P> {
        match &self.right {
            Right::Whole { .. } => unreachable!("a writer of the whole claims nothing"),
            Right::Part(part) => &part.map,
        }
    }

    /// What a writer of a part may add to sizes that have limits.
    #[inline(always)]
    pub(super) fn reserved(&self) -> Option<&'s Reserved> {
        self.part().map(|part| &part.room.reserved)
    }

    /// A mapping moves to a hole at `start`, which is claimed beside it.
    pub(crate) fn note_target(&self, start: u64) {
        self.part().into_iter().for_each(|part| part.room.target.set(Some(start)));
    }

    /// Where a mapping moves to, if that is claimed.
    pub(crate) fn noted_target(&self) -> Option<u64> {
        self.part()?.room.target.get()
    }

    /// Stores a VMA of anonymous memory into the hole that it lies in, by a step of its own, if nothing that
    /// touches it `joins` it. Then it is anybody's. `None`: it was not possible; the VMA goes back.
    pub(crate) fn store_alone(&self, vma: OwnedVma<'_, P>, joins: impl Fn(&Vma<P>) -> bool) -> Option<()> {
        let vma = vma.into_ref();
        debug_assert!(vma.is_anonymous() && !vma.anon().is_some(), "something leads to it besides the tree");
        LockedVmas::attach_unlocked(vma, &self.right);
        let kept = |above: &Entry| self.kept_below(above);
        let joins = |touching: &Entry| self.slot(touching).vma().is_some_and(&joins);
        match self.part_map().fill_hole(&entry(vma), kept, joins) {
            Ok(true) => return Some(()),
            Ok(false) => {}
            Err(_) => {
                self.space.meets();
            }
        }
        LockedVmas::detach_unfound(vma, &self.right);
        // SAFETY: detached just now, and nobody had found it.
        drop(unsafe { self.space.engine.slab.own(vma) });
        None
    }
}
