//! How a task becomes a range writer: it claims what it needs, or becomes the exclusive writer instead.
#![expect(unsafe_code, reason = "claims in the tree of VMAs")]

use crate::{
    platform::Platform,
    space::{
        AddressSpace, Write,
        locking::{WriteGuard, entry},
        range_writer::{RangeWriter, RangeWriterState},
        state::counters::{LimitDemand, Size},
        write_right::WriteRight,
    },
    vma::{Vma, flags::VmFlags, locked_list::LockedVmas, owned::OwnedVma},
};
use freehold_range::{ClaimError, Entry};
use freehold_sync::{Killed, Rank, rank};
use freehold_vmspace::{PageCount, UserRange};

/// The number of times that a task waits for claims in its way before it waits to become the exclusive
/// writer: its waits are bounded.
const MAX_WAITS: usize = 4;

/// The result of an attempt to become a range writer.
pub(crate) enum RangeClaim<'s, P: Platform, T = ()> {
    /// The right to change what was claimed, and what the claim decided.
    Granted(WriteGuard<'s, P>, T),
    /// The change takes the exclusive writer; also where the claim found no memory, for that writer has nodes
    /// of the tree in reserve.
    NeedsExclusive,
    /// A fatal signal arrived first. Nothing is held.
    Killed,
}

