//! The analysis of a recording as data: waits between tasks, memory, page faults.
//!
//! [`of_recording`] reads a recording once and returns an [`Analysis`], which `--json` writes and the page of
//! `--report` shows. The analysis describes the recorded machine; the results of the replay are in the
//! [`Outcome`](crate::outcome::Outcome). Nothing here depends on HTML or on a replay. The fields of the
//! serialised types are the keys of the JSON document (`docs/reference/replay.md`): renaming one changes the
//! format.
//!
//! | file | contents |
//! | --- | --- |
//! | `waits.rs`, `holders.rs` | waits for mmap locks, and the holders |
//! | `operations.rs`, `label.rs` | times by operation, names of operations |
//! | `memory.rs` | follows mappings, pages and faults |
//! | `mappings.rs`, `pages.rs` | the mappings, and the present pages of an address space |
//! | `faults.rs`, `resident.rs`, `summary.rs` | the results about faults, resident memory, mappings |
//! | `bins.rs` | values over time |
//!
//! `mod_tests.rs` checks small recordings with known answers; `tests/analysis.rs` checks recordings of
//! programs. An analysis must never panic, whatever a recording contains.

mod bins;
pub mod faults;
pub(crate) mod holders;
pub(crate) mod label;
pub mod mappings;
mod memory;
pub mod operations;
mod pages;
pub mod resident;
pub mod summary;
pub mod waits;

use crate::picture::life::Life;
use crate::source::Source;
use faults::Faults;
use freehold_trace::{Event, Format, Kind, ReadError, Recording, Snapshot};
use mappings::Mapping;
use memory::Memory;
use operations::{Operation, Operations};
use resident::Resident;
use serde::Serialize;
use summary::Mappings;
use waits::{Locks, Waits};

/// The facts about a recorded run. Times are in nanoseconds since the first event, without the time for which
/// the program was frozen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Analysis {
    /// Name of the recording.
    pub name: String,
    /// Time of the last event.
    pub end_ns: u64,
    /// Waits for mmap locks. Null if the recording has no times of locks.
    pub waits: Option<Waits>,
    /// Times by operation, the largest sum first.
    pub operations: Vec<Operation>,
    /// Resident memory. Null for strace output, which has no faults.
    pub resident: Option<Resident>,
    /// Mappings.
    pub mappings: Mappings,
    /// Page faults. Null for strace output.
    pub faults: Option<Faults>,
}

/// Returns the analysis of a recording. A recording that ends in an error is analysed as far as it can be
/// read.
///
/// # Errors
///
/// Fails if the recording cannot be opened.
pub fn of_recording(source: impl Into<Source>) -> Result<Analysis, ReadError> {
    Ok(study(&source.into())?.analysis)
}

/// An analysis, with what the page of `--report` draws besides.
pub(crate) struct Study {
    pub(crate) analysis: Analysis,
    pub(crate) life: Life,
    /// All mappings.
    pub(crate) mappings: Vec<Mapping>,
}

/// Reads a recording and analyses it, like [`of_recording`].
pub(crate) fn study(source: &Source) -> Result<Study, ReadError> {
    let mut recording = source.open()?;
    let mut analyst = Analyst::default();
    while let Ok(Some(event)) = recording.next_event() {
        let snapshot = match event.kind {
            Kind::Exec { snapshot: Some(id) } | Kind::Snapshot { id, .. } => {
                recording.snapshot(id).ok().flatten()
            }
            _ => None,
        };
        analyst.event(&event, snapshot.as_ref(), &recording);
    }
    Ok(analyst.finish(&recording))
}

/// An analysis in progress.
#[derive(Debug, Default)]
struct Analyst {
    life: Life,
    locks: Locks,
    operations: Operations,
    memory: Memory,
    has_locks: bool,
    /// Time for which the program was frozen so far.
    frozen: u64,
}

impl Analyst {
    /// Adds the next event, with the snapshot that it names.
    fn event(&mut self, event: &Event, snapshot: Option<&Snapshot>, recording: &Recording) {
        let now = event.time.saturating_sub(self.frozen).max(self.life.end);
        self.memory.before(event, &self.life, now);
        let changed = self.life.event(event, snapshot);
        self.memory.event(event, &changed, snapshot, &self.life, recording);
        self.operations.event(event);
        self.has_locks |= event.cost.write_wait.or(event.cost.read_wait).is_some();
        self.locks.event(event, &self.life, self.frozen);
        if let Kind::Frozen { ns } = event.kind {
            self.frozen = self.frozen.saturating_add(ns);
        }
    }

    fn finish(mut self, recording: &Recording) -> Study {
        self.memory.finish(&self.life);
        self.life.finish();
        let has_faults = recording.format() != Format::Strace;
        let process = |index: usize| {
            let process = self.life.processes.get(index);
            process.map_or((0, String::new()), |process| (process.serial, process.name.clone()))
        };
        let waits = self.locks.finish(&process, waits::RECORDED);
        let resident = summary::resident(&mut self.memory, &self.life);
        let Memory { mappings, faults, .. } = self.memory;
        let analysis = Analysis {
            name: recording.name().to_owned(),
            end_ns: self.life.end,
            waits: self.has_locks.then_some(waits),
            operations: self.operations.finish(),
            resident: has_faults.then_some(resident),
            mappings: summary::mappings(&mappings),
            faults: has_faults.then(|| faults.finish()),
        };
        Study { analysis, life: self.life, mappings }
    }
}

#[cfg(test)]
#[path = "mod_tests.rs"]
mod tests;
