//! What all address spaces of one kernel share: the platform, the slab of VMAs, the frame caches, and the
//! settings that Linux keeps under `/proc/sys/vm`.

mod trim;

pub use crate::{
    committed::Overcommit,
    file::kinds::shmem_huge::{SharedBlocks, SharedHuge},
};
pub use freehold_range::NodeWidth;

use crate::{
    PAGE_SIZE,
    committed::CommittedMemory,
    counted::{Counted, Shared},
    error::{EngineError, NoMemory},
    file::{Files, HasFiles},
    hugetlb::state::Hugetlb,
    platform::Platform,
    rmap::tree::lock::FileRmap,
    vma::{AnonId, owned::VmaSlab},
};
use freehold_sync::{
    PerCpu, ReaderSlots,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, announce},
    stats::{LockSnapshot, LockStats},
};
use freehold_vmspace::{Memory, PageCount, VmSpace};

/// Where private anonymous memory gets huge pages when it is touched: what
/// /sys/kernel/mm/transparent_hugepage/enabled says. Nothing collapses small pages into huge ones later, but
/// for MADV_COLLAPSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum HugePages {
    /// Nowhere.
    Never = 0,
    /// Where MADV_HUGEPAGE asked for them.
    #[default]
    Madvise = 1,
    /// Everywhere but where MADV_NOHUGEPAGE or MAP_STACK asked for none.
    Always = 2,
}

/// How much anonymous memory a first store brings where it brings no huge page: what the files
/// /sys/kernel/mm/transparent_hugepage/hugepages-*kB/enabled say of sizes below 2 MiB (multi-size THP). A
/// store brings the largest block around it of these sizes that lies at a multiple of its size, within the
/// VMA, and in which nothing is yet; or else one page. MADV_NOHUGEPAGE, MAP_STACK, `PR_SET_THP_DISABLE` and a
/// userfaultfd keep blocks away as they do huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Blocks {
    /// The sizes that come wherever they fit, in bytes, added up. What is none of [`SIZES`](Self::SIZES)
    /// counts for nothing.
    pub always: u64,
    /// The sizes that come where MADV_HUGEPAGE asked for them, added up as well.
    pub advised: u64,
}

impl Blocks {
    /// All sizes, added up: powers of two from 16 KiB to 1 MiB.
    pub const SIZES: u64 = 2 * Self::LARGEST - Self::SMALLEST;
    /// The largest, in bytes.
    pub(crate) const LARGEST: u64 = 1 << 20;
    /// The smallest, in bytes.
    const SMALLEST: u64 = 1 << 14;
    /// Bits of a word that a set of sizes takes.
    const BITS: u32 = (Self::SIZES / Self::SMALLEST).count_ones();

    /// Both in a word; 0 for none.
    fn word(self) -> u32 {
        let bits = |sizes: u64| ((sizes & Self::SIZES) / Self::SMALLEST) as u32;
        bits(self.always) | bits(self.advised) << Self::BITS
    }

    fn of(word: u32) -> Self {
        let sizes = |bits: u32| (u64::from(bits) * Self::SMALLEST) & Self::SIZES;
        Blocks { always: sizes(word), advised: sizes(word >> Self::BITS) }
    }
}

/// System-wide settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// Most VMAs an address space may have at first (vm.max_map_count); see [`Engine::set_max_map_count`].
    pub max_map_count: u64,
    /// Lowest address that an ordinary program may map (vm.mmap_min_addr), in bytes.
    pub mmap_min_addr: u64,
    /// Free bytes kept below a stack (the guard gap).
    pub stack_gap: u64,
    /// How much memory may be promised at first (vm.overcommit_memory); see [`Engine::set_overcommit`].
    pub overcommit: Overcommit,
    /// Where anonymous memory gets huge pages at first; see [`Engine::set_huge_pages`].
    pub huge_pages: HugePages,
    /// The blocks that it gets at first; see [`Engine::set_blocks`].
    pub blocks: Blocks,
    /// The blocks that shared memory gets at first; see [`Engine::set_shared_blocks`].
    pub shared_blocks: SharedBlocks,
    /// MADV_DONTNEED frees page tables that it empties, at first; see [`Engine::set_reclaims_tables`].
    pub reclaims_tables: bool,
    /// How the lock over the VMAs of a file is taken by walks that leave their tree alone.
    pub file_rmap: FileRmap,
    /// How many entries share a node of the tree of VMAs, and so the latch that range writers take.
    pub vma_nodes: NodeWidth,
    /// Keep statistics of the mmap locks of all address spaces together, of the i_mmap locks of all files,
    /// of the hugetlb VMA locks, and of the mutexes of faults on huge pages.
    pub lock_stats: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            max_map_count: 65_530,
            mmap_min_addr: 65_536,
            stack_gap: 256 * PAGE_SIZE,
            overcommit: Overcommit::default(),
            huge_pages: HugePages::default(),
            blocks: Blocks::default(),
            shared_blocks: SharedBlocks::default(),
            reclaims_tables: true,
            file_rmap: FileRmap::default(),
            vma_nodes: NodeWidth::default(),
            lock_stats: false,
        }
    }
}