impl<P: Platform> AddressSpace<P> {
    /// Takes the right to change `range`: claims what lies there and what touches it, if that can be claimed;
    /// else as [`write_exclusive_range`](Self::write_exclusive_range).
    ///
    /// # Errors
    ///
    /// A fatal signal arrived first; nothing is held.
    #[inline]
    pub(crate) fn write_range<'s>(
        &'s self,
        state: &'s RangeWriterState,
        range: UserRange,
        needs: LimitDemand,
    ) -> Result<WriteGuard<'s, P>, Killed> {
        if let Some(guard) = self.try_write_exclusive(range) {
            return Ok(guard);
        }
        self.claim_or_exclusive(state, range, needs)
    }

    /// Calls `change` with the right that [`write_range`](Self::write_range) returns. The exclusive writer
    /// needs no state.
    #[inline(always)]
    pub(crate) fn with_write_range<E: From<Killed>>(
        &self,
        range: UserRange,
        needs: impl FnOnce() -> LimitDemand,
        change: impl FnOnce(&WriteGuard<'_, P>) -> Result<(), E>,
    ) -> Result<(), E> {
        // As `try_write_exclusive`, but the guard stays where it is made.
        if self.locking.write != Write::RangesOnly
            && let Some(lock) = self.mmap_lock.try_write_exclusive()
        {
            let guard = self.writer(lock);
            if range.is_empty() || guard.clear_for_write(range) {
                return change(&guard);
            }
        }
        self.with_range_claim(range, needs, change)
    }

    #[inline(never)]
    fn with_range_claim<E: From<Killed>>(
        &self,
        range: UserRange,
        needs: impl FnOnce() -> LimitDemand,
        change: impl FnOnce(&WriteGuard<'_, P>) -> Result<(), E>,
    ) -> Result<(), E> {
        let state = RangeWriterState::default();
        let guard = self.claim_or_exclusive(&state, range, needs())?;
        change(&guard)
    }

    #[inline(never)]
    fn claim_or_exclusive<'s>(
        &'s self,
        state: &'s RangeWriterState,
        range: UserRange,
        needs: LimitDemand,
    ) -> Result<WriteGuard<'s, P>, Killed> {
        if !range.is_empty() && self.prefers_ranges() {
            match self.try_claim(state, || needs, |guard| guard.claim_range(range)) {
                RangeClaim::Granted(guard, ()) => return Ok(guard),
                RangeClaim::NeedsExclusive => {}
                RangeClaim::Killed => return Err(Killed),
            }
        }
        let guard = self.write_exclusive_range(range)?;
        self.count_exclusive();
        Ok(guard)
    }

    /// Takes the right to change what `claim` claims; or everything, at a moment at which `ready` returns a
    /// value: it returns none while something that the change needs is closing. Returns what `claim` or
    /// `ready` returned, too.
    ///
    /// # Errors
    ///
    /// A fatal signal arrived first; nothing is held.
    pub(crate) fn claim_or_exclusive_when<'s, T>(
        &'s self,
        state: &'s RangeWriterState,
        needs: impl Fn() -> LimitDemand,
        claim: impl Fn(&mut WriteGuard<'s, P>) -> Result<T, ClaimError>,
        ready: impl Fn(&WriteGuard<'s, P>) -> Option<T>,
    ) -> Result<(WriteGuard<'s, P>, T), Killed> {
        if let Some(guard) = self.try_write_exclusive(UserRange::EMPTY)
            && let Some(decided) = ready(&guard)
        {
            return Ok((guard, decided));
        }
        if self.prefers_ranges() {
            match self.try_claim(state, needs, claim) {
                RangeClaim::Granted(guard, decided) => return Ok((guard, decided)),
                RangeClaim::NeedsExclusive => {}
                RangeClaim::Killed => return Err(Killed),
            }
        }
        self.write_exclusive_when(ready)
    }

    /// Becomes the exclusive writer at a moment at which `ready` returns a value, as
    /// [`claim_or_exclusive_when`](Self::claim_or_exclusive_when).
    ///
    /// # Errors
    ///
    /// A fatal signal arrived first; nothing is held.
    pub(crate) fn write_exclusive_when<'s, T>(
        &'s self,
        ready: impl Fn(&WriteGuard<'s, P>) -> Option<T>,
    ) -> Result<(WriteGuard<'s, P>, T), Killed> {
        loop {
            let guard = self.write_killable()?;
            if let Some(decided) = ready(&guard) {
                self.count_exclusive();
                return Ok((guard, decided));
            }
            self.closings.wait_after(guard)?;
        }
    }

    /// Claims the VMA at `addr`, with what touches it, for a look that changes no bounds. It is not granted
    /// where nothing is mapped.
    pub(crate) fn claim_vma<'s>(&'s self, state: &'s RangeWriterState, addr: u64) -> RangeClaim<'s, P> {
        let claim = |guard: &mut WriteGuard<'s, P>| {
            // What is closing, or only reserved, is not waited for.
            let (start, end) = self.vma_bounds(addr).ok_or(ClaimError::NeedsExclusive)?;
            let map = guard.claims();
            map.claim(start, end, true, false)?;
            if map.find(addr).is_some_and(|found| (found.start, found.end) == (start, end)) {
                return Ok(());
            }
            // It has changed: its neighbours may be others.
            Err(guard.release_claims(ClaimError::NotAHole))
        };
        self.try_claim(state, LimitDemand::default, claim)
    }

    /// Becomes the exclusive writer for a change of `range`, if there are no range writers now and that takes
    /// no waiting.
    // Inlined, as what returns guards is: they are large.
    #[inline(always)]
    pub(crate) fn try_write_exclusive(&self, range: UserRange) -> Option<WriteGuard<'_, P>> {
        if self.locking.write == Write::RangesOnly {
            return None;
        }
        let guard = self.writer(self.mmap_lock.try_write_exclusive()?);
        let free = range.is_empty() || guard.clear_for_write(range);
        free.then_some(guard)
    }

    /// Becomes a range writer that has claimed what `claim` claims.
    pub(crate) fn try_claim<'s, T>(
        &'s self,
        state: &'s RangeWriterState,
        needs: impl Fn() -> LimitDemand,
        claim: impl Fn(&mut WriteGuard<'s, P>) -> Result<T, ClaimError>,
    ) -> RangeClaim<'s, P, T> {
        for _ in 0..MAX_WAITS {
            let mut guard = match self.enter_range_writer(state, &needs) {
                RangeClaim::Granted(guard, ()) => guard,
                RangeClaim::NeedsExclusive => return RangeClaim::NeedsExclusive,
                RangeClaim::Killed => return RangeClaim::Killed,
            };
            match claim(&mut guard) {
                Ok(decided) => return RangeClaim::Granted(guard, decided),
                Err(ClaimError::NeedsExclusive | ClaimError::NoMemory) => return RangeClaim::NeedsExclusive,
                Err(ClaimError::Contended | ClaimError::NotAHole) if self.record_contention() => {
                    return RangeClaim::NeedsExclusive;
                }
                // Another task was faster: another hole will do, and soon.
                Err(ClaimError::NotAHole) => continue,
                Err(ClaimError::Contended) => {}
            }
            // Asked again, with the number known that changes when what is in the way ends.
            let seen = self.closings.generation();
            match claim(&mut guard) {
                Ok(decided) => return RangeClaim::Granted(guard, decided),
                Err(ClaimError::Contended) => drop(guard),
                Err(ClaimError::NotAHole) => continue,
                Err(ClaimError::NeedsExclusive | ClaimError::NoMemory) => return RangeClaim::NeedsExclusive,
            }
            // With nothing held, so claims are in no order of locks.
            rank::will_wait::<P>(Rank::Mmap);
            if P::wait_killable(self.closings.generation_word(), seen).is_err() {
                return RangeClaim::Killed;
            }
        }
        RangeClaim::NeedsExclusive
    }

    /// Becomes a range writer that has claimed nothing yet. It takes the exclusive writer if a limit may be
    /// in the way.
    #[inline]
    pub(crate) fn enter_range_writer<'s>(
        &'s self,
        state: &'s RangeWriterState,
        needs: impl Fn() -> LimitDemand,
    ) -> RangeClaim<'s, P> {
        let Ok(gate) = self.mmap_lock.enter_range_writer_killable() else { return RangeClaim::Killed };
        if self.counters.reserve_limits(&state.reserved, &needs(), |size| self.limit_of(size)).is_err() {
            return RangeClaim::NeedsExclusive;
        }
        // SAFETY: within the gate there are range writers only.
        let map = unsafe { self.tree.claim_writer(&state.write_set) };
        let right = WriteRight::Range(RangeWriter::new(self, map, state, gate));
        RangeClaim::Granted(WriteGuard { space: self, locked: LockedVmas::none(), right }, ())
    }
}

