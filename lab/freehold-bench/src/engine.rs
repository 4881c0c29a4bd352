//! The engine as a subject of the benches: one process on a machine of its own.
//!
//! [`Space`] implements [`Subject`], and its other constructors choose the lock design and the placement that
//! a bench compares. Oracles are off and the memory is phantom: page tables, frame records, trees and locks
//! are real, contents are not. A bench therefore measures only the engine: no oracle checks anything, and no
//! contents are copied. The benches `readers` and `rmap` create their own processes on a [`machine`].
//!
//! The areas must be those of the other subjects (`lib.rs`).

use crate::{BASE, LENGTH, PAGE, STACK, STRIDE, Subject};
use freehold::engine::{Config, Engine};
use freehold::reclaim::ReclaimPolicy;
use freehold::space::{Locking, MapFlags, Placement, Prot, SpaceConfig, Write};
use freehold_machine::{Machine, MachineConfig, Process};

/// The protection of most areas.
const RW: Prot = Prot::READ.union(Prot::WRITE);
/// The flags of every mapping.
const ANON: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS).union(MapFlags::NORESERVE);

/// A process of the engine.
pub struct Space {
    /// The machine of the process.
    machine: Machine,
    /// The process.
    process: Process,
}

/// Creates a machine of `bytes` of phantom memory for benches.
pub fn machine(bytes: u64) -> Machine {
    Machine::new(MachineConfig::phantom(bytes).fast()).expect("the host has room for a phantom machine")
}

impl Space {
    /// Creates an empty address space on its own machine.
    pub fn new(bytes: u64, locking: Locking) -> Self {
        Space::placing(bytes, locking, Placement::default())
    }

    /// Creates an empty address space whose mappings are placed according to `placement`.
    pub fn placing(bytes: u64, locking: Locking, placement: Placement) -> Self {
        let machine = machine(bytes);
        let engine = Engine::new(machine.clone(), Config::new().max_map_count(1 << 20));
        let config = SpaceConfig::new().locking(locking).placement(placement);
        Space { machine, process: Process::new(&engine.expect("memory"), &config).expect("memory") }
    }

    /// Creates an empty address space whose pages are aged by walks of page tables.
    pub fn aging(bytes: u64) -> Self {
        let machine = machine(bytes);
        let engine = Engine::new(machine.clone(), Config::new().reclaim(ReclaimPolicy::Generations));
        let process = Process::new(&engine.expect("memory"), &SpaceConfig::default()).expect("memory");
        Space { machine, process }
    }

    /// Creates a space like [`Subject::with_areas`], with these settings for locking and placement.
    pub fn with_areas_by(areas: u64, locking: Locking, placement: Placement) -> Self {
        let space = Space::placing(1 << 30, locking, placement);
        let stack = ANON | MapFlags::FIXED | MapFlags::GROWSDOWN;
        space.process.mmap(STACK, LENGTH, RW, stack, None, 0).expect("room");
        for n in 0..areas {
            let prot = if n % 2 == 0 { RW } else { RW | Prot::EXEC };
            let flags = ANON | MapFlags::FIXED;
            space.process.mmap(BASE + n * STRIDE, LENGTH, prot, flags, None, 0).expect("room");
        }
        space
    }

    /// Returns the machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Returns the process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Creates a space like [`Subject::with_areas`], in which range writers make every change that they can
    /// make, and each CPU places mappings in its own arena.
    pub fn claiming(areas: u64) -> Self {
        Space::with_areas_by(areas, Locking::default().write(Write::RangesOnly), Placement::PerCpu)
    }

    /// Maps a page between the area at `address` and the next area, and unmaps it.
    pub fn map_unmap_between(&self, address: u64) {
        let hint = address + LENGTH + PAGE;
        let at = self.process.mmap(hint, PAGE, RW, ANON, None, 0).expect("room");
        self.process.munmap(at, PAGE).expect("mapped");
    }

    /// Extends the area at `address` by two pages, and unmaps them.
    pub fn grow_shrink(&self, address: u64) {
        let end = address + LENGTH;
        let flags = ANON | MapFlags::FIXED;
        self.process.mmap(end, 2 * PAGE, rights_of(address), flags, None, 0).expect("room");
        self.process.munmap(end, 2 * PAGE).expect("mapped");
    }

    /// Maps `bytes` of private writable memory and returns the address.
    #[inline(always)]
    pub fn map(&self, bytes: u64) -> u64 {
        self.process.mmap(0, bytes, RW, ANON, None, 0).expect("room")
    }
}

impl Subject for Space {
    const NAME: &'static str = "freehold";

    fn with_areas(areas: u64) -> Self {
        Space::with_areas_by(areas, Locking::default(), Placement::default())
    }

    fn lookup(&self, address: u64) -> Option<u64> {
        self.process.find_vma(address).map(|vma| vma.start())
    }

    // Inlined, so that the counts of a bench do not depend on how many benches call this function.
    #[inline(always)]
    fn map_unmap(&self, _: u64) {
        let at = self.map(PAGE);
        self.process.munmap(at, PAGE).expect("mapped");
    }

    fn split_merge(&self, address: u64) {
        let page = address + 2 * PAGE;
        self.process.mprotect(page, PAGE, Prot::READ).expect("mapped");
        self.process.mprotect(page, PAGE, rights_of(address)).expect("mapped");
    }
}

/// Returns the rights of the area at `address`. Two areas that follow each other have different rights.
fn rights_of(address: u64) -> Prot {
    if ((address - BASE) / STRIDE).is_multiple_of(2) { RW } else { RW | Prot::EXEC }
}
