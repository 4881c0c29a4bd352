//! The settings with which an engine begins: [`Config`], and the types of its fields that concern huge pages
//! and blocks of anonymous memory. [`Overcommit`] is in `committed.rs`, [`SharedBlocks`] in
//! `file/kinds/shmem_huge.rs`, and [`FileRmap`] in `rmap/tree/lock.rs`. `tests/huge/blocks.rs` tests the
//! sizes of blocks. A new setting needs a field and a default here. A setting that may change later also
//! needs a word in `Engine` or `Files`, and functions in `mod.rs` that read and set this word.

use super::{NodeWidth, Overcommit, SharedBlocks};
use crate::{PAGE_SIZE, PageCount, reclaim::state::policy::ReclaimPolicy, rmap::tree::lock::FileRmap};

/// Policy on huge pages for private anonymous memory at the first access, like
/// /sys/kernel/mm/transparent_hugepage/enabled. Only MADV_COLLAPSE collapses small pages into huge ones
/// later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum HugePages {
    /// No VMA gets huge pages.
    Never = 0,
    /// VMAs with MADV_HUGEPAGE get huge pages.
    #[default]
    Madvise = 1,
    /// All VMAs get huge pages, except those with MADV_NOHUGEPAGE or MAP_STACK.
    Always = 2,
}

settings! {
    /// Sizes of the blocks that a first store to anonymous memory installs if it does not install a huge
    /// page. Corresponds to /sys/kernel/mm/transparent_hugepage/hugepages-*kB/enabled for sizes below 2 MiB
    /// (multi-size THP).
    ///
    /// A store installs the largest block that has one of these sizes and contains the address. The block
    /// must be aligned to its size, lie within the VMA, and be empty so far. If no block fits, the store
    /// installs one page. MADV_NOHUGEPAGE, MAP_STACK, `PR_SET_THP_DISABLE` and a userfaultfd prevent blocks
    /// as they prevent huge pages.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Blocks {
        /// Sum of the block sizes, in bytes, that are installed wherever they fit. Bits outside
        /// [`SIZES`](Self::SIZES) have no effect.
        pub always: u64,
        /// Sum of the block sizes, in bytes, that are installed only in VMAs with MADV_HUGEPAGE.
        pub advised: u64,
    }
}

impl Blocks {
    /// Returns settings without blocks.
    #[must_use]
    pub const fn new() -> Self {
        Blocks { always: 0, advised: 0 }
    }

    /// Sum of all block sizes: powers of two from 16 KiB to 1 MiB.
    pub const SIZES: u64 = 2 * Self::LARGEST - Self::SMALLEST;
    /// Largest block size, in bytes.
    pub(crate) const LARGEST: u64 = 1 << 20;
    /// Smallest block size, in bytes.
    const SMALLEST: u64 = 1 << 14;
    /// Number of bits that encode a set of sizes in a word.
    const BITS: u32 = (Self::SIZES / Self::SMALLEST).count_ones();

    /// Returns both sets encoded in a word; 0 if both are empty.
    pub(super) fn word(self) -> u32 {
        let bits = |sizes: u64| ((sizes & Self::SIZES) / Self::SMALLEST) as u32;
        bits(self.always) | bits(self.advised) << Self::BITS
    }

    /// Returns the sets that [`word`](Self::word) encoded.
    pub(super) fn of(word: u32) -> Self {
        let sizes = |bits: u32| (u64::from(bits) * Self::SMALLEST) & Self::SIZES;
        Blocks { always: sizes(word), advised: sizes(word >> Self::BITS) }
    }
}

