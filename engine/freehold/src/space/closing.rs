//! Waiting for closing ranges: ranges whose munmap is still under way.
//!
//! A closing reservation is inserted into the tree when its VMAs are removed. Once no translation and no page
//! table of the range is left, a range writer or the exclusive writer removes the reservation. A task that
//! needs the same range sleeps here, and holds no lock and no claim of the address space during the sleep.
//!
//! | word | meaning |
//! | --- | --- |
//! | `counted` | number of reservations in the tree that were inserted under the mmap lock held for writing |
//! | `uncounted` | 1 if range writers have ever inserted reservations or [boundaries](super::cpu_arena) |
//! | `generation` | number of reservations that have ended, and of claims that had waiters when they ended; sleepers wait for this number to change |
//! | `has_sleepers` | 1 if tasks may sleep until the next end of a reservation and must be woken |
//!
//! Exclusive writers and range writers change all of these words.
//!
//! `change/unmap.rs` inserts a closing reservation and calls `end_closing`; every change that needs a range
//! calls `clear_for_write` or `write_exclusive_range` first, and `claim.rs` refuses the claim of a closing
//! range. No task may hold the mmap lock, the gate or a claim while it sleeps here, because the munmap that
//! ends the range needs the mmap lock or the gate. `ranges::every_pair_of_concurrent_changes`
//! (`shuttle_engine`) fails if a sleeper is not woken.

#![expect(unsafe_code, reason = "unlinks page tables")]

use super::{
    AddressSpace,
    locking::{TreeEntry, WriteGuard},
};
use crate::{UserRange, platform::Platform, space::state::closings::Closings};
use freehold_pagetable::VaRange;
use freehold_range::HAS_WAITERS;
use freehold_sync::{Killed, atomic::Ordering::Relaxed};

impl Closings {
    /// Counts a reservation that was inserted into the tree.
    pub fn begin<P: Platform>(&self, _: &WriteGuard<'_, P>) {
        self.counted.store(self.counted.load(Relaxed) + 1, Relaxed);
    }

    /// Counts the end of a reservation that was removed from the tree, and releases the lock. Then wakes the
    /// sleepers, if there are any or if `wanted` is true. `wanted` is true if range writers wait for the
    /// reservation.
    pub fn end<P: Platform>(&self, guard: WriteGuard<'_, P>, wanted: bool) {
        self.counted.store(self.counted.load(Relaxed) - 1, Relaxed);
        // Relaxed: a sleeper read the old number under the mmap lock. The sleeper therefore either sleeps and
        // is woken below, or sees the new number and does not sleep. In both cases the sleeper then takes the
        // mmap lock again. The sleeper set `has_sleepers` under that lock too, so nearly every munmap can
        // skip the wake-up.
        self.generation.store(self.generation.load(Relaxed).wrapping_add(1), Relaxed);
        let has_sleepers = wanted || self.has_sleepers.load(Relaxed) != 0;
        self.has_sleepers.store(0, Relaxed);
        drop(guard);
        if has_sleepers {
            P::wake_all(&self.generation);
        }
    }

    /// Releases the lock and sleeps until at least one of the reservations that exist now has ended. Fails
    /// with [`Killed`] if a fatal signal arrives first.
    pub fn wait_after<P: Platform>(&self, guard: WriteGuard<'_, P>) -> Result<(), Killed> {
        let seen = self.announce_sleep(&guard);
        drop(guard);
        P::wait_killable(&self.generation, seen)
    }

    /// Releases the lock and sleeps until at least one of the reservations that exist now has ended. Signals
    /// do not end the sleep.
    pub fn wait_after_unkillable<P: Platform>(&self, guard: WriteGuard<'_, P>) {
        let seen = self.announce_sleep(&guard);
        drop(guard);
        P::wait(&self.generation, seen);
    }

