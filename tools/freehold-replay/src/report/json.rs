//! The report for programs. Times are in nanoseconds; the key of a time ends in its unit.
//!
//! Input: the [`Outcome`] of each replay. Output: one JSON document, for `freehold replay --json`. The names
//! of the fields of these structures are the keys of the document, which `docs/reference/replay.md`
//! describes: renaming a field changes the format. A new field of the [`Outcome`] does not compile here until
//! it has a key.

use crate::analysis::Analysis;
use crate::analysis::waits::Waits;
use crate::locking::Design;
use crate::outcome::{Difference, FlushCount, KindTime, Outcome, Rungs, Spread, nanoseconds};
use crate::short::{Figures, Memory};
use serde::Serialize;
use std::time::Duration;

/// A recording that could not be replayed.
#[derive(Clone, Debug, Serialize)]
pub struct Unusable {
    /// Name of the recording on the command line.
    pub recording: String,
    /// Reason, in one line.
    pub reason: String,
}

/// Version of the document's structure. Increases when a key is removed or changes its meaning. New keys may
/// be added without a change of version.
const SCHEMA: u32 = 2;

/// Returns all replays, in the order in which they ran, and the analyses of the recordings, as one JSON
/// document that ends in a line feed.
pub fn json(outcomes: &[Outcome], analyses: &[Analysis], unusable: &[Unusable]) -> String {
    let document = Document {
        schema: SCHEMA,
        freehold: env!("CARGO_PKG_VERSION"),
        recordings: outcomes.iter().map(Recording::of).collect(),
        analyses,
        not_checked: outcomes.iter().map(Outcome::not_checked).sum(),
        unusable,
    };
    let mut text = serde_json::to_string_pretty(&document).expect("strings and numbers always serialise");
    text.push('\n');
    text
}

/// The whole document.
#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    freehold: &'static str,
    recordings: Vec<Recording<'a>>,
    analyses: &'a [Analysis],
    not_checked: u64,
    unusable: &'a [Unusable],
}

/// An outcome under the keys of this document. A value that several keys share is split into its parts.
#[derive(Serialize)]
struct Recording<'a> {
    name: &'a str,
    calls: u64,
    calls_as_linux: u64,
    #[serde(flatten)]
    beyond_calls: BeyondCalls,
    not_checked: u64,
    placements: u64,
    placements_as_linux: u64,
    exclusive_hold_ns: Spread,
    mmap_lock_wait_ns: Spread,
    waits: &'a Waits,
    #[serde(serialize_with = "nanoseconds")]
    wall_ns: Duration,
    differences: &'a [Difference],
    difference_count: u64,
    locking: Design,
    cpus: usize,
    backed: bool,
    seed: u64,
    #[serde(serialize_with = "nanoseconds")]
    recorded_ns: Duration,
    #[serde(serialize_with = "nanoseconds")]
    checking_ns: Duration,
    planned: Planned,
    rungs: Rungs,
    tlb_flushes: FlushCount,
    kinds: &'a [KindTime],
    set_aside: Vec<SetAside<'a>>,
    unread_lines: u64,
    unread: &'a [String],
    cut_off: Option<&'a str>,
    peak_bytes: u64,
    memory: Option<Limited>,
    linux: Linux,
}

/// Values that strace output does not contain. They are null if the recording is strace output.
#[derive(Default, Serialize)]
struct BeyondCalls {
    faults: Option<u64>,
    faults_as_linux: Option<u64>,
    snapshots: Option<u64>,
    snapshots_as_linux: Option<u64>,
    file_vmas: Option<u64>,
    file_vmas_as_linux: Option<u64>,
}

/// The planning: number of planned events, and its time.
#[derive(Serialize)]
struct Planned {
    events: u64,
    #[serde(serialize_with = "nanoseconds")]
    ns: Duration,
}

/// A reason for which something was not checked, with the number of events.
#[derive(Serialize)]
struct SetAside<'a> {
    reason: &'a str,
    events: u64,
}