impl<P: Platform> WriteGuard<'_, P> {
    /// Claims what lies in a range, and what touches it.
    #[inline]
    pub(crate) fn claim_range(&self, range: UserRange) -> Result<(), ClaimError> {
        self.claims().claim(range.start(), range.end(), true, true)
    }

    /// Claims the hole that `range` is, with what touches it, and room above it for what a stack keeps free.
    #[inline]
    pub(crate) fn claim_placement(&self, range: UserRange) -> Result<(), ClaimError> {
        self.claims().claim_hole(range.start(), range.end(), |above| self.guard_bytes(above))
    }

    /// How many bytes below its start an entry of the tree keeps free.
    // Called within RCU: if the VMA is not there any more, it was.
    #[inline]
    pub(crate) fn guard_bytes(&self, entry: &Entry) -> u64 {
        entry.start - self.guard_start(entry)
    }

    /// Claims the hole that `range` is, with what touches it, where no other hole will do: if it is none, it
    /// takes the exclusive writer to say so. `kept(entry)` is what the entry above has to keep free.
    pub(crate) fn claim_hole(
        &self,
        range: UserRange,
        kept: impl Fn(&Entry) -> u64,
    ) -> Result<(), ClaimError> {
        match self.claims().claim_hole(range.start(), range.end(), kept) {
            Err(ClaimError::NotAHole) => Err(ClaimError::NeedsExclusive),
            other => other,
        }
    }

    /// Reserves `pages` more locked ones, if `flags` are of locked memory: those of a VMA that was not known
    /// before it was claimed. Else the claim is given up.
    pub(crate) fn reserve_locked_limit(&self, flags: VmFlags, pages: PageCount) -> Result<(), ClaimError> {
        let reserved = self.limit_reservation().filter(|_| flags.contains(VmFlags::LOCKED));
        let limit = self.space.limit_of(Size::Locked);
        match reserved.is_none_or(|reserved| self.space.counters.reserve_locked_limit(reserved, pages, limit))
        {
            true => Ok(()),
            false => Err(self.release_claims(ClaimError::NeedsExclusive)),
        }
    }

    /// Keeps the anon_vma of a VMA as it is, and returns whether it was so already. The mmap lock held for
    /// writing keeps it where nothing runs beside it; otherwise a fault, which may have begun before, gives
    /// the VMA its first one until it is locked.
    #[inline]
    pub(crate) fn pin_anon_vma(&self, vma: &Vma<P>) -> bool {
        if !self.space.supports_range_writers() || vma.anon().is_some() {
            return true;
        }
        let _ = self.lock_vma(vma);
        !vma.anon().is_some()
    }

    /// Gives up what is claimed, as it was. Returns why.
    pub(crate) fn release_claims(&self, why: ClaimError) -> ClaimError {
        self.claims().publish(None);
        why
    }

    /// Claims a range for something that takes the place of what is there: the hole that it is, or what is
    /// mapped in all of it.
    pub(crate) fn claim_replaced(&self, range: UserRange) -> Result<(), ClaimError> {
        let map = self.claims();
        match map.claim_hole(range.start(), range.end(), |_| 0) {
            Err(ClaimError::NotAHole) => {}
            other => return other,
        }
        self.claim_range(range)?;
        let (from, to) = map.claimed_range();
        if from <= range.start() && range.end() <= to {
            return Ok(());
        }
        Err(self.release_claims(ClaimError::NeedsExclusive))
    }
}

impl<'s, P: Platform> WriteGuard<'s, P> {
    /// Stores a VMA of anonymous memory into the hole that it lies in, by a step of its own, if nothing that
    /// touches it `joins` it. Then it is anybody's. `None`: it was not possible; the VMA goes back.
    pub(crate) fn insert_unclaimed(
        &self,
        vma: OwnedVma<'_, P>,
        joins: impl Fn(&Vma<P>) -> bool,
    ) -> Option<()> {
        let vma = vma.into_ref();
        debug_assert!(vma.is_anonymous() && !vma.anon().is_some(), "something leads to it besides the tree");
        LockedVmas::attach_unlocked(vma, &self.right);
        let kept = |above: &Entry| self.guard_bytes(above);
        let joins = |touching: &Entry| self.slot(touching).vma().is_some_and(&joins);
        match self.claims().insert_unclaimed(&entry(vma), kept, joins) {
            Ok(true) => return Some(()),
            Ok(false) => {}
            Err(_) => {
                self.space.record_contention();
            }
        }
        LockedVmas::detach_unfound(vma, &self.right);
        // SAFETY: detached just now, and nobody had found it.
        drop(unsafe { self.space.engine.slab.own(vma) });
        None
    }
}
