//! Moving, copying, reporting and looking into address spaces, on the machine with TLBs that remember: every scenario under
//! every design of the locks.

mod access;
mod fork;
mod mremap;
mod reports;

use freehold::{
    PAGE_SIZE,
    counted::Counted,
    engine::{Config, Engine},
    object::{File, FileAccess, IoError, Mapping, Pager},
    platform::Platform,
    space::{Locking, MapFlags, Prot, SpaceConfig},
};
use freehold_machine::{Cpu, FailingAllocator, Machine, MachineConfig, Process};
use freehold_pagetable::{Pfn, X86_4};

#[global_allocator]
static HEAP: FailingAllocator = FailingAllocator;

type Vcpu = Cpu<X86_4>;

const PAGE: u64 = PAGE_SIZE;
const R: Prot = Prot::READ;
const RW: Prot = Prot::READ.union(Prot::WRITE);
const ANON: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS);
/// A place where nothing is, at the start of a page table's span.
const BASE: u64 = 0x10_0000_0000;

/// A disk with a number at the start of every page.
struct Disk;

impl Disk {
    fn number(index: u64) -> u64 {
        index * 1000 + 7
    }
}

impl Pager<Machine> for Disk {
    fn read_page(&self, platform: &Machine, index: u64, frame: Pfn) -> Result<(), IoError> {
        platform.zero_frame(frame);
        platform.write_frame(frame, 0, &Disk::number(index).to_le_bytes());
        Ok(())
    }
}

/// A machine and its engine. Everything must have been given back when it ends.
struct World {
    machine: Machine,
    engine: Option<Counted<Engine<Machine>>>,
}

impl World {
    fn new() -> Self {
        let machine = Machine::new(MachineConfig::backed(16 << 20)).unwrap();
        let engine = Engine::new(machine.clone(), Config::default()).unwrap();
        World { machine, engine: Some(engine) }
    }

    fn engine(&self) -> &Counted<Engine<Machine>> {
        self.engine.as_ref().unwrap()
    }

    fn process(&self, locking: Locking) -> Process {
        Process::new(self.engine(), &SpaceConfig { locking, ..SpaceConfig::default() }).unwrap()
    }

    fn file(&self, pages: u64) -> Counted<File<Machine>> {
        let mapping = Mapping::new(self.engine(), Disk, pages * PAGE, false).unwrap();
        File::new(&mapping, FileAccess::READ_WRITE, "/a/file").unwrap()
    }

    /// Ends the world; whoever still held something of it has leaked it.
    fn end(mut self) {
        self.engine = None;
        self.machine.accounting().assert_clean();
    }
}

/// Runs a scenario under every design.
fn everywhere(scenario: impl Fn(&World, &Process, &mut Vcpu)) {
    for locking in Locking::ALL {
        let world = World::new();
        let process = world.process(locking);
        let mut cpu = world.machine.cpu(0);
        scenario(&world, &process, &mut cpu);
        process.check();
        drop((process, cpu));
        world.end();
    }
}

/// Maps anonymous memory exactly there.
fn anon(process: &Process, at: u64, pages: u64) -> u64 {
    process.mmap(at, pages * PAGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap()
}

/// Writes `first`, `first + 1`, .. to the first words of pages.
fn fill(process: &Process, cpu: &mut Vcpu, at: u64, pages: u64, first: u64) {
    for n in 0..pages {
        process.store(cpu, at + n * PAGE, first + n).unwrap();
    }
}

/// Whether the first words of pages are `first`, `first + 1`, ..
fn assert_filled(process: &Process, cpu: &mut Vcpu, at: u64, pages: u64, first: u64) {
    for n in 0..pages {
        assert_eq!(process.load::<u64>(cpu, at + n * PAGE), Ok(first + n), "page {n} at {at:#x}");
    }
}

/// The VMAs as (start, end, name), in pages from `BASE` on.
fn layout(process: &Process) -> Vec<(u64, u64)> {
    process.maps(0).map(|line| ((line.start - BASE) / PAGE, (line.end - BASE) / PAGE)).collect()
}
