//! [`Files`]: the state that all files of an engine share. The state is separate from
//! [`Engine`](crate::engine::Engine), because files are a lower layer.
//!
//! Each file and each special mapping keeps a reference to this state, which therefore exists as long as any
//! of them. Two objects belong to the same engine if they refer to the same `Files`. Each field is constant,
//! has its own lock, or is a single word. State that only address spaces need is in `Engine` instead.
//! `memory` must stay the last field, because the fields before it free frames into it.

use super::{cache::reading::Turns, file_list::FileList, kinds::shmem_huge::SharedBlocks};
use crate::{
    committed::CommittedMemory,
    counted::{Counted, Shared},
    error::NoMemory,
    hugetlb::state::Hugetlb,
    platform::Platform,
    reclaim::state::ReclaimState,
    rmap::tree::lock::FileRmap,
    shortage::create,
    swap::Swap,
};
use freehold_sync::{
    atomic::{AtomicU64, Ordering::Relaxed},
    stats::LockStats,
};
use freehold_vmspace::Memory;

/// The state that all files of an engine share: the frames of their pages, and the settings that apply to
/// them.
pub struct Files<P: Platform> {
    /// The files whose caches may hold reclaimable pages.
    pub(crate) list: FileList<P>,
    /// The files of which pages were swapped out.
    pub(crate) swapped: FileList<P>,
    /// The fault mutexes of huge pages.
    pub(crate) hugetlb: Hugetlb<P>,
    /// Committed memory, of files and of private memory.
    pub(crate) committed: CommittedMemory<P>,
    /// The pages of all files that commit their pages one by one, if their number is limited.
    pub(crate) kept: Option<CommittedMemory<P>>,
    /// The sizes of [`SharedBlocks`], packed into one word. Read and written atomically, without a lock.
    shared_blocks: AtomicU64,
    /// The counters that tasks sleep on while a page of a file is being read. Atomic, without a lock.
    pub(super) reads: Turns,
    /// The policy of reclaim, and the place that it has reached. Words that are read and written on their
    /// own.
    pub(crate) reclaim: ReclaimState<P>,
    /// The swap devices. Atomic, without a lock.
    pub(crate) swap: Swap<P>,
    /// Initial maximum of readahead of each file, in pages.
    pub(super) readahead: u32,
    /// Maximum number of dirty pages of each file.
    pub(super) dirty_limit: u64,
    /// Kind of lock that implements the i_mmap lock of each file.
    pub(crate) file_rmap: FileRmap,
    /// Statistics of the i_mmap locks, if statistics are enabled.
    pub(crate) lock_stats: Option<Counted<LockStats<P>>>,
    /// The frames of the platform. The last field, because dropping the other fields frees their frames into
    /// this memory.
    memory: Counted<Memory<P>>,
}

/// The part of an engine that files need. Functions that create files and segments take this argument.
///
/// # Examples
///
/// ```
/// # use freehold::{PAGE_SIZE, counted::Counted, file::{HasFiles, Mapping}, platform::Platform};
/// # let engine = freehold_machine::example_engine(1 << 20);
/// fn create<P: Platform>(engine: &impl HasFiles<P>) -> Counted<Mapping<P>> {
///     Mapping::memfd(engine, PAGE_SIZE).unwrap()
/// }
/// let [a, b] = [create(&engine), create(engine.files())];
/// assert!(Counted::ptr_eq(a.files(), b.files()));
/// ```
pub trait HasFiles<P: Platform> {
    /// Returns the state that all files of this engine share.
    fn files(&self) -> &Counted<Files<P>>;
}

impl<P: Platform> HasFiles<P> for Counted<Files<P>> {
    fn files(&self) -> &Counted<Files<P>> {
        self
    }
}

impl<P: Platform> Shared for Files<P> {}

impl<P: Platform> Files<P> {
    /// Creates the state of an engine that has no files. The frames are those of `swap`.
    pub(crate) fn new(
        swap: Swap<P>,
        hugetlb: Hugetlb<P>,
        committed: CommittedMemory<P>,
        kept: Option<CommittedMemory<P>>,
        reclaim: ReclaimState<P>,
        lock_stats: Option<Counted<LockStats<P>>>,
    ) -> Self {
        let memory = swap.memory().clone();
        Files {
            list: FileList::new(),
            swapped: FileList::new(),
            hugetlb,
            committed,
            kept,
            shared_blocks: AtomicU64::new(SharedBlocks::default().word()),
            reads: Turns::new(),
            reclaim,
            swap,
            readahead: 0,
            dirty_limit: u64::MAX,
            file_rmap: FileRmap::default(),
            lock_stats,
            memory,
        }
    }

    /// Sets the block sizes that shared memory gets; the default sizes before.
    pub(crate) fn with_shared_blocks(self, blocks: SharedBlocks) -> Self {
        self.set_shared_blocks(blocks);
        self
    }

    /// Sets the kind of the i_mmap locks; the default before.
    pub(crate) fn with_file_rmap(self, file_rmap: FileRmap) -> Self {
        Files { file_rmap, ..self }
    }

    /// Sets the initial maximum of readahead of each file, in pages; 0 before.
    pub(crate) fn with_readahead(self, readahead: u32) -> Self {
        Files { readahead, ..self }
    }

    /// Sets the maximum number of dirty pages of each file; `u64::MAX` before.
    pub(crate) fn with_dirty_limit(self, dirty_limit: u64) -> Self {
        Files { dirty_limit, ..self }
    }

    /// Returns the platform.
    ///
    /// # Examples
    ///
    /// ```
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// assert!(std::ptr::eq(engine.files().platform(), engine.platform()));
    /// ```
    #[inline]
    pub fn platform(&self) -> &P {
        self.memory.platform()
    }

    /// Returns the platform's frames.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, counted::Counted};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// assert!(Counted::ptr_eq(engine.files().memory(), engine.memory()));
    /// ```
    #[inline]
    pub fn memory(&self) -> &Counted<Memory<P>> {
        &self.memory
    }

    /// Allocates by `attempt` what a new object needs. If `asks`, the caller holds no lock, and the platform
    /// is asked for memory.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory.
    pub(in crate::file) fn allocate<T>(
        &self,
        asks: bool,
        mut attempt: impl FnMut() -> Result<T, NoMemory>,
    ) -> Result<T, NoMemory> {
        if asks { create(self.platform(), || self.memory().trim(), attempt) } else { attempt() }
    }

    /// Returns the block sizes that shared memory gets.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, engine::SharedBlocks};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let blocks = SharedBlocks::new().within_size(64 << 10);
    /// engine.set_shared_blocks(blocks);
    /// assert_eq!(engine.files().shared_blocks(), blocks);
    /// ```
    pub fn shared_blocks(&self) -> SharedBlocks {
        // Relaxed, here and below: a single word on which no other data depends. A concurrent fault sees
        // either the old or the new sizes.
        SharedBlocks::of(self.shared_blocks.load(Relaxed))
    }

    /// Sets the block sizes that shared memory gets. Pages that are already in a cache are not affected.
    pub(crate) fn set_shared_blocks(&self, blocks: SharedBlocks) {
        self.shared_blocks.store(blocks.word(), Relaxed);
    }
}