    /// Records that the caller is about to sleep. Returns the number whose change ends the sleep.
    fn announce_sleep<P: Platform>(&self, _: &WriteGuard<'_, P>) -> u32 {
        self.has_sleepers.store(1, Relaxed);
        self.generation.load(Relaxed)
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Ends a closing reservation. Takes the mmap lock for writing, unlinks the page tables at the edges of
    /// the range if no other range needs them, and removes the reservation from the tree. Flushes and frees
    /// the tables after releasing the lock.
    ///
    /// `counted` is true if an exclusive writer inserted the reservation. If `counted` is false, or if there
    /// are range writers now, this task ends the reservation as a range writer instead.
    pub(super) fn end_closing(&self, span: UserRange, counted: bool) {
        if self.supports_range_writers() && (!counted || self.has_range_writers()) {
            return self.end_closing_as_range_writer(span, counted);
        }
        let mut gather = self.vm.table_gather();
        let guard = self.write();
        // Range writers that wait for this reservation have set `HAS_WAITERS` while the gate was open.
        let wanted = guard.right.find(span.start()).is_some_and(|it| it.value.get() & HAS_WAITERS != 0);
        let free = guard.free_span(span);
        // SAFETY: the range was zapped, and the write lock keeps the tree unchanged: nothing is mapped in
        // `free`.
        unsafe { self.vm.unlink_tables(span.va(), free, &mut gather) };
        guard.replace(span, &[]);
        self.closings.end(guard, wanted);
        gather.finish();
    }
}

impl<P: Platform> WriteGuard<'_, P> {
    /// Removes [boundaries](super::cpu_arena) from `range`. Returns true if no part of the range is closing.
    #[cfg_attr(feature = "inline", inline(always))]
    pub(crate) fn clear_for_write(&self, range: UserRange) -> bool {
        // A range writer has claimed its range, and neither a closing range nor a boundary can be claimed. If
        // the space has no closing range and no boundary, which is the common case, no lookup is needed.
        self.range_writer().is_some() || !self.space.closings.any() || self.clear_for_write_slow(range)
    }

    #[cold]
    fn clear_for_write_slow(&self, range: UserRange) -> bool {
        let mut at = range.start();
        while let Some(slot) = self.next_slot(at).filter(|slot| slot.range().start() < range.end()) {
            let taken = slot.range();
            match slot {
                TreeEntry::Vma(_) => {}
                TreeEntry::Boundary(_) => self.replace(taken, &[]),
                TreeEntry::Closing(_) => return false,
            }
            at = taken.end();
        }
        true
    }
}

impl<P: Platform> WriteGuard<'_, P> {
    /// Returns the free addresses around `range`, including `range` itself. Page tables that lie inside the
    /// result may be freed. For a range writer the result is only `range`, because the end of its claim frees
    /// the tables at the edges.
    pub(crate) fn free_span(&self, range: UserRange) -> VaRange {
        if self.range_writer().is_some() {
            return range.va();
        }
        let (before, behind) = self.occupied_around(range);
        VaRange::of(before.map_or(0, |before| before.end()), behind.map_or(u64::MAX, |behind| behind.start()))
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Takes the mmap lock for writing to change `range`, at a moment when no part of `range` is closing.
    ///
    /// # Errors
    ///
    /// Fails with [`Killed`] if a fatal signal arrives first. The caller then holds no lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, UserRange, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let range = UserRange::new(at, at + 4 * PAGE_SIZE);
    /// let guard = space.write_exclusive_range(range).unwrap();
    /// assert_eq!(guard.find(at).unwrap().range(), range);
    /// ```
    #[inline]
    pub fn write_exclusive_range(&self, range: UserRange) -> Result<WriteGuard<'_, P>, Killed> {
        loop {
            let guard = self.write_killable()?;
            if guard.clear_for_write(range) {
                return Ok(guard);
            }
            self.closings.wait_after(guard)?;
        }
    }

    /// Waits until a closing range that an exclusive writer began has ended. Returns false immediately if
    /// there is none. The caller holds no lock.
    ///
    /// # Errors
    ///
    /// Fails with [`Killed`] if a fatal signal arrives first.
    pub(crate) fn wait_for_closing(&self) -> Result<bool, Killed> {
        // Without the lock this is a hint, so that a caller that waits for nothing does not stop other tasks.
        if self.closings.counted.load(Relaxed) == 0 {
            return Ok(false);
        }
        let guard = self.write_killable()?;
        if self.closings.counted.load(Relaxed) == 0 {
            return Ok(false);
        }
        self.closings.wait_after(guard)?;
        Ok(true)
    }

    /// Takes the mmap lock for writing like [`write_exclusive_range`](Self::write_exclusive_range), but
    /// signals do not end the wait.
    pub(crate) fn write_exclusive_range_unkillable(&self, range: UserRange) -> WriteGuard<'_, P> {
        loop {
            let guard = self.write();
            if guard.clear_for_write(range) {
                return guard;
            }
            self.closings.wait_after_unkillable(guard);
        }
    }
}
