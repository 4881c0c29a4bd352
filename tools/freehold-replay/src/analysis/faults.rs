//! Page faults by kind and over time, and interrupts for TLB flushes.
//!
//! `memory.rs` classifies each fault, because the kind depends on what was mapped and present. A fault is
//! counted once here, and once for its mapping (`mappings.rs`). `mod_tests.rs` has the tests.

use super::bins::{Bin, Bins};
use serde::Serialize;
use std::collections::BTreeMap;

/// Kind of page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FaultKind {
    /// The first access to a page of anonymous memory or of shared memory.
    FirstTouch,
    /// A store to a page that was shared with a file, with another process, or with the page of zeroes.
    CopyOnWrite,
    /// A page of a file that was in the page cache.
    File,
    /// A fault that waited for storage.
    Major,
    /// A page that was already present: another task was faster, or the recording does not show how it came.
    Spurious,
    /// Not resolved, or ended in a signal.
    Refused,
}

impl FaultKind {
    /// All kinds.
    pub const ALL: [FaultKind; 6] = [
        FaultKind::FirstTouch,
        FaultKind::CopyOnWrite,
        FaultKind::File,
        FaultKind::Major,
        FaultKind::Spurious,
        FaultKind::Refused,
    ];

    /// Returns the name for readers.
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::FirstTouch => "first touch",
            FaultKind::CopyOnWrite => "copy on write",
            FaultKind::File => "file in the cache",
            FaultKind::Major => "major",
            FaultKind::Spurious => "already present",
            FaultKind::Refused => "refused",
        }
    }
}

/// Numbers of faults by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FaultCounts {
    /// [`FaultKind::FirstTouch`].
    pub first_touch: u64,
    /// [`FaultKind::CopyOnWrite`].
    pub copy_on_write: u64,
    /// [`FaultKind::File`].
    pub file: u64,
    /// [`FaultKind::Major`].
    pub major: u64,
    /// [`FaultKind::Spurious`].
    pub spurious: u64,
    /// [`FaultKind::Refused`].
    pub refused: u64,
}

impl FaultCounts {
    /// Counts one fault.
    pub(super) fn add(&mut self, kind: FaultKind) {
        *match kind {
            FaultKind::FirstTouch => &mut self.first_touch,
            FaultKind::CopyOnWrite => &mut self.copy_on_write,
            FaultKind::File => &mut self.file,
            FaultKind::Major => &mut self.major,
            FaultKind::Spurious => &mut self.spurious,
            FaultKind::Refused => &mut self.refused,
        } += 1;
    }

    /// Returns the numbers in the order of [`FaultKind::ALL`].
    pub fn by_kind(&self) -> [u64; 6] {
        [self.first_touch, self.copy_on_write, self.file, self.major, self.spurious, self.refused]
    }

    /// Returns the number of all faults.
    pub fn sum(&self) -> u64 {
        self.by_kind().iter().sum()
    }
}

impl Bin for FaultCounts {
    fn join(&mut self, later: &FaultCounts) {
        self.first_touch += later.first_touch;
        self.copy_on_write += later.copy_on_write;
        self.file += later.file;
        self.major += later.major;
        self.spurious += later.spurious;
        self.refused += later.refused;
    }
}

/// The faults of a recording.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Faults {
    /// All faults by kind. Faults inside an execve are not included.
    pub counts: FaultCounts,
    /// Width of the bins of `over_time`.
    pub step_ns: u64,
    /// Faults by kind in each period of `step_ns`.
    pub over_time: Vec<FaultCounts>,
    /// Huge pages that faults made, inferred from the settings and the alignment of mappings.
    pub huge_made: u64,
    /// Huge pages of which a call removed a part.
    pub huge_split: u64,
    /// Interrupts for TLB flushes by operation, the most first.
    pub interrupts: Vec<Interrupts>,
}

/// Interrupts that one operation sent.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Interrupts {
    /// The operation.
    pub operation: String,
    /// Number of interrupts.
    pub count: u64,
}

/// Faults and interrupts that are read so far.
#[derive(Debug, Default)]
pub(super) struct FaultSums {
    counts: FaultCounts,
    bins: Bins<FaultCounts>,
    interrupts: BTreeMap<String, u64>,
    pub(super) huge_made: u64,
    pub(super) huge_split: u64,
}

impl FaultSums {
    pub(super) fn add(&mut self, kind: FaultKind, now: u64) {
        self.counts.add(kind);
        self.bins.at(now, &FaultCounts::default()).add(kind);
    }

    pub(super) fn interrupts(&mut self, operation: &str, count: u64) {
        if count > 0 {
            *self.interrupts.entry(operation.to_owned()).or_default() += count;
        }
    }

    pub(super) fn finish(self) -> Faults {
        let interrupts = self.interrupts.into_iter();
        let mut interrupts: Vec<Interrupts> =
            interrupts.map(|(operation, count)| Interrupts { operation, count }).collect();
        interrupts.sort_by_key(|sent| std::cmp::Reverse(sent.count));
        Faults {
            counts: self.counts,
            step_ns: self.bins.width(),
            over_time: self.bins.series(|counts| *counts),
            huge_made: self.huge_made,
            huge_split: self.huge_split,
            interrupts,
        }
    }
}
