//! Helpers of the tests of address spaces: a machine with a file on a disk, functions that run a scenario on
//! every design, and functions that map, fill and check memory. The three test programs of this package use
//! them.
//!
//! A test usually calls [`everywhere`] with a scenario, which then runs once for every design. A scenario
//! gets a [`World`], a process and a CPU. After each run the process is checked and the world ends, so a
//! leaked frame or table fails the test. A scenario that creates further processes or CPUs drops them itself.
//!
//! Helpers of only some tests are in the other files of this folder: gates in the middle of a call
//! (`gate.rs`), failed allocations (`failure.rs`, `oom.rs`, `scarce.rs`, `view.rs`, `heap.rs`), a device
//! (`board.rs`), direct-access storage (`storage.rs`), and the list of public methods (`public_calls.rs`). A
//! helper of only one folder of tests belongs in the `mod.rs` of that folder.
#![allow(dead_code, unused_imports, reason = "each test program uses its part")]

pub mod board;
pub mod failure;
pub mod gate;
pub mod heap;
pub mod oom;
pub mod public_calls;
pub mod scarce;
pub mod storage;
pub mod view;

use freehold::PageIndex;
pub use freehold::{
    PAGE_SIZE,
    counted::Counted,
    engine::{Config, Engine, NodeWidth},
    file::{File, FileAccess, ForeignFrames, IoError, Mapping, Pager},
    platform::Platform,
    rmap::FileRmap,
    space::{Locking, MapFlags, Placement, Prot, SpaceConfig},
};
pub use freehold_machine::{
    Cpu, DefaultFormat, Effort, Machine, MachineConfig, Process, Shadow, Task, nodes_for,
};
pub use freehold_pagetable::{Format, Pfn, PteFlags};
use rand_pcg::{
    Pcg64Mcg,
    rand_core::{Rng, SeedableRng},
};
use std::{
    collections::BTreeMap,
    sync::{
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc::channel,
    },
    thread::{Scope, ScopedJoinHandle},
};

/// A CPU of the machine, with a TLB.
pub type Vcpu = Cpu<DefaultFormat>;

pub const PAGE: u64 = PAGE_SIZE;
pub const TASK_SIZE: u64 = <Process>::TASK_SIZE;
/// The first address that no process can use: the end of the format's user space.
pub const USER_END: u64 = DefaultFormat::USER_END;
/// Number of levels of tables, and of tables that a process needs for its first page.
pub const LEVELS: usize = DefaultFormat::LEVELS;
pub const R: Prot = Prot::READ;
pub const RW: Prot = Prot::READ.union(Prot::WRITE);
pub const ANON: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS);
/// Bytes of a huge page of the second level.
pub const HUGE: u64 = 2 << 20;
/// An unmapped address at the start of a page table's span.
pub const BASE: u64 = 0x10_0000_0000;

/// Returns true if a leaf of the machine's format has these flags. A test of other flags returns at once.
pub fn format_has(flags: PteFlags) -> bool {
    DefaultFormat::FLAGS.contains(flags)
}

/// A disk with a number at the start of every page.
pub struct Disk;

impl Disk {
    /// Returns the number at the start of a page.
    pub fn number(index: u64) -> u64 {
        index * 1000 + 7
    }
}

impl Pager<Machine> for Disk {
    fn read_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        platform.zero_frame(frame);
        platform.write_frame(frame, 0, &Disk::number(index.get()).to_le_bytes());
        Ok(())
    }
}

/// A machine and its engine. All its memory must be free when the world ends.
pub struct World {
    pub machine: Machine,
    pub engine: Option<Counted<Engine<Machine>>>,
}

impl World {
    /// Returns a world with 16 MiB of memory and the default settings.
    pub fn new() -> Self {
        Self::with(16 << 20, Config::default())
    }

    /// Returns a world with `bytes` bytes of memory and these settings.
    pub fn with(bytes: u64, config: Config) -> Self {
        let machine = Machine::new(MachineConfig::backed(bytes)).unwrap();
        let engine = Engine::new(machine.clone(), config).unwrap();
        World { machine, engine: Some(engine) }
    }

    pub fn engine(&self) -> &Counted<Engine<Machine>> {
        self.engine.as_ref().unwrap()
    }

    /// Returns a process that places mappings as Linux does, whichever design its locks have.
    pub fn process(&self, locking: Locking) -> Process {
        let config = SpaceConfig::new().locking(locking).placement(Placement::FirstFit);
        Process::new(self.engine(), &config).unwrap()
    }

    /// Returns a file of `pages` pages on a [`Disk`].
    pub fn file(&self, pages: u64) -> Counted<File<Machine>> {
        let mapping = Mapping::new(self.engine(), Disk, pages * PAGE, false).unwrap();
        File::new(&mapping, FileAccess::READ_WRITE, "/a/file").unwrap()
    }

    /// Runs `scenario` with a process, checks the process afterwards, and ends the world.
    pub fn live(self, locking: Locking, scenario: impl Fn(&World, &Process, &mut Vcpu)) {
        let process = self.process(locking);
        let mut cpu = self.machine.cpu(0);
        scenario(&self, &process, &mut cpu);
        process.check();
        let tables = self.machine.accounting().tables;
        assert_eq!(self.machine.charged_tables(), tables as u64, "each table is charged to a space");
        drop((process, cpu));
        self.end();
    }

