//! Resident pages, counted per CPU and summed when read.

use crate::{NoMemory, Rss, RssKind, platform::Platform};
use freehold_sync::{
    PerCpu,
    atomic::{AtomicI64, Ordering::Relaxed},
};

const KINDS: usize = 3;

/// The live counters.
pub(crate) struct RssCounters<P: Platform> {
    /// One CPU's share: signed, since a page may come on one CPU and go on another.
    per_cpu: PerCpu<[AtomicI64; KINDS], P>,
}

impl<P: Platform> RssCounters<P> {
    pub fn try_new() -> Result<Self, NoMemory> {
        let zero = |_| core::array::from_fn(|_| AtomicI64::new(0));
        Ok(RssCounters { per_cpu: PerCpu::try_new(zero)? })
    }

    /// Resident pages came or went. Takes no lock.
    pub fn count(&self, rss: &Rss) {
        self.per_cpu.with(|cell| {
            for (counter, by) in cell.iter().zip([rss.file, rss.anon, rss.shmem]) {
                if by != 0 {
                    // Relaxed load and store: only this CPU writes its cell, inside `with`.
                    counter.store(counter.load(Relaxed) + by, Relaxed);
                }
            }
        });
    }

    /// As [`count`](Self::count) for one kind.
    pub fn count_page(&self, kind: RssKind, pages: i64) {
        self.per_cpu.with(|cell| {
            let counter = &cell[kind as usize];
            counter.store(counter.load(Relaxed) + pages, Relaxed);
        });
    }

    /// The sums; exact when nobody changes them meanwhile.
    pub fn sum(&self) -> Rss {
        let mut sum = [0; KINDS];
        for cell in self.per_cpu.iter() {
            for (sum, counter) in sum.iter_mut().zip(cell) {
                *sum += counter.load(Relaxed);
            }
        }
        Rss { file: sum[0], anon: sum[1], shmem: sum[2] }
    }
}
