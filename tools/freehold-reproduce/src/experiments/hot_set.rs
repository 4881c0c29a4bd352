//! The share of a hot set that each policy of reclaim keeps, for the experiment `reclaim`.
//!
//! A process has 1.5 times as much anonymous memory as there is, and uses a quarter of its pages most of the
//! time, by a zipf distribution. Pages go to a swap device and come back. The load counts pages and no times,
//! and one CPU performs it with a fixed seed, so its figures are the same in each run. [`kept`] is the load
//! of a turn.

use super::reclaim::keep_free;
use crate::load::{ANON, PAGE, RW};
use freehold::{
    engine::{Config, Engine},
    fault::Access,
    platform::ShortageAnswer,
    reclaim::ReclaimRequest,
    space::{Locking, SpaceConfig},
};
use freehold_machine::{Machine, MachineConfig, MemorySwap, Process};
use std::sync::Arc;

/// Number of accesses for each page of the process, after all pages were written once.
const ROUNDS: u64 = 8;
/// One access of this number goes to a page that is not hot.
const COLD: u64 = 10;
/// One access of this number is a store.
const STORES: u64 = 4;
/// Number of samples of the hot pages, in the second half of the accesses.
const SAMPLES: u64 = 16;
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
}

/// A sequence of random numbers (splitmix64).
struct Random(u64);

impl Random {
    /// Returns a number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ mixed >> 31) % end
    }
}

/// Draws the pages of accesses.
struct Draw {
    random: Random,
    pages: u64,
    hot: u64,
    /// The sums of the weights of the hot pages with smaller ranks.
    sums: Vec<u64>,
}

impl Draw {
    fn new(pages: u64) -> Draw {
        let hot = pages / 4;
        let weights = (1..=hot).map(|rank| (1 << 40) / rank);
        let sums = weights
            .scan(0, |sum, weight| {
                *sum += weight;
                Some(*sum)
            })
            .collect();
        Draw { random: Random(0x51), pages, hot, sums }
    }

    /// Returns the page with this rank. Pages of neighbouring ranks are far apart.
    fn page_of(&self, rank: u64) -> u64 {
        // A prime number that does not divide the number of pages, which is three times a power of two.
        rank * 7919 % self.pages
    }

    /// Returns the rank of the next page. The ranks below `hot` are hot.
    fn next_rank(&mut self) -> u64 {
        if self.random.below(COLD) == 0 {
            return self.hot + self.random.below(self.pages - self.hot);
        }
        let all = self.sums.last().copied().unwrap_or(1);
        let drawn = self.random.below(all);
        self.sums.partition_point(|sum| *sum <= drawn) as u64
    }
}

/// Accesses 1.5 times the memory of a machine, and returns what `config`'s policy kept. `bytes` is a power of
/// two.
pub(super) fn kept(config: Config, bytes: u64, locking: Locking) -> anyhow::Result<Kept> {
    // A page with contents is not full of zeroes, so it needs a slot.
    let machine = Machine::new(MachineConfig::phantom(bytes).cpus(1).fast().fill(1))?;
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
    let mut draw = Draw::new(pages);
    for page in 0..pages {
        cpu.call(|| keep_free(&machine, &engine, frames));
        process.touch(&mut cpu, at + page * PAGE, Access::WRITE)?;
    }
    let (accesses, before) = (ROUNDS * pages, device.stats());
    let (mut hot, mut missed, mut looked, mut kept) = (0, 0, 0, 0);
    for n in 0..accesses {
        let rank = draw.next_rank();
        let address = at + draw.page_of(rank) * PAGE;
        cpu.call(|| keep_free(&machine, &engine, frames));
        let reads = device.stats().pages_read;
        let access = if draw.random.below(STORES) == 0 { Access::WRITE } else { Access::READ };
        process.touch(&mut cpu, address, access)?;
        if rank < draw.hot {
            hot += 1;
            missed += u64::from(device.stats().pages_read > reads);
        }
        if n >= accesses / 2 && n % (accesses / 2 / SAMPLES) == 0 {
            looked += draw.hot;
            let is_kept = |rank: &u64| process.frame_at(at + draw.page_of(*rank) * PAGE).is_some();
            kept += (0..draw.hot).filter(is_kept).count() as u64;
        }
    }
    let after = device.stats();
    machine.set_memory_short(None);
    drop((cpu, process));
    engine.swap_off(id, || None)?;
    let per_access = |pages: u64| pages as f64 / accesses as f64;
    Ok(Kept {
        hot: kept as f64 / looked as f64,
        hot_misses: missed as f64 / hot as f64,
        swap_ins: per_access(after.pages_read - before.pages_read),
        written: per_access(after.pages_written - before.pages_written),
    })
}
