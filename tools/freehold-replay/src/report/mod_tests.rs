//! Tests the reports of a replay: texts for people, JSON, and comparisons of several replays.
//!
//! Most tests write a report of an `Outcome` that is built here (`redis`, `different`, `strace`), and compare
//! it with the text of the same name in `snapshots/` (crate insta). After an intended change of a report,
//! accept the new text with `cargo insta review`. The other tests check what a stored text does not show: the
//! width of lines with large numbers, ratios, and special cases.

use super::*;
use crate::analysis::waits::Waits;
use crate::locking::Design;
use crate::outcome::{Beside, Difference, FlushCount, KindTime, LinuxTime, Rungs, Spread};
use crate::short::{Figures, Hot, Memory};
use freehold::space::Locking;
use std::time::Duration;

fn all(all: u64) -> Tally {
    Tally { all, as_linux: all }
}

fn kind(name: &str, count: u64, us: u64, linux_us: Option<u64>) -> KindTime {
    let linux = linux_us.map(|us| LinuxTime { all: Duration::from_micros(us), count });
    KindTime { name: name.to_owned(), count, freehold: Duration::from_micros(us), linux }
}

fn spread(count: u64, p50: u64, p99: u64, max: u64) -> Spread {
    Spread { count, p50, p99, max }
}

/// A recording that contains everything and matches Linux.
fn redis() -> Outcome {
    Outcome {
        name: "redis".to_owned(),
        calls_only: false,
        design: Design::default(),
        cpus: 2,
        peak: 64 << 20,
        memory: None,
        backed: false,
        seed: 1,
        calls: all(1_846),
        faults: all(57_665),
        snapshots: all(43),
        file_vmas: Tally { all: 1_846, as_linux: 1_802 },
        placed: all(814),
        unread: 0,
        unread_lines: Vec::new(),
        cut_off: None,
        differences: Vec::new(),
        difference_count: 0,
        set_aside: vec![
            ("other prctl calls".to_owned(), 38),
            (
                "VMAs of files with fewer pages: the contents of the page cache are not recorded".to_owned(),
                44,
            ),
        ],
        rungs: Rungs { vma_lock: 56_901, mmap_lock: 412, already_there: 352 },
        exclusive_hold: Beside {
            freehold: spread(1_812, 410, 2_140, 31_000),
            linux: Some(spread(1_803, 5_400, 19_200, 412_000)),
        },
        mmap_lock_wait: Beside {
            freehold: spread(0, 0, 0, 0),
            linux: Some(spread(2_205, 380, 1_320, 28_400)),
        },
        waits: Waits::default(),
        kinds: vec![
            kind("fault", 57_665, 12_300, Some(140_000)),
            kind("fork", 6, 1_400, Some(28_200)),
            kind("mmap", 1_099, 720, Some(7_900)),
            kind("exit", 18, 910, Some(6_400)),
            kind("munmap", 42, 60, Some(540)),
            kind("mlockall", 1, 0, None),
        ],
        flushes: FlushCount { freehold: 5_120, remote: 201, linux: Some(4_812) },
        wall: Duration::from_micros(210_300),
        checking: Duration::from_millis(12),
        recorded: Duration::from_millis(10_100),
        planned: (59_511, Duration::from_millis(41)),
    }
}

/// The recording [`redis`] with two answers that differ from Linux's.
fn different() -> Outcome {
    let differences = vec![
        Difference {
            line: 1_234,
            task: 5,
            what: "munmap(0x7fb1bdef5000, 0x9fb3)".to_owned(),
            linux: "0".to_owned(),
            freehold: "EINVAL".to_owned(),
            maps: vec![
                "7fb1bdd13000-7fb1bdd39000 r--p 00000000 00:00 1    /usr/lib/x86_64-linux-gnu/libc.so.6"
                    .to_owned(),
                "7fb1bdef5000-7fb1bdeff000 r--p 00000000 00:00 2    /etc/ld.so.cache".to_owned(),
            ],
        },
        Difference {
            line: 60_001,
            task: 1,
            what: "snapshot 12 (freeze) of process 1".to_owned(),
            linux: "7fb1bdeff000-7fb1bdf01000 rw-p\n7fb1bdf01000-7fb1bdf03000 rw-p".to_owned(),
            freehold: "7fb1bdeff000-7fb1bdf03000 rw-p".to_owned(),
            maps: Vec::new(),
        },
    ];
    Outcome {
        calls: Tally { all: 1_846, as_linux: 1_844 },
        snapshots: Tally { all: 43, as_linux: 42 },
        differences,
        difference_count: 3,
        ..redis()
    }
}

/// The outcome of uncompressed strace output: no locks, no faults, no snapshots.
fn strace() -> Outcome {
    Outcome {
        name: "sample-redis".to_owned(),
        calls_only: true,
        backed: true,
        calls: all(1_812),
        faults: all(0),
        snapshots: all(0),
        file_vmas: all(0),
        placed: all(0),
        unread: 2,
        unread_lines: vec!["x.strace:3: column 1: expected a call, found \"what\"".to_owned()],
        cut_off: Some("x.strace:90: the file is cut off here: the last line has no line end".to_owned()),
        set_aside: Vec::new(),
        rungs: Rungs::default(),
        exclusive_hold: Beside { freehold: spread(1_790, 400, 2_000, 30_100), linux: None },
        mmap_lock_wait: Beside::default(),
        kinds: vec![kind("mmap", 1_099, 720, None), kind("munmap", 42, 60, None)],
        flushes: FlushCount { freehold: 122, remote: 0, linux: None },
        checking: Duration::ZERO,
        ..redis()
    }
}