settings! {
    /// System-wide settings.
    #[derive(Clone, Debug)]
    pub struct Config {
        /// Initial limit on the number of VMAs of an address space (vm.max_map_count); see
        /// [`Engine::set_max_map_count`](super::Engine::set_max_map_count).
        pub max_map_count: u64,
        /// Lowest address that an ordinary program may map (vm.mmap_min_addr), in bytes.
        pub mmap_min_addr: u64,
        /// Number of bytes that stay unmapped below a stack (the guard gap).
        pub stack_gap: u64,
        /// Initial policy on committed memory (vm.overcommit_memory); see
        /// [`Engine::set_overcommit`](super::Engine::set_overcommit).
        pub overcommit: Overcommit,
        /// Maximum number of pages in shared memory that can outlive every program: memfds, files whose pager
        /// [reads zeroes](crate::file::Pager::reads_zeroes) (tmpfs), and segments of which only touched pages
        /// are committed. All these files together have the limit. Pages that are swapped out count, as in a
        /// tmpfs of Linux. None by default.
        ///
        /// A write or an allocation beyond the limit fails with
        /// [`NoSpace`](crate::file::FillError::NoSpace), and a fault raises SIGBUS, as in a tmpfs of Linux
        /// that is full. The count is exact: each such page writes one shared cache line when it enters or
        /// leaves a cache. Without a limit, the pages are not counted.
        ///
        /// # Examples
        ///
        /// ```
        /// # use freehold::{PAGE_SIZE, PageCount, engine::{Config, Engine}};
        /// # use freehold::file::{FillError, Mapping};
        /// # use freehold_machine::{Machine, MachineConfig};
        /// # let machine: Machine = Machine::new(MachineConfig::backed(1 << 20)).unwrap();
        /// let config = Config::new().max_file_pages(Some(PageCount::new(2)));
        /// let engine = Engine::new(machine, config).unwrap();
        /// let file = Mapping::memfd(&engine, 8 * PAGE_SIZE).unwrap();
        /// assert_eq!(file.write_at(PAGE_SIZE, &[1]), Ok(1));
        /// assert_eq!(file.write_at(4 * PAGE_SIZE, &[1]), Ok(1));
        /// assert_eq!(file.write_at(6 * PAGE_SIZE, &[1]), Err(FillError::NoSpace));
        /// file.truncate(4 * PAGE_SIZE).unwrap();
        /// assert_eq!(file.write_at(0, &[1]), Ok(1));
        /// ```
        pub max_file_pages: Option<PageCount>,
        /// Initial policy on huge pages of anonymous memory; see
        /// [`Engine::set_huge_pages`](super::Engine::set_huge_pages).
        pub huge_pages: HugePages,
        /// Initial sizes of blocks of anonymous memory; see
        /// [`Engine::set_blocks`](super::Engine::set_blocks).
        pub blocks: Blocks,
        /// Initial sizes of blocks of shared memory; see
        /// [`Engine::set_shared_blocks`](super::Engine::set_shared_blocks).
        pub shared_blocks: SharedBlocks,
        /// Initial setting that makes MADV_DONTNEED free the page tables that it empties; see
        /// [`Engine::set_reclaims_tables`](super::Engine::set_reclaims_tables).
        pub reclaims_tables: bool,
        /// Maximum number of pages that are read together for sequential accesses to a file whose pager wants
        /// more than one page per request (read_ahead_kb of a device, in pages of 4 KiB). 32 by default; 0
        /// turns readahead off. See [`Mapping::set_readahead`](crate::file::Mapping::set_readahead).
        pub readahead: u32,
        /// Maximum number of pages of a file that are dirty or being written. A task that wants to change a
        /// clean page of a file with so many pages writes some of them back, or waits until a write ends.
        /// Tasks that read never wait. Each task may exceed the limit by one page. `u64::MAX`, the default,
        /// is no limit. Shared memory has no limit, because it is never written back.
        pub dirty_limit: u64,
        /// The policy by which [`Engine::reclaim`](super::Engine::reclaim) chooses pages.
        pub reclaim: ReclaimPolicy,
        /// Mode in which a walk over the VMAs of a file takes the i_mmap lock, if the walk does not change
        /// the tree of these VMAs.
        pub file_rmap: FileRmap,
        /// Number of entries per node of the VMA tree. Range writers that change entries of one node share
        /// its latch.
        pub vma_nodes: NodeWidth,
        /// Collects statistics of four kinds of locks: mmap locks, i_mmap locks of files, hugetlb VMA locks,
        /// and mutexes of faults on huge pages. All locks of one kind share one record. Without the cargo
        /// feature `stats`, no lock has statistics.
        pub lock_stats: bool,
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            max_map_count: 65_530,
            mmap_min_addr: 65_536,
            stack_gap: 256 * PAGE_SIZE,
            overcommit: Overcommit::default(),
            max_file_pages: None,
            huge_pages: HugePages::default(),
            blocks: Blocks::default(),
            shared_blocks: SharedBlocks::default(),
            reclaims_tables: true,
            readahead: 32,
            dirty_limit: u64::MAX,
            reclaim: ReclaimPolicy::default(),
            file_rmap: FileRmap::default(),
            vma_nodes: NodeWidth::default(),
            lock_stats: false,
        }
    }
}

impl Config {
    /// Returns the default settings.
    pub fn new() -> Self {
        Self::default()
    }
}
