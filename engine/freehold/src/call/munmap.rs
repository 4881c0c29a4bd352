//! munmap: the model of a change. The steps are in `unmap.rs`, which every caller that takes mappings away
//! shares.

use crate::{
    error::MunmapError,
    platform::Platform,
    space::{
        AddressSpace, change::unmap::UnmapRange, range_writer::RangeWriterState, state::counters::LimitDemand,
    },
};

impl<P: Platform> AddressSpace<P> {
    /// Removes all mappings from `len` bytes at `addr`; holes in the range are fine.
    ///
    /// After it returns, an access to the range faults. [`Locking::unmap`](crate::space::Locking::unmap)
    /// decides how long other tasks wait for the call.
    ///
    /// # Errors
    ///
    /// Everything stays mapped. See [`MunmapError`] for the cases.
    ///
    /// # Locks
    ///
    /// Those of a [range writer](crate::space::locking#writers), killably. Waits for other munmaps of the
    /// same range to end.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, engine::{Config, Engine}, space::*};
    /// # use freehold_machine::{Machine, MachineConfig};
    /// # let engine = Engine::new(<Machine>::new(MachineConfig::backed(1 << 20)).unwrap(), Config::default()).unwrap();
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.munmap(at + PAGE_SIZE, PAGE_SIZE).unwrap();
    /// assert!(space.vma_info(at).is_some() && space.vma_info(at + PAGE_SIZE).is_none());
    /// ```
    pub fn munmap(&self, addr: u64, len: u64) -> Result<(), MunmapError> {
        self.unmap_range(&UnmapRange::new::<P>(addr, len)?, false)
    }

    /// As [`munmap`](Self::munmap) for a caller that is *atomic*: nobody sees the range half gone, and the
    /// lock is held throughout, whatever the design.
    ///
    /// # Errors
    ///
    /// As [`munmap`](Self::munmap).
    ///
    /// # Locks
    ///
    /// Those of [`munmap`](Self::munmap).
    pub fn munmap_atomic(&self, addr: u64, len: u64) -> Result<(), MunmapError> {
        self.unmap_range(&UnmapRange::new::<P>(addr, len)?, true)
    }

    /// munmap's core: takes `range` away, by the design of this space unless the caller is *atomic*, which
    /// must not let go of the lock half-way.
    ///
    /// # Locks
    ///
    /// Those of a [range writer](crate::space::locking#writers), killably at first.
    pub(super) fn unmap_range(&self, range: &UnmapRange, atomic: bool) -> Result<(), MunmapError> {
        if !atomic
            && self.range_writers_unmap()
            && let Some(guard) = self.try_write_exclusive(range.range())
        {
            return guard.unmap_by_design_inline(range);
        }
        self.unmap_concurrently(range, atomic)
    }

    /// The same where there may be others.
    #[inline(never)]
    fn unmap_concurrently(&self, range: &UnmapRange, atomic: bool) -> Result<(), MunmapError> {
        let state = RangeWriterState::default();
        let guard = match self.range_writers_unmap() {
            true => self.write_range(&state, range.range(), LimitDemand::CUTS)?,
            false => self.write_exclusive_range(range.range())?,
        };
        if atomic {
            let unmapped = guard.unmap(range)?;
            drop(guard);
            unmapped.retire();
            return Ok(());
        }
        guard.unmap_by_design(range)
    }
}
