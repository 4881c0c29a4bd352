//! One VMA, by address and by what it must be: what the PROCMAP_QUERY request of /proc/PID/maps asks.

use crate::report::maps::MapLine;
use crate::space::AddressSpace;
use crate::{
    error::QueryError,
    platform::Platform,
    vma::{Vma, flags::VmFlags},
};
use bitflags::bitflags;

bitflags! {
    /// Which VMA is wanted, with Linux's numbers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct QueryFlags: u64 {
        /// One that may be read.
        const READABLE = 1;
        /// One that may be written.
        const WRITABLE = 2;
        /// One that may be executed.
        const EXECUTABLE = 4;
        /// One whose stores others see.
        const SHARED = 8;
        /// The first at the address or behind it that fits, not only the one at the address.
        const COVERING_OR_NEXT = 16;
        /// One of a file.
        const FILE_BACKED = 32;
    }
}

impl QueryFlags {
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
    /// The VMA at `addr`, if it is as `flags` say; with [`COVERING_OR_NEXT`](QueryFlags::COVERING_OR_NEXT)
    /// the first from there on that is. Whole, also where it begins before `addr`.
    ///
    /// What is in a file, a build ID say, is read by the caller afterwards, when no lock is held; the line
    /// keeps the file. Calls share nothing, so one may be made beside another (hazard C-70).
    ///
    /// # Errors
    ///
    /// There is none, or unknown flags.
    ///
    /// # Locks
    ///
    /// For each VMA looked at its lock for reading, or the mmap lock for reading; none in between, and none
    /// on entry.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, report::QueryFlags, engine::{Config, Engine}, space::*};
    /// # use freehold_machine::{Machine, MachineConfig};
    /// # let engine = Engine::new(<Machine>::new(MachineConfig::backed(1 << 20)).unwrap(), Config::default()).unwrap();
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
