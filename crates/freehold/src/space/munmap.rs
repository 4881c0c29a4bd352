//! munmap: the model of a change. The steps are in `unmap.rs`, which every caller that takes mappings away shares.

use super::{AddressSpace, unmap::Decoded};
use crate::{error::MunmapError, platform::Platform};

impl<P: Platform> AddressSpace<P> {
    /// Removes all mappings from `len` bytes at `addr`; holes in the range are fine.
    ///
    /// After it returns, an access to the range faults. How long others wait meanwhile is the business of
    /// [`Locking::unmap`](super::Locking::unmap).
    ///
    /// # Errors
    ///
    /// Everything stays mapped. See [`MunmapError`] for the cases.
    ///
    /// # Locks
    ///
    /// The mmap lock for writing, killably; waits for other munmaps of the same range to end.
    pub fn munmap(&self, addr: u64, len: u64) -> Result<(), MunmapError> {
        self.unmap_range(&Decoded::new(addr, len)?, false)
    }

    /// As [`munmap`](Self::munmap) for a caller that is *atomic*: nobody sees the range half gone, and the lock is held
    /// throughout, whatever the design.
    ///
    /// # Errors
    ///
    /// As [`munmap`](Self::munmap).
    pub fn munmap_atomic(&self, addr: u64, len: u64) -> Result<(), MunmapError> {
        self.unmap_range(&Decoded::new(addr, len)?, true)
    }
}
