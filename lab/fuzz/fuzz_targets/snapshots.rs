//! Checks the reader and the writer of snapshots (`freehold-trace`): the reader reads any bytes after the
//! first line as snapshots, or refuses them with an error that names the line.
//!
//! The areas and pages of a snapshot ascend, and a snapshot that is written out again reads back unchanged,
//! except for the number of its line. `engine.rs` describes how to run a target.
//! `tools/freehold-trace/tests/data/small.snap` without its first line is a good initial corpus.
#![no_main]

use freehold_trace::{ReadError, Recording, SnapWriter, Snapshot};
use libfuzzer_sys::fuzz_target;
use std::io::Cursor;
use std::path::Path;

/// Number of snapshots that the target reads, from number 0.
const ASKED: u32 = 8;

/// Reads the snapshots with the numbers below [`ASKED`], the highest number first.
fn read(snapshots: Vec<u8>) -> Result<Vec<Snapshot>, ReadError> {
    let events = Box::new(Cursor::new(b"# fhtrace 1 x\n".to_vec()));
    let mut recording = Recording::read(Path::new("x"), events, Some(Box::new(Cursor::new(snapshots))))?;
    let mut found = Vec::new();
    for id in (0..ASKED).rev() {
        found.extend(recording.snapshot(id)?);
    }
    Ok(found)
}

fuzz_target!(|data: &[u8]| {
    match read([b"# fhsnap 1 x\n", data].concat()) {
        Err(error) => assert!(error.to_string().starts_with("x.snap"), "{error}"),
        Ok(found) => {
            let mut writer = SnapWriter::new(Vec::new(), "x").expect("memory");
            for snapshot in &found {
                assert!(snapshot.areas.is_sorted_by(|a, b| a.end <= b.start));
                assert!(snapshot.pages.is_sorted_by(|a, b| a.first + a.count <= b.first));
                writer.snapshot(snapshot).expect("memory");
            }
            let mut again = read(writer.finish().expect("memory")).expect("a written snapshot is readable");
            assert_eq!(again.len(), found.len());
            for (again, snapshot) in again.iter_mut().zip(found) {
                again.line = snapshot.line;
                assert_eq!(*again, snapshot);
            }
        }
    }
});
