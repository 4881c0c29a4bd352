//! What a machine can say about itself.

use crate::inner::Inner;
use crate::pool::PoolCounts;
use freehold_pagetable::{Format, Pfn};
use std::fmt;

/// Numbers listed of each kind.
const LISTED: usize = 16;

/// What is in use of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accounting {
    /// Frames in use, those in the engine's own caches included.
    pub frames: usize,
    /// The lowest of them.
    pub lowest_frames: Vec<Pfn>,
    /// Page tables in use, those of the kernel's own half excepted.
    pub tables: usize,
    /// The lowest of them.
    pub lowest_tables: Vec<Pfn>,
    /// Address spaces.
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

    /// Whether nothing is in use.
    pub fn is_clean(&self) -> bool {
        self.frames == 0 && self.tables == 0 && self.spaces == 0
    }

    /// Asserts that nothing is in use.
    ///
    /// # Panics
    /// With what is.
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

/// What happened on a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineStats {
    /// Frames handed out and given back.
    pub frames: PoolCounts,
    /// Page tables handed out and given back.
    pub tables: PoolCounts,
    /// Flushes of a range that were asked for.
    pub range_flushes: u64,
    /// Flushes of a whole space that were asked for.
    pub full_flushes: u64,
    /// How many of these said that tables were freed.
    pub table_flushes: u64,
    /// Visits of a flush to the CPU that asked for it.
    pub local_visits: u64,
    /// Visits to other CPUs: the shootdowns that real hardware would need interrupts for.
    pub remote_visits: u64,
    /// Entries that flushes dropped.
    pub entries_flushed: u64,
    /// Walks of the tables.
    pub walks: u64,
    /// How many of these began at a remembered table.
    pub walk_cache_hits: u64,
    /// Faults raised.
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
