//! State that all address spaces of one kernel share: the platform, the slab of VMAs, the frame caches, and
//! the settings that Linux keeps under `/proc/sys/vm`.
//!
//! Each setting is a word that is read and written on its own, without a lock. A change applies at once to
//! all address spaces, and does not affect existing mappings. A new setting that can change must be such a
//! word too, because a fault reads settings without a lock. The setting needs an initial value in
//! `config.rs`. A new field of [`Engine`] needs a line in `announce!`, which names the field in reports of
//! the simulation.
//!
//! Files are a lower layer than the engine. State that they need is therefore in [`Files`] (`file/files.rs`),
//! to which the engine refers. `config.rs` has the initial settings, `swap.rs` adds swap devices, and
//! `trim.rs` frees memory that is kept for reuse. Operations of other folders on an engine, such as the pools
//! of huge pages (`hugetlb/pools.rs`) and migration (`rmap/`), are in these folders.
//!
//! Objects of two engines must never be combined, because the frames and locks of one engine mean nothing to
//! another engine. Each call that gets a file or a special mapping checks `owns`.
//! `tests/every_call/engines.rs` tests these checks.

mod config;
mod swap;
mod trim;

pub use crate::{
    committed::Overcommit,
    file::kinds::shmem_huge::{SharedBlocks, SharedHuge},
};
pub use config::{Blocks, Config, HugePages};
pub use freehold_range::NodeWidth;

use crate::{
    committed::CommittedMemory,
    counted::{Counted, Shared},
    error::{EngineError, NoMemory},
    file::{Files, HasFiles},
    hugetlb::state::Hugetlb,
    platform::Platform,
    reclaim::state::ReclaimState,
    swap::{DeviceList, Slots, Swap},
    vma::{AnonId, owned::VmaSlab},
};
use allocator_api2::{boxed::Box, unsize_box};
use freehold_sync::{
    PerCpu, ReaderSlots,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, announce},
    stats::{LockSnapshot, LockStats},
};
use freehold_vmspace::{Memory, PageCount, SwapSlots, VmSpace};

/// The shared state of one kernel.
///
/// # Examples
///
/// ```
/// # use freehold::engine::{Blocks, Config, Engine, HugePages, Overcommit, SharedBlocks};
/// # use freehold_machine::{Machine, MachineConfig};
/// # let machine: Machine = Machine::new(MachineConfig::backed(1 << 20)).unwrap();
/// let config = Config::new().max_map_count(100).lock_stats(true);
/// let engine = Engine::new(machine, config).unwrap();
/// assert!(std::ptr::eq(engine.platform(), engine.memory().platform()));
/// // The engine starts with the settings of the configuration, which never change.
/// engine.set_max_map_count(200);
/// assert_eq!((engine.config().max_map_count, engine.max_map_count()), (100, 200));
/// assert_eq!((engine.huge_pages(), engine.blocks()), (HugePages::Madvise, Blocks::default()));
/// assert_eq!(engine.overcommit(), Overcommit::default());
/// assert_eq!(engine.shared_blocks(), SharedBlocks::default());
/// assert!(engine.reclaims_tables());
/// // No task has used a huge page.
/// assert_eq!(engine.hugetlb_lock_stats().unwrap().read.acquired, 0);
/// assert_eq!(engine.hugetlb_fault_stats().unwrap().write.acquired, 0);
/// ```
// Aligned to a cache line: faults read the fields, and the reference count must not share a line with them.
// The count lies before the engine in memory and is written whenever an address space is created or dropped.
#[repr(align(64))]
pub struct Engine<P: Platform> {
    /// The memory of all VMAs. Has locks of its own.
    pub(crate) slab: VmaSlab<P>,
    /// Slots of per-CPU readers of VMAs. One set serves all spaces, because the slab reuses a VMA in another
    /// space.
    pub(crate) reader_slots: Counted<ReaderSlots<P>>,
    /// State that the engine's files share.
    files: Counted<Files<P>>,
    /// Number of anon_vma identifiers that each CPU has issued. Each CPU writes only its own number.
    serials: PerCpu<AtomicU64, P>,
    /// See [`Config::lock_stats`]. Never changes.
    pub(crate) lock_stats: Option<Counted<LockStats<P>>>,
    /// See [`HugePages`]. A single word that is accessed independently of other state.
    huge_pages: AtomicU32,
    /// See [`Blocks`]. A single word that is accessed independently of other state.
    blocks: AtomicU32,
    /// See [`Config::reclaims_tables`]. A single word that is accessed independently of other state.
    reclaims_tables: AtomicBool,
    /// Limit on the number of VMAs of a space. A single word that is accessed independently of other state.
    max_map_count: AtomicU64,
    /// The settings with which the engine was created. Never changes.
    config: Config,
    /// The frames of the platform. The last field, because the fields above return frames to it when they are
    /// dropped.
    memory: Counted<Memory<P>>,
}

