//! Small recordings, correct and incorrect. Correct recordings match Linux; errors are reported with their
//! line.
//!
//! A recording is text: the events of a test (`EVENTS` and similar) and the snapshots that they name
//! (`EXIT`). `Recording::new` adds the exec of task 1, whose snapshot is `EXEC`. `each_way` replays on every
//! lock design with one to three CPUs; every second design has memory with contents.
//! `docs/reference/trace-format.md` describes the lines.
//!
//! Incorrect recordings are lists of replacements in a correct recording: the correct text, the incorrect
//! text, and the difference that must be found. A new rule of the comparison needs a correct recording, and a
//! replacement for each kind of difference that the rule must still find.

use freehold::space::Locking;
use freehold_replay::outcome::Outcome;
use freehold_replay::{Options, maps_at, replay};
use freehold_trace::plan::aside;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The snapshot of an exec: a file's text and data, anonymous memory, a stack.
const EXEC: &str = "@ 0 exec 1 5 6 1 t | /bin/t | VmRSS:8;RssAnon:8
10000-12000 r-xp 0 /bin/t | 0 | rdexmrmwme
12000-13000 rw-p 2000 /bin/t | 4,,,,4,4,4,, | rdwrmrmwmeac
7ffffffdd000-7ffffffff000 rw-p 0 [stack] | 4,,,,4,4,4,, | rdwrmrmwmegdac
P 12 1 8
P 7ffffffcb 1 8
";

struct Recording {
    folder: TempDir,
}

