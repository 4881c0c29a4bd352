//! Tests the progress bar of a replay (`progress.rs`): the estimate of the number of events, and a bar whose
//! estimate was too low.
//!
//! A test writes a recording of equal lines with a known number of events, and compares the estimate with
//! this number.

use super::*;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Writes a recording with `faults` faults.
fn recording(folder: &Path, faults: u64) -> std::path::PathBuf {
    let path = folder.join("t.trace");
    let mut text = "# fhtrace 1 t\n".to_owned();
    for time in 0..faults {
        writeln!(text, "{time} 0 1 F 7f0000{:06x} 6 x1", time * 4096 % 0x100_0000)
            .expect("writing to a string");
    }
    fs::write(&path, text).expect("written");
    path
}

#[test]
fn events_of_a_short_recording_are_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    assert_eq!(estimate(&(&recording(folder.path(), 100)).into()), Some(100));
    assert_eq!(estimate(&(&recording(folder.path(), 0)).into()), Some(0));
}

#[test]
fn events_of_a_long_recording_are_estimated() {
    let folder = tempfile::tempdir().expect("a folder");
    let events = estimate(&(&recording(folder.path(), 5 * SAMPLE)).into()).expect("a readable recording");
    assert!((4 * SAMPLE..6 * SAMPLE).contains(&events), "{events}");
}

#[test]
fn unreadable_recording_has_no_estimate() {
    assert_eq!(estimate(&"/dev/null".into()), None);
    assert_eq!(estimate(&"/nowhere".into()), None);
}

#[test]
fn bar_grows_when_events_exceed_the_estimate() {
    let bar = Bar { bar: ProgressBar::with_draw_target(Some(10), ProgressDrawTarget::hidden()) };
    bar.ran(7);
    assert_eq!((bar.bar.position(), bar.bar.length()), (7, Some(10)));
    bar.ran(12);
    assert_eq!((bar.bar.position(), bar.bar.length()), (12, Some(12)));
}
