//! Random calls on the running kernel, recorded as everybody records programs, and replayed: all as on Linux. A quick look each time; with
//! `FREEHOLD_LONG` a hundred thousand calls of each kind.
//!
//! A text by strace does not determine everything, and of what it leaves open the replay does not know all yet: in the long run one answer
//! in [`RARE`] may be another. The bound may only grow.
//!
//! The program that makes the calls is this one, called with options: `examples/random`.

#[path = "../examples/random/mod.rs"]
mod program;

use freehold_cli::replay::{Options, replay};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Answers among which one may differ, in the long run.
const RARE: u64 = 2_500;

fn is_long() -> bool {
    std::env::var_os("FREEHOLD_LONG").is_some()
}

/// Records a run, with further arguments to the recorder; none where the machine does not allow it, which is said.
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
        // strace need not know of it.
        command.arg("--no-mseal");
    }
    let output = command.stdin(Stdio::null()).output().expect("run");
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("strace is not installed") {
        eprintln!("left out: {said}");
        return None;
    }
    assert!(output.status.success(), "seed {seed}, {mix}: {said}");
    let made = ["t.trace.zst", "t.strace", "t.strace.zst"].map(|name| folder.path().join(name));
    made.into_iter().find(|path| path.exists())
}

/// Records and replays; each difference is shown.
fn assert_as_linux(args: &[&str], mix: &str, seed: u64, calls: u64) {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(made) = record(&folder, args, mix, seed, calls) else { return };
    let outcome = replay(&made, &Options { cpus: 2, ..Options::default() }, &());
    let outcome = outcome.unwrap_or_else(|error| panic!("seed {seed}, {mix}: {error}"));
    let allowed = if is_long() { outcome.calls.all / RARE } else { 0 };
    println!("seed {seed}, {mix}: {} of {} calls differ", outcome.difference_count, outcome.calls.all);
    assert!(outcome.difference_count <= allowed, "seed {seed}, {mix}: {:#?}", outcome.differences);
    assert!(outcome.is_whole(), "seed {seed}, {mix}: {:?}, {:?}", outcome.unread_lines, outcome.cut_off);
    assert!(outcome.calls.all > calls / 3, "only {} of {calls} calls compared", outcome.calls.all);
}

fn main() {
    if std::env::args().any(|arg| arg == "--mix") {
        return program::main();
    }
    texts_of_random_calls();
}

/// Texts by strace.
fn texts_of_random_calls() {
    let (runs, calls) = if is_long() { (5, 20_000) } else { (1, 2_000) };
    for mix in ["model", "outsider"] {
        for seed in 0..runs {
            assert_as_linux(&["--calls-only"], mix, 1 + seed * 1_000_000, calls);
        }
    }
}
