//! The address space (Linux: `mm`): its fields, the locks that guard them, and the parts of calls that
//! several calls share. The system calls themselves are in `call/`, and faults in `fault/`.
//!
//! Reading order: this file; [`locking`] (the guards, and the two kinds of writers); `change/unmap.rs` (the
//! model of a change: decode, prepare, commit, settle, retire); then any operation.
//!
//! | subject | files |
//! | --- | --- |
//! | guards and locks | `locking.rs`, `held_lock.rs`; lookups without a lock: `vma_lock.rs`, `speculate.rs` |
//! | writers | `write_right.rs`, `claim.rs` and `range_writer.rs` (start and end of a range writer), `write_mode.rs` (choice of the kind), `closing.rs` (closing ranges) |
//! | the VMA tree | `tree_entry.rs` |
//! | steps of changes | `change/` |
//! | search for free addresses | `placement_request.rs`, `placement.rs`, `cpu_arena.rs`, `bounds.rs` |
//! | sizes and limits | `accounting.rs`, `limits.rs` |
//! | settings and arguments | `design.rs`, `map_flags.rs`, `mdwe.rs`, `pkeys.rs`, `thp.rs`, `arguments.rs` |
//! | state without locks | `state/` |
//! | shortage of memory | `shortage.rs` |
//! | listeners | `listener.rs` |
//!
//! A new field of `AddressSpace` needs a comment that says which lock guards it, its initial value in `make`,
//! and a line in `announce!`, by which the simulation names the cache lines of the field.

mod accounting;
mod arguments;
mod bounds;
pub(crate) mod change;
pub(crate) mod claim;
mod closing;
mod cpu_arena;
pub(crate) mod design;
pub(crate) mod held_lock;
pub mod limits;
mod listener;
pub mod locking;
pub(crate) mod map_flags;
mod mdwe;
mod pkeys;
pub(crate) mod placement;
pub(crate) mod placement_request;
pub(crate) mod range_writer;
pub(crate) mod reaped;
pub(crate) mod shortage;
mod speculate;
pub(crate) mod state;
mod thp;
mod tree_entry;
pub(crate) mod vma_lock;
mod write_mode;
pub(crate) mod write_right;

pub use crate::vma::VmaInfo;
pub use design::{HugetlbLock, Locking, Unmap, Write};
pub use freehold_sync::FaultLock;
pub use freehold_vmspace::{
    Interval, IntervalSequence, ListenError, Listener, ListenerId, Refused, Rss, RssKind,
};
pub use map_flags::{MapFlags, Prot};
pub use state::{
    arguments::Arguments,
    counters::{Counts, Faults},
    layout::{DEFAULT_MAP_WINDOW, LEGACY_BASE, Layout, Placement},
    limits::Limits,
    mdwe::Mdwe,
    thp::ThpDisable,
};

use crate::{
    PAGE_SIZE,
    counted::Counted,
    engine::Engine,
    error::{NoMemory, SpaceError},
    platform::Platform,
    shortage::create,
    swap::SwapWindows,
    vma::flags::VmFlags,
};
use freehold_range::RangeMap;
use freehold_sync::{
    MmapLock, Rank, SpinLock,
    atomic::{AtomicBool, AtomicU32, AtomicU64, announce},
    stats::{LockSnapshot, LockStats},
};
use freehold_vmspace::VmSpace;
use state::{
    closings::Closings, contention::WriteContention, counters::Counters, limits::LiveLimits, pkeys::Pkeys,
};

