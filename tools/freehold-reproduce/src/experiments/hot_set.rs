//! The share of a hot set that each policy of reclaim keeps, for the experiment `reclaim`.
//!
//! A process has 1.5 times as much anonymous memory as there is, and uses a quarter of its pages most of the
//! time (`zipf.rs`). Pages go to a swap device in memory and come back. One CPU performs the load with a
//! fixed sequence of accesses, so that all figures but the rate of faults are the same in each run. [`kept`]
//! is the load of a turn. `hot_set_on_host.rs` has the same load for the host.

use super::reclaim::keep_free;
use crate::load::{ANON, PAGE, RW};
use crate::zipf::{self, Draw, Pages};
use freehold::{
    VirtAddr,
    engine::{Config, Engine},
    fault::{Access, FaultError},
    platform::ShortageAnswer,
    reclaim::ReclaimRequest,
    space::{Locking, SpaceConfig},
};
use freehold_machine::{Cpu, DefaultFormat, Machine, MachineConfig, MemorySwap, MemorySwapStats, Process};
use std::sync::Arc;

/// Number of pages that an operation without a frame takes away.
const DIRECT: u64 = 32;

/// The hot set under a policy.
pub(super) struct Kept {
    /// Share of the hot pages that were in memory, at all samples together.
    pub hot: f64,
    /// Share of the accesses to hot pages that had to wait for the device.
    pub hot_misses: f64,
    /// Pages read from the device, per access.
    pub swap_ins: f64,
    /// Pages written to the device, per access.
    pub written: f64,
    /// Faults per second, in the half of the accesses in which the samples are.
    pub faults: f64,
}

/// A program with one thread.
struct Program<'m> {
    machine: &'m Machine,
    engine: &'m Engine<Machine>,
    process: Process,
    cpu: Cpu<DefaultFormat>,
    device: MemorySwap,
    at: u64,
    /// Number of frames of the machine.
    frames: u64,
    /// Number of faults.
    faults: u64,
    /// Number of pages that the device has read.
    reads: u64,
    /// Number of accesses to hot pages, and of those during which the device has read a page.
    hot: u64,
    missed: u64,
}

impl Pages for Program<'_> {
    type Error = FaultError;

    fn access(&mut self, draw: &Draw) -> Result<(), FaultError> {
        let (space, mut faults) = (self.process.space(), 0);
        let fault = |at: VirtAddr, access: Access| {
            faults += 1;
            space.handle_fault(at.get(), access).map(drop)
        };
        let address = self.at + draw.page * PAGE;
        match draw.stores {
            true => self.cpu.store(space.mmu(), address, draw.page + 1, fault)?,
            false => _ = self.cpu.load::<u64, _>(space.mmu(), address, fault)?,
        }
        self.hot += u64::from(draw.is_hot);
        if faults > 0 {
            self.faults += faults;
            let reads = self.device.stats().pages_read;
            self.missed += u64::from(draw.is_hot && reads > self.reads);
            self.reads = reads;
            // Takes pages away if few frames are free, as a kernel's thread does.
            self.cpu.call(|| keep_free(self.machine, self.engine, self.frames));
        }
        Ok(())
    }

    fn count_present(&mut self, pages: impl Iterator<Item = u64>) -> Result<u64, FaultError> {
        Ok(pages.filter(|page| self.process.frame_at(self.at + page * PAGE).is_some()).count() as u64)
    }

    fn faults(&self) -> u64 {
        self.faults
    }
}

/// Accesses 1.5 times the memory of a machine, and returns what `config`'s policy kept. `bytes` is a power of
/// two.
pub(super) fn kept(config: Config, bytes: u64, locking: Locking) -> anyhow::Result<Kept> {
    let machine = Machine::new(MachineConfig::backed(bytes).cpus(1).fast())?;
    let engine = Engine::new(machine.clone(), config)?;
    let (frames, pages) = (bytes / PAGE, bytes / PAGE / 2 * 3);
    let device = MemorySwap::new(2 * pages);
    let id = engine.swap_on(device.clone(), 0)?;
    let process = Process::new(&engine, &SpaceConfig::new().locking(locking))?;
    let at = process.mmap(0, pages * PAGE, RW, ANON, None, 0)?;
    let reclaiming = engine.clone();
    machine.set_memory_short(Some(Arc::new(move |_| {
        match reclaiming.reclaim(&ReclaimRequest::pages(DIRECT)).freed {
            0 => ShortageAnswer::Fail,
            _ => ShortageAnswer::Retry,
        }
    })));
    let mut cpu = machine.cpu(0);
    cpu.run(process.mmu());
    let mut program = Program {
        machine: &machine,
        engine: &engine,
        process,
        cpu,
        device: device.clone(),
        at,
        frames,
        faults: 0,
        reads: 0,
        hot: 0,
        missed: 0,
    };
    let mut before = MemorySwapStats::default();
    let found = zipf::run(&mut program, pages, |program| before = program.device.stats())?;
    let (after, hot, missed) = (device.stats(), program.hot, program.missed);
    machine.set_memory_short(None);
    drop(program);
    engine.swap_off(id, || None)?;
    let per_access = |pages: u64| pages as f64 / found.accesses as f64;
    Ok(Kept {
        hot: found.hot,
        hot_misses: missed as f64 / hot as f64,
        swap_ins: per_access(after.pages_read - before.pages_read),
        written: per_access(after.pages_written - before.pages_written),
        faults: found.faults,
    })
}
