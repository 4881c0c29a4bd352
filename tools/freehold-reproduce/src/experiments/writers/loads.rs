//! An address space that many CPUs change concurrently, and the operations of each CPU.
//!
//! `mod.rs` creates one [`Shared`] for each side of the comparison, and calls [`Shared::rate`] and
//! [`Shared::times`] in turns; `tables.rs` prints the results. Each CPU changes only its own part of the
//! address space, so every loss compared with a single CPU comes from locks and shared cache lines.
//!
//! The part of a CPU begins at `BASE + cpu * PART`. At offset `OWN` is the area that the CPU changes, and at
//! offset `WATCHED` the area that the CPU only reads.
//!
//! A new operation needs a variant of [`Load`] (or of [`Watched`], if the operation is timed on one CPU), an
//! entry in `ALL` of that type, and an arm in the functions of that type. An operation must restore the part
//! of its CPU, because turns repeat it.

use crate::executor::{Barrier, Instant, sleep, together, unnoted};
use crate::load::{ANON, PAGE, RW, World, fault_in};
use freehold::fault::Access;
use freehold::{
    call::Advice,
    space::{Locking, MapFlags, Placement, Prot, SpaceConfig, Write},
};
use freehold_machine::{Machine, Process};
use freehold_sync::Host;
use std::time::Duration;

/// The operation that a CPU repeats in its own part of the space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Maps a page and unmaps it.
    Map,
    /// Maps a page, writes to it, and unmaps it.
    Touch,
    /// Changes the protection of a page that is not present, and changes it back.
    Protect,
    /// Grows an area in place, and shrinks it again.
    Grow,
    /// Creates the stack of a thread with a guard, writes to it, and unmaps it.
    Stack,
}

impl Load {
    /// All loads.
    pub const ALL: [Load; 5] = [Load::Map, Load::Touch, Load::Protect, Load::Grow, Load::Stack];

    /// Returns a short name.
    pub fn name(self) -> &'static str {
        match self {
            Load::Map => "map + unmap",
            Load::Touch => "map + touch + unmap",
            Load::Protect => "mprotect",
            Load::Grow => "grow in place",
            Load::Stack => "thread stack",
        }
    }

    /// Performs the operation once.
    pub fn once(self, process: &Process, cpu: usize) -> anyhow::Result<()> {
        let own = own(cpu);
        match self {
            Load::Map => {
                let at = process.mmap(0, PAGE, RW, ANON, None, 0)?;
                process.munmap(at, PAGE)?;
            }
            Load::Touch => {
                let at = process.mmap(0, PAGE, RW, ANON, None, 0)?;
                process.space().handle_fault(at, Access::WRITE)?;
                process.munmap(at, PAGE)?;
            }
            Load::Protect => {
                let page = own + OWN_PAGES / 2 * PAGE;
                process.mprotect(page, PAGE, Prot::READ)?;
                process.mprotect(page, PAGE, RW)?;
            }
            Load::Grow => {
                let end = own + OWN_PAGES * PAGE;
                process.mmap(end, 4 * PAGE, RW, ANON | MapFlags::FIXED, None, 0)?;
                process.munmap(end, 4 * PAGE)?;
            }
            Load::Stack => {
                let at = process.mmap(0, 64 * PAGE, RW, ANON, None, 0)?;
                process.mprotect(at, PAGE, Prot::empty())?;
                process.space().handle_fault(at + 63 * PAGE, Access::WRITE)?;
                process.munmap(at, 64 * PAGE)?;
            }
        }
        Ok(())
    }
}

/// The operation that is timed on one CPU while other CPUs change their own parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// [`Load::Protect`].
    Protect,
    /// Looks up an area.
    Lookup,
    /// Faults on a page that is present.
    Present,
    /// Faults on a page that is absent.
    Absent,
}

impl Watched {
    /// All operations.
    pub const ALL: [Watched; 4] = [Watched::Protect, Watched::Lookup, Watched::Present, Watched::Absent];

    /// Returns a short name.
    pub fn name(self) -> &'static str {
        match self {
            Watched::Protect => "mprotect",
            Watched::Lookup => "look-up",
            Watched::Present => "fault, page present",
            Watched::Absent => "fault, page absent",
        }
    }

    /// Performs the operation for the `nth` time. Returns its time.
    fn once(self, process: &Process, cpu: usize, nth: u64) -> anyhow::Result<Duration> {
        let memory = watched(cpu);
        let page = memory + (1 + nth % (WATCHED_PAGES - 1)) * PAGE;
        if self == Watched::Absent && page == memory + PAGE {
            process.madvise(memory + PAGE, (WATCHED_PAGES - 1) * PAGE, Advice::DontNeed)?;
        }
        let started = Instant::now();
        match self {
            Watched::Protect => Load::Protect.once(process, cpu)?,
            Watched::Lookup => drop(process.space().find_vma(page)),
            Watched::Present => drop(process.space().handle_fault(memory, Access::WRITE)?),
            Watched::Absent => drop(process.space().handle_fault(page, Access::WRITE)?),
        }
        Ok(started.elapsed())
    }
}

