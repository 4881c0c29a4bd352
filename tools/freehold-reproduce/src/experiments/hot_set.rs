//! The share of a hot set that each policy of reclaim keeps, for the experiment `reclaim`.
//!
//! A process has 1.5 times as much anonymous memory as there is, and uses a quarter of its pages most of the
//! time (`zipf.rs`). Pages go to a swap device in memory and come back. One CPU performs the load with a
//! fixed sequence of accesses, so that all figures but the rate of faults are the same in each run. [`kept`]
//! is the load of a turn. `hot_set_on_host.rs` has the same load for the host.

use super::reclaim::keep_free;
use crate::executor::Instant;
use crate::load::{ANON, PAGE, RW, since};
use crate::zipf::{Draws, ROUNDS, SAMPLES};
use freehold::{
    VirtAddr,
    engine::{Config, Engine},
    fault::{Access, FaultError},
    platform::ShortageAnswer,
    reclaim::ReclaimRequest,
    space::{Locking, SpaceConfig},
};
use freehold_machine::{Cpu, DefaultFormat, Machine, MachineConfig, MemorySwap, Process};
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
    process: Process,
    cpu: Cpu<DefaultFormat>,
    at: u64,
    /// Number of faults.
    faults: u64,
}

impl Program<'_> {
    /// Loads a word of a page, or stores one.
    fn access(&mut self, page: u64, stores: bool) -> Result<(), FaultError> {
        let (space, faults) = (self.process.space(), &mut self.faults);
        let fault = |at: VirtAddr, access: Access| {
            *faults += 1;
            space.handle_fault(at.get(), access).map(drop)
        };
        let address = self.at + page * PAGE;
        match stores {
            true => self.cpu.store(space.mmu(), address, page + 1, fault),
            false => self.cpu.load::<u64, _>(space.mmu(), address, fault).map(drop),
        }
    }

    /// Takes pages away if few frames are free, as a kernel's thread does.
    fn keep_free(&mut self, engine: &Engine<Machine>, frames: u64) {
        self.cpu.call(|| keep_free(self.machine, engine, frames));
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
    let mut program = Program { machine: &machine, process, cpu, at, faults: 0 };
    for page in 0..pages {
        program.access(page, true)?;
        program.keep_free(&engine, frames);
    }
    let mut draws = Draws::new(pages);
    let (accesses, before) = (ROUNDS * pages, device.stats());
    let (mut hot, mut missed, mut looked, mut kept) = (0, 0, 0, 0);
    let (mut faults, mut took, mut started) = (0, 0.0, Instant::now());
    for n in 0..accesses {
        let sampled = n >= accesses / 2 && n % (accesses / 2 / SAMPLES) == 0;
        if sampled {
            if n > accesses / 2 {
                took += since(started);
            } else {
                faults = program.faults;
            }
            looked += draws.hot_pages().len() as u64;
            let is_kept = |page: &u64| program.process.frame_at(at + page * PAGE).is_some();
            kept += draws.hot_pages().filter(is_kept).count() as u64;
            started = Instant::now();
        }
        let (draw, had) = (draws.next(), program.faults);
        let reads = if draw.is_hot { device.stats().pages_read } else { 0 };
        program.access(draw.page, draw.stores)?;
        if program.faults > had {
            program.keep_free(&engine, frames);
        }
        if draw.is_hot {
            hot += 1;
            missed += u64::from(device.stats().pages_read > reads);
        }
    }
    took += since(started);
    let (after, faults) = (device.stats(), program.faults - faults);
    machine.set_memory_short(None);
    drop(program);
    engine.swap_off(id, || None)?;
    let per_access = |pages: u64| pages as f64 / accesses as f64;
    Ok(Kept {
        hot: kept as f64 / looked as f64,
        hot_misses: missed as f64 / hot as f64,
        swap_ins: per_access(after.pages_read - before.pages_read),
        written: per_access(after.pages_written - before.pages_written),
        faults: faults as f64 / took * 1e9,
    })
}
