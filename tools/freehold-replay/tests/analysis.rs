//! Analyses of the recordings of programs: the waits must sum to what the lines of the recording say.
//!
//! The sums are computed from the events here, without the analysis.

use freehold_replay::analysis::{self, waits::Sum};
use freehold_trace::Recording;
use std::path::{Path, PathBuf};

/// Recordings with several threads or processes, small enough for every run of the tests.
const RECORDINGS: [&str; 6] = [
    "git.trace.zst",
    "causes/fork-beside.trace.zst",
    "causes/removed-segments.trace.zst",
    "programs/redis.trace.xz",
    "programs/memcached.trace.xz",
    "programs/mt-tools.trace.xz",
];

fn path(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../recordings")).join(name)
}

/// Returns the number and the sum of the recorded waits, and the longest.
fn recorded(path: &Path) -> Sum {
    let mut recording = Recording::open(path).expect("a recording");
    let mut sum = Sum::default();
    while let Some(event) = recording.next_event().expect("a readable recording") {
        for wait in [event.cost.write_wait, event.cost.read_wait].into_iter().flatten() {
            sum.count += 1;
            sum.total_ns += wait;
            sum.longest_ns = sum.longest_ns.max(wait);
        }
    }
    sum
}

#[test]
fn waits_sum_to_the_events_of_the_lock() {
    for name in RECORDINGS {
        let path = path(name);
        let waits = analysis::of_recording(&path).expect("a recording").waits.expect("times of locks");
        assert_eq!(waits.all, recorded(&path), "{name}");
        let groups = waits.groups.iter().map(|group| group.sum);
        let others = waits.without_holder.iter().map(|waits| waits.sum);
        let parts: Vec<Sum> = groups.chain(others).chain([waits.at_once]).collect();
        assert_eq!(parts.iter().map(|sum| sum.count).sum::<u64>(), waits.all.count, "{name}");
        assert_eq!(parts.iter().map(|sum| sum.total_ns).sum::<u64>(), waits.all.total_ns, "{name}");
    }
}

#[test]
fn holder_had_the_lock_during_the_wait() {
    let waits = analysis::of_recording(&path("git.trace.zst")).expect("a recording").waits.expect("locks");
    assert!(waits.longest.iter().any(|wait| wait.holder.is_some()));
    for wait in &waits.longest {
        let Some(holder) = &wait.holder else { continue };
        assert_ne!(wait.task, holder.task);
        assert!(holder.from_ns < wait.from_ns + wait.ns, "{wait:?}");
    }
}

#[test]
fn fault_counts_agree_with_the_events_and_the_mappings() {
    let path = path("git.trace.zst");
    let found = analysis::of_recording(&path).expect("a recording");
    let faults = found.faults.expect("faults");
    let over_time: u64 = faults.over_time.iter().map(|counts| counts.sum()).sum();
    assert_eq!(over_time, faults.counts.sum());
    // The number that the report of the replay shows.
    assert_eq!(faults.counts.sum(), 17_211 + 6, "faults with and without an answer");
    let resident = found.resident.expect("faults");
    let most = resident.by_kind.values().map(|series| series.len()).max().unwrap_or(0);
    let sum = |bin: usize| resident.by_kind.values().map(|series| series[bin]).sum::<u64>();
    assert_eq!((0..most).map(sum).max(), Some(resident.peak.bytes));
    assert_eq!(resident.peak.by_kind.values().sum::<u64>(), resident.peak.bytes);
}
