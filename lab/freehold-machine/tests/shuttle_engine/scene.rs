//! The setting of the scenarios: a small machine, an engine, and one or two processes with numbered pages.
//!
//! [`Scene`] owns the machine, the engine and the first process; almost all files of this program use it.
//! Pages 0 to 511 are under one page table. Page 512 is under another page table, and that page table is
//! under another table of the next level. A scenario fills pages with known values ([`value`]) and runs
//! threads on the CPUs 0 to 4. It ends with [`Scene::end`], which checks the address space and that nothing
//! leaked. CPU [`OLD`] stores the first values. Its TLB therefore has translations that the calls under test
//! must flush. For a machine or engine with other settings, add a constructor that calls `with` or `on`. A
//! helper for one file stays in that file.

use freehold::{
    PAGE_SIZE,
    counted::Counted,
    engine::{Config, Engine, HugePages},
    fault::{FaultError, SegvCode},
    hugetlb::HugePageSize,
    reclaim::ReclaimPolicy,
    space::{Locking, MapFlags, Prot, SpaceConfig},
    swap::SwapId,
};
use freehold_machine::DefaultFormat;
use freehold_machine::{Cpu, Machine, MachineConfig, MemorySwap, Process, nodes_for};
use std::ops::Range;

/// Virtual CPU that a thread of a scenario runs on.
pub type Vcpu = Cpu<DefaultFormat>;

pub const PAGE: u64 = PAGE_SIZE;
pub const R: Prot = Prot::READ;
pub const RW: Prot = Prot::READ.union(Prot::WRITE);
pub const ANON: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS);
pub const FIXED: MapFlags = ANON.union(MapFlags::FIXED);
/// Number of pages that one page table maps.
pub const TABLE: u64 = 512;
/// CPU that sets up a scene. Its TLB still has the translations from before the calls under test.
pub const OLD: usize = 5;
/// Address of page 0: the first address of a page table. This page table is the last one under its table of
/// the next level.
const BASE: u64 = (64 << 30) - TABLE * PAGE;

/// Returns the address of a page.
pub fn page(number: u64) -> u64 {
    BASE + number * PAGE
}

/// Returns the value that [`Scene::fill`] stores to a page.
pub fn value(number: u64) -> u64 {
    1000 + number
}

/// Returns the error of an access to an unmapped address.
pub fn unmapped<T>(addr: u64) -> Result<T, FaultError> {
    Err(FaultError::Segv { addr, code: SegvCode::Maperr })
}

/// Returns the error of an access that the mapping does not permit.
pub fn denied<T>(addr: u64) -> Result<T, FaultError> {
    Err(FaultError::Segv { addr, code: SegvCode::Accerr })
}

/// Returns the error of an access beyond the end of a file.
pub fn beyond<T>(addr: u64) -> Result<T, FaultError> {
    Err(FaultError::Bus { addr })
}

/// The machine, the engine and the first process of a scenario.
pub struct Scene {
    /// The first process.
    pub process: Process,
    /// The engine.
    pub engine: Counted<Engine<Machine>>,
    /// The machine.
    pub machine: Machine,
    /// The lock design of every process.
    locking: Locking,
}

/// Returns a configuration without transparent huge pages, with a stack gap of `stack_gap` pages.
fn config(stack_gap: u64) -> Config {
    Config::new().stack_gap(stack_gap * PAGE).huge_pages(HugePages::Never)
}

impl Scene {
    /// Returns a scene with 1 MiB of memory and without huge pages.
    pub fn new(locking: Locking) -> Self {
        // Stacks may grow directly up to the mapping below them.
        Self::gaps(locking, 0)
    }

    /// Returns a scene with 10 MiB of memory, in which anonymous memory gets huge pages wherever they fit.
    pub fn huge(locking: Locking) -> Self {
        Self::with(locking, 10 << 20, config(0).huge_pages(HugePages::Always))
    }

    /// Returns a scene with a stack gap of `pages` pages.
    pub fn gaps(locking: Locking, pages: u64) -> Self {
        Self::with(locking, 1 << 20, config(pages))
    }

    /// Returns a scene with a pool of `pages` huge pages, and little other memory.
    pub fn pool(locking: Locking, pages: u64) -> Self {
        let scene = Self::with(locking, (2 << 20) * (pages + 1) + (1 << 20), config(0));
        assert_eq!(scene.engine.resize_huge_pool(HugePageSize::Mib2, pages, None), pages);
        scene
    }

    /// Returns a scene with `bytes` bytes of memory. The tree of VMAs has the node width with which tests run
    /// the design.
    fn with(locking: Locking, bytes: u64, config: Config) -> Self {
        Self::on(locking, MachineConfig::backed(bytes), config)
    }