/// The memory of a replay in limited memory, and what reclaim cost. Pages of 4 KiB.
#[derive(Serialize)]
struct Limited {
    bytes: u64,
    swap_bytes: u64,
    policy: &'static str,
    refaults: u64,
    swap_ins: u64,
    written: u64,
    waited_ns: u64,
    /// Hot pages at all samples together, and the largest number of hot pages at a sample.
    hot: u64,
    hot_kept: u64,
    hot_fit: u64,
    hot_most: u64,
    fault_p99_ns: u64,
    failed: u64,
}

impl Limited {
    fn of((memory, figures): &(Memory, Figures)) -> Self {
        let Figures { swap_ins, reread: _, written, waited, hot, faults, failed } = figures;
        Limited {
            bytes: memory.bytes,
            swap_bytes: memory.swap,
            policy: memory.policy_name(),
            refaults: figures.refaults(),
            swap_ins: *swap_ins,
            written: *written,
            waited_ns: u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX),
            hot: hot.pages,
            hot_kept: hot.kept,
            hot_fit: hot.fit,
            hot_most: hot.most,
            fault_p99_ns: faults.percentile(9_900),
            failed: *failed,
        }
    }
}

/// Values of the machine on which the recording was made. A value that is not recorded is null.
#[derive(Serialize)]
struct Linux {
    exclusive_hold_ns: Option<Spread>,
    mmap_lock_wait_ns: Option<Spread>,
    tlb_flush_interrupts: Option<u64>,
}

impl<'a> Recording<'a> {
    fn of(outcome: &'a Outcome) -> Self {
        // The pattern lists every field, so that a new field without a key does not compile.
        let Outcome {
            name,
            calls_only: _,
            design,
            peak,
            memory,
            cpus,
            backed,
            seed,
            calls,
            faults: _,
            snapshots: _,
            file_vmas: _,
            placed,
            differences,
            difference_count,
            unread,
            unread_lines,
            cut_off,
            set_aside,
            rungs,
            exclusive_hold,
            mmap_lock_wait,
            waits,
            kinds,
            flushes,
            wall,
            checking,
            recorded,
            planned: (events, planning),
        } = outcome;
        Recording {
            name,
            calls: calls.all,
            calls_as_linux: calls.as_linux,
            beyond_calls: BeyondCalls::of(outcome),
            not_checked: outcome.not_checked(),
            placements: placed.all,
            placements_as_linux: placed.as_linux,
            exclusive_hold_ns: exclusive_hold.freehold,
            mmap_lock_wait_ns: mmap_lock_wait.freehold,
            waits,
            wall_ns: *wall,
            differences,
            difference_count: *difference_count,
            locking: *design,
            cpus: *cpus,
            backed: *backed,
            seed: *seed,
            recorded_ns: *recorded,
            checking_ns: *checking,
            planned: Planned { events: *events, ns: *planning },
            rungs: *rungs,
            tlb_flushes: *flushes,
            kinds,
            set_aside: set_aside
                .iter()
                .map(|(reason, events)| SetAside { reason, events: *events })
                .collect(),
            unread_lines: *unread,
            unread: unread_lines,
            cut_off: cut_off.as_deref(),
            peak_bytes: *peak,
            memory: memory.as_ref().map(Limited::of),
            linux: Linux {
                exclusive_hold_ns: exclusive_hold.linux,
                mmap_lock_wait_ns: mmap_lock_wait.linux,
                tlb_flush_interrupts: flushes.linux,
            },
        }
    }
}

impl BeyondCalls {
    fn of(outcome: &Outcome) -> Self {
        if outcome.calls_only {
            return BeyondCalls::default();
        }
        let Outcome { faults, snapshots, file_vmas, .. } = outcome;
        BeyondCalls {
            faults: Some(faults.all),
            faults_as_linux: Some(faults.as_linux),
            snapshots: Some(snapshots.all),
            snapshots_as_linux: Some(snapshots.as_linux),
            file_vmas: Some(file_vmas.all),
            file_vmas_as_linux: Some(file_vmas.as_linux),
        }
    }
}
