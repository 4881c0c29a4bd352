//! What the scenarios play on: a small machine, one engine, one or two processes, and pages numbered from a
//! border between page tables.

use freehold::{
    PAGE_SIZE,
    counted::Counted,
    engine::{Config, Engine, HugePages},
    fault::{FaultError, SegvCode},
    hugetlb::HugePageSize,
    space::{Locking, MapFlags, Prot, SpaceConfig},
};
use freehold_machine::{Cpu, Machine, MachineConfig, Process, nodes_for};
use freehold_pagetable::X86_4;
use std::ops::Range;

pub type Vcpu = Cpu<X86_4>;

pub const PAGE: u64 = PAGE_SIZE;
pub const R: Prot = Prot::READ;
pub const RW: Prot = Prot::READ.union(Prot::WRITE);
pub const ANON: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS);
pub const FIXED: MapFlags = ANON.union(MapFlags::FIXED);
/// Pages that one page table maps.
pub const TABLE: u64 = 512;
/// The CPU that sets scenes up, and remembers what it saw then.
pub const OLD: usize = 5;
/// Where page 0 lies: at the start of a page table's span, the last one of a table of the next level.
const BASE: u64 = (64 << 30) - TABLE * PAGE;

/// The address of a page.
pub fn page(number: u64) -> u64 {
    BASE + number * PAGE
}

/// What [`Scene::fill`] puts into a page.
pub fn value(number: u64) -> u64 {
    1000 + number
}

/// The signal for an access to an address where nothing is mapped.
pub fn unmapped<T>(addr: u64) -> Result<T, FaultError> {
    Err(FaultError::Segv { addr, code: SegvCode::Maperr })
}

/// The signal for an access that the mapping does not allow.
pub fn denied<T>(addr: u64) -> Result<T, FaultError> {
    Err(FaultError::Segv { addr, code: SegvCode::Accerr })
}

/// The signal for an access behind the end of a file.
pub fn beyond<T>(addr: u64) -> Result<T, FaultError> {
    Err(FaultError::Bus { addr })
}

pub struct Scene {
    pub process: Process,
    pub engine: Counted<Engine<Machine>>,
    pub machine: Machine,
    locking: Locking,
}

fn config(stack_gap: u64) -> Config {
    Config { stack_gap: stack_gap * PAGE, huge_pages: HugePages::Never, ..Config::default() }
}

impl Scene {
    pub fn new(locking: Locking) -> Self {
        // Stacks may grow right down to what lies below them.
        Self::gaps(locking, 0)
    }

    /// One with room for a few huge pages, which come wherever they fit.
    pub fn huge(locking: Locking) -> Self {
        Self::with(locking, 10 << 20, Config { huge_pages: HugePages::Always, ..config(0) })
    }

    /// One whose stacks keep so many pages free.
    pub fn gaps(locking: Locking, pages: u64) -> Self {
        Self::with(locking, 1 << 20, config(pages))
    }

    /// One with a pool of so many huge pages, and little besides.
    pub fn pool(locking: Locking, pages: u64) -> Self {
        let scene = Self::with(locking, (2 << 20) * (pages + 1) + (1 << 20), config(0));
        assert_eq!(scene.engine.resize_huge_pool(HugePageSize::Mib2, pages, None), pages);
        scene
    }

    fn with(locking: Locking, bytes: u64, config: Config) -> Self {
        let machine = Machine::new(MachineConfig::backed(bytes).tables(1 << 18).cpus(6)).unwrap();
        let config = Config { vma_nodes: nodes_for(locking), ..config };
        let engine = Engine::new(machine.clone(), config).unwrap();
        let process = space(&engine, locking);
        Scene { process, engine, machine, locking }
    }

    /// Another process on the same engine.
    pub fn another(&self) -> Process {
        space(&self.engine, self.locking)
    }

    /// Maps pages of the process, and stores a [`value`] of its own in each.
    pub fn fill(&self, pages: Range<u64>) {
        map(&self.process, pages.clone(), ANON);
        let mut cpu = self.machine.cpu(OLD);
        for number in pages {
            self.process.store(&mut cpu, page(number), value(number)).unwrap();
        }
    }

    /// A CPU that remembers the pages as they were filled.
    pub fn acquainted(&self, cpu: usize, pages: Range<u64>) -> Vcpu {
        let mut cpu = self.machine.cpu(cpu);
        for number in pages {
            assert_eq!(self.process.load(&mut cpu, page(number)), Ok(value(number)));
        }
        cpu
    }

    /// Asserts that nothing is mapped at these pages, nor remembered by the CPU that set the scene up.
    #[track_caller]
    pub fn assert_unmapped(&self, pages: Range<u64>) {
        let mut cpu = self.machine.cpu(OLD);
        for number in pages {
            assert_eq!(self.process.load::<u64>(&mut cpu, page(number)), unmapped(page(number)));
        }
    }

    /// Asserts that the address space is empty, page tables included.
    #[track_caller]
    pub fn assert_empty(&self) {
        self.assert_empty_but_tables(0);
    }

    /// The same where tasks have mapped in stretches of theirs: those share a table, which their fences keep.
    #[track_caller]
    pub fn assert_empty_but_fences(&self) {
        self.assert_empty_but_tables(1);
    }

    #[track_caller]
    fn assert_empty_but_tables(&self, most: usize) {
        self.process.check();
        assert_eq!(self.process.counts().map_count, 0);
        assert_eq!(self.process.rss(), Default::default());
        let in_use = self.machine.accounting();
        let left = in_use.tables - in_use.spaces;
        assert!(left <= most, "{left} page tables are left of an empty address space");
    }

    /// Takes everything down; all memory has to come back.
    #[track_caller]
    pub fn end(self) {
        self.process.check();
        let Scene { process, engine, machine, .. } = self;
        drop((process, engine));
        machine.accounting().assert_clean();
    }
}

fn space(engine: &Counted<Engine<Machine>>, locking: Locking) -> Process {
    Process::new(engine, &SpaceConfig { locking, ..SpaceConfig::default() }).unwrap()
}

/// Maps pages, readable and writable, in place of whatever is there.
pub fn map(process: &Process, pages: Range<u64>, flags: MapFlags) {
    let (at, len) = (page(pages.start), (pages.end - pages.start) * PAGE);
    assert_eq!(process.mmap(at, len, RW, flags | MapFlags::FIXED, None, 0), Ok(at));
}

/// Unmaps pages.
pub fn unmap(process: &Process, pages: Range<u64>) {
    assert_eq!(process.munmap(page(pages.start), (pages.end - pages.start) * PAGE), Ok(()));
}