#[test]
fn as_linux() {
    insta::assert_snapshot!(single(&redis()));
}

#[test]
fn with_differences() {
    insta::assert_snapshot!(single(&different()));
}

#[test]
fn from_strace() {
    insta::assert_snapshot!(single(&strace()));
}

#[test]
fn several() {
    insta::assert_snapshot!(summary(&[redis(), different(), strace()]));
}

#[test]
fn side_by_side() {
    let outcomes: Vec<Outcome> = Locking::ALL
        .into_iter()
        .enumerate()
        .map(|(index, locking)| Outcome {
            design: locking.into(),
            ..if index == 5 { different() } else { redis() }
        })
        .collect();
    insta::assert_snapshot!(compare(&outcomes));
}

/// A replay in `memory` bytes with this policy, with figures that depend on `n`.
fn limited(bytes: u64, n: usize) -> Outcome {
    let (_, policy) = Memory::POLICIES[n];
    let n = n as u64;
    let mut figures = Figures {
        swap_ins: 1_000 + n,
        reread: 20_000 * n,
        written: 3_456,
        waited: Duration::from_millis(250 + 1_000 * n),
        hot: Hot { pages: 10_000, kept: 9_500 - 1_234 * n, fit: 9_990, most: 4_000 },
        failed: n / 2,
        ..Figures::default()
    };
    (0..100).for_each(|fault| figures.faults.record(100_000 * (fault / 99)));
    Outcome { memory: Some((Memory { bytes, swap: 256 << 20, policy }, figures)), ..redis() }
}

#[test]
fn policies_in_limited_memory() {
    let runs: Vec<Outcome> = [16 << 20, 32 << 20]
        .into_iter()
        .flat_map(|bytes| (0..Memory::POLICIES.len()).map(move |n| limited(bytes, n)))
        .collect();
    let text = policies(&redis(), &runs);
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn policies_with_differences() {
    let run = Outcome { memory: limited(16 << 20, 1).memory, ..different() };
    insta::assert_snapshot!(policies(&redis(), &[run]));
}

#[test]
fn for_programs() {
    let unusable =
        Unusable { recording: "x.trace".to_owned(), reason: "x.trace:3: no number: `seven`".to_owned() };
    insta::assert_snapshot!(json(&[different(), strace(), limited(16 << 20, 1)], &[], &[unusable]));
}

#[test]
fn kinds_beyond_the_limit_share_a_line_and_lines_are_short() {
    let mut outcome = redis();
    outcome.kinds =
        freehold_trace::CallName::ALL.iter().map(|name| kind(name.as_str(), 7, 21, Some(63))).collect();
    let text = single(&outcome);
    // Ten million calls of a recording with a very long name.
    let large = Outcome {
        name: "redis-benchmark".repeat(9),
        calls: all(10_000_000),
        faults: all(100_000_000),
        set_aside: vec![("so".to_owned(), 1_000_000)],
        ..redis()
    };
    let outcomes = [outcome, different(), strace(), large];
    for text in [single(&outcomes[0]), single(&outcomes[1]), summary(&outcomes), compare(&outcomes)] {
        for line in text.lines().filter(|line| !line.contains("/usr/lib")) {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }
    // Twelve kinds have a line of their own.
    let rest = (freehold_trace::CallName::ALL.len() - 12) * 7;
    assert!(text.contains(&format!("and {rest} of ")), "{text}");
    for name in freehold_trace::CallName::ALL {
        assert!(text.contains(name.as_str()), "{} is missing in\n{text}", name.as_str());
    }
}

/// If only some calls have a time, the mean times of one call are compared.
#[test]
fn linux_ratio_uses_means_when_only_some_calls_have_times() {
    let mut outcome = redis();
    let linux = Some(LinuxTime { all: Duration::from_micros(30), count: 3 });
    outcome.kinds = vec![KindTime { linux, ..kind("mmap", 10, 20, None) }];
    let line = single(&outcome).lines().find(|line| line.starts_with("  mmap  ")).map(str::to_owned);
    assert_eq!(
        line.as_deref(),
        Some("  mmap         10   2 us   20 us         10 us          30 us                  5")
    );
}

/// A difference is reported even if every tally says that all answers match.
#[test]
fn uncounted_difference_is_reported() {
    let outcome = Outcome { difference_count: 1, ..redis() };
    assert!(single(&outcome).starts_with("redis: 1,846 calls, 57,665 faults, 43 snapshots: 1 difference\n"));
    assert!(compare(std::slice::from_ref(&outcome)).contains("1 with differences"));
    assert!(summary(&[outcome]).contains("1 recording: 1 with differences"));
}

#[test]
fn comparison_without_outcomes_is_empty() {
    assert_eq!(compare(&[]), "");
}
