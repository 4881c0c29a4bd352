//! Tests `freehold reproduce` as a user runs it (`src/command/reproduce.rs`): its output, its files and its
//! exit status. `cargo test --package freehold-cli --test cli reproduce::` runs this file.
//!
//! The tests run the smallest scale of one experiment, because they check the files and the exit status and
//! not the figures. An interrupted run is tested with real signals. A new output option needs a case in
//! `one_experiment_writes_all_requested_files` and in `end_by`, which checks that partial output is marked.
//! A refused argument needs a line in `invalid_arguments_are_refused_before_anything_runs`. The experiments
//! themselves are tested in `freehold-reproduce`.

use assert_cmd::assert::Assert;
use assert_cmd::cargo::cargo_bin_cmd;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Runs `freehold reproduce` in its own folder.
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

/// Arguments for the smallest run of one experiment.
const LITTLE: &str = "mmap-churn --quick --turns 1 --no-host --cpus 1";

#[test]
fn one_experiment_writes_all_requested_files() {
    let folder = folder();
    let run = reproduce(&folder, &format!("{LITTLE} --report r.html --markdown r.md --json r.json")).code(0);
    let text = stdout(&run);
    assert!(
        text.starts_with("mmap-churn: ") && text.contains("areas mapped, touched and unmapped per second"),
        "{text}"
    );
    // Without a terminal the command prints no progress bar, but one line when an experiment begins and one
    // line when it ends.
    let said = stderr(&run);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("freehold: mmap-churn (1 of 1) begins, about "), "{said}");
    assert!(lines[1].starts_with("freehold: mmap-churn (1 of 1) took "), "{said}");
    assert_eq!(lines.len(), 2, "{said}");
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
fn json_to_standard_output_suppresses_the_text() {
    let folder = folder();
    let run = reproduce(&folder, &format!("{LITTLE} --json - --quiet")).code(0);
    assert_eq!(stderr(&run), "");
    let json: Value = serde_json::from_str(&stdout(&run)).expect("only JSON");
    let first = &json["experiments"][0]["tables"][0]["rows"][0]["cells"];
    assert!(first[0]["measured"]["figure"]["median"].as_f64().expect("a number") > 0.0, "{first}");
    assert_eq!(first[4], "nothing", "the host was left out");
}

#[test]
fn invalid_arguments_are_refused_before_anything_runs() {
    let folder = folder();
    for (arguments, said) in [
        ("munmap", "munmap-hold, munmap-stall, fault-throughput"),
        ("--at-most 1KiB", "the size must be at least 2MiB"),
        ("--at-most much", "`much` is not a size"),
        ("--turns 0", "1..=99"),
        ("--report nowhere/r.html --quick", "cannot write nowhere/r.html"),
        ("--json . --quick", "cannot write ."),
        ("--json r --report r", "r is given twice"),
        ("--report - --quick", "only --json can be written to standard output"),
    ] {
        let run = reproduce(&folder, arguments).code(2);
        assert!(stderr(&run).contains(said), "{arguments}: {}", stderr(&run));
        assert_eq!(stdout(&run), "", "{arguments}");
    }
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0, "nothing is left behind");
}

#[test]
fn unwritable_file_does_not_prevent_the_other_files() {
    let folder = folder();
    let run = reproduce(&folder, &format!("{LITTLE} --json /dev/full --report r.html")).code(2);
    assert!(stderr(&run).contains("cannot write /dev/full"), "{}", stderr(&run));
    assert!(folder.path().join("r.html").exists());
}

/// Arguments for two experiments: the first ends at once, the second takes minutes.
const LONG: &str = "munmap-hold mmap-churn --quick --turns 25 --at-most 2MiB --no-host --cpus 1";

/// An interrupted run keeps the finished experiments and marks its output as partial.
#[test]
fn interrupted_run_keeps_finished_experiments() {
    let ignored = fs::read_to_string("/proc/self/status").expect("a status");
    let ignored = ignored.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).expect("a mask");
    let ignored = u64::from_str_radix(ignored, 16).expect("a mask");
    for (name, signal) in [("INT", 2), ("TERM", 15)] {
        // A shell starts its background processes with SIGINT ignored. Skip SIGINT in this case.
        if ignored >> (signal - 1) & 1 == 0 {
            end_by(name, signal);
        }
    }
}

/// Interrupts a run during its second experiment with this signal, and checks all outputs.
fn end_by(name: &str, signal: i32) {
    let folder = folder();
    let mut run = Command::new(env!("CARGO_BIN_EXE_freehold"))
        .current_dir(folder.path())
        .arg("reproduce")
        .args(LONG.split_whitespace())
        .args(["--json", "r.json", "--report", "r.html", "--markdown", "r.md"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut said = BufReader::new(run.stderr.take().expect("piped")).lines().map(|line| line.expect("text"));
    let begun = said.find(|line| line.starts_with("freehold: mmap-churn (2 of 2) begins"));
    assert!(begun.is_some(), "the second one begins");
    let told = Command::new("kill").args(["-s", name, &run.id().to_string()]).status().expect("kill");
    assert!(told.success());
    let (mut text, rest) = (String::new(), said.collect::<Vec<_>>());
    run.stdout.take().expect("piped").read_to_string(&mut text).expect("text");
    assert_eq!(run.wait().expect("its end").code(), Some(128 + signal));
    let partial =
        format!("Partial, interrupted by SIG{name}: 1 of 2 experiments finished, without mmap-churn");
    assert_eq!(rest, [format!("freehold: {partial}")]);
    assert!(text.starts_with("munmap-hold: ") && text.contains("time of the call"), "{text}");
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).expect("written");
    let json: Value = serde_json::from_str(&read("r.json")).expect("JSON");
    assert_eq!(json["experiments"].as_array().map(Vec::len), Some(1));
    assert_eq!(json["interrupted"]["signal"], signal);
    assert_eq!(json["interrupted"]["unfinished"][0], "mmap-churn");
    for name in ["r.html", "r.md"] {
        let text = read(name);
        assert!(text.contains(&partial) && text.contains("time of the call"), "{name}: {text}");
    }
}
