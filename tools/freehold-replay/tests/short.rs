//! Replays in limited memory (`src/short/`): the answers are those of Linux, whatever reclaim takes away.
//!
//! The recording writes `PAGES` pages of anonymous memory, reads all of them again, and ends with a snapshot
//! that lists them. The machine has half as many frames. Wrong snapshots show that the comparison still finds
//! differences.

use freehold_replay::outcome::Outcome;
use freehold_replay::short::{Figures, Hot, Memory};
use freehold_replay::{Options, replay};
use std::fs;

const PAGES: u64 = 1024;
const BYTES: u64 = PAGES * 4096;
const AT: u64 = 0x7f00_0000_0000;
/// The snapshot of the exec.
const EXEC: &str = "# fhsnap 1 t
@ 0 exec 1 5 6 1 t | /bin/t | VmRSS:8;RssAnon:8
10000-12000 r-xp 0 /bin/t | 0 | rdexmrmwme
12000-13000 rw-p 2000 /bin/t | 4,,,,4,4,4,, | rdwrmrmwmeac
7ffffffdd000-7ffffffff000 rw-p 0 [stack] | 4,,,,4,4,4,, | rdwrmrmwmegdac
P 12 1 8
P 7ffffffcb 1 8
";

/// Returns the faults at all pages: with code 6 for writes, 4 for reads. A fault each `ns` nanoseconds.
fn faults(from: u64, ns: u64, code: u64) -> String {
    (0..PAGES).map(|page| format!("{} 0 1 F {:x} {code} x1\n", from + page * ns, AT + page * 4096)).collect()
}

/// Returns the snapshot at the end, in which `listed` pages from `AT` on are present.
fn end(listed: u64) -> String {
    let kilobytes = listed * 4;
    format!(
        "@ 1 exit 1 5 6 1 t | /bin/t | VmRSS:{resident};RssAnon:{resident}
10000-12000 r-xp 0 /bin/t | 0 | rdexmrmwme
12000-13000 rw-p 2000 /bin/t | 4,,,,4,4,4,, | rdwrmrmwmeac
{AT:x}-{last:x} rw-p 0 - | {kilobytes},,,,{kilobytes},{kilobytes},{kilobytes},, | rdwrmrmwmeac
7ffffffdd000-7ffffffff000 rw-p 0 [stack] | 4,,,,4,4,4,, | rdwrmrmwmegdac
P 12 1 8
P {first:x} {listed:x} 8
P {stack:x} 1 8
",
        resident = kilobytes + 8,
        last = AT + BYTES,
        // Each run begins at a distance from the end of the run before it.
        first = AT / 4096 - 0x13,
        stack = 0x7_ffff_ffde - AT / 4096 - listed,
    )
}

