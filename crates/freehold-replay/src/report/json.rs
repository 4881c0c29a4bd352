//! The same for programs. Times are in nanoseconds; a key ends in its unit.

use crate::locking;
use crate::outcome::{Beside, Difference, KindTime, Outcome, Spread, Tally};
use serde::Serialize;
use std::time::Duration;

/// A recording that could not be replayed, and why.
#[derive(Clone, Debug, Serialize)]
pub struct Unusable {
    /// As named on the command line.
    pub recording: String,
    /// Why, in one line.
    pub reason: String,
}

/// Counts the shapes that this document has had. One more when a key goes or changes its meaning; keys may
/// come at any time.
const SCHEMA: u32 = 2;

/// All replays, in the order in which they ran, as one JSON document that ends in a line feed.
pub fn json(outcomes: &[Outcome], unusable: &[Unusable]) -> String {
    let document = Document {
        schema: SCHEMA,
        freehold: env!("CARGO_PKG_VERSION"),
        recordings: outcomes.iter().map(Recording::of).collect(),
        not_checked: outcomes.iter().map(Outcome::not_checked).sum(),
        unusable,
    };
    let mut text = serde_json::to_string_pretty(&document).expect("strings and numbers always serialise");
    text.push('\n');
    text
}

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    freehold: &'static str,
    recordings: Vec<Recording<'a>>,
    not_checked: u64,
    unusable: &'a [Unusable],
}

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
    exclusive_hold_ns: Times,
    mmap_lock_wait_ns: Times,
    wall_ns: u64,
    differences: Vec<Different<'a>>,
    difference_count: u64,
    locking: Design,
    cpus: usize,
    backed: bool,
    seed: u64,
    recorded_ns: u64,
    checking_ns: u64,
    planned: Planned,
    rungs: Rungs,
    tlb_flushes: Flushes,
    kinds: Vec<KindOfCall<'a>>,
    set_aside: Vec<SetAside<'a>>,
    unread_lines: u64,
    unread: &'a [String],
    cut_off: Option<&'a str>,
    linux: Linux,
}

/// What a text by strace does not have; null there.
#[derive(Default, Serialize)]
struct BeyondCalls {
    faults: Option<u64>,
    faults_as_linux: Option<u64>,
    snapshots: Option<u64>,
    snapshots_as_linux: Option<u64>,
    file_vmas: Option<u64>,
    file_vmas_as_linux: Option<u64>,
}

/// A distribution of nanoseconds.
#[derive(Serialize)]
struct Times {
    count: u64,
    p50: u64,
    p99: u64,
    max: u64,
}

#[derive(Serialize)]
struct Different<'a> {
    line: u32,
    task: u32,
    what: &'a str,
    linux: &'a str,
    freehold: &'a str,
    maps: &'a [String],
}

#[derive(Serialize)]
struct Design {
    unmap: String,
    fault: &'static str,
    file_rmap: &'static str,
}

#[derive(Serialize)]
struct Planned {
    events: u64,
    ns: u64,
}

#[derive(Serialize)]
struct Rungs {
    vma_lock: u64,
    mmap_lock: u64,
    already_there: u64,
}

#[derive(Serialize)]
struct Flushes {
    all: u64,
    remote: u64,
}

#[derive(Serialize)]
struct KindOfCall<'a> {
    name: &'a str,
    count: u64,
    ns: u64,
    linux_ns: Option<u64>,
    linux_count: Option<u64>,
}

#[derive(Serialize)]
struct SetAside<'a> {
    reason: &'a str,
    events: u64,
}

/// What the recording says of the machine it was made on; null where it says nothing.
#[derive(Serialize)]
struct Linux {
    exclusive_hold_ns: Option<Times>,
    mmap_lock_wait_ns: Option<Times>,
    tlb_flush_interrupts: Option<u64>,
}

impl<'a> Recording<'a> {
    fn of(outcome: &'a Outcome) -> Self {
        let Tally { all: calls, as_linux: calls_as_linux } = outcome.calls;
        let Beside { freehold: held, linux: linux_held } = outcome.exclusive_hold;
        let Beside { freehold: waited, linux: linux_waited } = outcome.mmap_lock_wait;
        Recording {
            name: &outcome.name,
            calls,
            calls_as_linux,
            beyond_calls: BeyondCalls::of(outcome),
            not_checked: outcome.not_checked(),
            placements: outcome.placed.all,
            placements_as_linux: outcome.placed.as_linux,
            exclusive_hold_ns: Times::of(held),
            mmap_lock_wait_ns: Times::of(waited),
            wall_ns: nanoseconds(outcome.wall),
            differences: outcome.differences.iter().map(Different::of).collect(),
            difference_count: outcome.difference_count,
            locking: Design {
                unmap: locking::unmap_name(outcome.design.space.unmap),
                fault: locking::fault_name(outcome.design.space.fault),
                file_rmap: locking::file_rmap_name(outcome.design.file_rmap),
            },
            cpus: outcome.cpus,
            backed: outcome.backed,
            seed: outcome.seed,
            recorded_ns: nanoseconds(outcome.recorded),
            checking_ns: nanoseconds(outcome.checking),
            planned: Planned { events: outcome.planned.0, ns: nanoseconds(outcome.planned.1) },
            rungs: Rungs {
                vma_lock: outcome.rungs.vma_lock,
                mmap_lock: outcome.rungs.mmap_lock,
                already_there: outcome.rungs.already_there,
            },
            tlb_flushes: Flushes { all: outcome.flushes.freehold, remote: outcome.flushes.remote },
            kinds: outcome.kinds.iter().map(KindOfCall::of).collect(),
            set_aside: outcome
                .set_aside
                .iter()
                .map(|(reason, events)| SetAside { reason, events: *events })
                .collect(),
            unread_lines: outcome.unread,
            unread: &outcome.unread_lines,
            cut_off: outcome.cut_off.as_deref(),
            linux: Linux {
                exclusive_hold_ns: linux_held.map(Times::of),
                mmap_lock_wait_ns: linux_waited.map(Times::of),
                tlb_flush_interrupts: outcome.flushes.linux,
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

impl Times {
    fn of(spread: Spread) -> Self {
        let Spread { count, p50, p99, max } = spread;
        Times { count, p50, p99, max }
    }
}

impl<'a> Different<'a> {
    fn of(difference: &'a Difference) -> Self {
        let Difference { line, task, what, linux, freehold, maps } = difference;
        Different { line: *line, task: *task, what, linux, freehold, maps }
    }
}

impl<'a> KindOfCall<'a> {
    fn of(kind: &'a KindTime) -> Self {
        let KindTime { name, count, freehold, linux } = kind;
        KindOfCall {
            name,
            count: *count,
            ns: nanoseconds(*freehold),
            linux_ns: linux.map(|linux| nanoseconds(linux.all)),
            linux_count: linux.map(|linux| linux.count),
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