settings! {
    /// Initial layout, limits and settings of an address space.
    #[derive(Clone, Debug)]
    pub struct SpaceConfig {
        /// Address at which mmap starts its search: downwards with [`Layout::TopDown`], upwards with
        /// [`Layout::BottomUp`]. Must be the start of a page and at most
        /// [`MAP_WINDOW_END`](AddressSpace::MAP_WINDOW_END). `None` is
        /// [`DEFAULT_MMAP_BASE`](AddressSpace::DEFAULT_MMAP_BASE).
        pub mmap_base: Option<u64>,
        /// The end from which mmap searches for free addresses.
        pub layout: Layout,
        /// The policy by which mmap places mappings without a fixed address.
        pub placement: Placement,
        /// Start of the heap, where the break is at first. At most the [end of user
        /// space](AddressSpace::TASK_SIZE). `None` is [`DEFAULT_BRK`](AddressSpace::DEFAULT_BRK).
        pub brk: Option<u64>,
        /// Start and end of the program's initialised data, at most the [end of user
        /// space](AddressSpace::TASK_SIZE). RLIMIT_DATA counts the data together with the heap.
        pub data: core::ops::Range<u64>,
        /// Resource limits and privileges.
        pub limits: Limits,
        /// Restrictions on executable memory. The embedder passes the restrictions that exec
        /// [inherits](Mdwe::inherited).
        pub mdwe: Mdwe,
        /// Setting, inherited at exec, that disables transparent huge pages.
        pub thp_disable: ThpDisable,
        /// Setting, inherited at exec, that [allows merging with equal
        /// pages](AddressSpace::set_memory_merge).
        pub memory_merge: bool,
        /// The locking designs in use.
        pub locking: Locking,
        /// True to keep separate statistics of this space's mmap lock, instead of the [shared
        /// statistics](crate::engine::Config::lock_stats). Without the cargo feature `stats`, no lock has
        /// statistics.
        pub lock_stats: bool,
    }
}

impl Default for SpaceConfig {
    fn default() -> Self {
        SpaceConfig {
            mmap_base: None,
            layout: Layout::TopDown,
            placement: Placement::default(),
            brk: None,
            data: 0..0,
            limits: Limits::default(),
            mdwe: Mdwe::empty(),
            thp_disable: ThpDisable::default(),
            memory_merge: false,
            locking: Locking::default(),
            lock_stats: false,
        }
    }
}

impl SpaceConfig {
    /// Returns the default configuration.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let config = SpaceConfig::new().layout(Layout::BottomUp).mmap_base(Some(0x10_0000));
    /// let space = AddressSpace::new(&engine, &config).unwrap();
    /// let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS;
    /// assert_eq!(space.mmap(0, PAGE_SIZE, Prot::READ, flags, None, 0), Ok(0x10_0000));
    /// ```
    pub fn new() -> Self {
        Self::default()
    }
}

impl SpaceConfig {
    /// Checks the configuration for an address space that ends at `task_size`, and in which mmap uses the
    /// addresses below `window_end`. Limits may have any value.
    fn check(&self, window_end: u64, task_size: u64) -> Result<(), SpaceError> {
        if self.mmap_base.is_some_and(|base| base > window_end || !base.is_multiple_of(PAGE_SIZE)) {
            return Err(SpaceError::MmapBase);
        }
        if self.brk.is_some_and(|brk| brk > task_size) {
            return Err(SpaceError::Heap);
        }
        if self.data.start > self.data.end || self.data.end > task_size {
            return Err(SpaceError::Data);
        }
        if !self.mdwe.is_sound() {
            return Err(SpaceError::Mdwe);
        }
        Ok(())
    }
}

