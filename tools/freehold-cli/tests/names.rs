//! Names of recordings: the files that a name stands for, and the files that a recording must not overwrite.
//!
//! A user may name a recording by its base name or by any of its files. The tests run `freehold record` with
//! each form of a name, and with names that must be refused. If a name is refused, the command `touch ran`
//! must not run, so the file `ran` must not exist afterwards. The code is `Names` in
//! `freehold-record/src/write.rs`.

use super::freehold;
use std::path::Path;

/// A recording can be named by any of its files.
#[test]
fn recording_can_be_named_by_any_of_its_files() {
    for suffix in
        [".trace", ".trace.zst", ".trace.xz", ".snap", ".snap.zst", ".strace", ".strace.zst", ".strace.xz"]
    {
        let folder = tempfile::tempdir().expect("a folder");
        let name = format!("a.b{suffix}");
        let output = freehold(folder.path(), &["record", "--calls-only", "-o", &name, "--", "true"]);
        let mut made = names(folder.path());
        made.retain(|name| name != "a.b.strace.zst");
        assert_eq!((output.status.code(), made), (Some(0), Vec::new()), "{name}: {output:?}");
        let again = freehold(folder.path(), &["record", "--calls-only", "-o", &name, "--", "true"]);
        let said = String::from_utf8_lossy(&again.stderr).into_owned();
        assert!(said.contains("a.b.strace.zst exists already"), "{said}");
    }
}

#[test]
fn folder_is_refused_as_name_of_a_recording() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("kept")).expect("a folder");
    for name in ["kept", "kept/", "new/", "kept/.", "kept/../kept", "/"] {
        let output = freehold(folder.path(), &["record", "-o", name, "--", "touch", "ran"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let expected = format!("error: cannot write a recording to {name}: it is a folder; ");
        assert!(output.status.code() == Some(125) && said.starts_with(&expected), "{name}: {said}");
    }
    for name in [".trace.zst", "kept/.snap", ".strace"] {
        let output = freehold(folder.path(), &["record", "-o", name, "--", "touch", "ran"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(125) && said.contains("cannot be the name of a recording"),
            "{name}: {said}"
        );
    }
    assert_eq!(names(folder.path()), ["kept"]);
}

/// An unwritable file is detected before the command runs.
#[test]
fn command_does_not_run_if_a_file_of_its_recording_cannot_be_written() {
    for (file, args) in [("t.trace.zst", &[][..]), ("t.snap.zst", &[]), ("t.strace.zst", &["--calls-only"])] {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join(file)).expect("a folder");
        let all = [&["record", "--force", "-o", "t"][..], args, &["--", "touch", "ran"]].concat();
        let output = freehold(folder.path(), &all);
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        assert_eq!(names(folder.path()), [file], "{output:?}");
    }
}

/// Returns the sorted names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("there").file_name();
    let mut names: Vec<String> = entries.map(|entry| name(entry).to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
