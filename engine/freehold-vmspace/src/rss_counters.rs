//! Resident pages, counted per CPU and summed when read. Each space has one such set of counters
//! (`space.rs`), and every operation that maps or unmaps pages adjusts it.
//!
//! Each CPU changes only its own share, inside [`PerCpu::with`], so that no atomic read-modify-write is
//! needed in a fault. The sum must equal the number of pages that the tables map. `report/check.rs` of
//! `freehold` compares it with [`VmSpace::recount`](crate::VmSpace::recount), which counts the entries; tests
//! call this check.

use crate::{NoMemory, Rss, RssKind, platform::Platform};
use freehold_sync::{
    PerCpu,
    atomic::{AtomicI64, Ordering::Relaxed},
};

const KINDS: usize = 4;

/// The counters of one space.
pub(crate) struct RssCounters<P: Platform> {
    /// The share of each CPU. A share may be negative, because a page may be mapped on one CPU and unmapped
    /// on another.
    per_cpu: PerCpu<[AtomicI64; KINDS], P>,
}

impl<P: Platform> RssCounters<P> {
    pub fn try_new() -> Result<Self, NoMemory> {
        let zero = |_| core::array::from_fn(|_| AtomicI64::new(0));
        Ok(RssCounters { per_cpu: PerCpu::try_new(zero)? })
    }

    /// Adds `rss`, which may be negative, to the counts. Takes no lock.
    pub fn count(&self, rss: &Rss) {
        self.per_cpu.with(|cell| {
            for (counter, by) in cell.iter().zip([rss.file, rss.anon, rss.shmem, rss.swap]) {
                if by != 0 {
                    // Relaxed load and store: only this CPU writes its cell, inside `with`.
                    counter.store(counter.load(Relaxed) + by, Relaxed);
                }
            }
        });
    }

    /// Adds `pages`, which may be negative, to the count of one kind.
    pub fn count_page(&self, kind: RssKind, pages: i64) {
        self.per_cpu.with(|cell| {
            let counter = &cell[kind as usize];
            counter.store(counter.load(Relaxed) + pages, Relaxed);
        });
    }

    /// Returns the sums. The result is exact if no task changes the counts during the call.
    pub fn sum(&self) -> Rss {
        let mut sum = [0; KINDS];
        for cell in self.per_cpu.iter() {
            for (sum, counter) in sum.iter_mut().zip(cell) {
                *sum += counter.load(Relaxed);
            }
        }
        Rss { file: sum[0], anon: sum[1], shmem: sum[2], swap: sum[3] }
    }
}