/// One address space. Always behind a [`Counted`], because its VMAs refer to it by address.
///
/// # Examples
///
/// Looks up VMAs under the locks that the module [`locking`] describes:
///
/// ```
/// # use freehold::{PAGE_SIZE, UserRange, space::*, vma::Vma};
/// # let engine = freehold_machine::example_engine(1 << 20);
/// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
/// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
/// let low = space.mmap(0x10_0000, PAGE_SIZE, rw, private, None, 0).unwrap();
/// let high = space.mmap(0x20_0000, PAGE_SIZE, rw, private, None, 0).unwrap();
/// // Locks one VMA.
/// assert_eq!(space.find_vma(high).unwrap().start(), high);
/// // Locks all VMAs for reading.
/// let guard = space.read_killable().unwrap();
/// assert_eq!(guard.find(low).map(Vma::start), Some(low));
/// assert_eq!(guard.next(low + PAGE_SIZE).map(Vma::start), Some(high));
/// assert_eq!(guard.prev(high).map(Vma::start), Some(low));
/// assert_eq!(guard.vmas(UserRange::new(0, high)).count(), 1);
/// drop(guard);
/// // Locks all VMAs for writing. This guard has the same lookups.
/// let guard = space.write_killable().unwrap();
/// assert!(guard.find(low + PAGE_SIZE).is_none());
/// assert_eq!(guard.next(0).map(Vma::start), Some(low));
/// assert_eq!(guard.prev(high).map(Vma::start), Some(low));
/// assert_eq!(guard.vmas(UserRange::new(0, high + PAGE_SIZE)).count(), 2);
/// drop(guard);
/// // `read` and `write` wait even if a fatal signal arrives. `try_read` does not wait.
/// assert_eq!(space.read().vmas(UserRange::new(0, high)).count(), 1);
/// assert!(space.write().find(high).is_some() && space.try_read().is_some());
/// ```
pub struct AddressSpace<P: Platform> {
    /// The state that all address spaces share. Never changes.
    pub(crate) engine: Counted<Engine<P>>,
    /// Guards the set of VMAs. For its place in the lock order see `docs/guide/locking.md`.
    pub(crate) mmap_lock: MmapLock<P>,
    /// The VMAs by address, the closing reservations and the [boundaries](cpu_arena). Written under
    /// `mmap_lock` held for writing or by a range writer. Read under `mmap_lock`, under RCU, or under a VMA's
    /// lock (which keeps that VMA in the tree).
    pub(crate) tree: RangeMap<P>,
    /// The part that the hardware sees: page tables, TLBs, resident pages. Each page table has its own lock.
    pub(crate) vm: VmSpace<P>,
    /// The words on which tasks wait for closing ranges. Atomic; `space/closing.rs` says when each word is
    /// written.
    closings: Closings,
    /// Recent conflicts between range writers. Their number decides whether changes use range writers. The
    /// counts are hints, which are read and written without a lock.
    contention: WriteContention,
    /// The last windows of readahead from swap devices. Hints, read and written without a lock.
    pub(crate) swap_windows: SwapWindows,
    /// True if a thread of the space may have run since the last walk that ages pages. A hint without a lock.
    pub(crate) ran: AtomicBool,
    /// Sizes and fault counts, read without a lock. Writers change the sizes; see
    /// [`counters`](state::counters).
    pub(crate) counters: Counters<P>,
    /// Resource limits; each is read and written on its own.
    pub(crate) limits: LiveLimits,
    /// See the module [`mdwe`]. A single word, read and written on its own.
    mdwe: AtomicU32,
    /// See the module [`thp`]. A single word, read and written on its own.
    thp_disable: AtomicU32,
    /// 1 once [`reap`](Self::reap) has begun, otherwise 0. See `space/reaped.rs`.
    pub(crate) reaped: AtomicU32,
    /// The locking designs in use; fixed.
    pub(crate) locking: Locking,
    /// See [`SpaceConfig::mmap_base`]; fixed.
    pub(crate) mmap_base: u64,
    /// See [`SpaceConfig::layout`]; fixed.
    pub(crate) layout: Layout,
    /// See [`SpaceConfig::placement`]; fixed.
    pub(crate) placement: Placement,
    /// See [`SpaceConfig::data`]; fixed.
    pub(crate) data: core::ops::Range<u64>,
    /// Start of the heap; written under `mmap_lock` held for writing.
    pub(crate) start_brk: AtomicU64,
    /// The break; written under `mmap_lock` held for writing, or by the range writer that has set
    /// `heap_locked`.
    pub(crate) brk: AtomicU64,
    /// True while a range writer has the right to move the break; see `call/brk.rs`.
    pub(crate) heap_locked: AtomicBool,
    /// Flags that mlockall(MCL_FUTURE) and `set_memory_merge` add to new mappings. Written under `mmap_lock`
    /// held for writing.
    pub(crate) default_flags: AtomicU64,
    /// Location of the program's arguments, guarded by this spin lock.
    arguments: SpinLock<Arguments>,
    /// Protection keys in use. Written under `mmap_lock` held for writing, or by a range writer that makes
    /// memory executable and not readable.
    pub(crate) pkeys: Pkeys,
}