    /// Returns a scene with a swap device, whose reclaim evicts each page that was not accessed since the
    /// last visit.
    pub fn swapping(locking: Locking, device: &MemorySwap) -> (Self, SwapId) {
        let scene = Self::with(locking, 1 << 20, config(0).reclaim(ReclaimPolicy::Clock));
        let id = scene.engine.swap_on(device.clone(), 0).unwrap();
        (scene, id)
    }

    /// Ends a scene from [`Scene::swapping`]. Checks that no page is mapped and no slot is in use.
    #[track_caller]
    pub fn end_swapping(self, device: MemorySwap, id: SwapId) {
        self.assert_empty();
        assert_eq!(self.engine.swap_usage(id).unwrap().used, 0, "a slot leaked");
        assert!(device.stored().is_empty(), "a slot was not discarded");
        drop(device);
        self.end();
    }

    /// Returns a scene whose machine has protection keys.
    pub fn keyed(locking: Locking) -> Self {
        Self::on(locking, MachineConfig::backed(1 << 20).pkeys(), config(0))
    }

    /// Returns a scene on the given machine.
    fn on(locking: Locking, machine: MachineConfig, config: Config) -> Self {
        let machine = Machine::new(machine.tables(1 << 18).cpus(6)).unwrap();
        let config = config.vma_nodes(nodes_for(locking));
        let engine = Engine::new(machine.clone(), config).unwrap();
        let process = space(&engine, locking);
        Scene { process, engine, machine, locking }
    }

    /// Returns another process of the same engine.
    pub fn another(&self) -> Process {
        space(&self.engine, self.locking)
    }

    /// Maps pages of the process, and stores the [`value`] of each page to it.
    pub fn fill(&self, pages: Range<u64>) {
        map(&self.process, pages.clone(), ANON);
        let mut cpu = self.machine.cpu(OLD);
        for number in pages {
            self.process.store(&mut cpu, page(number), value(number)).unwrap();
        }
    }

    /// Returns a CPU that has cached translations of the filled pages.
    pub fn acquainted(&self, cpu: usize, pages: Range<u64>) -> Vcpu {
        let mut cpu = self.machine.cpu(cpu);
        for number in pages {
            assert_eq!(self.process.load(&mut cpu, page(number)), Ok(value(number)));
        }
        cpu
    }

    /// Checks that these pages are unmapped, and that the CPU that set up the scene has no translation of
    /// them.
    #[track_caller]
    pub fn assert_unmapped(&self, pages: Range<u64>) {
        let mut cpu = self.machine.cpu(OLD);
        for number in pages {
            assert_eq!(self.process.load::<u64>(&mut cpu, page(number)), unmapped(page(number)));
        }
    }

    /// Checks that the address space is empty, including its page tables.
    #[track_caller]
    pub fn assert_empty(&self) {
        self.assert_empty_but_tables(0);
    }

    /// Checks that the address space is empty except for arena boundaries and one page table. The boundaries
    /// of the arenas in which threads have mapped memory may keep that table.
    #[track_caller]
    pub fn assert_empty_but_fences(&self) {
        self.assert_empty_but_tables(1);
    }

    /// Checks that the address space has no VMA and no page, and at most `most` page tables besides its root.
    #[track_caller]
    fn assert_empty_but_tables(&self, most: usize) {
        self.process.check();
        assert_eq!(self.process.counts().map_count, 0);
        assert_eq!(self.process.rss(), Default::default());
        let in_use = self.machine.accounting();
        let left = in_use.tables - in_use.spaces;
        assert!(left <= most, "{left} page tables are left of an empty address space");
    }

    /// Ends the scene. Checks that all memory is free.
    #[track_caller]
    pub fn end(self) {
        self.process.check();
        let Scene { process, engine, machine, .. } = self;
        drop((process, engine));
        machine.accounting().assert_clean();
    }
}

/// Creates a process with the lock design of the scene.
fn space(engine: &Counted<Engine<Machine>>, locking: Locking) -> Process {
    Process::new(engine, &SpaceConfig::new().locking(locking)).unwrap()
}

/// Maps pages, readable and writable, over any existing mapping.
pub fn map(process: &Process, pages: Range<u64>, flags: MapFlags) {
    let (at, len) = (page(pages.start), (pages.end - pages.start) * PAGE);
    assert_eq!(process.mmap(at, len, RW, flags | MapFlags::FIXED, None, 0), Ok(at));
}

/// Unmaps pages.
pub fn unmap(process: &Process, pages: Range<u64>) {
    assert_eq!(process.munmap(page(pages.start), (pages.end - pages.start) * PAGE), Ok(()));
}
