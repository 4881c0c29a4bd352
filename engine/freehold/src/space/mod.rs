//! The address space (an "mm"): its fields, what guards each, and one operation a file.
//!
//! Reading order: this file, [`locking`] (how anything here may be read or changed), `unmap.rs` (the model of
//! a change: decode, prepare, commit, settle, retire), then any operation.

mod accounting;
mod arguments;
pub(crate) mod change;
pub(crate) mod claim;
mod closing;
mod cpu_arena;
pub(crate) mod design;
pub(crate) mod held_lock;
pub mod limits;
pub mod locking;
pub(crate) mod map_flags;
mod mdwe;
mod pkeys;
pub(crate) mod placement;
pub(crate) mod placement_request;
pub(crate) mod range_writer;
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
pub use freehold_vmspace::{Rss, RssKind};
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

/// Where things go in a fresh address space, and what it may do.
#[derive(Clone, Debug)]
pub struct SpaceConfig {
    /// Where mmap begins to look for room: the first address above the area from which it places downwards,
    /// or the first that it gives upwards. The start of a page, at most [`DEFAULT_MAP_WINDOW`].
    pub mmap_base: u64,
    /// From which end it looks.
    pub layout: Layout,
    /// Where in it things go.
    pub placement: Placement,
    /// Start of the heap (the break), at most the [end of user space](AddressSpace::TASK_SIZE).
    pub brk: u64,
    /// Start and end, within the same bound, of the program's initialised data, which RLIMIT_DATA counts with
    /// the heap.
    pub data: core::ops::Range<u64>,
    /// Resource limits and privileges.
    pub limits: Limits,
    /// What an exec has [inherited](Mdwe::inherited).
    pub mdwe: Mdwe,
    /// Inherited, too: where it has no huge pages of anonymous memory.
    pub thp_disable: ThpDisable,
    /// Inherited, too: whether its memory [may share equal pages](AddressSpace::set_memory_merge).
    pub memory_merge: bool,
    /// The designs in use.
    pub locking: Locking,
    /// Keep statistics of its own mmap lock, instead of [those of all](crate::engine::Config::lock_stats).
    pub lock_stats: bool,
}

