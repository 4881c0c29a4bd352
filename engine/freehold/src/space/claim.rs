//! Becoming a range writer: a task claims the VMAs or the hole that it needs, or becomes the exclusive writer
//! instead.
//!
//! A call that changes VMAs gets its [`WriteGuard`] here. A range writer enters the gate of the mmap lock,
//! reserves the amounts that it may add to limited sizes, such as the number of VMAs, and claims entries of
//! the VMA tree. A task that meets the claim of another task releases everything, waits, and tries again a
//! few times. If a claim is not possible, the task becomes the exclusive writer, which waits for closing
//! ranges (`closing.rs`).
//!
//! `range_writer.rs` implements the end of a range writer, and `write_mode.rs` chooses between the two kinds
//! of writer. `docs/guide/ranges.md` describes the protocol.
//!
//! A task must not hold a claim, a lock of the address space or the gate while it sleeps for a claim. Claims
//! therefore have no rank in the lock order. `ranges::every_pair_of_concurrent_changes` (`shuttle_engine`)
//! and the tests of `range_writers` (`engine/freehold/tests`) test this file.
#![expect(unsafe_code, reason = "claims in the tree of VMAs")]

use crate::{
    features::RangeWriters,
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
use freehold_range::{ClaimError, Entry, Filled};
use freehold_sync::{Killed, MmapWriteGuard, Rank, rank};
use freehold_vmspace::{PageCount, UserRange};

/// Number of conflicting claims that a task waits for before it becomes the exclusive writer. Bounds the
/// wait.
const MAX_WAITS: usize = 4;

/// The result of an attempt to become a range writer.
pub(crate) enum RangeClaim<'s, P: Platform, T = ()> {
    /// The right to change what was claimed, and the result of the claim function.
    Granted(WriteGuard<'s, P>, T),
    /// The change must be made by the exclusive writer. Also returned if there is no memory for the claim,
    /// because the exclusive writer has nodes of the tree in reserve.
    NeedsExclusive,
    /// A fatal signal arrived first. The task holds no lock and no claim.
    Killed,
}

impl<P: Platform> AddressSpace<P> {
    /// Takes the right to change `range`. Claims the entries in the range and those that touch it, if they
    /// can be claimed. Otherwise becomes the exclusive writer like
    /// [`write_exclusive_range`](Self::write_exclusive_range).
    ///
    /// # Errors
    ///
    /// Fails with [`Killed`] if a fatal signal arrives first. The caller then holds no lock and no claim.
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
        let (guard, _) = self.claim_or_exclusive(state, range, || needs, |guard| guard.claim_range(range))?;
        Ok(guard)
    }

    /// Calls `change` and then `flush` with `state`, under the right that [`write_range`](Self::write_range)
    /// would return. `change` may run with a leaf of the tree latched
    /// ([`change_or_claim`](WriteGuard::change_or_claim)), and `flush` never does. Creates a
    /// [`RangeWriterState`] only if the caller becomes a range writer.
    #[cfg_attr(feature = "inline", inline(always))]
    pub(crate) fn with_write_range<S, E: From<Killed>>(
        &self,
        range: UserRange,
        needs: impl Fn() -> LimitDemand,
        state: &mut S,
        change: impl Fn(&mut S, &WriteGuard<'_, P>) -> Result<(), E>,
        flush: impl Fn(&mut S),
    ) -> Result<(), E> {
        if let Some(lock) = self.try_lock_exclusive() {
            let guard = self.writer(lock);
            if range.is_empty() || guard.clear_for_write(range) {
                let done = change(state, &guard);
                flush(state);
                return done;
            }
        }
        self.with_range_claim(range, needs, state, change, flush)
    }

    /// Implements the part of [`with_write_range`](Self::with_write_range) that runs if the task did not
    /// become the exclusive writer at once.
    #[inline(never)]
    fn with_range_claim<S, E: From<Killed>>(
        &self,
        range: UserRange,
        needs: impl Fn() -> LimitDemand,
        state: &mut S,
        change: impl Fn(&mut S, &WriteGuard<'_, P>) -> Result<(), E>,
        flush: impl Fn(&mut S),
    ) -> Result<(), E> {
        let writer = RangeWriterState::default();
        let (guard, done) = self.claim_or_exclusive(&writer, range, needs, |guard| {
            guard.change_or_claim(range, |guard| change(state, guard))
        })?;
        let done = done.flatten().unwrap_or_else(|| change(state, &guard));
        flush(state);
        drop(guard);
        done
    }

    /// Becomes a range writer that holds the claims that `claim` makes, if the address space prefers range
    /// writers. Otherwise becomes the exclusive writer. Also returns the value of `claim`, or `None` for the
    /// exclusive writer.
    // Inlined, because guards are large.
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    fn claim_or_exclusive<'s, T>(
        &'s self,
        state: &'s RangeWriterState,
        range: UserRange,
        needs: impl Fn() -> LimitDemand,
        claim: impl FnMut(&mut WriteGuard<'s, P>) -> Result<T, ClaimError>,
    ) -> Result<(WriteGuard<'s, P>, Option<T>), Killed> {
        if !range.is_empty() && self.prefers_ranges() {
            match self.try_claim(state, needs, claim) {
                RangeClaim::Granted(guard, claimed) => return Ok((guard, Some(claimed))),
                RangeClaim::NeedsExclusive => {}
                RangeClaim::Killed => return Err(Killed),
            }
        }
        let guard = self.write_exclusive_range(range)?;
        self.count_exclusive();
        Ok((guard, None))
    }

    /// Becomes a range writer with the claims that `claim` makes. If the claim fails, becomes the exclusive
    /// writer and calls `ready`. While `ready` returns `None`, because a range that the change needs is
    /// closing, releases the lock, waits and tries again. Also returns the value of `claim` or `ready`.
    ///
    /// # Errors
    ///
    /// Fails with [`Killed`] if a fatal signal arrives first. The caller then holds no lock and no claim.
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

    /// Becomes the exclusive writer and calls `ready`. While `ready` returns `None`, releases the lock, waits
    /// and tries again, as [`claim_or_exclusive_when`](Self::claim_or_exclusive_when) does.
    ///
    /// # Errors
    ///
    /// Fails with [`Killed`] if a fatal signal arrives first. The caller then holds no lock and no claim.
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

    /// Claims the VMA at `addr` and the VMAs that touch it, for a change that leaves all bounds as they are.
    /// Not granted if nothing is mapped at `addr`.
    pub(crate) fn claim_vma<'s>(&'s self, state: &'s RangeWriterState, addr: u64) -> RangeClaim<'s, P> {
        let claim = |guard: &mut WriteGuard<'s, P>| {
            // Does not wait for a closing range or a reservation.
            let (start, end) = self.vma_bounds(addr).ok_or(ClaimError::NeedsExclusive)?;
            let map = guard.claims();
            map.claim(start, end, true, false)?;
            if map.find(addr).is_some_and(|found| (found.start, found.end) == (start, end)) {
                return Ok(());
            }
            // The VMA has changed, so it may have other neighbours now.
            Err(guard.release_claims(ClaimError::NotAHole))
        };
        self.try_claim(state, LimitDemand::default, claim)
    }

    /// Becomes the exclusive writer for a change of `range`, if there are no range writers now and the mmap
    /// lock is free.
    // Inlined, like every function that returns a guard: guards are large.
    #[cfg_attr(feature = "inline", inline(always))]
    pub(crate) fn try_write_exclusive(&self, range: UserRange) -> Option<WriteGuard<'_, P>> {
        let guard = self.writer(self.try_lock_exclusive()?);
        let free = range.is_empty() || guard.clear_for_write(range);
        free.then_some(guard)
    }

    /// Performs the first step of [`try_write_exclusive`](Self::try_write_exclusive). The most frequent calls
    /// construct the guard themselves, where they use it, because the processor stalls when it copies a value
    /// that was just stored.
    #[cfg_attr(feature = "inline", inline(always))]
    pub(crate) fn try_lock_exclusive(&self) -> Option<MmapWriteGuard<'_, P>> {
        match self.write_kind() {
            Write::RangesOnly => None,
            Write::Whole | Write::Ranges => self.mmap_lock.try_write_exclusive(),
        }
    }

    /// Becomes a range writer that holds the claims that `claim` has made. Waits for conflicting claims a
    /// bounded number of times.
    pub(crate) fn try_claim<'s, T>(
        &'s self,
        state: &'s RangeWriterState,
        needs: impl Fn() -> LimitDemand,
        mut claim: impl FnMut(&mut WriteGuard<'s, P>) -> Result<T, ClaimError>,
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
                // Another task filled the hole first. The task can try another hole without waiting.
                Err(ClaimError::NotAHole) => continue,
                Err(ClaimError::Contended) => {}
            }
            // Reads the generation, which changes when the conflicting claim ends, and then tries again.
            let seen = self.closings.generation();
            match claim(&mut guard) {
                Ok(decided) => return RangeClaim::Granted(guard, decided),
                Err(ClaimError::Contended) => drop(guard),
                Err(ClaimError::NotAHole) => continue,
                Err(ClaimError::NeedsExclusive | ClaimError::NoMemory) => return RangeClaim::NeedsExclusive,
            }
            // This task holds no lock of the address space and no claim during the wait.
            rank::will_wait::<P>(Rank::Mmap);
            if P::wait_killable(self.closings.generation_word(), seen).is_err() {
                return RangeClaim::Killed;
            }
        }
        RangeClaim::NeedsExclusive
    }

    /// Becomes a range writer that has claimed nothing yet. Returns `NeedsExclusive` if the change may reach
    /// a limit.
    #[inline]
    pub(crate) fn enter_range_writer<'s>(
        &'s self,
        state: &'s RangeWriterState,
        needs: impl Fn() -> LimitDemand,
    ) -> RangeClaim<'s, P> {
        let Some(feature) = RangeWriters::get() else { return RangeClaim::NeedsExclusive };
        let Ok(gate) = self.mmap_lock.enter_range_writer_killable() else { return RangeClaim::Killed };
        if self.counters.reserve_limits(&state.reserved, &needs(), |size| self.limit_of(size)).is_err() {
            return RangeClaim::NeedsExclusive;
        }
        // SAFETY: the gate excludes all writers except range writers.
        let map = unsafe { self.tree.claim_writer(&state.write_set) };
        let right = WriteRight::Range(RangeWriter::new(self, map, state, gate, feature));
        RangeClaim::Granted(WriteGuard { space: self, locked: LockedVmas::none(), right }, ())
    }
}

