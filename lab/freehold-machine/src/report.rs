//! Reports of a machine: what is in use, and counts of events.
//!
//! [`Accounting`] lists what is in use at one moment. A test drops all address spaces and then calls
//! [`Accounting::assert_clean`], which panics if something leaked. [`MachineStats`] counts events since the
//! machine was built. Both reports are collected from atomics and short locks of `inner.rs` while the machine
//! runs, so the counts of one report need not belong to the same moment. A new count of events on CPUs is a
//! field of `TlbCounts` (`tlb.rs`); other new counts are fields of [`PoolCounts`] or of `FlushCounts`
//! (`inner.rs`). `MachineStats::of` collects all counts.

use crate::inner::Inner;
use crate::pool::PoolCounts;
use freehold_pagetable::{Format, Pfn};
use std::fmt;

/// Maximum number of frames, and of tables, that are listed by number.
const LISTED: usize = 16;

/// The resources of a machine that are in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accounting {
    /// Number of frames in use, including those in the engine's own caches.
    pub frames: usize,
    /// The lowest frame numbers in use.
    pub lowest_frames: Vec<Pfn>,
    /// Number of page tables in use, without those of the kernel's half.
    pub tables: usize,
    /// The lowest table numbers in use.
    pub lowest_tables: Vec<Pfn>,
    /// Number of address spaces.
    pub spaces: usize,
}

impl Accounting {
    pub(crate) fn of<F: Format>(inner: &Inner<F>) -> Self {
        let (frames, lowest_frames) = inner.frames.in_use(LISTED);
        let kernel = inner.kernel.as_ref().map_or(&[][..], |kernel| kernel.tables());
        let (tables, mut lowest_tables) = inner.tables.in_use(LISTED);
        lowest_tables.retain(|table| !kernel.contains(table));
        let tables = tables - kernel.len();
        Accounting { frames, lowest_frames, tables, lowest_tables, spaces: inner.spaces.lock().taken() }
    }

    /// Returns true if nothing is in use.
    pub fn is_clean(&self) -> bool {
        self.frames == 0 && self.tables == 0 && self.spaces == 0
    }

    /// Asserts that nothing is in use.
    ///
    /// # Panics
    /// Panics if anything is in use. The message lists what is in use.
    #[track_caller]
    pub fn assert_clean(&self) {
        assert!(self.is_clean(), "something was leaked: {self}");
    }
}

impl fmt::Display for Accounting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} frames {:?}, ", self.frames, self.lowest_frames)?;
        write!(f, "{} page tables {:?}, {} address spaces", self.tables, self.lowest_tables, self.spaces)
    }
}

/// Counts of events on a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineStats {
    /// Frames that were allocated and freed.
    pub frames: PoolCounts,
    /// Page tables that were allocated and freed.
    pub tables: PoolCounts,
    /// Number of requested flushes of a range.
    pub range_flushes: u64,
    /// Number of requested flushes of a whole space.
    pub full_flushes: u64,
    /// Number of flushes, of both kinds, that reported freed tables.
    pub table_flushes: u64,
    /// Number of times that a flush flushed the TLB of the CPU that requested the flush.
    pub local_visits: u64,
    /// Number of times that a flush flushed the TLB of another CPU. Real hardware needs an interrupt (a
    /// shootdown) for each.
    pub remote_visits: u64,
    /// Number of entries that flushes dropped.
    pub entries_flushed: u64,
    /// Number of walks of the tables.
    pub walks: u64,
    /// Number of walks that began at a cached table.
    pub walk_cache_hits: u64,
    /// Number of faults raised.
    pub faults: u64,
}

impl MachineStats {
    pub(crate) fn of<F: Format>(inner: &Inner<F>) -> Self {
        let [range_flushes, full_flushes, table_flushes] = inner.flush_counts();
        let mut stats = MachineStats {
            frames: inner.frames.counts(),
            tables: inner.tables.counts(),
            range_flushes,
            full_flushes,
            table_flushes,
            ..MachineStats::default()
        };
        for cpu in &inner.cpus {
            let counts = cpu.lock().counts;
            stats.local_visits += counts.visits_local;
            stats.remote_visits += counts.visits_remote;
            stats.entries_flushed += counts.entries_flushed;
            stats.walks += counts.walks;
            stats.walk_cache_hits += counts.walk_cache_hits;
            stats.faults += counts.faults;
        }
        stats
    }
}
