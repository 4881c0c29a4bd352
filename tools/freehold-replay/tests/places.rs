//! Addresses of mappings without a fixed address. The engine chooses each address itself, and must choose the
//! same address as Linux.
//!
//! Each test writes a start and some calls as a recording, replays it with the option `places`, and counts
//! the addresses that were compared and that are equal to Linux's. Top-down and bottom-up layouts, alignment
//! for huge pages, and concurrent tasks have a test each.

use freehold_replay::outcome::Outcome;
use freehold_replay::{Options, replay};
use std::fs;

/// The snapshot of an exec: a program, its loader, a stack. The base of the search is the end of the loader.
const EXEC: &str = "# fhsnap 1 t
@ 0 exec 1 5 6 1 t | /bin/t | VmRSS:8;RssAnon:8
10000-12000 r-xp 0 /bin/t | 0 | rdexmrmwme
7f0000000000-7f0000003000 r-xp 0 /lib/loader | 0 | rdexmrmwme
7ffffffdd000-7ffffffff000 rw-p 0 [stack] | 0 | rdwrmrmwmegdac
";

/// Replays these events after the exec.
fn outcome(snapshots: &str, events: &[&str], options: Options) -> Outcome {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.trace");
    let events = events.join("\n");
    let trace =
        format!("# fhtrace 1 t\n# file 1 8192 /bin/t\n# file 2 8388608 /large\n5 0 1 E 0\n{events}\n");
    fs::write(&path, trace).expect("written");
    fs::write(path.with_extension("snap"), snapshots).expect("written");
    replay(&path, &options, &()).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the number of addresses compared, and the number at which the engine chose Linux's address.
fn places(events: &[&str]) -> (u64, u64) {
    let outcome = outcome(EXEC, events, Options::default());
    let Outcome { placed, difference_count, .. } = outcome;
    assert_eq!(difference_count, placed.all - placed.as_linux, "{:#?}", outcome.differences);
    // Calls find a mapping at Linux's address even if the engine chose another address.
    assert_eq!(outcome.calls.all, outcome.calls.as_linux, "{:#?}", outcome.differences);
    (placed.all, placed.as_linux)
}

#[test]
fn top_down_addresses_match_linux() {
    for (events, expected) in [
        (&["10 0 1 mmap 0 1000 3 22 -1 0 = 7efffffff000"][..], (1, 1)),
        (&["10 0 1 mmap 0 1000 3 22 -1 0 = 7effffffe000", "11 0 1 munmap 7effffffe000 1000 = 0"], (1, 0)),
        // The kernel uses a hint that is free, and then chooses no address. A hint that is in use is ignored.
        (&["10 0 1 mmap 7e0000000000 1000 3 22 -1 0 = 7e0000000000"], (0, 0)),
        (&["10 0 1 mmap 7f0000000000 1000 3 22 -1 0 = 7efffffff000"], (1, 1)),
        // Large anonymous memory is aligned. Shared memory is not aligned unless a setting requires it.
        (
            &["10 0 1 mmap 0 1000 1 22 -1 0 = 7efffffff000", "11 0 1 mmap 0 400000 3 22 -1 0 = 7effffa00000"],
            (2, 2),
        ),
        (
            &["10 0 1 mmap 0 1000 1 22 -1 0 = 7efffffff000", "11 0 1 mmap 0 400000 3 22 -1 0 = 7effffbff000"],
            (2, 1),
        ),
        // A move looks for free space while the source is still mapped.
        (
            &[
                "10 0 1 mmap 0 1000 3 22 -1 0 = 7efffffff000",
                "11 0 1 mremap 7efffffff000 1000 2000 1 0 = 7effffffd000",
                "12 0 1 munmap 7effffffd000 2000 = 0",
            ],
            (2, 2),
        ),
        (
            &[
                "10 0 1 mmap 0 1000 3 22 -1 0 = 7efffffff000",
                "11 0 1 mremap 7efffffff000 1000 2000 1 0 = 7effffff0000",
                "12 0 1 munmap 7effffff0000 2000 = 0",
            ],
            (2, 1),
        ),
        // A stack keeps a gap below it.
        (
            &[
                "10 0 1 mmap 7efffffff000 1000 3 132 -1 0 = 7efffffff000",
                "11 0 1 mmap 0 1000 1 22 -1 0 = 7effffefe000",
            ],
            (1, 1),
        ),
    ] {
        assert_eq!(places(events), expected, "{events:?}");
    }
}

/// In the legacy layout, the base of the search is the start of the loader.
#[test]
fn bottom_up_addresses_match_linux() {
    let exec = EXEC
        .replace("7f0000000000-7f0000003000", "2aaaaaab0000-2aaaaaab3000")
        .replace("10000-12000", "555555554000-555555556000");
    let mut lines: Vec<&str> = exec.lines().collect();
    lines.swap(2, 3);
    let exec = lines.join("\n") + "\n";
    let events = [
        "10 0 1 mmap 0 1000 1 22 -1 0 = 2aaaaaab3000",
        "11 0 1 mmap 0 400000 3 22 -1 0 = 2aaaaac00000",
        "12 0 1 mmap 0 400000 3 22 -1 0 = 2aaaab000000",
        "13 0 1 munmap 2aaaaaab3000 1000 = 0",
        "14 0 1 mmap 0 2000 1 22 -1 0 = 2aaaaaab3000",
        "15 0 1 mmap 0 1000 1 22 -1 0 = 2aaaaaab7000",
    ];
    let outcome = outcome(&exec, &events, Options::default());
    assert_eq!((outcome.placed.all, outcome.placed.as_linux), (5, 4), "{:#?}", outcome.differences);
}

/// The recording does not show which file systems can map huge pages.
#[test]
fn large_file_may_be_aligned_or_unaligned() {
    let first = "10 0 1 mmap 0 1000 1 22 -1 0 = 7efffffff000";
    for (place, as_linux) in [("7effffdff000", 2), ("7effffc00000", 2), ("7effffd00000", 1)] {
        let second = format!("11 0 1 mmap 0 200000 1 2 3 0 = {place} f2");
        assert_eq!(places(&[first, &second]), (2, as_linux), "{place}");
    }
}

#[test]
fn undetermined_addresses_are_not_compared() {
    let not_checked = |outcome: &Outcome, what: &str| {
        assert_eq!((outcome.placed.all, outcome.difference_count), (0, 0), "{:#?}", outcome.differences);
        outcome.set_aside.iter().any(|(why, count)| why.contains(what) && *count == 1)
    };
    let low = &["10 0 1 mmap 0 1000 3 62 -1 0 = 41234000"];
    assert!(not_checked(&outcome(EXEC, low, Options::default()), "MAP_32BIT"));
    let shared = &[
        "10 0 1 mmap 7efffffff000 1000 3 32 -1 0 = 7efffffff000",
        "11 0 1 mmap 0 8000 3 21 -1 0 = 7effffff4000",
    ];
    assert!(not_checked(&outcome(EXEC, shared, Options::default()), "shared memory"));
    // A program without a loader, and the vdso above the stack: the base of the search is not known.
    let alone: String =
        EXEC.lines().filter(|line| !line.contains("loader")).map(|line| format!("{line}\n")).collect();
    let anywhere = &["10 0 1 mmap 0 1000 3 22 -1 0 = 7e1234567000"];
    assert!(!not_checked(&outcome(&alone, anywhere, Options::default()), "addresses of"));
    let options = Options { places: false, ..Options::default() };
    assert!(!not_checked(&outcome(EXEC, anywhere, options), "addresses of"));
}

/// Two tasks of one address space. In any interleaving, ranges that were free on Linux must be free for each
/// task. The tasks map into holes without common neighbours, so that nothing else orders them.
#[test]
fn concurrent_tasks_choose_the_addresses_of_linux() {
    const HOLES: u64 = 100;
    let base: u64 = 0x7f00_0000_0000 - 3 * HOLES * 0x1000;
    let page = |number: u64| base + number * 0x1000;
    let mut events = vec![format!("10 0 1 mmap 0 {:x} 1 22 -1 0 = {base:x}", 3 * HOLES * 0x1000)];
    for hole in 0..HOLES {
        events.push(format!("11 0 1 mprotect {:x} 1000 3 = 0", page(3 * hole + 1)));
        events.push(format!("11 0 1 munmap {:x} 1000 = 0", page(3 * hole + 2)));
    }
    events.push("12 0 1 N 2 1 10100".to_owned());
    for turn in 0..HOLES {
        let highest = page(3 * (HOLES - turn - 1) + 2);
        events.push(format!("20 0 {} mmap 0 1000 0 22 -1 0 = {highest:x}", 1 + turn % 2));
    }
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    for seed in 0..5 {
        let options = Options { cpus: 3, seed, turn: 2, ..Options::default() };
        let outcome = outcome(EXEC, &events, options);
        assert_eq!(outcome.difference_count, 0, "{:#?}", outcome.differences);
        assert_eq!((outcome.placed.all, outcome.placed.as_linux), (HOLES + 1, HOLES + 1));
    }
}
