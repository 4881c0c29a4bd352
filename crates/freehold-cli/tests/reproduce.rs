//! `freehold reproduce` as a user runs it: what it prints where, and its exit status.

use assert_cmd::assert::Assert;
use assert_cmd::cargo::cargo_bin_cmd;
use serde_json::Value;
use std::fs;
use tempfile::TempDir;

/// Runs it in a folder of its own.
fn reproduce(folder: &TempDir, arguments: &str) -> Assert {
    cargo_bin_cmd!("freehold")
        .current_dir(folder.path())
        .arg("reproduce")
        .args(arguments.split_whitespace())
        .assert()
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn stdout(run: &Assert) -> String {
    String::from_utf8(run.get_output().stdout.clone()).expect("text")
}

fn stderr(run: &Assert) -> String {
    String::from_utf8(run.get_output().stderr.clone()).expect("text")
}

/// As little as one experiment can do.
const LITTLE: &str = "mmap-churn --quick --turns 1 --no-host --cpus 1";

#[test]
fn one_experiment_writes_everything_that_was_asked_for() {
    let folder = folder();
    let run = reproduce(&folder, &format!("{LITTLE} --report r.html --markdown r.md --json r.json")).code(0);
    let text = stdout(&run);
    assert!(
        text.starts_with("mmap-churn: ") && text.contains("areas mapped, touched and unmapped a second"),
        "{text}"
    );
    assert_eq!(stderr(&run), "", "no bar where there is no terminal");
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).expect("written");
    let page = read("r.html");
    assert!(
        page.starts_with("<!DOCTYPE html>")
            && page.contains("</svg>")
            && page.trim_end().ends_with("</html>")
    );
    assert!(read("r.md").contains("| threads | Exclusive | Sectioned | Downgraded | Released |\n"));
    let json: Value = serde_json::from_str(&read("r.json")).expect("JSON");
    assert_eq!(json["experiments"][0]["experiment"], "mmap-churn");
    assert_eq!(json["cpus"], 1);
    assert_eq!(json["quick"], true);
}

#[test]
fn json_alone_goes_to_standard_output() {
    let folder = folder();
    let run = reproduce(&folder, &format!("{LITTLE} --json -")).code(0);
    let json: Value = serde_json::from_str(&stdout(&run)).expect("nothing but JSON");
    let first = &json["experiments"][0]["tables"][0]["rows"][0]["cells"];
    assert!(first[0]["measured"]["figure"]["median"].as_f64().expect("a number") > 0.0, "{first}");
    assert_eq!(first[4], "nothing", "the host was left out");
}

#[test]
fn what_makes_no_sense_is_said_before_anything_runs() {
    let folder = folder();
    for (arguments, said) in [
        ("munmap", "munmap-hold, munmap-stall, fault-throughput"),
        ("--at-most 1KiB", "nothing can be measured on less than 2MiB"),
        ("--at-most much", "`much` is no size"),
        ("--turns 0", "1..=99"),
        ("--report nowhere/r.html --quick", "nowhere/r.html: cannot be written"),
        ("--json . --quick", ".: cannot be written"),
        ("--json r --report r", "r is named twice"),
        ("--report - --quick", "only --json goes to standard output"),
    ] {
        let run = reproduce(&folder, arguments).code(2);
        assert!(stderr(&run).contains(said), "{arguments}: {}", stderr(&run));
        assert_eq!(stdout(&run), "", "{arguments}");
    }
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0, "nothing is left behind");
}

#[test]
fn what_can_be_written_is_written() {
    let folder = folder();
    let run = reproduce(&folder, &format!("{LITTLE} --json /dev/full --report r.html")).code(2);
    assert!(stderr(&run).contains("/dev/full: cannot be written"), "{}", stderr(&run));
    assert!(folder.path().join("r.html").exists());
}