impl<P: Platform> AddressSpace<P> {
    /// Creates an empty address space, as exec does.
    ///
    /// # Errors
    ///
    /// Fails if a setting is invalid, or if there is no memory. Without memory, asks the platform first
    /// ([`Platform::memory_short`]).
    ///
    /// # Locks
    ///
    /// None. The caller holds no lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, error::SpaceError};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # use freehold::space::{AddressSpace, SpaceConfig};
    /// let config = SpaceConfig::new().brk(Some(0x10_0000));
    /// let space = AddressSpace::new(&engine, &config).unwrap();
    /// assert_eq!((space.brk(0), space.counts().map_count), (Ok(0x10_0000), 0));
    /// let invalid = config.mmap_base(Some(5));
    /// assert_eq!(AddressSpace::new(&engine, &invalid).err(), Some(SpaceError::MmapBase));
    /// ```
    pub fn new(engine: &Counted<Engine<P>>, config: &SpaceConfig) -> Result<Counted<Self>, SpaceError> {
        config.check(Self::MAP_WINDOW_END, Self::TASK_SIZE)?;
        Ok(create(engine.platform(), || engine.trim_own(), || Self::make(engine, config))?)
    }

    /// Creates an address space with settings that were checked.
    ///
    /// # Errors
    ///
    /// Fails with [`NoMemory`] if there is no memory for the record or the root table.
    pub(crate) fn make(engine: &Counted<Engine<P>>, config: &SpaceConfig) -> Result<Counted<Self>, NoMemory> {
        let counters = Counters::try_new()?;
        let defaults = if config.memory_merge { VmFlags::MERGEABLE } else { VmFlags::empty() };
        let own = LockStats::try_new_if(config.lock_stats)?;
        let brk = config.brk.unwrap_or(Self::DEFAULT_BRK);
        let mmap_lock = match own.or_else(|| engine.lock_stats.clone()) {
            Some(stats) => MmapLock::with_stats(stats),
            None => MmapLock::new(),
        };
        let mmap_lock =
            mmap_lock.with_slots(engine.reader_slots.clone()).with_fault_lock(config.locking.fault);
        let space = Counted::try_new(AddressSpace {
            engine: engine.clone(),
            mmap_lock,
            tree: RangeMap::with_node_width(engine.config().vma_nodes),
            vm: VmSpace::new(engine.memory())?,
            closings: Closings::new(),
            contention: WriteContention::new(),
            swap_windows: SwapWindows::new(),
            ran: AtomicBool::new(true),
            counters,
            limits: LiveLimits::new(&config.limits),
            mdwe: AtomicU32::new(config.mdwe.bits()),
            thp_disable: AtomicU32::new(config.thp_disable as u32),
            reaped: AtomicU32::new(0),
            locking: config.locking.available(),
            mmap_base: config.mmap_base.unwrap_or(Self::DEFAULT_MMAP_BASE),
            layout: config.layout,
            placement: config.placement,
            data: config.data.clone(),
            start_brk: AtomicU64::new(brk),
            brk: AtomicU64::new(brk),
            heap_locked: AtomicBool::new(false),
            default_flags: AtomicU64::new(defaults.bits()),
            arguments: SpinLock::new(Arguments::default(), Rank::Leaf),
            pkeys: Pkeys::new(),
        })?;
        announce!("AddressSpace", Counted::as_ptr(&space), 1, AddressSpace<P> {
            engine: engine,
            mmap_lock: mmap_lock,
            tree: tree,
            vm: vm,
            closings: closings,
            contention: contention,
            counters: counters,
            limits: limits,
            mdwe: mdwe,
            thp_disable: thp_disable,
            reaped: reaped,
            locking: locking,
            mmap_base: mmap_base,
            layout: layout,
            placement: placement,
            data: data,
            start_brk: start_brk,
            brk: brk,
            heap_locked: heap_locked,
            default_flags: default_flags,
            arguments: arguments,
            pkeys: pkeys,
        });
        Ok(space)
    }

