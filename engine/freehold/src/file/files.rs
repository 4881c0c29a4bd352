//! [`Files`]: what the files of an engine have in common.

use super::{file_list::FileList, kinds::shmem_huge::SharedBlocks};
use crate::{
    committed::CommittedMemory,
    counted::{Counted, Shared},
    hugetlb::state::Hugetlb,
    platform::Platform,
    rmap::tree::lock::FileRmap,
};
use freehold_sync::{
    atomic::{AtomicU64, Ordering::Relaxed},
    stats::LockStats,
};
use freehold_vmspace::Memory;

/// What the files of an engine have in common: where their pages come from, and the settings that apply to
/// them.
pub struct Files<P: Platform> {
    /// The files that may have memory to spare.
    pub(crate) list: FileList<P>,
    /// The fault mutexes of huge pages.
    pub(crate) hugetlb: Hugetlb<P>,
    /// Committed memory, of files and of private memory.
    pub(crate) committed: CommittedMemory<P>,
    /// See [`SharedBlocks`]; one word, read and written alone.
    shared_blocks: AtomicU64,
    /// How a file's i_mmap lock is taken.
    pub(crate) file_rmap: FileRmap,
    /// Statistics of the i_mmap locks, if they are kept.
    pub(crate) lock_stats: Option<Counted<LockStats<P>>>,
    /// The frames of the platform. Last: whatever the fields above give back goes to it.
    memory: Counted<Memory<P>>,
}

/// An engine, as files know it: an argument of the functions that make files and segments.
pub trait HasFiles<P: Platform> {
    /// Returns what the files of this engine have in common.
    fn files(&self) -> &Counted<Files<P>>;
}

impl<P: Platform> HasFiles<P> for Counted<Files<P>> {
    fn files(&self) -> &Counted<Files<P>> {
        self
    }
}

impl<P: Platform> Shared for Files<P> {}

impl<P: Platform> Files<P> {
    /// Sets up the state of an engine without files.
    pub(crate) fn new(
        memory: Counted<Memory<P>>,
        hugetlb: Hugetlb<P>,
        committed: CommittedMemory<P>,
        shared_blocks: SharedBlocks,
        file_rmap: FileRmap,
        lock_stats: Option<Counted<LockStats<P>>>,
    ) -> Self {
        let shared_blocks = AtomicU64::new(shared_blocks.word());
        Files { list: FileList::new(), hugetlb, committed, shared_blocks, file_rmap, lock_stats, memory }
    }

    /// Returns the platform.
    #[inline]
    pub fn platform(&self) -> &P {
        self.memory.platform()
    }

    /// Returns the platform's frames.
    #[inline]
    pub fn memory(&self) -> &Counted<Memory<P>> {
        &self.memory
    }

    /// Returns the sizes of pages that shared memory gets.
    pub fn shared_blocks(&self) -> SharedBlocks {
        // Relaxed, here and below: one word, on which nothing else depends. A fault that reads it during a
        // change comes before or after that.
        SharedBlocks::of(self.shared_blocks.load(Relaxed))
    }

    /// Sets the sizes of pages that shared memory gets. What is in a cache stays.
    pub(crate) fn set_shared_blocks(&self, blocks: SharedBlocks) {
        self.shared_blocks.store(blocks.word(), Relaxed);
    }
}
