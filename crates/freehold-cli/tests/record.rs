//! `freehold record`, as far as this machine allows it: with the kernel's tracing, else with strace, else a clear word.

use assert_cmd::Command;
use std::path::{Path, PathBuf};
use std::process::Output;
use tempfile::TempDir;

/// Forks, execs, fails an exec, has a signal end a child, and leaves another behind.
const SCRIPT: &str = "cat /dev/null; /nowhere 2>/dev/null; sleep 0.03 & sh -c 'kill -SEGV $$'; exit 7";

fn freehold(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::cargo_bin("freehold").expect("built");
    command.current_dir(folder).args(args).output().expect("run")
}

/// Records a command as `t` with further arguments; the file that it made, if one could be made at all.
fn record(folder: &TempDir, args: &[&str], command: &[&str]) -> (Output, Option<PathBuf>) {
    let all: Vec<&str> = ["record", "-o", "t"]
        .into_iter()
        .chain(args.iter().copied())
        .chain(["--"])
        .chain(command.iter().copied())
        .collect();
    let output = freehold(folder.path(), &all);
    let made = ["t.trace.zst", "t.strace"]
        .map(|name| folder.path().join(name))
        .into_iter()
        .find(|path| path.exists());
    if made.is_none() {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("strace is not installed") || said.contains("cannot be run"), "{said}");
        assert_eq!(output.status.code(), Some(125), "{said}");
    }
    (output, made)
}

#[test]
fn what_was_recorded_is_replayed_as_on_linux() {
    for args in [&[][..], &["--calls-only"], &["--snapshot-every", "20ms", "--snapshots", "3"]] {
        let folder = tempfile::tempdir().expect("a folder");
        let (output, Some(made)) = record(&folder, args, &["sh", "-c", SCRIPT]) else { return };
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(7), "the command's own status: {said}");
        let replayed = freehold(folder.path(), &["replay", &made.to_string_lossy()]);
        let report = String::from_utf8_lossy(&replayed.stdout);
        assert_eq!(replayed.status.code(), Some(0), "{report}\n{said}");
        assert!(report.contains("all as Linux"), "{report}");
    }
}

#[test]
fn paths_are_renamed_in_both_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let args = ["--rename", "/usr=/elsewhere", "--rename", "/lib=/elsewhere/lib"];
    let (_, Some(made)) = record(&folder, &args, &["sh", "-c", "exit"]) else { return };
    if made.ends_with("t.strace") {
        return;
    }
    for file in [made, folder.path().join("t.snap.zst")] {
        let text = zstd::decode_all(std::fs::File::open(&file).expect("there")).expect("zstd");
        let text = String::from_utf8(text).expect("text");
        assert!(text.contains(" /elsewhere/"), "{text}");
        assert!(!text.contains(" /usr/"), "{text}");
    }
}

#[test]
fn a_command_that_cannot_be_run_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("text"), "no program").expect("written");
    for (command, status) in [("/nowhere/at/all", 127), ("no-such-command", 127), ("./text", 126), ("/", 126)]
    {
        for args in
            [&["record", "-o", "t", "--", command][..], &["record", "--calls-only", "-o", "t", "--", command]]
        {
            let output = freehold(folder.path(), args);
            assert_eq!(output.status.code(), Some(status), "{args:?}");
            assert!(String::from_utf8_lossy(&output.stderr).contains("cannot be run"), "{output:?}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 1, "{command}");
    }
}

#[test]
fn a_recording_that_cannot_be_written_is_told_from_what_a_command_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = freehold(folder.path(), &["record", "-o", "no/such/folder/t", "--", "true"]);
    assert_eq!(output.status.code(), Some(125));
}

/// Whether this signal is ignored here, and so in all that is begun here: a shell cannot trap it then.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a set of signals");
    u64::from_str_radix(set.trim(), 16).expect("hexadecimal") >> (signal - 1) & 1 != 0
}

/// Told to end, the recorder has the command told, records it to its end, and writes everything.
#[test]
fn a_recording_that_is_told_to_end_is_whole() {
    for signal in [libc::SIGTERM, libc::SIGINT].into_iter().filter(|signal| !is_ignored(*signal)) {
        let folder = tempfile::tempdir().expect("a folder");
        let (probe, Some(made)) = record(&folder, &["--force"], &["true"]) else { return };
        assert!(
            String::from_utf8_lossy(&probe.stderr).contains("freehold: freehold replay ./t."),
            "{probe:?}"
        );
        let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin("freehold"))
            .current_dir(folder.path())
            .args([
                "record",
                "--force",
                "-o",
                "t",
                "--",
                "sh",
                "-c",
                "trap 'exit 3' TERM INT; touch on; while :; do sleep 0.05; done",
            ])
            .spawn()
            .expect("run");
        while !folder.path().join("on").exists() {
            assert!(child.try_wait().expect("asked").is_none(), "it ended before it was told");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let told = rustix::process::kill_process(
            rustix::process::Pid::from_child(&child),
            rustix::process::Signal::from_named_raw(signal).expect("a signal"),
        );
        assert!(told.is_ok());
        let ended = (0..3000).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            child.try_wait().expect("asked")
        });
        let _ = child.kill();
        assert_eq!(ended.and_then(|status| status.code()), Some(3), "the command's own");
        let replayed = freehold(folder.path(), &["replay", &made.to_string_lossy()]);
        assert_eq!(replayed.status.code(), Some(0), "{}", String::from_utf8_lossy(&replayed.stdout));
    }
}

#[test]
fn nothing_is_overwritten() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["t.trace.zst", "t.snap.zst", "t.strace"] {
        let there = folder.path().join(name);
        std::fs::write(&there, "mine").expect("written");
        let output = freehold(folder.path(), &["record", "-o", "t", "--", "true"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(&format!("{name} exists already")), "{said}");
        assert_eq!(output.status.code(), Some(125));
        assert_eq!(std::fs::read(&there).expect("still there"), b"mine");
        std::fs::remove_file(there).expect("removed");
    }
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    for args in [
        &["record"][..],
        &["record", "--buffer-kb", "1", "--", "true"],
        &["record", "--rename", "nothing", "--", "true"],
        &["record", "--snapshot-every", "soon", "--", "true"],
    ] {
        assert_eq!(freehold(folder.path(), args).status.code(), Some(2), "{args:?}");
    }
}
