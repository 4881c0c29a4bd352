//! Tests `freehold replay --memory`: its table, its plot and its exit status.
//!
//! The recording writes 1024 pages and reads them again, so a smaller memory needs swap.
//! `freehold-replay/tests/short.rs` tests the figures.

use assert_cmd::Command;
use assert_cmd::cargo::cargo_bin_cmd;
use std::fs;

const PAGES: u64 = 1024;
const AT: u64 = 0x7f00_0000_0000;
/// The snapshot of the exec.
const SNAPSHOT: &str = "# fhsnap 1 t
@ 0 exec 1 5 6 1 t | /bin/t | VmRSS:8;RssAnon:8
10000-12000 r-xp 0 /bin/t | 0 | rdexmrmwme
12000-13000 rw-p 2000 /bin/t | 4,,,,4,4,4,, | rdwrmrmwmeac
7ffffffdd000-7ffffffff000 rw-p 0 [stack] | 4,,,,4,4,4,, | rdwrmrmwmegdac
P 12 1 8
P 7ffffffcb 1 8
";

/// Runs `freehold replay` with these arguments on the recording. Returns the exit status and the text.
fn run(arguments: &str) -> (i32, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut trace = format!(
        "# fhtrace 2 t\n# file 1 8192 /bin/t\n5 0 1 E 0\n10 0 1 mmap {AT:x} {:x} 3 32 -1 0 = {AT:x}\n",
        PAGES * 4096
    );
    for (from, code) in [(100, 6), (1_000_000, 4)] {
        for page in 0..PAGES {
            trace += &format!("{} 0 1 F {:x} {code} x1\n", from + page * 10, AT + page * 4096);
        }
    }
    fs::write(folder.path().join("t.trace"), trace).expect("written");
    fs::write(folder.path().join("t.snap"), SNAPSHOT).expect("written");
    let mut command: Command = cargo_bin_cmd!("freehold");
    let run =
        command.current_dir(folder.path()).arg("replay").args(arguments.split_whitespace()).arg("t.trace");
    let output = run.output().expect("an output");
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code().expect("an exit status"), text)
}

#[test]
fn table_has_a_row_for_each_size_and_policy() {
    let (status, text) = run("--memory 25%..100% -q");
    assert_eq!(status, 0, "{text}");
    for policy in ["clock", "two-lists", "generations"] {
        // Four sizes, in the table and in the plot.
        assert_eq!(text.matches(&format!(" {policy} ")).count(), 8, "{text}");
    }
    for part in ["refaults", "written", "waited", "kept", "99 %", "time lost to waiting", "###", "(25.0 %)"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn policies_are_chosen_by_name() {
    let (status, text) = run("--memory 2M --policy generations,clock --swap 64M -q");
    assert_eq!(status, 0, "{text}");
    assert!(text.contains(" generations ") && text.contains(" clock ") && !text.contains(" two-lists "));
    assert!(text.contains("Swap: 64 MiB"), "{text}");
}

#[test]
fn memory_that_does_not_suffice_exits_with_1() {
    let (status, text) = run("--memory 2M --policy clock --swap 0 -q");
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("found no memory"), "{text}");
}

#[test]
fn json_has_the_figures_of_each_replay() {
    let (status, text) = run("--memory 2M --policy clock,generations --swap 64M --json - -q");
    assert_eq!(status, 0, "{text}");
    let document: serde_json::Value = serde_json::from_str(&text).expect("JSON only");
    let replays = document["recordings"].as_array().expect("the replays");
    assert_eq!(replays.len(), 3, "one with all pages in memory, and one for each policy");
    assert!(replays[0]["memory"].is_null() && replays[0]["peak_bytes"].as_u64() > Some(PAGES * 4096));
    for (replay, policy) in replays[1..].iter().zip(["clock", "generations"]) {
        let memory = &replay["memory"];
        assert_eq!((&memory["policy"], memory["bytes"].as_u64()), (&policy.into(), Some(2 << 20)));
        // The first half of the pages was written before the reads began.
        assert!(memory["swap_ins"].as_u64() >= Some(PAGES / 2), "{memory}");
        assert!(memory["hot_most"].as_u64() >= memory["hot_fit"].as_u64(), "{memory}");
    }
}