    /// Returns the engine that the address space belongs to.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// engine.set_max_map_count(7);
    /// assert_eq!(space.engine().max_map_count(), 7);
    /// ```
    pub fn engine(&self) -> &Counted<Engine<P>> {
        &self.engine
    }

    /// Returns the platform's record of this address space.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// // A processor of the machine runs the space, and resolves faults through it.
    /// let fault = |addr, access| space.handle_fault(addr, access).map(|_| ());
    /// let mut cpu = engine.platform().cpu(0);
    /// cpu.store(space.mmu(), at, 7_u64, |addr, access| fault(addr.get(), access)).unwrap();
    /// assert_eq!(space.rss().anon, 1);
    /// ```
    pub fn mmu(&self) -> &P::Mmu {
        self.vm.mmu()
    }

    /// Returns the locking designs in use.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::{AddressSpace, Locking, SpaceConfig, Unmap}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let locking = Locking::default().unmap(Unmap::Downgraded);
    /// let space = AddressSpace::new(&engine, &SpaceConfig::new().locking(locking)).unwrap();
    /// assert_eq!(space.fork().unwrap().locking(), locking);
    /// ```
    #[inline]
    pub fn locking(&self) -> Locking {
        self.locking
    }

    /// Returns true if an access to one VMA tries that VMA's lock before it takes the mmap lock.
    #[inline]
    pub(crate) fn tries_vma_lock(&self) -> bool {
        self.mmap_lock.tries_vma_locks()
    }

    /// Returns the resource limits and privileges.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, error::MmapError, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// space.limits().set(&space.limits().get().address_space(8 * PAGE_SIZE));
    /// let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS;
    /// let large = space.mmap(0, 9 * PAGE_SIZE, Prot::READ, flags, None, 0);
    /// assert_eq!(large, Err(MmapError::Limit));
    /// ```
    pub fn limits(&self) -> &LiveLimits {
        &self.limits
    }

    /// Returns the sizes in VMAs and pages.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.mmap(0, PAGE_SIZE, Prot::READ | Prot::EXEC, private, None, 0).unwrap();
    /// let counts = space.counts();
    /// assert_eq!((counts.map_count, counts.total_vm, counts.data_vm), (2, 5, 4));
    /// ```
    pub fn counts(&self) -> Counts {
        self.counters.counts()
    }

    /// Returns the number of resident pages by kind. Exact while no task changes them.
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
    /// assert_eq!(space.rss(), Rss { anon: 1, ..Rss::default() });
    /// ```
    pub fn rss(&self) -> Rss {
        self.vm.rss()
    }

    /// Returns the numbers of faults so far, by how the faults ended.
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
    /// space.handle_fault(0, Access::READ).unwrap_err();
    /// let faults = space.faults();
    /// assert_eq!((faults.vma_lock + faults.mmap_lock, faults.failed), (1, 1));
    /// ```
    pub fn faults(&self) -> Faults {
        self.counters.faults()
    }

    /// Returns statistics of the mmap lock, if the space [keeps its own](SpaceConfig::lock_stats) or uses the
    /// [shared ones](crate::engine::Config::lock_stats). The shared statistics cover all spaces that use
    /// them.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::PAGE_SIZE;
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # use freehold::space::{AddressSpace, SpaceConfig};
    /// let config = SpaceConfig::new().lock_stats(true);
    /// let space = AddressSpace::new(&engine, &config).unwrap();
    /// space.munlockall().unwrap();
    /// assert_eq!(space.lock_stats().unwrap().write.acquired, 1);
    /// ```
    pub fn lock_stats(&self) -> Option<LockSnapshot> {
        self.mmap_lock.stats().map(LockStats::snapshot)
    }

    /// Returns the platform, which provides frames, TLB flushes and hooks of the embedding kernel.
    pub(crate) fn platform(&self) -> &P {
        self.vm.platform()
    }
}
