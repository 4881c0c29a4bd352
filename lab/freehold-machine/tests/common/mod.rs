//! A minimal kernel with which a test can also make mistakes, such as a missing flush. In addition, [`run`]
//! runs a test once or with many schedules.
//!
//! [`Toy`] is one address space. It writes page table entries directly, so it depends only on the machine and
//! the format, and it does exactly what a test tells it: it flushes nothing by itself except in
//! [`Toy::finish`]. The tests of the program `machine` use all of this file; `shuttle_files.rs` uses only
//! threads, the configuration and the seed. A test makes a mistake by leaving out a call of [`Toy`] or by changing the order of
//! its calls, so a new function of [`Toy`] must flush nothing and check nothing by itself.
#![allow(dead_code, unused_imports, reason = "each test file uses its part")]

use freehold::platform::{FramePurpose, FrameRequest, Platform};
use freehold_machine::{Cpu, Machine, MachineConfig, Mmu};
use freehold_pagetable::{
    Access, Flush, Format, Kind, Level, Levels, Pfn, PteFlags, TableMemory, VirtAddr, X86_4,
};
use freehold_sync::atomic::Ordering::SeqCst;

#[cfg(shuttle)]
pub use shuttle::thread;
#[cfg(not(shuttle))]
pub use std::thread;

/// Runs a scenario once.
#[cfg(not(shuttle))]
pub fn run(scenario: impl Fn() + Send + Sync + 'static) {
    scenario();
}

/// Runs a scenario under the checker, with many schedules.
#[cfg(shuttle)]
pub fn run(scenario: impl Fn() + Send + Sync + 'static) {
    let scheduler = shuttle::scheduler::RandomScheduler::new_from_seed(seed(), 50);
    shuttle::Runner::new(scheduler, config()).run(scenario);
}

/// Returns the configuration of the checker. Atomics of the checker are large, so the creation of an engine
/// needs more stack than on a machine.
#[cfg(shuttle)]
pub fn config() -> shuttle::Config {
    let mut config = shuttle::Config::default();
    config.stack_size = 1 << 18;
    config
}

/// Returns the seed of the schedules. The seed is the same in each run unless `FREEHOLD_SEED` sets another
/// seed.
#[cfg(shuttle)]
pub fn seed() -> u64 {
    std::env::var("FREEHOLD_SEED").map_or(1, |seed| seed.parse().expect("FREEHOLD_SEED is a number"))
}

/// Flags of a page that programs may read and write.
pub const RW: PteFlags = PteFlags::USER.union(PteFlags::WRITE);
/// Flags of a page that programs may only read.
pub const RO: PteFlags = PteFlags::USER;
pub const PAGE: u64 = 4096;
pub const HUGE: u64 = 2 << 20;

/// Returns a machine with 16 MiB of memory with contents, and 4 CPUs.
pub fn backed() -> Machine {
    Machine::new(MachineConfig::backed(16 << 20).tables(1 << 20).cpus(4)).unwrap()
}

/// Fault handler of accesses that must not fault.
pub fn no_fault(address: VirtAddr, access: Access) -> Result<(), String> {
    Err(format!("fault at {address:?}: {access:?}"))
}

/// An address space of the minimal kernel.
pub struct Toy {
    pub machine: Machine,
    pub root: Pfn,
    pub mmu: Mmu<X86_4>,
}

impl Toy {
    /// Creates an address space with an empty root table.
    pub fn new(machine: &Machine) -> Self {
        let root = machine.alloc_table(None).unwrap();
        let mmu = machine.space_created(root).unwrap();
        Toy { machine: machine.clone(), root, mmu }
    }

    /// Allocates and zeroes a frame.
    pub fn frame(&self) -> Pfn {
        let mut out = [Pfn::new(0)];
        assert_eq!(self.machine.alloc_frames(&FrameRequest::pages(FramePurpose::File), &mut out), 1);
        self.machine.zero_frame(out[0]);
        out[0]
    }

    /// Frees a frame without any check or flush.
    pub fn free(&self, frame: Pfn) {
        // SAFETY: the caller may violate the contract on purpose; the oracles of the machine detect the
        // violation.
        unsafe { self.machine.free_frames(&[frame]) }
    }

    /// Returns the table of `level` for an address. Allocates missing tables.
    pub fn table(&self, address: u64, level: Level) -> Pfn {
        let mut table = self.root;
        let mut at = X86_4::ROOT;
        while at > level {
            let raw = self.entry_of(table, address, at);
            table = match X86_4::kind(raw, at) {
                Kind::Table { pfn } => pfn,
                Kind::None => {
                    let new = self.machine.alloc_table(None).unwrap();
                    self.write(table, address, at, X86_4::table(new));
                    new
                }
                other => panic!("unexpected entry {other:?}"),
            };
            at = at.below();
        }
        table
    }