impl<P: Platform> WriteGuard<'_, P> {
    /// Claims the entries in a range, and those that touch it.
    #[inline]
    pub(crate) fn claim_range(&self, range: UserRange) -> Result<(), ClaimError> {
        self.claims().claim(range.start(), range.end(), true, true)
    }

    /// Claims the hole `range` and the entries that touch it, if the hole also leaves room for the gap of a
    /// stack above.
    #[inline]
    pub(crate) fn claim_placement(&self, range: UserRange) -> Result<(), ClaimError> {
        self.claims().claim_hole(range.start(), range.end(), |above| self.guard_bytes(above))
    }

    /// Returns the number of bytes that an entry of the tree keeps free below its start.
    // Called within RCU. The VMA may have been unmapped since the entry was read; RCU keeps it readable.
    #[inline]
    pub(crate) fn guard_bytes(&self, entry: &Entry) -> u64 {
        entry.start - self.guard_start(entry)
    }

    /// Claims the hole `range` and the entries that touch it, for a change that cannot use another hole.
    /// Fails with `NeedsExclusive` if `range` is not a hole, because only the exclusive writer may return the
    /// error for an occupied range. `kept(entry)` is the number of bytes that the entry above keeps free.
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

    /// Reserves `pages` more locked pages if `flags` are those of locked memory. Used if the flags of the VMA
    /// were not known before the claim. Releases the claims if the reservation fails.
    pub(crate) fn reserve_locked_limit(&self, flags: VmFlags, pages: PageCount) -> Result<(), ClaimError> {
        let reserved = self.limit_reservation().filter(|_| flags.contains(VmFlags::LOCKED));
        let limit = self.space.limit_of(Size::Locked);
        match reserved.is_none_or(|reserved| self.space.counters.reserve_locked_limit(reserved, pages, limit))
        {
            true => Ok(()),
            false => Err(self.release_claims(ClaimError::NeedsExclusive)),
        }
    }

    /// Reserves the VMAs that cuts at both ends of a claimed range may add. Releases the claims if the
    /// reservation fails.
    pub(crate) fn reserve_cuts(&self) -> Result<(), ClaimError> {
        let (space, Some(reserved)) = (self.space, self.limit_reservation()) else { return Ok(()) };
        let limit = |size| space.limit_of(size);
        match space.counters.reserve_limits(reserved, &LimitDemand::CUTS, limit) {
            Ok(()) => Ok(()),
            Err(_) => Err(self.release_claims(ClaimError::NeedsExclusive)),
        }
    }

    /// Keeps the anon_vma of a VMA unchanged from here on. Returns false if the VMA has got its first
    /// anon_vma during this call; values that the caller has read before are then out of date.
    ///
    /// Without range writers the mmap lock held for writing keeps the anon_vma unchanged. With range writers,
    /// a fault that began earlier can still attach the first anon_vma until the VMA is write-locked.
    #[inline]
    pub(crate) fn pin_anon_vma(&self, vma: &Vma<P>) -> bool {
        if !self.space.supports_range_writers() || vma.anon().is_some() {
            return true;
        }
        let _ = self.lock_vma(vma);
        !vma.anon().is_some()
    }

    /// Releases the claims without changes. Returns `why`.
    pub(crate) fn release_claims(&self, why: ClaimError) -> ClaimError {
        self.claims().publish(None);
        why
    }

    /// Claims a range whose mappings are to be replaced: a hole, or mappings that cover all of the range.
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
    /// Stores a VMA of anonymous memory into the hole at its addresses in a single step, without a claim. If
    /// `joins` returns true for a VMA that touches the hole, the mapping must merge with that VMA, and
    /// `extend` is called with that VMA and its new bounds. `extend` returns false if it cannot set the
    /// bounds without a claim. Other tasks may use the VMA as soon as it is stored. A VMA that is not stored
    /// is freed.
    ///
    /// # Errors
    ///
    /// See [`ClaimError`]. Nothing is stored then.
    pub(crate) fn insert_unclaimed(
        &self,
        vma: OwnedVma<'_, P>,
        joins: impl Fn(&Vma<P>) -> bool,
        extend: impl FnOnce(&Vma<P>, UserRange) -> bool,
    ) -> Result<Filled, ClaimError> {
        let vma = vma.into_ref();
        debug_assert!(vma.is_anonymous() && !vma.anon().is_some(), "the VMA can be found without the tree");
        LockedVmas::attach_unlocked(vma, &self.right);
        let kept = |above: &Entry| self.guard_bytes(above);
        let joins = |touching: &Entry| self.slot(touching).vma().is_some_and(&joins);
        let extend = |whole: &Entry| {
            self.slot(whole).vma().is_some_and(|vma| extend(vma, UserRange::new(whole.start, whole.end)))
        };
        let stored = self.claims().insert_unclaimed(&entry(vma), kept, joins, extend);
        if stored != Ok(Filled::Inserted) {
            LockedVmas::detach_unfound(vma, &self.right);
            // SAFETY: the VMA was just detached, and no task had found it.
            drop(unsafe { self.space.engine.slab.own(vma) });
        }
        stored
    }
}