/// The layout of the CPUs' areas in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Areas {
    /// Each CPU has enough areas of its own to fill some leaves around every place that it changes.
    Many,
    /// Each CPU has two areas, so several CPUs share a leaf.
    Few,
}

impl Areas {
    /// Both layouts.
    pub const ALL: [Areas; 2] = [Areas::Many, Areas::Few];

    /// Returns a short name.
    pub fn name(self) -> &'static str {
        match self {
            Areas::Many => "many areas of each CPU's own",
            Areas::Few => "two areas for each CPU",
        }
    }
}

/// Start of the first CPU's part. Each part has its own upper-level tables.
const BASE: u64 = 1 << 36;
/// Distance from the part of a CPU to the part of the next CPU, in bytes.
const PART: u64 = 1 << 37;
/// Offsets within a part: `OWN` of the area that is changed, `WATCHED` of the area that is only read. Each of
/// the two areas lies between other areas.
const OWN: u64 = 1 << 32;
const WATCHED: u64 = 1 << 34;
/// Number of pages of the area that is changed.
const OWN_PAGES: u64 = 8;
/// Number of pages of the area that is only read.
const WATCHED_PAGES: u64 = 512;
/// Number of additional areas that [`Areas::Many`] maps before each of the two areas, and in the stretch
/// where the engine places mappings. The additional areas fill some leaves.
const BETWEEN: u64 = 48;
/// Distance between two additional areas.
const STRIDE: u64 = 16 * PAGE;

/// Delay between the starts of two CPUs that map additional areas. With this delay, two or three CPUs map at
/// a time.
const LATER: Duration = Duration::from_micros(100);

/// Returns the address of the area that the CPU changes.
fn own(cpu: usize) -> u64 {
    BASE + cpu as u64 * PART + OWN
}

/// Returns the address of the area that the CPU only reads.
fn watched(cpu: usize) -> u64 {
    BASE + cpu as u64 * PART + WATCHED
}

/// Times at which operations ended.
#[derive(Default)]
struct Ends {
    /// Time of the first end, since the start of the run.
    first: Duration,
    /// Time of the last end, since the start of the run.
    last: Duration,
    /// Number of ends.
    count: u64,
}

impl Ends {
    /// Adds the end of an operation.
    fn add(&mut self, at: Duration) {
        if self.count == 0 {
            self.first = at;
        }
        self.last = at;
        self.count += 1;
    }

    /// Returns the operations per second. If there are 8 operations or more, the rate covers the time from
    /// the first end to the last end. With fewer operations, the rate covers the whole `time`.
    fn rate(&self, time: Duration) -> f64 {
        match self.count {
            8.. => (self.count - 1) as f64 / (self.last - self.first).as_secs_f64(),
            count => count as f64 / time.as_secs_f64(),
        }
    }
}

/// An address space in which each CPU has its areas.
pub struct Shared {
    /// The address space.
    process: Process,
    /// The lock design of changes: it decides whether changes can run concurrently.
    write: Write,
}

impl Shared {
    /// Creates the space with its areas mapped.
    pub fn new(world: &World, locking: Locking, areas: Areas, cpus: usize) -> anyhow::Result<Shared> {
        let config = SpaceConfig::new().locking(locking).placement(Placement::PerCpu);
        let process = Process::new(&world.engine, &config)?;
        let fixed = |at: u64, pages: u64, prot: Prot| {
            process.mmap(at, pages * PAGE, prot, ANON | MapFlags::FIXED, None, 0)
        };
        for cpu in 0..cpus {
            for at in [own(cpu), watched(cpu)] {
                let before = if areas == Areas::Many { BETWEEN } else { 0 };
                for n in 0..before {
                    fixed(at - (n + 1) * STRIDE, OWN_PAGES, if n % 2 == 0 { Prot::READ } else { RW })?;
                }
            }
            fixed(own(cpu), OWN_PAGES, RW)?;
            fixed(watched(cpu), WATCHED_PAGES, RW)?;
            fault_in(&process, watched(cpu), 1, Access::WRITE)?;
        }
        let shared = Shared { process, write: locking.write };
        shared.fill_stretches(world, areas, cpus)?;
        Ok(shared)
    }

