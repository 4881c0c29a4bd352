//! munmap: the model of a change. The steps are in `unmap.rs`, which every caller that takes mappings away
//! shares.

use super::{AddressSpace, unmap::Decoded};
use crate::{error::MunmapError, platform::Platform};

impl<P: Platform> AddressSpace<P> {
    /// Removes all mappings from `len` bytes at `addr`; holes in the range are fine.
    ///
    /// After it returns, an access to the range faults. [`Locking::unmap`](super::Locking::unmap) decides how
    /// long others wait meanwhile.
    ///
    /// # Errors
    ///
    /// Everything stays mapped. See [`MunmapError`] for the cases.
    ///
    /// # Locks
    ///
    /// The mmap lock for writing, killably; waits for other munmaps of the same range to end.
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
        self.unmap_range(&Decoded::new::<P>(addr, len)?, false)
    }

    /// As [`munmap`](Self::munmap) for a caller that is *atomic*: nobody sees the range half gone, and the
    /// lock is held throughout, whatever the design.
    ///
    /// # Errors
    ///
    /// As [`munmap`](Self::munmap).
    pub fn munmap_atomic(&self, addr: u64, len: u64) -> Result<(), MunmapError> {
        self.unmap_range(&Decoded::new::<P>(addr, len)?, true)
    }
}