impl Recording {
    /// Creates a recording in which task 1 does its exec at time 5. `events` follow, with the snapshots that
    /// they name.
    fn new(events: &str, snapshots: &str) -> Recording {
        let folder = tempfile::tempdir().expect("a folder");
        let trace = format!("# fhtrace 2 t\n# file 1 8192 /bin/t\n5 0 1 E 0\n{events}");
        fs::write(folder.path().join("t.trace"), trace).expect("written");
        fs::write(folder.path().join("t.snap"), format!("# fhsnap 1 t\n{EXEC}{snapshots}")).expect("written");
        Recording { folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("t.trace")
    }

    fn replay(&self, options: &Options) -> Outcome {
        replay(&self.path(), options, &()).unwrap_or_else(|error| panic!("{error}"))
    }
}

/// Runs `check` on every design with one to three CPUs. Every second design has memory with contents.
fn each_way(mut check: impl FnMut(&Options)) {
    for (number, locking) in Locking::ALL.into_iter().enumerate() {
        for cpus in 1..=3 {
            let (backed, oracles) = (number % 2 == 0, true);
            check(&Options {
                cpus,
                backed,
                design: locking.into(),
                seed: number as u64,
                oracles,
                ..Options::default()
            });
        }
    }
}

const EVENTS: &str = "10 0 1 F 10000 14 x1
11 0 1 F 12008 7 x1
12 0 1 brk 0 = 5000000
13 0 1 brk 5002000 = 5002000
14 0 1 F 5000000 6 x1
15 0 1 mmap 0 3000 3 22 -1 0 = 7f0000000000
16 0 1 F 7f0000000000 6 x1
17 0 1 F 7f0000001000 4 x1
18 0 1 mmap 0 2000 1 2 3 0 = 7e0000000000 f1
19 0 1 munmap 7e0000001000 1000 = 0
20 0 1 munmap 7e0000000001 1000 = -22
21 0 1 mprotect 7f0000001000 1000 1 = 0
22 0 1 F 7f0000001000 6
23 0 1 G 11 2
24 0 1 F 6000000 4
25 0 1 G 11 1
26 0 1 N 2 1 10100
27 0 2 F 7f0000000000 6 x1
28 0 2 madvise 7f0000000000 1000 4 = 0
29 0 1 N 3 3 0
30 0 3 F 12008 7 x1
31 0 3 F 5000000 7 x1
32 0 3 munmap 5000000 1000 = 0
33 0 2 X
34 0 1 X g
35 0 3 F 5001000 6 x1
36 - 3 S 1 exit 3
36 0 3 X g
";

const EXIT: &str = "@ 1 exit 3 36 36 0 t | /bin/t | VmRSS:12;RssAnon:12
10000-12000 r-xp 0 /bin/t | 0 | rdexmrmwme
12000-13000 rw-p 2000 /bin/t | 4,,,,4,4,4,, | rdwrmrmwmeac
5001000-5002000 rw-p 0 [heap] | 4,,,,4,4,4,, | rdwrmrmwmeac
7e0000000000-7e0000001000 r--p 0 /bin/t | 0 | rdmrmwme
7f0000000000-7f0000001000 rw-p 0 - | 0 | rdwrmrmwmeac
7f0000001000-7f0000002000 r--p 0 - | 4,,,,4,4,4,, | rdmrmwmeac
7f0000002000-7f0000003000 rw-p 0 - | 0 | rdwrmrmwmeac
7ffffffdd000-7ffffffff000 rw-p 0 [stack] | 4,,,,4,4,4,, | rdwrmrmwmegdac
P 12 1 8
P 4fee 1 8
P 7efffafff 1 28
P fffffdc 1 8
";

#[test]
fn correct_recording_matches_linux() {
    let recording = Recording::new(EVENTS, EXIT);
    each_way(|options| {
        let outcome = recording.replay(options);
        assert_eq!(outcome.difference_count, 0, "{:#?}", outcome.differences);
        assert_eq!((outcome.calls.all, outcome.calls.as_linux), (9, 9));
        assert_eq!((outcome.faults.all, outcome.faults.as_linux), (11, 11));
        assert_eq!((outcome.snapshots.all, outcome.snapshots.as_linux), (1, 1));
        assert!(outcome.is_as_linux() && outcome.set_aside.is_empty(), "{:?}", outcome.set_aside);
    });
}

/// Incorrect recordings: the correct text, the incorrect text, and the line at which the difference is found.
#[test]
fn incorrect_recordings_are_reported_with_their_line() {
    let (events, exit) = (EVENTS, EXIT);
    let lies: &[(&str, &str, u32, &str)] = &[
        // Calls: another answer, another errno, success instead of failure, failure instead of success.
        ("1000 = -22", "1000 = -12", 14, "munmap"),
        ("7e0000001000 1000 = 0", "7e0000001000 1000 = -22", 13, "munmap"),
        ("3 22 -1 0 = 7f0000000000", "3 22 -1 0 = 12000", 9, "mmap"),
        ("1000 4 = 0", "1000 4 = -22", 22, "madvise"),
        ("munmap 5000000 1000 = 0", "munmap 5000001 1000 = 0", 26, "munmap"),
        // Calls that are refused for a reason that is not recorded, and that the replay undoes. The next
        // event shows the difference.
        ("brk 5002000 = 5002000", "brk 5002000 = 5000000", 8, "fault"),
        ("1000 1 = 0", "1000 1 = -12", 16, "fault"),
        // An argument of a successful call. A later snapshot shows the difference.
        ("munmap 7e0000001000", "munmap 7e0000000000", 30, "VMA"),
        ("munmap 7e0000001000 1000 = 0", "munmap 7e0000001000 1000 = ?", 30, "VMA"),
        ("1000 1 = 0", "1000 3 = 0", 16, "fault"),
        ("3 22 -1 0 = 7f", "3 4022 -1 0 = 7f", 30, "VMA"),
        ("1 2 3 0 = 7e", "1 2 3 1000 = 7e", 30, "VMA"),
        ("1 2 3 0 = 7e", "1 1 3 0 = 7e", 30, "VMA"),
        ("1000 4 = 0", "1000 5 = 0", 22, "madvise"),
        ("brk 5002000 = 5002000", "brk 5003000 = 5003000", 30, "VMA"),
        // Faults: resolved or not, and the code of the signal.
        ("F 7f0000001000 6\n23 0 1 G 11 2", "F 7f0000001000 6\n23 0 1 G 11 1", 16, "fault"),
        ("F 7f0000001000 6\n23 0 1 G 11 2", "F 7f0000001000 6\n23 0 1 G 7 2", 16, "fault"),
        ("F 6000000 4\n25 0 1 G 11 1", "F 6000000 4 x1\n25 0 1 G 11 1", 18, "fault"),
        ("F 10000 14 x1", "F 12008 15 x1", 4, "fault"),
        ("F 7f0000001000 4 x1", "F 7f0000003000 4 x1", 11, "fault"),
        ("F 6000000 4\n25 0 1 G 11 1", "F 5000000 4\n25 0 1 G 11 1", 18, "fault"),
        ("F 12008 7 x1\n31", "F 12008 7\n31 0 3 G 11 2\n31", 24, "fault"),
        // Snapshots: the end, rights, offset, name and flags of a VMA, an additional VMA, a missing VMA, a
        // page, and the resident set size.
        ("5001000-5002000", "5001000-5003000", 30, "VMA"),
        ("7f0000001000-7f0000002000 r--p", "7f0000001000-7f0000002000 r-xp", 30, "VMA"),
        ("rw-p 2000 /bin/t", "rw-p 1000 /bin/t", 30, "VMA"),
        ("r--p 0 /bin/t | 0", "r--p 0 /bin/u | 0", 30, "VMA"),
        ("0 - | 0 | rdwrmrmwmeac\n7f0000001000", "0 - | 0 | rdwrmrmwmeacnh\n7f0000001000", 30, "VMA"),
        ("7f0000002000-7f0000003000 rw-p", "7f0000002000-7f0000003000 rw-s", 30, "VMA"),
        ("10000-12000 r-xp 0 /bin/t | 0", "11000-12000 r-xp 1000 /bin/t | 0", 30, "VMA"),
        ("rdexmrmwme\n", "rdmrmwme\n", 30, "VMA"),
        ("rdwrmrmwmegdac", "rdwrmrmwmeac", 30, "VMA"),
        ("rw-p 0 [heap]", "rw-p 0 -", 30, "VMA"),
        ("rw-p 0 [heap]", "rw-p 0 /bin/t", 30, "VMA"),
        ("P 12 1 8\n", "P 12 1 4\n", 30, "private pages"),
        ("P 12 1 8\nP 4fee", "P 5001", 30, "private pages"),
        ("7f0000002000-7f0000003000 rw-p 0 - | 0 | rdwrmrmwmeac\n", "", 30, "VMA"),
        ("P 4fee 1 8", "P 4fee 2 8", 30, "private pages"),
        ("P 7efffafff 1 28\nP fffffdc 1 8", "P 7ffffafdc 1 8", 30, "private pages"),
        ("RssAnon:12", "RssAnon:16", 30, "RssAnon"),
    ];
    for &(truth, lie, line, what) in lies {
        let recording = match events.contains(truth) {
            true => Recording::new(&events.replacen(truth, lie, 1), exit),
            false => {
                assert!(exit.contains(truth), "{truth}");
                Recording::new(events, &exit.replacen(truth, lie, 1))
            }
        };
        let outcome = recording.replay(&Options { cpus: 2, ..Options::default() });
        let found = outcome.differences.first().unwrap_or_else(|| panic!("not found: {lie:?}"));
        assert_eq!(found.line, line, "{lie:?}: {found:#?}");
        assert!(found.what.contains(what), "{lie:?}: {found:#?}");
        assert_ne!(found.linux, found.freehold);
        assert!(!outcome.is_as_linux());
    }
}

/// The snapshot has one page more than the recorded faults explain. The kernel itself may have touched that
/// page, so the page is counted and reported as not checked.
#[test]
fn pages_that_the_kernel_may_have_touched_are_not_checked() {
    for (truth, lie) in [("35 0 3 F 5001000 6 x1\n", ""), ("P fffffdc 1 8", "P fffffdb 2 8")] {
        let recording = Recording::new(&EVENTS.replacen(truth, lie, 1), &EXIT.replacen(truth, lie, 1));
        let outcome = recording.replay(&Options { cpus: 2, ..Options::default() });
        assert!(outcome.is_as_linux(), "{lie:?}: {:#?}", outcome.differences);
        let said = outcome
            .set_aside
            .iter()
            .find(|(why, _)| why.starts_with("pages that no recorded event has touched"));
        assert_eq!(said.map(|(_, count)| *count), Some(1), "{lie:?}");
    }
}

/// Returns the findings of an outcome without values that depend on time or interleaving.
fn findings(outcome: &Outcome) -> String {
    let Outcome { calls, faults, snapshots, file_vmas, differences, difference_count, set_aside, .. } =
        outcome;
    format!(
        "{calls:?} {faults:?} {snapshots:?} {file_vmas:?} {difference_count} {differences:#?} {set_aside:?}"
    )
}

/// Replays a correct and an incorrect recording with different segment sizes, numbers of CPUs and turn
/// lengths, with and without contents. The findings must be the same.
#[test]
fn findings_do_not_depend_on_the_options() {
    let lies = EXIT.replace("12000-13000 rw-p 2000", "12000-13000 rw-p 1000");
    for (exit, differences) in [(EXIT, 0), (&lies, 1)] {
        let recording = Recording::new(EVENTS, exit);
        let plain = recording.replay(&Options { cpus: 1, ..Options::default() });
        assert_eq!(plain.difference_count, differences);
        for segment in [1, 2, 3, 7, 100] {
            for cpus in [1, 2, 5, 16] {
                for (turn, backed) in [(1, false), (1, true), (3, false), (256, true)] {
                    let options = Options { cpus, backed, segment, turn, ..Options::default() };
                    let outcome = recording.replay(&options);
                    assert_eq!(findings(&outcome), findings(&plain), "{options:?}");
                }
            }
        }
    }
}

/// Like the test above, for strace output.
#[test]
fn findings_of_strace_output_do_not_depend_on_the_options() {
    for name in ["threads", "flags", "transfer"] {
        let text =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../freehold-trace/tests/data/{name}.strace"));
        let outcome =
            |options: &Options| replay(&text, options, &()).unwrap_or_else(|error| panic!("{error}"));
        let plain = outcome(&Options { cpus: 1, ..Options::default() });
        assert!(plain.calls.all > 20 && plain.is_as_linux(), "{name}: {:#?}", plain.differences);
        for (segment, cpus, turn) in [(1, 1, 256), (1, 4, 1), (5, 2, 2), (1 << 20, 16, 1)] {
            let options = Options { cpus, segment, turn, ..Options::default() };
            assert_eq!(findings(&outcome(&options)), findings(&plain), "{name}, {options:?}");
        }
    }
}

const HUGE: &str = "10 0 1 mmap 0 600000 3 22 -1 0 = 7f0000000000
11 0 1 madvise 7f0000000000 400000 e = 0
12 0 1 F 7f0000000000 6 x1
13 0 1 F 7f0000212000 6 x1
14 0 1 F 7f0000400000 6 x1
15 0 1 mprotect 7f0000000000 1000 1 = 0
16 - 1 S 1 exit 1
16 0 1 X g
";

const HUGE_EXIT: &str = "@ 1 exit 1 16 16 0 t | /bin/t | RssAnon:4108
10000-12000 r-xp 0 /bin/t | 0 | rdexmrmwme
12000-13000 rw-p 2000 /bin/t | 4,,,,4,4,4,, | rdwrmrmwmeac
7f0000000000-7f0000001000 r--p 0 - | 4,,,,4,4,4,, | rdmrmwmeachg
7f0000001000-7f0000400000 rw-p 0 - | 4092,,,,4092,4092,4092,2048, | rdwrmrmwmeachg!
7f0000400000-7f0000600000 rw-p 0 - | 4,,,,4,4,4,, | rdwrmrmwmeac
7ffffffdd000-7ffffffff000 rw-p 0 [stack] | 4,,,,4,4,4,, | rdwrmrmwmegdac
P 12 1 8
P 7efffffed 200 8
P 0 200 48
P 0 1 8
P ffffbdd 1 8
";

/// Four MiB of memory without advice, touched once. The setting of the recorded machine decides if a huge
/// page is used.
const UNASKED: &str = "10 0 1 mmap 7f0000000000 400000 3 32 -1 0 = 7f0000000000
11 0 1 F 7f0000200000 6 x1
12 0 1 S 1 exit 1
13 0 1 X g
";

const UNASKED_EXIT: &str = "@ 1 exit 1 5 6 1 t | /bin/t | VmRSS:8;RssAnon:2056
10000-12000 r-xp 0 /bin/t | 0 | rdexmrmwme
12000-13000 rw-p 2000 /bin/t | 4,,,,4,4,4,, | rdwrmrmwmeac
7f0000000000-7f0000400000 rw-p 0 - | 2048,,,,2048,2048,2048,2048, | rdwrmrmwmeac
7ffffffdd000-7ffffffff000 rw-p 0 [stack] | 4,,,,4,4,4,, | rdwrmrmwmegdac
P 12 1 8
P 7f00001ed 200 48
P ffffbde 1 8
";

/// A line of the recording gives the setting, or a snapshot shows that the memory may have huge pages.
#[test]
fn setting_of_huge_pages_is_recorded_or_shown_in_a_snapshot() {
    let replayed = |setting: &str, snapshots: &str| {
        let events = format!("{setting}{UNASKED}");
        Recording::new(&events, snapshots).replay(&Options { cpus: 2, ..Options::default() })
    };
    let eligible = UNASKED_EXIT.replace("2048, | rdwrmrmwmeac", "2048, | rdwrmrmwmeac!");
    for (setting, snapshots, same) in [
        ("# machine thp always\n", UNASKED_EXIT, true),
        ("", eligible.as_str(), true),
        ("", UNASKED_EXIT, false),
        ("# machine thp madvise\n", eligible.as_str(), false),
        ("# machine thp never\n", eligible.as_str(), false),
        // The size has its own setting or inherits the general one. Another size brings in fewer pages.
        ("# machine thp never\n# machine thp-2048kB always\n", UNASKED_EXIT, true),
        ("# machine thp always\n# machine thp-2048kB inherit\n", UNASKED_EXIT, true),
        ("# machine thp always\n# machine thp-2048kB madvise\n", UNASKED_EXIT, false),
        ("# machine thp never\n# machine thp-64kB always\n", UNASKED_EXIT, false),
    ] {
        let outcome = replayed(setting, snapshots);
        assert_eq!(outcome.is_as_linux(), same, "{setting:?}: {:#?}", outcome.differences);
    }
}

/// Two huge pages, one of which an mprotect has split.
#[test]
fn huge_pages_are_compared() {
    each_way(|options| {
        let outcome = Recording::new(HUGE, HUGE_EXIT).replay(options);
        assert_eq!(outcome.difference_count, 0, "{:#?}", outcome.differences);
    });
    let lies: &[(&str, &str, &str)] = &[
        ("4092,2048,", "4092,,", "AnonHugePages"),
        ("4092,2048,", "4092,4096,", "AnonHugePages"),
        ("4,,,,4,4,4,, | rdmrmwmeachg", "4,,,,4,4,4,2048, | rdmrmwmeachg", "AnonHugePages"),
        ("400000 e = 0", "400000 f = 0", "VMA"),
        ("F 7f0000212000 6 x1", "F 7f0000400000 6 x1", "AnonHugePages"),
        ("mprotect 7f0000000000 1000 1", "mprotect 7f0000000000 1000 3", "VMA"),
        ("RssAnon:4108", "RssAnon:4104", "RssAnon"),
    ];
    for (truth, lie, what) in lies {
        let recording = Recording::new(&HUGE.replace(truth, lie), &HUGE_EXIT.replace(truth, lie));
        let outcome = recording.replay(&Options { cpus: 2, ..Options::default() });
        let found = outcome.differences.first().unwrap_or_else(|| panic!("not found: {lie:?}"));
        assert_eq!(found.line, 10, "{lie:?}: {found:#?}");
        assert!(found.what.contains(what), "{lie:?}: {found:#?}");
        assert_ne!(found.linux, found.freehold);
    }
}

/// A file of 64 pages. 40 pages are mapped, starting at the fifth page of an aligned block of 16. The first
/// fault maps 16 pages. The second fault maps the remaining twelve pages of the last block. The third fault
/// is on a page that the first fault mapped in the replay but not on Linux, and maps the pages around this
/// page. The madvise (DONTNEED) unmaps the pages of its range. A second mapping of the file behaves like the
/// first, and gets a private copy of a page. A fork copies the entries of a mapping that has private copies,
/// so the child has the pages of its parent there.
const FILES: &str = "# file 2 262144 /lib/f
10 0 1 mmap 0 28000 1 2 3 0 = 7f0000004000 f2
11 0 1 F 7f0000004000 4 x1
12 0 1 F 7f0000020010 4 x1
13 0 1 F 7f0000012000 4 x1
14 0 1 madvise 7f0000028000 4000 4 = 0
15 0 1 mmap 0 4000 3 2 3 2000 = 7f1000000000 f2
16 0 1 F 7f1000000000 4 x1
17 0 1 F 7f1000001000 7 x1
18 0 1 mmap 0 8000 3 21 -1 0 = 7f2000000000
19 0 1 F 7f2000000000 6 x1
20 0 1 F 7f2000003000 6 x1
21 0 1 F 7f2000002000 4 x1
22 0 1 N 2 2 0
23 0 2 F 7f2000005000 4 x1
24 - 1 S 1 exit 1
24 0 1 X g
25 - 2 S 2 exit 2
25 0 2 X g
";

const FILES_EXIT: &str = "@ 1 exit 1 24 24 0 t | /bin/t | RssAnon:12
10000-12000 r-xp 0 /bin/t | 0 | rdexmrmwme
12000-13000 rw-p 2000 /bin/t | 4,,,,4,4,4,, | rdwrmrmwmeac
7f0000004000-7f000002c000 r--p 0 /lib/f | 144,144,,,,144,,, | rdmrmwme
7f1000000000-7f1000004000 rw-p 2000 /lib/f | 16,12,,,4,16,4,, | rdwrmrmwmeac
7f2000000000-7f2000008000 rw-s 0 /dev/zero (deleted) | 12,,,,12,12,,, | rdwrshmrmwmems
7ffffffdd000-7ffffffff000 rw-p 0 [stack] | 4,,,,4,4,4,, | rdwrmrmwmegdac
P 12 1 8
P 7effffff1 24 c
P ffffd8 1 c
P 0 1 8
P 0 2 c
P fffffc 1 c
P 1 2 c
P dffffda 1 8
@ 2 exit 2 25 25 0 t | /bin/t | RssAnon:12
10000-12000 r-xp 0 /bin/t | 0 | rdexmrmwme
12000-13000 rw-p 2000 /bin/t | 4,,,,4,4,4,, | rdwrmrmwmeac
7f0000004000-7f000002c000 r--p 0 /lib/f | 0 | rdmrmwme
7f1000000000-7f1000004000 rw-p 2000 /lib/f | 16,12,,,4,16,4,, | rdwrmrmwmeac
7f2000000000-7f2000008000 rw-s 0 /dev/zero (deleted) | 16,,,,16,16,,, | rdwrshmrmwmems
7ffffffdd000-7ffffffff000 rw-p 0 [stack] | 4,,,,4,4,4,, | rdwrmrmwmegdac
P 12 1 8
P 7f0ffffed 1 c
P 0 1 8
P 0 2 c
P fffffc 1 c
P 1 2 c
P 1 1 c
P dffffd8 1 8
";

#[test]
fn pages_of_files_are_compared() {
    each_way(|options| {
        let outcome = Recording::new(FILES, FILES_EXIT).replay(options);
        assert_eq!(outcome.difference_count, 0, "{:#?}", outcome.differences);
        assert_eq!((outcome.file_vmas.all, outcome.file_vmas.as_linux), (10, 10));
        assert!(outcome.set_aside.is_empty(), "{:?}", outcome.set_aside);
    });
}

/// Pages that Linux cannot have had, and pages that it may have had for reasons that are not recorded.
#[test]
fn impossible_pages_of_files_are_reported() {
    let lies: &[(&str, &str, bool)] = &[
        // Four cases of missing pages: a page that was faulted in; a page that only a fault on another page
        // mapped; all such pages; the page of one of the three faults.
        ("P 7effffff1 24", "P 7effffff2 23", true),
        ("24 c\nP ffffd8", "23 c\nP ffffd9", false),
        ("P 7effffff1 24 c\nP ffffd8", "P 7effffff1 1 c\nP d 1 c\nP d 1 c\nP ffffdf", false),
        ("P 7effffff1 24 c\nP ffffd8", "P 7effffff1 1 c\nP d 1 c\nP ffffed", true),
        // Two cases of an additional page: far from any fault; unmapped by DONTNEED.
        ("24 c\nP ffffd8", "24 c\nP 2 1 c\nP ffffd5", true),
        ("24 c\nP ffffd8", "24 c\nP 1 1 c\nP ffffd6", true),
        // The resident size that the kernel reports.
        ("| 144,144", "| 148,148", true),
        ("| 144,144", "| 140,140", false),
        ("| 144,144", "| 8,8", true),
        // A private copy is not a page of the file.
        ("16,12,,,4,16,4", "16,16,,,,16,", true),
        // Shared memory. The cases concern pages that the second fault brought in, a page that no recorded
        // task brought in, and pages of a child.
        ("P fffffc 1 c\nP 1 2 c\nP dffffda", "P fffffc 1 c\nP 1 1 c\nP dffffdb", true),
        ("P fffffc 1 c\nP 1 2 c\nP dffffda", "P fffffc 4 c\nP dffffda", false),
        ("P 1 1 c\nP dffffd8", "P dffffda", true),
        ("P 7f0ffffed 1 c\nP 0 1 8\nP 0 2 c", "P 7f0ffffee 1 8\nP 0 2 c", true),
    ];
    for &(truth, lie, wrong) in lies {
        assert!(FILES_EXIT.contains(truth), "{truth}");
        let recording = Recording::new(FILES, &FILES_EXIT.replacen(truth, lie, 1));
        let outcome = recording.replay(&Options { cpus: 2, ..Options::default() });
        assert_eq!(outcome.difference_count > 0, wrong, "{lie:?}: {:#?}", outcome.differences);
        assert!(outcome.file_vmas.as_linux < outcome.file_vmas.all, "{lie:?}");
        match outcome.differences.first() {
            Some(found) => {
                assert_eq!(found.what.split(", ").last(), Some("pages of a file"), "{lie:?}: {found:#?}");
                assert_ne!(found.linux, found.freehold);
            }
            None => {
                assert!(outcome.set_aside.iter().any(|(why, _)| why.starts_with("VMAs of files")), "{lie:?}")
            }
        }
    }
}

/// A fault that Linux did not have, or a fault that is missing in the recording.
#[test]
fn recorded_faults_determine_the_pages_of_files() {
    for (truth, lie) in [
        ("11 0 1 F 7f0000004000 4 x1\n", ""),
        ("12 0 1 F 7f0000020010 4 x1\n", ""),
        ("madvise 7f0000028000 4000 4", "madvise 7f0000028000 3000 4"),
        ("20 0 1 F 7f2000003000 6 x1\n", ""),
        (
            "22 0 1 N",
            "22 0 1 munmap 7f1000002000 1000 = 0\n22 0 1 mmap 7f1000002000 1000 3 12 3 4000 = 7f1000002000 f2\n22 0 1 N",
        ),
    ] {
        assert!(FILES.contains(truth), "{truth}");
        let outcome = Recording::new(&FILES.replacen(truth, lie, 1), FILES_EXIT)
            .replay(&Options { cpus: 2, ..Options::default() });
        assert!(
            outcome.difference_count > 0 || outcome.file_vmas.as_linux < outcome.file_vmas.all,
            "{lie:?}"
        );
    }
}

/// The fork copies from time 20 to 40, and the thread's fault begins before the copy ends. The child may or
/// may not have the page.
#[test]
fn pages_faulted_in_during_a_fork_are_not_compared_in_the_child() {
    let events = "10 0 1 mmap 0 2000 3 22 -1 0 = 7f0000000000
11 0 1 F 7f0000000000 6 x1
12 0 1 N 2 1 10100
20 0 1 N 3 3 0 e1 x30 w1 h20
39 0 2 F 7f0000001000 6 x9
60 - 3 S 1 exit 3
60 0 3 X g
70 0 2 X
71 0 1 X g
";
    let exit = |pages: &str, kilobytes: u32| {
        format!(
            "@ 1 exit 3 60 60 0 t | /bin/t | VmRSS:{kilobytes};RssAnon:{kilobytes}
10000-12000 r-xp 0 /bin/t | 0 | rdexmrmwme
12000-13000 rw-p 2000 /bin/t | 4,,,,4,4,4,, | rdwrmrmwmeac
7f0000000000-7f0000002000 rw-p 0 - | 4,,,,4,4,4,, | rdwrmrmwmeac
7ffffffdd000-7ffffffff000 rw-p 0 [stack] | 4,,,,4,4,4,, | rdwrmrmwmegdac
P 12 1 8
{pages}"
        )
    };
    each_way(|options| {
        for (pages, kilobytes, open) in
            [("P 7efffffed 1 8\nP fffffdd 1 8\n", 12, 1), ("P 7efffffed 2 8\nP fffffdc 1 8\n", 16, 0)]
        {
            let outcome = Recording::new(events, &exit(pages, kilobytes)).replay(options);
            assert_eq!(outcome.difference_count, 0, "{:#?}", outcome.differences);
            assert_eq!(outcome.set_aside.iter().filter(|(why, _)| why == aside::BESIDE_FORK).count(), open);
        }
        let lacks = Recording::new(events, &exit("P 7efffffee 1 8\nP fffffdc 1 8\n", 12)).replay(options);
        assert!(findings(&lacks).contains("private pages"), "{:#?}", lacks.differences);
        let sure = events.replace("39 0 2 F 7f0000001000 6 x9", "39 0 2 F 7f0000001000 6 x1");
        let lacks = Recording::new(&sure, &exit("P 7efffffed 1 8\nP fffffdd 1 8\n", 12)).replay(options);
        assert!(findings(&lacks).contains("private pages"), "{:#?}", lacks.differences);
    });
}

#[test]
fn maps_at_returns_the_vmas_at_a_time() {
    let recording = Recording::new(EVENTS, EXIT);
    let options = Options { cpus: 2, ..Options::default() };
    let lines = |time, task| {
        let text = maps_at(&recording.path(), time, task, &options).unwrap_or_else(|error| panic!("{error}"));
        text.lines().map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    let image = ["00010000-00012000", "00012000-00013000"];
    assert_eq!(lines(7, None)[..2], image);
    assert_eq!(lines(7, None).len(), 3);
    assert_eq!(lines(15, Some(1)).len(), 5);
    assert_eq!(lines(32, Some(3))[2], "05001000-05002000");
    assert_eq!(lines(32, Some(1))[2], "05000000-05002000");
    assert!(maps_at(&recording.path(), 7, Some(9), &options).is_err());
}

/// One child does nothing until the next segment; another child is frozen before its first step.
#[test]
fn task_may_begin_in_one_segment_and_run_in_the_next() {
    let frozen = EXEC.replace("@ 0 exec 1 5 6", "@ 1 freeze 1 21 22");
    let childs = frozen.replace("@ 1 freeze 1", "@ 2 freeze 2");
    let recording = Recording::new(
        "10 0 1 N 2 2 0
20 - - Z 5
21 - 1 S 1 freeze 1
22 - 2 S 2 freeze 2
30 0 2 F 12000 7 x1
31 0 1 F 12000 7 x1
32 0 2 X g
33 0 1 X g
",
        &format!("{frozen}{childs}"),
    );
    each_way(|options| {
        let outcome = recording.replay(options);
        assert_eq!(outcome.difference_count, 0, "{:#?}", outcome.differences);
        assert_eq!((outcome.snapshots.all, outcome.faults.all), (2, 2));
    });
}

/// Adjacent mappings of a file are one VMA if both were made through one open file, by any of its
/// descriptors. Parts of two open files stay separate VMAs.
#[test]
fn mappings_of_two_open_files_do_not_merge() {
    for (opened, grown) in [("dup 3", "7e0000000000"), ("open 100 0 0", "-14")] {
        let events = format!(
            "10 0 1 open 100 0 0 = 3\n11 0 1 {opened} = 4\n12 0 1 mmap 7e0000000000 1000 1 12 3 0 = 7e0000000000 f1
13 0 1 mmap 7e0000001000 1000 1 12 4 1000 = 7e0000001000 f1\n14 0 1 mremap 7e0000000000 2000 3000 0 0 = {grown}\n"
        );
        let outcome = Recording::new(&events, "").replay(&Options::default());
        assert_eq!((outcome.difference_count, outcome.calls.all), (0, 3), "{:#?}", outcome.differences);
    }
}

/// One thread removes the segment while another maps it again. The answers show which call came first.
#[test]
fn removed_segment_is_destroyed_with_its_last_mapping() {
    // The removal lasts from 22 to 42. The second remap_file_pages leaves the other page mapped; the third
    // unmaps both parts.
    const REMOVED: &str = "10 0 1 shmget 0 2000 3c0 = 5
11 0 1 N 2 1 10100
12 0 1 shmat 5 0 0 = 7f0000000000 e1 x1
13 0 1 F 7f0000000000 6 x1
20 0 1 remap_file_pages 7f0000000000 2000 0 0 0 = 0 e2 x5
22 0 2 shmctl 5 0 0 = 0 x20
30 0 1 remap_file_pages 7f0000000000 1000 0 0 0 = 0 e2 x5
41 0 1 remap_file_pages 7f0000000000 2000 0 0 0 = -22 e1 x5
50 0 1 shmdt 7f0000000000 = -22 e1 x1
51 0 1 shmat 5 0 0 = -22 x1
60 0 1 X
61 0 2 X g
";
    each_way(|options| {
        let outcome = Recording::new(REMOVED, "").replay(options);
        assert_eq!(outcome.difference_count, 0, "{:#?}", outcome.differences);
        assert_eq!(outcome.calls.all, 6);
    });
    let (refused, mapped) = ("2000 0 0 0 = -22 e1 x5", "2000 0 0 0 = 0 e1 x5");
    for (changes, what) in [
        (&[("shmctl 5 0 0", "shmctl 5 d 0")][..], "the segment was never removed"),
        (&[("shmctl 5 0 0 = 0", "shmctl 5 0 0 = -1")], "the removal was refused"),
        (&[("shmdt 7f0000000000 = -22", "shmdt 7f0000000000 = 0")], "the segment still exists"),
        (&[(refused, mapped)], "mapped, but destroyed"),
        (
            &[(refused, mapped), ("= 0 x20", "= 0 x3"), ("= -22 e1 x1", "= 0 e1 x1")],
            "mapped after the removal",
        ),
    ] {
        let change = |text: String, (from, to): &(&str, &str)| {
            assert!(text.contains(from), "{from}");
            text.replacen(from, to, 1)
        };
        let lie = changes.iter().fold(REMOVED.to_owned(), change);
        let outcome = Recording::new(&lie, "").replay(&Options { cpus: 2, ..Options::default() });
        assert!(outcome.difference_count > 0, "{what}");
    }
}

/// The recording has blocks of shared memory of several sizes. After faults and after losses of pages, each
/// VMA must have exactly the pages that it had on Linux. The bounds for undetermined pages would allow other
/// pages too.
#[test]
fn blocks_of_shared_memory_match_linux() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recordings/causes/shared-blocks.trace.zst");
    for cpus in 1..=2 {
        let outcome =
            replay(&path, &Options { cpus, oracles: true, ..Options::default() }, &()).expect("replayed");
        assert!(outcome.is_as_linux(), "{:#?}", outcome.differences.first());
        // The program's own text is a file on a disk.
        let others = outcome.file_vmas.all - outcome.file_vmas.as_linux;
        assert!(outcome.file_vmas.all > 180 && others <= 1, "{:?}", outcome.file_vmas);
    }
}

/// A page of zeroes replaces each huge page that the userfaultfd's program supplied.
#[test]
fn huge_pages_of_a_userfaultfd_are_supplied() {
    let events = "15 0 1 mmap 0 800000 3 40022 -1 0 = 7f0000000000
16 0 1 userfaultfd 80001 = 3
17 0 1 ioctl 3 c020aa00 7f0000000000 600000 3 = 0
18 0 1 ioctl 3 c020aa00 7f0000001000 200000 3 = -22
19 0 1 F 7f0000001388 4 x1
20 0 1 F 7f0000200000 6 x1
21 0 1 madvise 7f0000200000 200000 4 = 0
22 0 1 F 7f0000200000 4 x1
23 0 1 F 7f0000600000 6 x1
24 0 1 ioctl 3 8010aa01 7f0000000000 200000 0 = 0
25 - 1 S 1 exit 1
26 0 1 X g
";
    let exit = "@ 1 exit 1 25 25 0 t | /bin/t | VmRSS:8;RssAnon:8
10000-12000 r-xp 0 /bin/t | 0 | rdexmrmwme
12000-13000 rw-p 2000 /bin/t | 4,,,,4,4,4,, | rdwrmrmwmeac
7f0000000000-7f0000200000 rw-p 0 /anon_hugepage (deleted) | 0 | rdwrmrmwmedeht
7f0000200000-7f0000600000 rw-p 200000 /anon_hugepage (deleted) | 0 | rdwrmrmwmeumuwdeht
7f0000600000-7f0000800000 rw-p 600000 /anon_hugepage (deleted) | 0 | rdwrmrmwmedeht
7ffffffdd000-7ffffffff000 rw-p 0 [stack] | 4,,,,4,4,4,, | rdwrmrmwmegdac
P 12 1 8
P 7efffffed 400 48
P 200 200 48
P ffff7de 1 8
";
    let recording = Recording::new(events, exit);
    each_way(|options| {
        let outcome = recording.replay(options);
        assert_eq!(outcome.difference_count, 0, "{:#?}", outcome.differences);
        assert_eq!((outcome.calls.all, outcome.faults.all, outcome.snapshots.all), (5, 4, 1));
    });
}

/// A page of zeroes replaces each page that the userfaultfd's program supplied, for a fault, for a call, or
/// for another thread.
#[test]
fn pages_of_a_userfaultfd_are_supplied() {
    let events = "15 0 1 mmap 0 6000 3 22 -1 0 = 7f0000000000
16 0 1 userfaultfd 80001 = 3
17 0 1 N 2 1 10f00
18 0 1 ioctl 3 c020aa00 7f0000000000 4000 1 = 0
19 0 2 F 7f0000000000 4 x1
20 0 1 F 7f0000001000 6 x1
21 0 2 madvise 7f0000002000 2000 16 = 0
22 0 1 ioctl 3 8010aa01 7f0000000000 1000 0 = 0
23 0 2 ioctl 3 c020aa00 7f0000000000 2000 3 = 0
24 0 2 X
25 - 1 S 1 exit 1
26 0 1 X g
";
    let exit = "@ 1 exit 1 25 25 0 t | /bin/t | VmRSS:24;RssAnon:24
10000-12000 r-xp 0 /bin/t | 0 | rdexmrmwme
12000-13000 rw-p 2000 /bin/t | 4,,,,4,4,4,, | rdwrmrmwmeac
7f0000000000-7f0000002000 rw-p 0 - | 8,,,,8,8,8,, | rdwrmrmwmeacumuw
7f0000002000-7f0000004000 rw-p 0 - | 8,,,,8,8,8,, | rdwrmrmwmeacum
7f0000004000-7f0000006000 rw-p 0 - | 0 | rdwrmrmwmeac
7ffffffdd000-7ffffffff000 rw-p 0 [stack] | 4,,,,4,4,4,, | rdwrmrmwmegdac
P 12 1 8
P 7efffffed 4 8
P fffffda 1 8
";
    let recording = Recording::new(events, exit);
    each_way(|options| {
        let outcome = recording.replay(options);
        assert_eq!(outcome.difference_count, 0, "{:#?}", outcome.differences);
        assert_eq!((outcome.calls.all, outcome.faults.all, outcome.snapshots.all), (5, 2, 1));
    });
}

/// A program begins while events are lost, and some of its events are lost too. Nothing of the program is
/// checked before the first exec after the loss, and the loss is the reason given.
#[test]
fn program_that_begins_during_a_loss_is_not_checked() {
    let exec = |id, time| EXEC.replace("@ 0 exec 1 5 6", &format!("@ {id} exec 1 {time} {time}"));
    let exit = EXIT.replace("@ 1 exit 3 36 36", "@ 2 exit 1 14 14");
    let events = "8 - - L 7
9 0 1 E 1
9 - 1 S 1 exec 1
12 0 1 F 10000 4
12 0 1 munmap 10000 1000 = -22
14 - 1 S 2 exit 1
15 - - L 0
16 0 1 munmap 10000 1000 = -22
";
    let recording = Recording::new(events, &format!("{}{exit}", exec(1, 9)));
    each_way(|options| {
        let outcome = recording.replay(options);
        assert_eq!(outcome.difference_count, 0, "{:#?}", outcome.differences);
        assert_eq!((outcome.calls.all, outcome.faults.all, outcome.snapshots.all), (0, 0, 0));
        let aside: Vec<_> = outcome.set_aside.iter().map(|(why, count)| (&why[..18], *count)).collect();
        assert_eq!(aside, [("after events were ", 4), ("places where event", 1)]);
    });
    let events = format!("{events}20 0 1 E 3\n20 - 1 S 3 exec 1\n21 0 1 munmap 10000 1000 = -22\n");
    let recording = Recording::new(&events, &format!("{}{exit}{}", exec(1, 9), exec(3, 20)));
    let outcome = recording.replay(&Options::default());
    assert_eq!(
        (outcome.calls.all, outcome.difference_count),
        (1, 1),
        "the events after the exec are checked again"
    );
    assert_eq!(outcome.differences[0].line, 14);
}

/// The recording does not show how a driver sets up mappings of its file: flags, merging and growth.
/// Everything else is compared.
#[test]
fn only_addresses_of_driver_mappings_are_compared() {
    // Linux no longer has the mappings `unmapped`, which no call unmapped.
    let outcome = |name: &str, unmapped: &str| {
        let events = format!(
            "# file 2 - {name}
10 0 1 mmap 0 1000 3 1 3 0 = 7f0000001000 f2
11 0 1 mmap 0 1000 3 1 3 1000 = 7f0000002000 f2
12 0 1 mremap 7f0000001000 1000 3000 1 0 = -14
13 0 1 mremap 7f0000002000 1000 2000 0 0 = -22
14 0 1 munmap 10000 1 = 0
14 0 1 munmap 10001 1 = -22
15 - 1 S 1 exit 1
"
        );
        let exit = EXEC
            .replace("@ 0 exec 1 5 6", "@ 1 exit 1 15 15")
            .replace("10000-12000 r-xp 0", "11000-12000 r-xp 1000");
        let driver = format!(
            "7f0000001000-7f0000002000 rw-s 0 {name} | 0 | rdwrshmrmwmemsdemm\n\
             7f0000002000-7f0000003000 rw-s 1000 {name} | 0 | rdwrshmrmwmemsdemm\n7ffffffdd000-"
        );
        let exit = exit.replace("7ffffffdd000-", &driver);
        let kept = exit.lines().filter(|line| unmapped.is_empty() || !line.starts_with(unmapped));
        let exit = kept.map(|line| format!("{line}\n")).collect::<String>();
        Recording::new(&events, &exit).replay(&Options::default())
    };
    for driver in ["anon_inode:[io_uring]", "/dev/dri/card0", "socket:[7]"] {
        let outcome = outcome(driver, "");
        assert_eq!(outcome.difference_count, 0, "{driver}: {:#?}", outcome.differences);
        assert_eq!((outcome.calls.all, outcome.snapshots.all), (4, 1), "{driver}");
        let aside = outcome.set_aside.iter().find(|(why, _)| why.starts_with("mappings of drivers"));
        assert_eq!(aside.map(|(_, count)| *count), Some(4), "{driver}: {:?}", outcome.set_aside);
    }
    for unmapped in ["7f0000001000-", "7f0000002000-", "7f000000"] {
        let outcome = outcome("/dev/dri/card0", unmapped);
        assert!(outcome.difference_count > 0, "addresses of driver mappings are compared: {unmapped}");
    }
    for file in ["/dev/shm/x", "/x/dev/dri", "/dev/hugepages1G/x"] {
        assert!(outcome(file, "").difference_count > 1, "{file}");
    }
}