/// One kernel's worth of shared state.
// On lines of its own: each fault reads it, and the count of references before it changes with every space.
#[repr(align(64))]
pub struct Engine<P: Platform> {
    pub(crate) slab: VmaSlab<P>,
    /// Where readers of VMAs stand that would get into each other's way: one for all spaces, because VMAs
    /// change from one to another.
    pub(crate) reader_slots: Counted<ReaderSlots<P>>,
    /// What its files have in common.
    files: Counted<Files<P>>,
    serials: PerCpu<AtomicU64, P>,
    /// See [`Config::lock_stats`].
    pub(crate) lock_stats: Option<Counted<LockStats<P>>>,
    /// See [`HugePages`]; one word, read and written alone.
    huge_pages: AtomicU32,
    /// See [`Blocks`]; one word, too.
    blocks: AtomicU32,
    /// See [`Config::reclaims_tables`]; one word, too.
    reclaims_tables: AtomicBool,
    /// Most VMAs of a space; one word, too.
    max_map_count: AtomicU64,
    config: Config,
    /// The frames of the platform. Last: whatever the fields above give back goes to it.
    memory: Counted<Memory<P>>,
}

impl<P: Platform> Engine<P> {
    /// Sets up the shared state.
    ///
    /// # Errors
    ///
    /// See [`EngineError`].
    pub fn new(platform: P, config: Config) -> Result<Counted<Self>, EngineError> {
        if config.mmap_min_addr > VmSpace::<P>::USER_END {
            return Err(EngineError::LowestAddress);
        }
        Ok(Self::make(platform, config)?)
    }

    /// With settings that were checked.
    fn make(platform: P, config: Config) -> Result<Counted<Self>, NoMemory> {
        let memory = Counted::try_new(Memory::new(platform)?)?;
        let slab = VmaSlab::try_new()?;
        let reader_slots = Counted::try_new(ReaderSlots::try_new()?)?;
        let serials = PerCpu::try_new(|_| AtomicU64::new(0))?;
        let stats = || -> Result<_, NoMemory> {
            match config.lock_stats {
                true => Ok(Some(Counted::try_new(LockStats::try_new()?)?)),
                false => Ok(None),
            }
        };
        let (lock_stats, file_stats) = (stats()?, stats()?);
        let files = Files::new(
            memory.clone(),
            Hugetlb::try_new(stats()?, stats()?)?,
            CommittedMemory::try_new(config.overcommit)?,
            config.shared_blocks,
            config.file_rmap,
            file_stats,
        );
        let files = Counted::try_new(files)?;
        let engine = Counted::try_new(Engine {
            slab,
            reader_slots,
            files,
            serials,
            lock_stats,
            huge_pages: AtomicU32::new(config.huge_pages as u32),
            blocks: AtomicU32::new(config.blocks.word()),
            reclaims_tables: AtomicBool::new(config.reclaims_tables),
            max_map_count: AtomicU64::new(config.max_map_count),
            config,
            memory,
        })?;
        announce!("Engine", Counted::as_ptr(&engine), 1, Engine<P> {
            slab: slab,
            reader_slots: reader_slots,
            files: files,
            serials: serials,
            lock_stats: lock_stats,
            huge_pages: huge_pages,
            blocks: blocks,
            reclaims_tables: reclaims_tables,
            max_map_count: max_map_count,
            config: config,
            memory: memory,
        });
        Ok(engine)
    }

    /// The machine below.
    pub fn platform(&self) -> &P {
        self.memory.platform()
    }

    /// The platform's frames, which all address spaces share.
    #[inline]
    pub fn memory(&self) -> &Counted<Memory<P>> {
        &self.memory
    }

    /// How the mmap locks of all address spaces were used, if [asked for](Config::lock_stats).
    pub fn lock_stats(&self) -> Option<LockSnapshot> {
        self.lock_stats.as_deref().map(LockStats::snapshot)
    }

    /// How the i_mmap locks of all files were used, if [asked for](Config::lock_stats).
    pub fn file_lock_stats(&self) -> Option<LockSnapshot> {
        self.files.lock_stats.as_deref().map(LockStats::snapshot)
    }

    /// How the hugetlb VMA locks of all VMAs were used, if [asked for](Config::lock_stats).
    pub fn hugetlb_lock_stats(&self) -> Option<LockSnapshot> {
        self.files.hugetlb.stats.as_deref().map(LockStats::snapshot)
    }

