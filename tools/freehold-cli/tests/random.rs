//! Records random calls on the running kernel with `freehold record`, replays the recordings, and expects
//! Linux's answers.
//!
//! The test makes few calls by default. With `FREEHOLD_EFFORT=long` it makes a hundred thousand calls of each
//! kind. The recordings are strace output; a long run also records with the kernel's tracing if the machine
//! allows it.
//!
//! A recording leaves some answers open, and the replay does not yet recognise all of these answers. A long
//! run may therefore contain a bounded number of differences. The constants `RARE_*` are the bounds: a lower
//! value permits more differences, so never lower a value.
//!
//! The program that makes the calls is this test program, started with the options of `examples/random`. A
//! failure prints the seed and the kind of calls, so that the example can repeat the calls with `--seed` and
//! `--mix`.

#[path = "../examples/random/mod.rs"]
mod program;

use freehold_machine::Effort;
use freehold_replay::{Options, replay};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// In a long run with strace output, at most one in this many answers may differ.
const RARE_IN_TEXTS: u64 = 200_000;
/// In recordings by the kernel's tracing, at most one in this many calls and faults may differ.
const RARE_IN_TRACES: u64 = 30_000;
/// At most one in this many snapshots may differ. A process keeps a difference until it ends, so every later
/// snapshot of the process shows the same difference.
const RARE_AMONG_SNAPSHOTS: u64 = 20;

/// Results, summed over several runs.
#[derive(Default)]
struct Sum {
    /// Number of compared calls and faults.
    answers: u64,
    /// Number of compared calls and faults that differ.
    different: u64,
    /// Number of compared snapshots.
    snapshots: u64,
    /// Number of compared snapshots that differ.
    different_snapshots: u64,
}

fn is_long() -> bool {
    Effort::asked() == Effort::Long
}

/// Records a run of `calls` calls, with further arguments to the recorder. Prints a notice and returns `None`
/// if the machine does not support it.
fn record(folder: &TempDir, args: &[&str], mix: &str, seed: u64, calls: u64) -> Option<PathBuf> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_freehold"));
    command.current_dir(folder.path()).args(["record", "--force", "-o", "t"]).args(args).arg("--");
    command.arg(std::env::current_exe().expect("this program")).args([
        "--mix",
        mix,
        "--seed",
        &seed.to_string(),
        "--calls",
        &calls.to_string(),
    ]);
    if args.contains(&"--calls-only") {
        // Old versions of strace do not know mseal.
        command.arg("--no-mseal");
    }
    let output = command.stdin(Stdio::null()).output().expect("run");
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("strace is not installed") {
        eprintln!("skipped: {said}");
        return None;
    }
    assert!(output.status.success(), "seed {seed}, {mix}: {said}");
    let made = ["t.trace.zst", "t.strace", "t.strace.zst"].map(|name| folder.path().join(name));
    made.into_iter().find(|path| path.exists())
}

/// Records a run, replays it, and prints the number of differences.
fn run(args: &[&str], mix: &str, seed: u64, calls: u64, sum: &mut Sum) {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(made) = record(&folder, args, mix, seed, calls) else { return };
    let outcome = replay(&made, &Options { cpus: 2, ..Options::default() }, &());
    let outcome = outcome.unwrap_or_else(|error| panic!("seed {seed}, {mix}: {error}"));
    let different =
        (outcome.calls.all - outcome.calls.as_linux) + (outcome.faults.all - outcome.faults.as_linux);
    println!("seed {seed}, {mix}: {different} of {} calls differ", outcome.calls.all);
    if !is_long() {
        assert_eq!(outcome.difference_count, 0, "seed {seed}, {mix}: {:#?}", outcome.differences);
    }
    assert!(outcome.is_whole(), "seed {seed}, {mix}: {:?}, {:?}", outcome.unread_lines, outcome.cut_off);
    assert!(outcome.calls.all > calls / 3, "only {} of {calls} calls compared", outcome.calls.all);
    sum.answers += outcome.calls.all + outcome.faults.all;
    sum.different += different;
    sum.snapshots += outcome.snapshots.all;
    sum.different_snapshots += outcome.snapshots.all - outcome.snapshots.as_linux;
}

fn main() {
    if std::env::args().any(|arg| arg == "--mix") {
        return program::main();
    }
    let texts = of_both_kinds(&["--calls-only"]);
    assert!(texts.different <= texts.answers / RARE_IN_TEXTS, "{} of {}", texts.different, texts.answers);
    if is_long() {
        let traces = of_both_kinds(&[]);
        let Sum { answers, different, snapshots, different_snapshots } = traces;
        assert!(different <= answers / RARE_IN_TRACES, "{different} of {answers}");
        let allowed = snapshots / RARE_AMONG_SNAPSHOTS;
        assert!(different_snapshots <= allowed, "{different_snapshots} of {snapshots} snapshots");
    }
}

/// Records and replays runs with both kinds of calls, and returns their sums.
fn of_both_kinds(args: &[&str]) -> Sum {
    let (runs, calls) = Effort::of((1, 500), (1, 2_000), (5, 20_000));
    let mut sum = Sum::default();
    for mix in ["model", "outsider"] {
        for seed in 0..runs {
            run(args, mix, 1 + seed * 1_000_000, calls, &mut sum);
        }
    }
    sum
}
