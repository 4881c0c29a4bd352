//! Resident memory over time, by kind of memory and by process, and its peaks.
//!
//! `memory.rs` reports the present pages of an address space after each event. [`Resident`] has sums over all
//! processes, in which a page counts once for each process that maps it. `mod_tests.rs` has the tests.

use super::bins::{Bin, Bins};
use super::mappings::{Kind, hexadecimal};
use super::pages::PAGE;
use serde::Serialize;
use std::collections::BTreeMap;

/// Largest number of processes and of peak's mappings in the result.
pub(super) const MAX_PROCESSES: usize = 24;
pub(super) const MAX_VMAS: usize = 16;

/// Resident memory. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Resident {
    /// Width of the bins of all series.
    pub step_ns: u64,
    /// Largest sum of all processes in each period of `step_ns`, by kind.
    pub by_kind: BTreeMap<Kind, Vec<u64>>,
    /// The largest sum of all processes.
    pub peak: Peak,
    /// The processes, the largest peak first: at most 24.
    pub processes: Vec<ProcessPeak>,
}

/// The largest sum of all processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Peak {
    /// The time.
    pub at_ns: u64,
    /// The sum.
    pub bytes: u64,
    /// The sum by kind.
    pub by_kind: BTreeMap<Kind, u64>,
    /// The mappings with the most present memory, at most 16. They are listed when the sum was at most 0.4 %
    /// below the peak.
    pub mappings: Vec<PeakMapping>,
}

/// A mapping at the time of the peak.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PeakMapping {
    /// The process.
    pub process: u32,
    /// Name of its command.
    pub command: String,
    /// The kind of memory.
    pub kind: Kind,
    /// Path of the file, or the kernel's name; empty for unnamed memory.
    pub name: String,
    /// The operation that made the mapping.
    pub made_by: String,
    /// Line of that operation in the recording.
    pub line: u32,
    /// First address, hexadecimal.
    #[serde(serialize_with = "hexadecimal")]
    pub start: u64,
    /// Bytes that are present.
    pub bytes: u64,
}

/// The resident memory of a process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessPeak {
    /// The process: the serial number of its first thread.
    pub process: u32,
    /// Name of its command.
    pub command: String,
    /// Its largest resident memory.
    pub peak_bytes: u64,
    /// The time of the peak.
    pub peak_at_ns: u64,
    /// Largest resident memory in each period of `step_ns`.
    pub over_time: Vec<u64>,
}

/// Numbers of pages by kind.
pub(super) type Counts = [u64; Kind::COUNT];

/// The state with the most pages in a period.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Most(pub(super) Counts);

impl Bin for Most {
    fn join(&mut self, later: &Most) {
        if later.0.iter().sum::<u64>() > self.0.iter().sum::<u64>() {
            *self = *later;
        }
    }
}

impl Bin for u64 {
    fn join(&mut self, later: &u64) {
        *self = (*self).max(*later);
    }
}

/// The pages of one process over time.
#[derive(Debug, Default)]
pub(super) struct OfProcess {
    pub(super) bins: Bins<u64>,
    pub(super) now: u64,
    pub(super) peak: u64,
    pub(super) peak_at: u64,
}

/// Resident memory that is read so far.
#[derive(Debug, Default)]
pub(super) struct Sums {
    pub(super) bins: Bins<Most>,
    pub(super) now: Counts,
    /// Processes by their index in `Life`.
    pub(super) processes: Vec<OfProcess>,
}

impl Sums {
    /// Changes the counts of one address space of `process` from `old` to `new`.
    pub(super) fn change(&mut self, process: usize, old: &Counts, new: &Counts, now: u64) {
        if self.processes.len() <= process {
            self.processes.resize_with(process + 1, OfProcess::default);
        }
        let before = Most(self.now);
        for ((sum, old), new) in self.now.iter_mut().zip(old).zip(new) {
            *sum = (*sum + new).saturating_sub(*old);
        }
        let after = Most(self.now);
        self.bins.at(now, &before).join(&after);
        let own = &mut self.processes[process];
        let before = own.now;
        own.now = (before + new.iter().sum::<u64>()).saturating_sub(old.iter().sum());
        let after = own.now;
        own.bins.at(now, &before).join(&after);
        if after > own.peak {
            (own.peak, own.peak_at) = (after, now);
        }
    }

    /// Returns the number of pages of all processes.
    pub(super) fn total(&self) -> u64 {
        self.now.iter().sum()
    }
}

/// Converts numbers of pages to bytes by kind. Omits kinds without pages.
pub(super) fn bytes(counts: &Counts) -> BTreeMap<Kind, u64> {
    let kinds = Kind::ALL.into_iter().zip(counts);
    kinds.filter(|(_, pages)| **pages > 0).map(|(kind, pages)| (kind, pages * PAGE)).collect()
}