/// Replays the events, followed by the snapshot, in this memory.
fn run(events: &str, snapshot: &str, memory: Memory, backed: bool) -> Outcome {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.trace");
    let begin = format!(
        "# fhtrace 2 t\n# file 1 8192 /bin/t\n5 0 1 E 0\n10 0 1 mmap {AT:x} {BYTES:x} 3 32 -1 0 = {AT:x}\n"
    );
    let last = "9000000000 0 1 S 1 exit 1\n9000000001 0 1 X\n";
    fs::write(&path, format!("{begin}{events}{last}")).expect("written");
    fs::write(folder.path().join("t.snap"), format!("{EXEC}{snapshot}")).expect("written");
    let options = Options { memory: Some(memory), backed, oracles: true, ..Options::default() };
    replay(&path, &options, &()).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns half of the needed memory with each policy.
fn halves() -> impl Iterator<Item = Memory> {
    Memory::POLICIES.into_iter().map(|(_, policy)| Memory { bytes: BYTES / 2, swap: 2 * BYTES, policy })
}

fn figures(outcome: &Outcome) -> &Figures {
    &outcome.memory.as_ref().expect("a replay in limited memory").1
}

#[track_caller]
fn is_as_linux(outcome: &Outcome) {
    assert_eq!(outcome.difference_count, 0, "{:#?}", outcome.differences);
    assert!(outcome.is_whole(), "{:?} {:?}", outcome.unread_lines, outcome.cut_off);
}

/// Writes all pages, then reads all pages.
fn twice() -> String {
    faults(100, 10, 6) + &faults(1_000_000, 10, 4)
}

#[test]
fn swapped_pages_come_back_and_count_as_present() {
    for (memory, backed) in halves().flat_map(|memory| [(memory, false), (memory, true)]) {
        let outcome = run(&twice(), &end(PAGES), memory, backed);
        is_as_linux(&outcome);
        let figures = figures(&outcome);
        assert!(figures.swap_ins >= PAGES / 2, "{figures:?}");
        // At least the first half of the pages was written before the reads began.
        assert!(figures.written >= PAGES / 2 && figures.failed == 0, "{figures:?}");
        // A request of at most 8 pages, with those that are read ahead, takes 100 us, and requests do not
        // overlap. The task does not wait for the last request if no access needs its pages.
        let requests = figures.swap_ins / 8 - 1;
        assert!(figures.waited.as_micros() >= u128::from(requests) * 100, "{figures:?}");
        assert_eq!(outcome.snapshots.all, 1);
    }
}

#[test]
fn figures_repeat() {
    for memory in halves() {
        let [one, other] = [(); 2].map(|()| run(&twice(), &end(PAGES), memory, false));
        let of = |outcome: &Outcome| {
            let figures = figures(outcome);
            (figures.swap_ins, figures.reread, figures.written, figures.waited, figures.hot)
        };
        assert_eq!(of(&one), of(&other));
    }
}

#[test]
fn snapshots_are_still_compared() {
    for memory in halves() {
        // The snapshot lacks the last page, which is in memory or swapped out here.
        let outcome = run(&twice(), &end(PAGES - 1), memory, false);
        assert!(outcome.difference_count > 0);
        // The snapshot has a page that was not written, and that no call has discarded.
        let discard = format!("2000000 0 1 madvise {AT:x} 1000 4 = 0\n");
        let outcome = run(&(twice() + &discard), &end(PAGES), memory, false);
        assert!(outcome.differences.iter().any(|found| found.what.contains("RssAnon")), "{outcome:#?}");
    }
}

#[test]
fn memory_that_does_not_fit_without_swap_is_reported() {
    for memory in halves() {
        let outcome = run(&twice(), &end(PAGES), Memory { swap: 0, ..memory }, false);
        assert!(figures(&outcome).failed > 0 && outcome.difference_count > 0);
    }
}

#[test]
fn pages_freed_lazily_may_be_dropped() {
    let free = format!("90000 0 1 madvise {AT:x} {:x} 8 = 0\n", BYTES / 2);
    // The second half is written after the first half was freed lazily.
    let halves_of = |text: String| {
        let lines: Vec<&str> = text.lines().collect();
        let (first, second) = lines.split_at(lines.len() / 2);
        [first.join("\n") + "\n", second.join("\n") + "\n"]
    };
    let [first, _] = halves_of(faults(100, 10, 6));
    let [_, second] = halves_of(faults(1_000_000, 10, 6));
    for memory in halves() {
        let outcome = run(&(first.clone() + &free + &second), &end(PAGES), memory, false);
        is_as_linux(&outcome);
        assert_eq!(figures(&outcome).swap_ins, 0);
    }
}

#[test]
fn hot_pages_are_those_of_the_last_second() {
    // The first half of the pages is written long before the rest.
    let text = faults(100, 10, 6);
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let late: String = lines[lines.len() / 2..]
        .iter()
        .map(|line| {
            line.split_once(' ').map_or(String::new(), |(time, rest)| {
                format!("{} {rest}\n", 8_500_000_000 + time.parse::<u64>().unwrap_or(0))
            })
        })
        .collect();
    let events = lines[..lines.len() / 2].join("\n") + "\n" + &late;
    let roomy = Memory { bytes: 4 * BYTES, swap: BYTES, policy: Memory::POLICIES[0].1 };
    let outcome = run(&events, &end(PAGES), roomy, false);
    is_as_linux(&outcome);
    // A look at 8.5 s finds nothing hot. The look at the exit finds the second half.
    let half = PAGES / 2;
    assert_eq!(figures(&outcome).hot, Hot { pages: half, kept: half, fit: half, most: half });
    for memory in halves() {
        let memory = Memory { bytes: BYTES / 4, ..memory };
        let outcome = run(&events, &end(PAGES), memory, false);
        is_as_linux(&outcome);
        let hot = figures(&outcome).hot;
        assert!(hot.pages == PAGES / 2 && hot.kept > 0 && hot.kept < hot.pages, "{hot:?}");
        // Reclaim begins when one frame in 32 is free.
        assert_eq!(hot.fit, PAGES / 4 - PAGES / 4 / 32);
    }
}

#[test]
fn sampled_accesses_bring_pages_back() {
    let frozen = end(PAGES).replace("@ 1 exit", "@ 2 freeze");
    let snapshots = format!("{frozen}{}", end(PAGES));
    let events = |setting: &str| format!("{setting}{}2000000000 0 1 S 2 freeze 1\n", faults(100, 10, 6));
    for memory in halves() {
        let with = run(&events("# machine accesses 1000000000\n"), &snapshots, memory, false);
        is_as_linux(&with);
        let figures_with = figures(&with);
        assert!(figures_with.swap_ins >= PAGES / 2, "{figures_with:?}");
        let without = run(&events(""), &snapshots, memory, false);
        is_as_linux(&without);
        assert_eq!(figures(&without).swap_ins, 0, "no fault was recorded");
    }
}
