//! Tests the writing of files (`output.rs`): a file is complete or unchanged, and no temporary file remains.
//!
//! A test works in a temporary folder, and compares the names and contents of the files there.

use super::*;

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn file_is_absent_or_complete() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("result.json");
    let output = Output::new(&path).expect("it can be written");
    assert!(names(folder.path()).is_empty());
    output.write("one").expect("it is written");
    Output::new(&path).expect("it can be replaced");
    assert_eq!(fs::read_to_string(&path).expect("it is there"), "one");
    output.write("two").expect("it is written again");
    assert_eq!(fs::read_to_string(&path).expect("it is there"), "two");
    assert_eq!(names(folder.path()), ["result.json"]);
}

#[test]
fn unwritable_path_is_detected_before_writing() {
    let folder = tempfile::tempdir().expect("a folder");
    assert!(Output::new(&folder.path().join("nowhere/result.json")).is_err());
    assert!(Output::new(folder.path()).is_err());
    let file = folder.path().join("file");
    fs::write(&file, "").expect("a file");
    assert!(Output::new(&file.join("result.json")).is_err());
    assert_eq!(names(folder.path()), ["file"]);
}

#[test]
fn no_file_is_replaced_if_one_cannot_be_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let (first, gone) = (folder.path().join("first"), folder.path().join("gone"));
    fs::write(&first, "old").expect("a file");
    fs::create_dir(&gone).expect("a folder");
    let outputs = [&first, &gone.join("second")].map(|path| Output::new(path).expect("it can be written"));
    let both = [(&outputs[0], &b"new"[..]), (&outputs[1], b"new")];
    fs::remove_dir(&gone).expect("it is empty");
    assert!(Output::write_together(&both).is_err());
    assert_eq!(fs::read_to_string(&first).expect("it is there"), "old");
    assert_eq!(names(folder.path()), ["first"]);
    fs::create_dir(&gone).expect("a folder");
    Output::write_together(&both).expect("they are written");
    assert_eq!(fs::read_to_string(&first).expect("it is there"), "new");
    assert_eq!(names(&gone), ["second"]);
}

#[test]
fn link_is_followed_and_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let (link, target) = (folder.path().join("link"), folder.path().join("target"));
    fs::write(&target, "old").expect("a file");
    std::os::unix::fs::symlink(&target, &link).expect("a link");
    Output::new(&link).and_then(|output| output.write("new")).expect("it is written");
    assert_eq!(fs::read_to_string(&target).expect("it is there"), "new");
    assert!(fs::symlink_metadata(&link).expect("it is there").is_symlink());
}

#[test]
fn device_is_written_in_place() {
    let output = Output::new(Path::new("/dev/null")).expect("every process may write there");
    output.write("gone").expect("it accepts everything");
    assert!(!fs::metadata("/dev/null").expect("it is still there").is_file());
}