    /// Returns the entry of a table for an address.
    pub fn entry_of(&self, table: Pfn, address: u64, level: Level) -> u64 {
        self.machine.table(table).entry(VirtAddr::new(address).index(level)).load(SeqCst)
    }

    /// Stores an entry in a table.
    pub fn write(&self, table: Pfn, address: u64, level: Level, raw: u64) {
        self.machine.table(table).entry(VirtAddr::new(address).index(level)).store(raw, SeqCst);
    }

    /// Sets the leaf entry of `level` for an address.
    pub fn set_leaf(&self, address: u64, level: Level, frame: Pfn, flags: PteFlags) {
        self.write(self.table(address, level), address, level, X86_4::leaf(level, frame, flags));
    }

    /// Maps a new page.
    pub fn map(&self, address: u64, flags: PteFlags) -> Pfn {
        let frame = self.frame();
        self.set_leaf(address, Level::Pte, frame, flags);
        frame
    }

    /// Clears the entry of `level`. Returns the old entry.
    pub fn clear(&self, address: u64, level: Level) -> u64 {
        let table = self.table(address, level);
        self.machine.table(table).entry(VirtAddr::new(address).index(level)).swap(0, SeqCst)
    }

    /// Flushes a range from all CPUs, and cached tables too if `tables_freed` is true.
    pub fn flush(&self, start: u64, end: u64, tables_freed: bool) {
        let (start, end) = (VirtAddr::new(start), VirtAddr::new(end));
        self.machine.flush(&self.mmu, &Flush { start, end, all: false, levels: Levels::ALL, tables_freed });
    }

    /// Flushes the whole address space, and cached tables too if `tables_freed` is true.
    pub fn flush_all(&self, tables_freed: bool) {
        let (start, end) = (VirtAddr::new(0), VirtAddr::new(u64::MAX));
        self.machine.flush(&self.mmu, &Flush { start, end, all: true, levels: Levels::ALL, tables_freed });
    }

    /// Frees a table without any check or flush.
    pub fn free_table(&self, table: Pfn) {
        // SAFETY: the caller may violate the contract on purpose; the oracles of the machine detect the
        // violation.
        unsafe { self.machine.free_table(table) }
    }

    /// Ends the address space. Clears all entries, flushes, and frees frames and tables afterwards.
    pub fn finish(self) {
        let (mut tables, mut frames) = (Vec::new(), Vec::new());
        self.strip(self.root, X86_4::ROOT, &mut tables, &mut frames);
        self.flush_all(true);
        frames.into_iter().for_each(|frame| self.free(frame));
        tables.into_iter().for_each(|table| self.free_table(table));
        let Toy { machine, root, mmu } = self;
        drop(mmu);
        // SAFETY: the space is gone, and no CPU runs on its tables.
        unsafe { machine.free_table(root) };
    }

    /// Clears all entries of a table and of the tables below it. Adds these tables and their frames to the
    /// lists.
    fn strip(&self, table: Pfn, level: Level, tables: &mut Vec<Pfn>, frames: &mut Vec<Pfn>) {
        for index in 0..freehold_pagetable::ENTRIES {
            let entry = self.machine.table(table).entry(index);
            // Only this test uses the tables, so the read need not be a point at which the checker may switch
            // threads.
            let raw = peek(entry);
            if raw == 0 {
                continue;
            }
            entry.store(0, SeqCst);
            match X86_4::kind(raw, level) {
                Kind::Table { pfn } => {
                    self.strip(pfn, level.below(), tables, frames);
                    tables.push(pfn);
                }
                Kind::Leaf { pfn, .. } => frames.extend((0..level.frames()).map(|n| pfn.add(n))),
                Kind::None | Kind::Marker { .. } => {}
            }
        }
    }
}

#[cfg(not(shuttle))]
fn peek(entry: &freehold_sync::atomic::AtomicU64) -> u64 {
    entry.load(SeqCst)
}

#[cfg(shuttle)]
fn peek(entry: &freehold_sync::atomic::AtomicU64) -> u64 {
    // SAFETY: the checker runs one thread at a time.
    unsafe { entry.raw_load() }
}

/// Reads 8 bytes that must be readable.
pub fn get(cpu: &mut Cpu<X86_4>, toy: &Toy, address: u64) -> u64 {
    cpu.load(&toy.mmu, address, no_fault).unwrap()
}

/// Writes 8 bytes that must be writable.
pub fn put(cpu: &mut Cpu<X86_4>, toy: &Toy, address: u64, value: u64) {
    cpu.store(&toy.mmu, address, value, no_fault).unwrap();
}

/// Returns true if an access faults.
pub fn faults(cpu: &mut Cpu<X86_4>, toy: &Toy, address: u64, access: Access) -> bool {
    cpu.touch(&toy.mmu, address, access, |_, _| Err(())).is_err()
}
