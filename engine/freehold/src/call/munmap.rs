//! munmap: unmaps a range. The call is the simplest change of an address space.
//!
//! This file acquires the right to remove the range. The range is then removed as
//! [`Locking::unmap`](crate::space::Locking::unmap) says, or, for an *atomic* caller, without a release of
//! the lock. The steps decode, prepare, commit, settle and retire are in `space/change/unmap.rs`, which all
//! calls that unmap ranges share. `docs/guide/munmap.md` describes them.
//!
//! `tests/munmap` tests the locks held in each step (`callers.rs`) and failed calls (`refused_calls.rs`).
//! `shuttle_engine/munmap.rs` runs munmap concurrently with faults and with new mappings.

use crate::{
    error::MunmapError,
    platform::Platform,
    space::{
        AddressSpace, change::unmap::UnmapRange, claim::RangeClaim, range_writer::RangeWriterState,
        state::counters::LimitDemand,
    },
};

impl<P: Platform> AddressSpace<P> {
    /// Unmaps all mappings in `len` bytes at `addr`. Holes in the range are allowed.
    ///
    /// After the call returns, an access to the range faults.
    /// [`Locking::unmap`](crate::space::Locking::unmap) determines how long other tasks wait for the call.
    ///
    /// # Errors
    ///
    /// See [`MunmapError`]. After an error everything stays mapped, with one exception: with
    /// [`Unmap::Sectioned`](crate::space::Unmap::Sectioned), the sections before a failed one are unmapped. A
    /// later section can fail only because of changes by other tasks between two sections.
    ///
    /// # Locks
    ///
    /// The locks of a [range writer](crate::space::locking#writers), killably. Waits for other munmaps of the
    /// same range to end.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.munmap(at + PAGE_SIZE, PAGE_SIZE).unwrap();
    /// assert!(space.vma_info(at).is_some() && space.vma_info(at + PAGE_SIZE).is_none());
    /// ```
    pub fn munmap(&self, addr: u64, len: u64) -> Result<(), MunmapError> {
        self.unmap_range(UnmapRange::new::<P>(addr, len)?, false)
    }

    /// Unmaps a range like [`munmap`](Self::munmap) for an *atomic* caller: no task sees the range partly
    /// unmapped. The lock is held until the end, for every value of
    /// [`Locking::unmap`](crate::space::Locking::unmap).
    ///
    /// # Errors
    ///
    /// The errors of [`munmap`](Self::munmap).
    ///
    /// # Locks
    ///
    /// The locks of [`munmap`](Self::munmap).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.munmap_atomic(at + PAGE_SIZE, 2 * PAGE_SIZE).unwrap();
    /// assert_eq!((space.counts().map_count, space.counts().total_vm), (2, 2));
    /// ```
    pub fn munmap_atomic(&self, addr: u64, len: u64) -> Result<(), MunmapError> {
        self.unmap_range(UnmapRange::new::<P>(addr, len)?, true)
    }

    /// Unmaps `range` according to the design of this space. An *atomic* caller must not release the lock
    /// before the end.
    ///
    /// # Locks
    ///
    /// The locks of a [range writer](crate::space::locking#writers). The first lock is taken killably.
    fn unmap_range(&self, mut range: UnmapRange, atomic: bool) -> Result<(), MunmapError> {
        match self.try_unmap(&mut range, atomic) {
            Err(error) => self.retry_after(error, || self.unmap_concurrently(&mut range, atomic)),
            done => done,
        }
    }

    /// Makes the first attempt of [`unmap_range`](Self::unmap_range). After a failure, `range` is the part
    /// that is still to be unmapped.
    #[cfg_attr(all(feature = "inline", not(debug_assertions)), inline(always))]
    fn try_unmap(&self, range: &mut UnmapRange, atomic: bool) -> Result<(), MunmapError> {
        if !atomic
            && self.range_writers_unmap()
            && let Some(lock) = self.try_lock_exclusive()
        {
            let guard = self.writer(lock);
            if guard.clear_for_write(range.range()) {
                return guard.unmap_by_design_inline(range);
            }
        }
        self.unmap_concurrently(range, atomic)
    }

    /// Unmaps `range` while other writers may be active.
    #[inline(never)]
    fn unmap_concurrently(&self, range: &mut UnmapRange, atomic: bool) -> Result<(), MunmapError> {
        if !atomic && self.range_writers_unmap() {
            return self.unmap_by_range_writer(range);
        }
        let state = RangeWriterState::default();
        let guard = match self.range_writers_unmap() {
            true => self.write_range(&state, range.range(), LimitDemand::CUTS)?,
            false => self.write_exclusive_range(range.range())?,
        };
        if !atomic {
            return guard.unmap_by_design(range);
        }
        let unmapped = guard.unmap(range)?;
        drop(guard);
        unmapped.retire();
        Ok(())
    }

    /// Unmaps `range` as a range writer if the address space prefers range writers, otherwise as the
    /// exclusive writer.
    // `claim_or_exclusive_when` has the same steps, but moving its result costs 180 instructions.
    #[inline]
    fn unmap_by_range_writer(&self, range: &mut UnmapRange) -> Result<(), MunmapError> {
        let state = RangeWriterState::default();
        if self.prefers_ranges() {
            match self.try_claim(&state, LimitDemand::default, |guard| guard.detach_or_claim(range.range())) {
                RangeClaim::Granted(guard, Some(removed)) => {
                    guard.settle_unclaimed(removed);
                    return Ok(());
                }
                RangeClaim::Granted(guard, None) => return guard.unmap_by_design(range),
                RangeClaim::NeedsExclusive => {}
                RangeClaim::Killed => return Err(MunmapError::Killed),
            }
        }
        let guard = self.write_exclusive_range(range.range())?;
        self.count_exclusive();
        guard.unmap_by_design(range)
    }
}