    /// Maps additional areas for each CPU, in the stretch where the engine places the CPU's mappings. With
    /// few areas, maps one area and unmaps it again. The CPUs begin one after the other, because CPUs that
    /// map into the same hole would conflict for a while. The last area does not merge with any other area.
    /// Each area has a present page, so that its page tables stay.
    fn fill_stretches(&self, world: &World, areas: Areas, cpus: usize) -> anyhow::Result<()> {
        self.settle(world, cpus)?;
        let map = |prot| self.process.mmap(0, OWN_PAGES * PAGE, prot, ANON, None, 0);
        let fill = |number| {
            let cpu = world.machine.cpu(number);
            sleep(LATER * number as u32);
            cpu.call(|| {
                if areas == Areas::Few {
                    return Ok(self.process.munmap(map(RW)?, OWN_PAGES * PAGE)?);
                }
                for n in 0..BETWEEN {
                    let at = map(if n % 2 == 0 { RW } else { Prot::READ })?;
                    fault_in(&self.process, at, 1, Access::READ)?;
                }
                anyhow::Ok(())
            })
        };
        unnoted(|| together(cpus, fill)).into_iter().collect()
    }

    /// Lets several CPUs change the space at once. From then on, changes run concurrently if the design
    /// supports this.
    fn meet(&self, world: &World, cpus: usize) -> anyhow::Result<()> {
        if self.write == Write::Whole {
            return Ok(());
        }
        let cpus = cpus.clamp(2, 4);
        let change = |number: usize| {
            let cpu = world.machine.cpu(number);
            cpu.call(|| (0..8).try_for_each(|_| Load::Protect.once(&self.process, number)))
        };
        unnoted(|| together(cpus, change)).into_iter().collect()
    }

    /// Brings the space into the state that changes leave behind: changes by several CPUs if `cpus` is
    /// greater than 1, otherwise by one CPU.
    fn settle(&self, world: &World, cpus: usize) -> anyhow::Result<()> {
        // A reader of the whole space ends the concurrent mode.
        drop(self.process.space().read());
        let met = if cpus > 1 { self.meet(world, cpus) } else { Ok(()) };
        // Runs the queued frees of earlier work now, so that the measurement does not include them.
        <Machine>::rcu_barrier();
        met
    }

    /// Returns the operations per second of all CPUs together. Counts nothing during `warm`.
    pub fn rate(
        &self,
        world: &World,
        load: Load,
        cpus: usize,
        (warm, turn): (Duration, Duration),
    ) -> anyhow::Result<f64> {
        self.settle(world, cpus)?;
        let ready = Barrier::new(cpus);
        let run = |number| {
            let mut cpu = world.machine.cpu(number);
            cpu.run(self.process.mmu());
            cpu.call(|| {
                ready.wait();
                let (started, mut ends) = (Instant::now(), Ends::default());
                loop {
                    load.once(&self.process, number)?;
                    let passed = started.elapsed();
                    if passed > warm + turn {
                        return anyhow::Ok(ends.rate(turn));
                    }
                    if passed > warm {
                        ends.add(passed);
                    }
                }
            })
        };
        together(cpus, run).into_iter().sum()
    }

    /// Returns the times of one CPU's operations in nanoseconds, in ascending order. If a load is given, the
    /// other CPUs run it during the measurement. Times nothing during `warm`.
    pub fn times(
        &self,
        world: &World,
        watched: Watched,
        beside: Option<(Load, usize)>,
        (warm, turn): (Duration, Duration),
    ) -> anyhow::Result<Vec<u64>> {
        let others = beside.map_or(0, |(_, others)| others);
        self.settle(world, 1 + others)?;
        let ready = Barrier::new(1 + others);
        let run = |number| {
            let mut cpu = world.machine.cpu(number);
            cpu.run(self.process.mmu());
            cpu.call(|| {
                ready.wait();
                let (started, mut times, mut nth) = (Instant::now(), Vec::new(), 0);
                while started.elapsed() <= warm + turn {
                    match beside {
                        Some((load, _)) if number > 0 => load.once(&self.process, number)?,
                        _ => {
                            let took = watched.once(&self.process, number, nth)?;
                            nth += 1;
                            if started.elapsed() > warm {
                                times.push(took.as_nanos() as u64);
                            }
                        }
                    }
                }
                anyhow::Ok(times)
            })
        };
        let all: Vec<Vec<u64>> = together(1 + others, run).into_iter().collect::<anyhow::Result<_>>()?;
        let mut times = all.into_iter().next().unwrap_or_default();
        times.sort_unstable();
        Ok(times)
    }
}