    /// Ends the world. Fails if an object of the world leaked.
    pub fn end(mut self) {
        self.engine = None;
        self.machine.accounting().assert_clean();
    }
}

/// Runs `scenario` on every design of an address space.
pub fn everywhere(scenario: impl Fn(&World, &Process, &mut Vcpu)) {
    let world = |locking| World::with(16 << 20, Config::new().vma_nodes(nodes_for(locking)));
    Locking::ALL.into_iter().for_each(|locking| world(locking).live(locking, &scenario));
}

/// Runs `scenario` on every design of an address space and of the locks of files, on a machine with `bytes`
/// of memory.
pub fn everywhere_with(bytes: u64, config: &Config, scenario: impl Fn(&World, &Process, &mut Vcpu)) {
    for file_rmap in FileRmap::ALL {
        Locking::ALL.into_iter().for_each(|locking| {
            let config = config.clone().file_rmap(file_rmap).vma_nodes(nodes_for(locking));
            World::with(bytes, config).live(locking, &scenario);
        });
    }
}

/// Makes a call on a thread of its own, which gets a fatal signal when it first checks for signals. Panics if
/// the call does not check for signals.
pub fn killed<R: Send>(call: impl FnOnce() -> R + Send) -> R {
    let thread = || {
        Task::current().interrupt_wait(1);
        let result = call();
        assert!(Task::current().is_killed(), "the call does not check for a fatal signal");
        result
    };
    std::thread::scope(|scope| scope.spawn(thread).join().unwrap())
}

/// Returns once `so` returns true, however long another thread takes.
pub fn until(mut so: impl FnMut() -> bool) {
    while !so() {
        std::thread::yield_now();
    }
}

/// Starts a thread that makes a call. Returns once the call waits or has returned.
pub fn spawn_until_waiting<'scope, R: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    call: impl FnOnce() -> R + Send + 'scope,
) -> ScopedJoinHandle<'scope, R> {
    let (sender, receiver) = channel();
    let thread = scope.spawn(move || {
        sender.send(Task::current()).unwrap();
        call()
    });
    let task = receiver.recv().unwrap();
    until(|| task.waits() > 0 || thread.is_finished());
    thread
}

/// Makes a call while another thread calls `again` repeatedly.
pub fn while_repeating<R>(again: impl Fn() + Sync, call: impl FnOnce() -> R) -> R {
    /// Ends the repetition when it is dropped.
    struct Over<'o>(&'o AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, SeqCst);
        }
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(SeqCst) {
                again();
                std::thread::yield_now();
            }
        });
        // `_over` is dropped even if the call panics.
        let _over = Over(&over);
        call()
    })
}

/// A pseudo-random sequence that depends only on the seed.
pub struct Dice(Pcg64Mcg);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Dice(Pcg64Mcg::seed_from_u64(seed))
    }

    /// Returns a number below `below`.
    pub fn roll(&mut self, below: u64) -> u64 {
        self.0.next_u64() % below
    }
}

/// Updates a model of pages by address after mremap has moved the pages from `at` on to `to`.
pub fn pages_moved<V: Copy>(known: &mut BTreeMap<u64, V>, at: u64, len: u64, to: u64) {
    let values: Vec<_> = known.range(at..at + len).map(|(at, value)| (*at, *value)).collect();
    for page in (0..len).step_by(PAGE as usize) {
        known.remove(&(at + page));
        known.remove(&(to + page));
    }
    known.extend(values.into_iter().map(|(page, value)| (page - at + to, value)));
}

/// Maps anonymous memory exactly at `at`.
pub fn anon(process: &Process, at: u64, pages: u64) -> u64 {
    process.mmap(at, pages * PAGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap()
}

/// Stores `first`, `first + 1`, ... to the first words of pages.
pub fn fill(process: &Process, cpu: &mut Vcpu, at: u64, pages: u64, first: u64) {
    for n in 0..pages {
        process.store(cpu, at + n * PAGE, first + n).unwrap();
    }
}

/// Checks that the first words of pages are `first`, `first + 1`, ...
pub fn assert_filled(process: &Process, cpu: &mut Vcpu, at: u64, pages: u64, first: u64) {
    for n in 0..pages {
        assert_eq!(process.load::<u64>(cpu, at + n * PAGE), Ok(first + n), "page {n} at {at:#x}");
    }
}

/// Returns frames as an argument of the engine. The test has allocated the frames from the machine, and frees
/// them only after the last mapping is gone.
pub fn foreign(first: Pfn, count: u64) -> ForeignFrames {
    // SAFETY: the test keeps the frames allocated as long as they are mapped, or never maps them.
    unsafe { ForeignFrames::new(first, count) }
}

/// Returns frames like [`foreign`]; the frames need not be contiguous.
pub fn foreign_each(frames: &[Pfn]) -> Vec<ForeignFrames> {
    frames.iter().map(|&frame| foreign(frame, 1)).collect()
}

/// Returns the VMAs as (start, end), in pages from `BASE` on.
pub fn layout(process: &Process) -> Vec<(u64, u64)> {
    process.maps(0).map(|line| ((line.start - BASE) / PAGE, (line.end - BASE) / PAGE)).collect()
}