impl<P: Platform> Engine<P> {
    /// Creates the shared state. The engine owns the platform; [`platform`](Self::platform) lends it. A
    /// kernel that also uses the platform elsewhere makes the platform a reference-counted value, or a
    /// stateless value that refers to statics.
    ///
    /// Address spaces, files and pins have references to the engine or to its files. The platform is dropped,
    /// and the last frames are freed, when the last of these references is dropped.
    ///
    /// # Errors
    ///
    /// See [`EngineError`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{engine::{Config, Engine}, error::EngineError};
    /// # use freehold_machine::{Machine, MachineConfig};
    /// let machine: Machine = Machine::new(MachineConfig::backed(1 << 20)).unwrap();
    /// let config = Config::new().mmap_min_addr(u64::MAX);
    /// assert_eq!(Engine::new(machine.clone(), config).err(), Some(EngineError::LowestAddress));
    /// assert!(Engine::new(machine, Config::default()).is_ok());
    /// ```
    pub fn new(platform: P, config: Config) -> Result<Counted<Self>, EngineError> {
        if config.mmap_min_addr > VmSpace::<P>::USER_END {
            return Err(EngineError::LowestAddress);
        }
        Ok(Self::make(platform, config)?)
    }

    /// Creates the shared state from validated settings.
    fn make(platform: P, config: Config) -> Result<Counted<Self>, NoMemory> {
        let devices = Counted::try_new(DeviceList::new())?;
        let slots: Box<dyn SwapSlots> = unsize_box!(Box::try_new(Slots(devices.clone()))?);
        let memory = Counted::try_new(Memory::with_slots(platform, slots)?)?;
        let slab = VmaSlab::try_new()?;
        let reader_slots = Counted::try_new(ReaderSlots::try_new()?)?;
        let serials = PerCpu::try_new(|_| AtomicU64::new(0))?;
        let stats = || LockStats::try_new_if(config.lock_stats);
        let (lock_stats, file_stats) = (stats()?, stats()?);
        let files = Files::new(
            Swap::try_new(devices, memory.clone())?,
            Hugetlb::try_new(stats()?, stats()?)?,
            CommittedMemory::try_new(config.overcommit)?,
            config.max_file_pages.map(Overcommit::Never).map(CommittedMemory::try_new).transpose()?,
            ReclaimState::try_new(config.reclaim, &memory.platform().frames())?,
            file_stats,
        );
        let files = files
            .with_shared_blocks(config.shared_blocks)
            .with_file_rmap(config.file_rmap)
            .with_readahead(config.readahead)
            .with_dirty_limit(config.dirty_limit);
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

    /// Returns the platform.
    pub fn platform(&self) -> &P {
        self.memory.platform()
    }

    /// Returns the platform's frames, which all address spaces share.
    #[inline]
    pub fn memory(&self) -> &Counted<Memory<P>> {
        &self.memory
    }

    /// Returns statistics of the mmap locks of all address spaces, if [enabled](Config::lock_stats).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, engine::{Config, Engine}, space::*};
    /// # use freehold_machine::{Machine, MachineConfig};
    /// # let engine = Engine::new(<Machine>::new(MachineConfig::backed(1 << 20)).unwrap(),
    /// Config::new().lock_stats(true)).unwrap();
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// // The configuration of this engine enables statistics.
    /// let before = engine.lock_stats().unwrap().write.acquired;
    /// space.munlockall().unwrap();
    /// assert_eq!(engine.lock_stats().unwrap().write.acquired, before + 1);
    /// ```
    pub fn lock_stats(&self) -> Option<LockSnapshot> {
        self.lock_stats.as_deref().map(LockStats::snapshot)
    }

    /// Returns statistics of the i_mmap locks of all files, if [enabled](Config::lock_stats).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{engine::{Config, Engine}, file::Mapping};
    /// # use freehold_machine::{Machine, MachineConfig};
    /// # let machine: Machine = Machine::new(MachineConfig::backed(1 << 20)).unwrap();
    /// let engine = Engine::new(machine, Config::new().lock_stats(true)).unwrap();
    /// Mapping::memfd(&engine, 1 << 20).unwrap().truncate(0).unwrap();
    /// assert_eq!(engine.file_lock_stats().unwrap().read.acquired, 1);
    /// ```
    pub fn file_lock_stats(&self) -> Option<LockSnapshot> {
        self.files.lock_stats.as_deref().map(LockStats::snapshot)
    }

    /// Returns statistics of the hugetlb VMA locks of all VMAs, if [enabled](Config::lock_stats).
    pub fn hugetlb_lock_stats(&self) -> Option<LockSnapshot> {
        self.files.hugetlb.stats.as_deref().map(LockStats::snapshot)
    }

    /// Returns statistics of the mutexes that prevent two faults from creating the same huge page, if
    /// [enabled](Config::lock_stats).
    pub fn hugetlb_fault_stats(&self) -> Option<LockSnapshot> {
        self.files.hugetlb.fault_stats.as_deref().map(LockStats::snapshot)
    }

    /// Returns the number of frames that are out of use because their memory failed or was about to fail
    /// (HardwareCorrupted of /proc/meminfo, in frames).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, fault::Access, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.handle_fault(at, Access::WRITE).unwrap();
    /// engine.memory_failure(space.frame_at(at).unwrap()).unwrap();
    /// assert_eq!(engine.failed_frames(), 1);
    /// ```
    pub fn failed_frames(&self) -> u64 {
        self.memory.failed_frames()
    }

    /// Returns the policy on huge pages of anonymous memory.
    pub fn huge_pages(&self) -> HugePages {
        // Relaxed here and below: no other memory depends on this word. A concurrent fault uses the old or
        // the new value.
        match self.huge_pages.load(Relaxed) {
            0 => HugePages::Never,
            1 => HugePages::Madvise,
            _ => HugePages::Always,
        }
    }

    /// Sets the policy on huge pages of anonymous memory. Pages that are already mapped stay.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, engine::HugePages, fault::Access, space::*};
    /// # let engine = freehold_machine::example_engine(8 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// engine.set_huge_pages(HugePages::Always);
    /// let at = space.mmap(0, 2 << 20, rw, private, None, 0).unwrap();
    /// space.handle_fault(at, Access::WRITE).unwrap();
    /// assert_eq!(space.rss().anon, 512, "one huge page");
    /// ```
    pub fn set_huge_pages(&self, huge_pages: HugePages) {
        self.huge_pages.store(huge_pages as u32, Relaxed);
    }

    /// Returns the sizes of blocks of anonymous memory.
    pub fn blocks(&self) -> Blocks {
        // Relaxed here and below: no other memory depends on this word.
        Blocks::of(self.blocks.load(Relaxed))
    }

    /// Sets the sizes of blocks of anonymous memory. Pages that are already mapped stay.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, engine::{Blocks, Config, Engine}, fault::Access, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// engine.set_blocks(Blocks::new().always(64 << 10));
    /// let at = space.mmap(0, 128 << 10, rw, private, None, 0).unwrap();
    /// space.handle_fault(at + (64 << 10), Access::WRITE).unwrap();
    /// assert_eq!(space.rss().anon, 16);
    /// ```
    pub fn set_blocks(&self, blocks: Blocks) {
        self.blocks.store(blocks.word(), Relaxed);
    }

    /// Returns true if MADV_DONTNEED frees page tables of small pages that lie entirely in its range and
    /// become empty.
    #[inline]
    pub fn reclaims_tables(&self) -> bool {
        // Relaxed here and below: no other memory depends on this word.
        self.reclaims_tables.load(Relaxed)
    }

    /// Sets whether MADV_DONTNEED frees the page tables that it empties. Linux has freed such tables since
    /// 6.14 (CONFIG_PT_RECLAIM). A program can observe the setting, because a store installs a huge page only
    /// where no table is present.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, call::Advice, fault::Access, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// let at = space.mmap(0, 4 << 20, rw, private, None, 0).unwrap();
    /// space.handle_fault(at, Access::WRITE).unwrap();
    /// engine.set_reclaims_tables(false);
    /// space.madvise(at, 4 << 20, Advice::DontNeed).unwrap();
    /// assert_eq!(space.page_table_bytes(), 3 * PAGE_SIZE, "no table was freed");
    /// ```
    pub fn set_reclaims_tables(&self, reclaims: bool) {
        self.reclaims_tables.store(reclaims, Relaxed);
    }

    /// Returns the limit on the number of VMAs of an address space.
    pub fn max_map_count(&self) -> u64 {
        // Relaxed here and below: no other memory depends on this word.
        self.max_map_count.load(Relaxed)
    }

    /// Sets the limit on the number of VMAs of an address space. A space that exceeds the new limit keeps its
    /// VMAs.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, error::MprotectError, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// engine.set_max_map_count(1);
    /// let split = space.mprotect(at, PAGE_SIZE, Prot::READ);
    /// assert_eq!(split, Err(MprotectError::TooManyVmas));
    /// ```
    pub fn set_max_map_count(&self, count: u64) {
        self.max_map_count.store(count, Relaxed);
    }

    /// Returns true if any block size is enabled. Every fault for a first store calls this function.
    #[inline]
    pub(crate) fn brings_blocks(&self) -> bool {
        self.blocks.load(Relaxed) != 0
    }

    /// Returns the system-wide settings with which the engine was created.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the state that the engine's files share.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::Mapping};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// // A file system creates files and does not refer to the engine itself.
    /// let file = Mapping::memfd(engine.files(), PAGE_SIZE).unwrap();
    /// assert_eq!(file.pages(), 1);
    /// ```
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

    /// Sets the policy on committed memory, for example after a change of vm.overcommit_memory or of the
    /// amount of memory. Committed memory stays committed, even beyond a new limit.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, PageCount, engine::Overcommit, error::MmapError, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// engine.set_overcommit(Overcommit::Never(PageCount::new(8)));
    /// let more = space.mmap(0, 16 * PAGE_SIZE, rw, private, None, 0);
    /// assert_eq!(more, Err(MmapError::Limit));
    /// ```
    pub fn set_overcommit(&self, policy: Overcommit) {
        self.committed().set_policy(policy);
    }

    /// Returns the number of committed pages (Committed_AS). The number is exact if no task maps or unmaps
    /// concurrently. Takes no lock; reads one counter per CPU.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, PageCount, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// assert_eq!(engine.committed_pages(), PageCount::new(4));
    /// space.munmap(at, PAGE_SIZE).unwrap();
    /// assert_eq!(engine.committed_pages(), PageCount::new(3));
    /// ```
    pub fn committed_pages(&self) -> PageCount {
        self.committed().pages()
    }

    /// Returns the sizes of blocks of shared memory.
    pub fn shared_blocks(&self) -> SharedBlocks {
        self.files.shared_blocks()
    }

    /// Sets the sizes of blocks of shared memory. Pages that are already in a cache stay.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{engine::SharedBlocks, fault::Access, file::{File, FileAccess, Mapping}, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let file = File::new(&Mapping::memfd(&engine, 4 << 20).unwrap(), FileAccess::READ_WRITE,
    /// "/memfd:it").unwrap(); engine.set_shared_blocks(SharedBlocks::new().always(64 << 10)); let flags =
    /// MapFlags::SHARED | MapFlags::FIXED; let at = space.mmap(64 << 20, 64 << 10, Prot::READ, flags,
    /// Some(&file), 0).unwrap(); space.handle_fault(at, Access::READ).unwrap();
    /// assert_eq!(file.mapping().present_pages(), 16);
    /// ```
    pub fn set_shared_blocks(&self, blocks: SharedBlocks) {
        self.files.set_shared_blocks(blocks);
    }

    /// Returns true if `files` are the files of this engine. An engine must never reach an object of another
    /// engine, because an engine treats every frame that it finds as a frame of its own caches, pools and
    /// records.
    pub(crate) fn owns(&self, files: &Counted<Files<P>>) -> bool {
        Counted::ptr_eq(&self.files, files)
    }

    /// Returns the identifier of a new anon_vma, which no VMA has yet.
    pub(crate) fn new_anon(&self) -> AnonId {
        // Unique without a shared counter: each CPU issues only numbers whose remainder modulo `MAX_CPUS` is
        // the number of the CPU.
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
