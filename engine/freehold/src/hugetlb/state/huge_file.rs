//! The additional state of a file of huge pages ([`HugeFile`]): page size, reservations, and whether its VMAs
//! may start to share page tables.
//!
//! `Mapping` in `file/mapping.rs` has this state in the field `huge`. `file/kinds/huge.rs` uses the state to
//! allocate pages, `file/remove.rs` releases reservations (`cut`), and `sharing.rs` and `tables.rs` (in the
//! folder above) use `apart`. [`NotMade`] is the reason for which a page was not allocated. The caller must
//! release its locks before it calls [`after`](HugeFile::after), which may wait.

use super::{HugePageSize, reserves::FileReserves};
use crate::{
    error::{FillError, NoMemory},
    features::Hugetlb,
    platform::Platform,
};
use freehold_sync::atomic::AtomicU32;
use freehold_vmspace::{Memory, PageRange};

/// The additional state of a file of huge pages.
pub(crate) struct HugeFile {
    /// Size of a page. Never changes.
    pub(crate) size: HugePageSize,
    /// The reservations for shared mappings. Has a lock of its own.
    pub(crate) reserves: FileReserves,
    /// Number of walks over the file's VMAs that have had to wait for a VMA and have not ended yet. While the
    /// number is not zero, no VMA of the file starts to share a table. Changed under i_mmap held exclusively.
    pub(crate) apart: AtomicU32,
    /// Makes the compiler remove the code of huge pages if the crate is built without them.
    pub(crate) feature: Hugetlb,
}

impl HugeFile {
    /// Creates the state of a file without reservations. Returns `None` if the crate does not have the
    /// feature `hugetlb`.
    pub(crate) fn new(size: HugePageSize) -> Option<Self> {
        let (reserves, apart) = (FileReserves::new(), AtomicU32::new(0));
        Some(HugeFile { size, reserves, apart, feature: Hugetlb::get()? })
    }

    /// Returns the size of a page in bytes.
    pub fn page_bytes(&self) -> u64 {
        self.size.bytes()
    }

    /// Like [`FileReserves::cut`]. At the end of a file, `range` covers all offsets, so the cut needs no
    /// memory.
    pub fn cut<P: Platform>(&self, memory: &Memory<P>, range: PageRange, pages: u64) {
        self.reserves.cut(memory, self.size, range, pages);
    }

    /// Like [`FileReserves::prepare_cut`].
    pub fn prepare_cut<P: Platform>(&self) -> Result<(), NoMemory> {
        self.reserves.prepare_cut::<P>()
    }
}

/// Reasons for which a file did not get a page.
pub(crate) enum NotMade {
    /// The page cannot be allocated.
    Failed(FillError),
    /// The pool is empty, but a page that the file has reserved is returning: see
    /// [`HugePool::wait`](freehold_vmspace::HugePool::wait).
    Returning(u32),
}

impl From<FillError> for NotMade {
    fn from(error: FillError) -> Self {
        NotMade::Failed(error)
    }
}

impl HugeFile {
    /// Handles the lack of a page. Waits if a reserved page is returning to the pool. The caller holds no
    /// lock. After `Ok`, the caller tries again.
    ///
    /// # Errors
    ///
    /// Fails if there is no page to wait for, or if a fatal signal ends the wait.
    pub fn after<P: Platform>(&self, memory: &Memory<P>, not_made: NotMade) -> Result<(), FillError> {
        match not_made {
            NotMade::Failed(error) => Err(error),
            NotMade::Returning(seen) => Ok(memory.huge_pool(self.size).wait(seen)?),
        }
    }
}