impl Default for SpaceConfig {
    fn default() -> Self {
        SpaceConfig {
            mmap_base: DEFAULT_MAP_WINDOW - (128 << 20),
            layout: Layout::TopDown,
            placement: Placement::default(),
            brk: 0x5555_5555_6000,
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
    /// Whether an address space that ends there can be like this. Limits may be anything.
    fn check(&self, task_size: u64) -> Result<(), SpaceError> {
        if self.mmap_base > DEFAULT_MAP_WINDOW || !self.mmap_base.is_multiple_of(PAGE_SIZE) {
            return Err(SpaceError::MmapBase);
        }
        if self.brk > task_size {
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

/// One address space. Lives behind a [`Counted`], because its VMAs know it by its address.
pub struct AddressSpace<P: Platform> {
    /// What all address spaces share.
    pub(crate) engine: Counted<Engine<P>>,
    /// Keeps the set of VMAs still. Order: see `docs/locking.md`.
    pub(crate) mmap_lock: MmapLock<P>,
    /// The VMAs by address, and the closing reservations. Written under `mmap_lock` held for writing, read
    /// under it, under RCU, or under a VMA's lock (which keeps that VMA in the tree).
    pub(crate) tree: RangeMap<P>,
    /// What the hardware sees of it: page tables, TLBs, resident pages.
    pub(crate) vm: VmSpace<P>,
    /// Where waiters for closing ranges sleep.
    closings: Closings,
    /// Conflicts between range writers, which decide whether there are any.
    contention: WriteContention,
    /// Sizes, and faults; see [`counters`].
    pub(crate) counters: Counters<P>,
    /// Resource limits; each read and written alone.
    pub(crate) limits: LiveLimits,
    /// See [`mdwe`]; one word, read and written alone.
    mdwe: AtomicU32,
    /// See [`thp`]; one word, read and written alone.
    thp_disable: AtomicU32,
    /// The designs in use; fixed.
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
    /// See [`brk`](mod@brk).
    pub(crate) heap_locked: AtomicBool,
    /// Flags that mlockall(MCL_FUTURE) and `set_memory_merge` add to new mappings; written under `mmap_lock`
    /// held for writing.
    pub(crate) default_flags: AtomicU64,
    /// Where the program's arguments lie, under a lock of their own.
    arguments: SpinLock<Arguments>,
    /// Which protection keys are in use; written under `mmap_lock` held for writing.
    pub(crate) pkeys: Pkeys,
}

impl<P: Platform> AddressSpace<P> {
    /// An empty address space, as exec makes it.
    ///
    /// # Errors
    ///
    /// See [`SpaceError`].
    pub fn new(engine: &Counted<Engine<P>>, config: &SpaceConfig) -> Result<Counted<Self>, SpaceError> {
        config.check(Self::TASK_SIZE)?;
        Ok(Self::make(engine, config)?)
    }

    /// With settings that were checked.
    ///
    /// # Errors
    ///
    /// No memory for the record or the root table.
    pub(crate) fn make(engine: &Counted<Engine<P>>, config: &SpaceConfig) -> Result<Counted<Self>, NoMemory> {
        let counters = Counters::try_new()?;
        let defaults = if config.memory_merge { VmFlags::MERGEABLE } else { VmFlags::empty() };
        let mmap_lock = match config.lock_stats {
            true => MmapLock::with_stats(Counted::try_new(LockStats::try_new()?)?),
            false => match &engine.lock_stats {
                Some(shared) => MmapLock::with_stats(shared.clone()),
                None => MmapLock::new(),
            },
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
            counters,
            limits: LiveLimits::new(&config.limits),
            mdwe: AtomicU32::new(config.mdwe.bits()),
            thp_disable: AtomicU32::new(config.thp_disable as u32),
            locking: Locking { unmap: config.locking.unmap.rounded(), ..config.locking },
            mmap_base: config.mmap_base,
            layout: config.layout,
            placement: config.placement,
            data: config.data.clone(),
            start_brk: AtomicU64::new(config.brk),
            brk: AtomicU64::new(config.brk),
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

    /// The engine it belongs to.
    pub fn engine(&self) -> &Counted<Engine<P>> {
        &self.engine
    }

    /// The platform's record of this space.
    pub fn mmu(&self) -> &P::Mmu {
        self.vm.mmu()
    }

    /// The designs in use.
    #[inline]
    pub fn locking(&self) -> Locking {
        self.locking
    }

    /// Whether a look at one VMA tries that VMA's lock before it takes the mmap lock.
    #[inline]
    pub(crate) fn tries_vma_lock(&self) -> bool {
        self.mmap_lock.tries_vma_locks()
    }

    /// Resource limits and privileges.
    pub fn limits(&self) -> &LiveLimits {
        &self.limits
    }

    /// Sizes in VMAs and pages.
    pub fn counts(&self) -> Counts {
        self.counters.counts()
    }

    /// Resident pages by kind; exact when nobody changes them meanwhile.
    pub fn rss(&self) -> Rss {
        self.vm.rss()
    }

    /// Faults so far, by the rung that served them.
    pub fn faults(&self) -> Faults {
        self.counters.faults()
    }

    /// How the mmap lock was used, if the space was [made with statistics](SpaceConfig::lock_stats); that of
    /// every space that shares them, if it uses [those of all](crate::engine::Config::lock_stats).
    pub fn lock_stats(&self) -> Option<LockSnapshot> {
        self.mmap_lock.stats().map(LockStats::snapshot)
    }

    pub(crate) fn platform(&self) -> &P {
        self.vm.platform()
    }

    /// The end of user space, as far as this format of page tables reaches. Its last page stays unused.
    pub const TASK_SIZE: u64 = {
        let end = VmSpace::<P>::USER_END;
        assert!(end >= DEFAULT_MAP_WINDOW);
        end
    };
}
