//! The request PROCMAP_QUERY of /proc/PID/maps: returns one VMA, found by address and properties, so that a
//! profiler need not read all of maps.
//!
//! Each VMA is examined under its own lock (`with_next_vma` in `maps.rs`), and the result is one line of
//! maps. The flags have Linux's numbers, and an unknown flag must be refused; a new flag needs its rule in
//! `fits`. `reports::readers` (`engine/freehold/tests`) and `speculative_lookup` (`shuttle_engine`) test this
//! file.

use crate::report::maps::MapLine;
use crate::space::AddressSpace;
use crate::{
    error::QueryError,
    platform::Platform,
    vma::{Vma, flags::VmFlags},
};
use bitflags::bitflags;

bitflags! {
    /// Required properties of the VMA, with Linux's numbers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct QueryFlags: u64 {
        /// The VMA is readable.
        const READABLE = 1;
        /// The VMA is writable.
        const WRITABLE = 2;
        /// The VMA is executable.
        const EXECUTABLE = 4;
        /// The VMA is shared: other mappings of its file or memory see its stores.
        const SHARED = 8;
        /// Selects the first matching VMA at or above the address, not only the VMA at the address.
        const COVERING_OR_NEXT = 16;
        /// The VMA maps a file.
        const FILE_BACKED = 32;
    }
}

impl QueryFlags {
    /// Returns true if `vma` has the required properties.
    fn fits<P: Platform>(self, vma: &Vma<P>) -> bool {
        let wanted = [
            (QueryFlags::READABLE, VmFlags::READ),
            (QueryFlags::WRITABLE, VmFlags::WRITE),
            (QueryFlags::EXECUTABLE, VmFlags::EXEC),
            (QueryFlags::SHARED, VmFlags::MAYSHARE),
        ];
        let rights = wanted.iter().all(|(query, flag)| !self.contains(*query) || vma.flags().contains(*flag));
        rights && (!self.contains(QueryFlags::FILE_BACKED) || vma.object().open_file().is_some())
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Returns the VMA at `addr` if it matches `flags`. With
    /// [`COVERING_OR_NEXT`](QueryFlags::COVERING_OR_NEXT), returns the first VMA at or above `addr` that
    /// matches. The line covers the whole VMA, even if the VMA begins before `addr`.
    ///
    /// The line keeps a reference to the file, so that the caller can read data of the file, such as a build
    /// ID, without a lock. Calls share no state and may run concurrently (hazard C-70).
    ///
    /// # Errors
    ///
    /// Fails if no VMA matches or `flags` has unknown bits.
    ///
    /// # Locks
    ///
    /// For each examined VMA, the VMA's lock for reading or the mmap lock for reading. No lock is held
    /// between VMAs. The caller needs no lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, report::QueryFlags, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let found = space.query_vma(0, QueryFlags::COVERING_OR_NEXT).unwrap();
    /// assert_eq!((found.start, found.end), (at, at + 4 * PAGE_SIZE));
    /// ```
    pub fn query_vma(&self, addr: u64, flags: QueryFlags) -> Result<MapLine<P>, QueryError> {
        if !QueryFlags::all().contains(flags) {
            return Err(QueryError::Invalid);
        }
        let mut at = addr;
        loop {
            let looked = self.with_next_vma(at, |vma, part| match flags.fits(vma) {
                true => Ok(MapLine::of(self, vma, vma.range())),
                false => Err(part),
            });
            let next = flags.contains(QueryFlags::COVERING_OR_NEXT);
            match looked.ok_or(QueryError::NotFound)? {
                Ok(line) if next || line.start <= addr => return Ok(line),
                Err(part) if next => at = part.end(),
                Ok(_) | Err(_) => return Err(QueryError::NotFound),
            }
        }
    }
}