    /// How the mutexes were used that keep a huge page from being made twice, if
    /// [asked for](Config::lock_stats).
    pub fn hugetlb_fault_stats(&self) -> Option<LockSnapshot> {
        self.files.hugetlb.fault_stats.as_deref().map(LockStats::snapshot)
    }

    /// How many frames are out of use because their memory failed, or was about to: what /proc/meminfo calls
    /// HardwareCorrupted, in frames.
    pub fn failed_frames(&self) -> u64 {
        self.memory.failed_frames()
    }

    /// Where anonymous memory gets huge pages.
    pub fn huge_pages(&self) -> HugePages {
        // Relaxed, here and below: one word, on which nothing else depends; a fault meanwhile comes before or
        // after.
        match self.huge_pages.load(Relaxed) {
            0 => HugePages::Never,
            1 => HugePages::Madvise,
            _ => HugePages::Always,
        }
    }

    /// It gets them there from now on. What is mapped stays.
    pub fn set_huge_pages(&self, huge_pages: HugePages) {
        self.huge_pages.store(huge_pages as u32, Relaxed);
    }

    /// The blocks that anonymous memory gets.
    pub fn blocks(&self) -> Blocks {
        // Relaxed, here and below: as for huge pages.
        Blocks::of(self.blocks.load(Relaxed))
    }

    /// It gets them from now on. What is mapped stays.
    pub fn set_blocks(&self, blocks: Blocks) {
        self.blocks.store(blocks.word(), Relaxed);
    }

    /// Returns whether MADV_DONTNEED frees the page tables of small pages that it covers wholly and leaves
    /// empty.
    #[inline]
    pub fn reclaims_tables(&self) -> bool {
        // Relaxed, here and below: as for huge pages.
        self.reclaims_tables.load(Relaxed)
    }

    /// Sets whether it does so from now on, as Linux since 6.14 (CONFIG_PT_RECLAIM), or not, as Linux before.
    /// A program sees it by the next store there, which may bring a huge page only where no table is.
    pub fn set_reclaims_tables(&self, reclaims: bool) {
        self.reclaims_tables.store(reclaims, Relaxed);
    }

    /// Most VMAs that an address space may have.
    pub fn max_map_count(&self) -> u64 {
        // Relaxed, here and below: as for huge pages.
        self.max_map_count.load(Relaxed)
    }

    /// It is so many from now on. A space that has more keeps them.
    pub fn set_max_map_count(&self, count: u64) {
        self.max_map_count.store(count, Relaxed);
    }

    /// Whether there are any blocks; every first store asks.
    #[inline]
    pub(crate) fn brings_blocks(&self) -> bool {
        self.blocks.load(Relaxed) != 0
    }

    /// System-wide settings, as they were when the engine was made.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns what the engine's files have in common.
    #[inline]
    pub fn files(&self) -> &Counted<Files<P>> {
        &self.files
    }

    /// Returns the count of committed memory.
    #[inline]
    pub(crate) fn committed(&self) -> &CommittedMemory<P> {
        &self.files.committed
    }

    /// Returns the policy on committed memory.
    pub fn overcommit(&self) -> Overcommit {
        self.committed().policy()
    }

    /// Sets the policy on committed memory (vm.overcommit_memory has changed, or the amount of memory).
    /// Memory that is committed stays so, even beyond a new limit.
    pub fn set_overcommit(&self, policy: Overcommit) {
        self.committed().set_policy(policy);
    }

    /// Returns the number of committed pages: Committed_AS. Exact when no task maps or unmaps concurrently.
    /// Takes no lock; reads a counter of each CPU.
    pub fn committed_pages(&self) -> PageCount {
        self.committed().pages()
    }

    /// Returns the sizes of pages that shared memory gets.
    pub fn shared_blocks(&self) -> SharedBlocks {
        self.files.shared_blocks()
    }

    /// Sets the sizes of pages that shared memory gets. What is in a cache stays.
    pub fn set_shared_blocks(&self, blocks: SharedBlocks) {
        self.files.set_shared_blocks(blocks);
    }

    /// Returns true if these are this engine's files. Objects of two engines never meet: each believes every
    /// frame that it finds to be in the keeping of its own caches, pools and records.
    pub(crate) fn owns(&self, files: &Counted<Files<P>>) -> bool {
        Counted::ptr_eq(&self.files, files)
    }

    /// An anon_vma of anonymous pages that no VMA has yet.
    pub(crate) fn new_anon(&self) -> AnonId {
        // Unique without a shared counter: each CPU counts in its own residue class.
        self.serials.with_index(|cpu, serial| {
            let n = serial.load(Relaxed) + 1;
            serial.store(n, Relaxed);
            AnonId::new(n * P::MAX_CPUS as u64 + cpu as u64)
        })
    }
}

impl<P: Platform> Shared for Engine<P> {}

impl<P: Platform> HasFiles<P> for Counted<Engine<P>> {
    fn files(&self) -> &Counted<Files<P>> {
        &self.files
    }
}
