//! What a file of huge pages has besides its pages.

use super::{HugePageSize, reserves::FileReserves};
use crate::{
    error::{FillError, NoMemory},
    platform::Platform,
};
use freehold_sync::atomic::AtomicU32;
use freehold_vmspace::{Memory, PageRange};

/// What a file of huge pages has besides.
pub(crate) struct HugeFile {
    pub(crate) size: HugePageSize,
    pub(crate) reserves: FileReserves,
    /// How many walks need VMAs without shared tables: no VMA shares another while there is one. Changed
    /// under i_mmap exclusively.
    pub(crate) apart: AtomicU32,
}

impl HugeFile {
    pub(crate) fn new(size: HugePageSize) -> Self {
        HugeFile { size, reserves: FileReserves::new(), apart: AtomicU32::new(0) }
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> u64 {
        self.size.bytes()
    }

    /// See [`FileReserves::cut`]. Of a file that nobody has any more that needs no memory either.
    pub fn cut<P: Platform>(&self, memory: &Memory<P>, range: PageRange, pages: u64) {
        self.reserves.cut(memory, self.size, range, pages);
    }

    /// See [`FileReserves::prepare_cut`].
    pub fn prepare_cut<P: Platform>(&self) -> Result<(), NoMemory> {
        self.reserves.prepare_cut::<P>()
    }
}

/// Why a file did not get a page.
pub(crate) enum NotMade {
    Failed(FillError),
    /// One is returning that the file has reserved: see [`HugePool::wait`](freehold_vmspace::HugePool::wait).
    Returning(u32),
}

impl From<FillError> for NotMade {
    fn from(error: FillError) -> Self {
        NotMade::Failed(error)
    }
}

impl HugeFile {
    /// What follows when a page could not be had, with no lock held.
    ///
    /// # Errors
    ///
    /// It cannot be, or a fatal signal ended the wait; otherwise it is worth another try.
    pub fn after<P: Platform>(&self, memory: &Memory<P>, not_made: NotMade) -> Result<(), FillError> {
        match not_made {
            NotMade::Failed(error) => Err(error),
            NotMade::Returning(seen) => Ok(memory.huge_pool(self.size).wait(seen)?),
        }
    }
}
