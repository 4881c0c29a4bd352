//! Building blocks of the experiments' loads.
//!
//! Experiments create a [`World`] (machine and engine), processes in it, and memory with these functions, so
//! that all experiments use the same flags and page sizes. Threads and clocks are in `executor/`; measuring
//! in turns is in `measure.rs`. The machine has phantom memory: frames without contents, because experiments
//! measure locks and tables and not copying.

pub use crate::executor::for_a_while;

use crate::executor::{Instant, Stop};
use anyhow::Context;
use freehold::{
    PageIndex,
    counted::Counted,
    engine::{Config, Engine},
    fault::Access,
    file::{File, FileAccess, Mapping, Zeroes},
    space::{Locking, MapFlags, Prot, SpaceConfig, Unmap},
};
use freehold_machine::{Cpu, Machine, MachineConfig, Process};
use std::time::Duration;

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Bytes of a GiB.
pub const GIB: u64 = 1 << 30;
/// Read and write access.
pub const RW: Prot = Prot::READ.union(Prot::WRITE);
/// Flags of private anonymous memory.
pub const ANON: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS).union(MapFlags::NORESERVE);

/// The format of page tables of the machines here.
pub type Format = freehold_pagetable::X86_4;
/// An open file.
pub type Open = Counted<File<Machine>>;

/// A machine of phantom memory and the engine on it.
pub struct World {
    /// The machine.
    pub machine: Machine,
    /// The engine.
    pub engine: Counted<Engine<Machine>>,
}

impl World {
    /// Creates a machine with this amount of phantom memory and this number of virtual CPUs.
    pub fn new(bytes: u64, cpus: usize, config: Config) -> anyhow::Result<World> {
        let of_machine = MachineConfig::phantom(bytes).cpus(cpus).fast();
        // Each CPU keeps some free tables in its list.
        let tables = of_machine.table_bytes + cpus as u64 * (1 << 20);
        let machine = Machine::new(of_machine.tables(tables))
            .context("cannot create the machine: use --at-most or --quick")?;
        let engine = Engine::new(machine.clone(), config)?;
        Ok(World { machine, engine })
    }

    /// Creates an empty address space.
    pub fn process(&self, locking: Locking) -> anyhow::Result<Process> {
        Ok(Process::new(&self.engine, &SpaceConfig::new().locking(locking))?)
    }

    /// Creates an empty address space with statistics of its mmap lock. The statistics read the clock twice
    /// for each hold, which is expensive for a short hold.
    pub fn watched(&self, locking: Locking) -> anyhow::Result<Process> {
        let config = SpaceConfig::new().locking(locking).lock_stats(true);
        Ok(Process::new(&self.engine, &config)?)
    }

    /// Creates a file with all pages in the page cache.
    pub fn file(&self, pages: u64) -> anyhow::Result<Open> {
        let mapping = Mapping::new(&self.engine, Zeroes, pages * PAGE, false)?;
        for page in 0..pages {
            mapping.fill(PageIndex::new(page))?;
        }
        Ok(File::new(&mapping, FileAccess::READ_WRITE, "file")?)
    }

    /// Runs `work` like [`for_a_while`], with a CPU for each thread.
    pub fn for_a_while<R: Send>(
        &self,
        threads: usize,
        turn: Duration,
        work: impl Fn(usize, &mut Cpu<Format>, &Stop) -> anyhow::Result<R> + Sync,
    ) -> anyhow::Result<(Vec<R>, Duration)> {
        for_a_while(threads, turn, |thread, stop| work(thread, &mut self.machine.cpu(thread), stop))
    }
}

/// A side of a comparison.
pub enum Side {
    /// A process with some design.
    Design(Process),
    /// The kernel of the host. This side is always the last side in the list.
    Host,
}

/// Name of the host in tables.
pub const HOST: &str = "Linux (host)";

/// Maps private anonymous memory at any address.
pub fn map(process: &Process, bytes: u64) -> anyhow::Result<u64> {
    Ok(process.mmap(0, bytes, RW, ANON, None, 0)?)
}

/// Faults in pages from `at`, one by one.
pub fn fault_in(process: &Process, at: u64, pages: u64, access: Access) -> anyhow::Result<()> {
    let space = process.space();
    for page in 0..pages {
        space.handle_fault(at + page * PAGE, access)?;
    }
    Ok(())
}

/// Maps memory and makes all its pages present.
pub fn populated(process: &Process, bytes: u64) -> anyhow::Result<u64> {
    let at = map(process, bytes)?;
    fault_in(process, at, bytes / PAGE, Access::WRITE)?;
    Ok(at)
}

/// Returns the name of a design in tables.
pub fn unmap_name(unmap: Unmap) -> &'static str {
    match unmap {
        Unmap::Exclusive => "Exclusive",
        Unmap::Sectioned { .. } => "Sectioned",
        Unmap::Downgraded => "Downgraded",
        Unmap::Released => "Released",
    }
}

/// Returns the names of [`unmaps`].
pub fn unmap_names() -> Vec<String> {
    unmaps(Locking::default()).map(|design| unmap_name(design.unmap).to_owned()).into()
}

/// Returns all designs of munmap, each combined with the other choices of `others`.
pub fn unmaps(others: Locking) -> [Locking; 4] {
    [Unmap::Exclusive, Unmap::SECTIONED, Unmap::Downgraded, Unmap::Released].map(|unmap| others.unmap(unmap))
}

/// Returns the nanoseconds since `started`.
pub fn since(started: Instant) -> f64 {
    started.elapsed().as_nanos() as f64
}
