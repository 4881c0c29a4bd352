//! Tests the opening of recordings (`recording.rs`, `input.rs`): compressed, plain, truncated and damaged
//! files.
//!
//! A test packs one of the three small files below, opens the result, and compares the numbers of events and
//! snapshots, or the whole error message.

use super::*;
use crate::{Kind, Place};
use std::fs;
use std::io::{Cursor, Read};

const TRACE: &str = "# fhtrace 1 name with blanks\n0 0 1 F 10 14\n5 - 1 S 0 exec 1\n";
const SNAP: &str = "# fhsnap 1 name with blanks\n@ 0 exec 1 5 6 1 sh | /bin/sh | \n";
const STRACE: &str = "12 1795184165.550977 brk(NULL) = 0x1000 <0.000001>\n";

fn xz(text: &str) -> Vec<u8> {
    let mut packed = Vec::new();
    liblzma::bufread::XzEncoder::new(text.as_bytes(), 6).read_to_end(&mut packed).unwrap();
    packed
}

fn zstd(text: &str) -> Vec<u8> {
    zstd::encode_all(text.as_bytes(), 3).unwrap()
}

fn read_bytes(events: impl Into<Vec<u8>>, snapshots: Option<Vec<u8>>) -> Result<Recording, ReadError> {
    let boxed = |bytes: Vec<u8>| Box::new(Cursor::new(bytes)) as Box<dyn BufRead + Send>;
    Recording::read(Path::new("some.trace"), boxed(events.into()), snapshots.map(boxed))
}

/// Returns the numbers of events and of snapshots.
fn count(mut recording: Recording) -> Result<(u32, u32), ReadError> {
    let (mut events, mut snapshots) = (0, 0);
    while let Some(event) = recording.next_event()? {
        events += 1;
        if let Kind::Snapshot { id, .. } = event.kind {
            snapshots += u32::from(recording.snapshot(id)?.is_some());
        }
    }
    Ok((events, snapshots))
}

#[test]
fn compressed_and_plain_files_are_equal() {
    for trace in [TRACE.into(), xz(TRACE), zstd(TRACE)] {
        for snap in [SNAP.into(), xz(SNAP), zstd(SNAP)] {
            let recording = read_bytes(trace.clone(), Some(snap)).unwrap();
            assert_eq!(recording.name(), "name with blanks");
            assert_eq!(recording.format(), Format::Trace { version: 1 });
            assert_eq!(count(recording).unwrap(), (2, 1));
        }
        assert_eq!(count(read_bytes(trace, None).unwrap()).unwrap(), (2, 0));
    }
}

#[test]
fn snapshots_beside_the_recording_may_have_any_compression() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("a.trace"), TRACE).unwrap();
    fs::write(at("a.snap.zst"), zstd(SNAP)).unwrap();
    fs::write(at("b.trace.xz"), xz(TRACE)).unwrap();
    fs::write(at("b.snap"), SNAP).unwrap();
    fs::write(at("c.1.trace.zst"), zstd(TRACE)).unwrap();
    fs::write(at("d.strace.xz"), xz(STRACE)).unwrap();
    for (file, expected) in [("a.trace", (2, 1)), ("b.trace.xz", (2, 1)), ("c.1.trace.zst", (2, 0))] {
        assert_eq!(count(Recording::open(&at(file)).unwrap()).unwrap(), expected, "{file}");
    }
    let text = Recording::open(&at("d.strace.xz")).unwrap();
    assert_eq!((text.name(), text.format()), ("d", Format::Strace));
    assert_eq!(count(text).unwrap(), (1, 0));
    let error = Recording::open(&at("absent.trace")).err().unwrap().to_string();
    assert!(error.contains("absent.trace: "), "{error}");
    // The snapshot file with the recording's compression has priority.
    fs::write(at("b.snap.xz"), xz(&SNAP.replace("name", "other"))).unwrap();
    assert!(matches!(Recording::open(&at("b.trace.xz")), Err(ReadError::ForeignSnapshots { .. })));
}

#[test]
fn other_files_are_refused() {
    let message = |events: &str, snapshots: Option<&str>| {
        let read = read_bytes(events, snapshots.map(|text| text.as_bytes().to_vec())).and_then(count);
        read.unwrap_err().to_string()
    };
    let first = "some.trace:1: not a recording: expected `# fhtrace 1 NAME` or strace output, found ";
    assert_eq!(message("hello\n", None), format!("{first}\"hello\""));
    assert_eq!(
        message(SNAP, None),
        "some.trace:1: cannot replay a snapshot file; the events of recording \"name with blanks\" are in a file \
         NAME.trace, which is missing"
    );
    assert_eq!(message("# fhsnap 1 \n", None), format!("{first}\"# fhsnap 1 \""));
    assert_eq!(message("# fhtrace 1 \n", None), format!("{first}\"# fhtrace 1 \""));
    assert_eq!(message("", None), first.replace(":1:", ":0:") + "\"\"");
    let version = "some.trace:1: fhtrace version \"4\"; this program reads up to version 3";
    assert_eq!(message("# fhtrace 4 x\n", None), version);
    let version = "some.snap:1: fhsnap version \"10\"; this program reads up to version 1";
    assert_eq!(message(TRACE, Some("# fhsnap 10 name with blanks\n")), version);
    let foreign = "some.snap:1: these are the snapshots of \"x\", not of \"name with blanks\"";
    assert_eq!(message(TRACE, Some("# fhsnap 1 x\n")), foreign);
    assert!(message(TRACE, Some(TRACE)).contains("some.snap:1: column 1: expected `# fhsnap 1 NAME`"));
    assert!(message(TRACE, Some("")).contains("some.snap:0: the file is cut off here"));
}

/// A truncation anywhere in a file is an error, except between two lines of a plain file.
#[test]
fn truncation_is_detected() {
    let lines: String = (0..3000).map(|time| format!("{time} 0 1 F {time:x}000 6\n")).collect();
    let text = format!("# fhtrace 1 x\n{lines}");
    for packed in [xz(&text), zstd(&text), text.into_bytes()] {
        assert_eq!(count(read_bytes(packed.clone(), None).unwrap()).unwrap(), (3000, 0));
        for part in 1..40 {
            let end = packed.len() - 1 - (packed.len() - 10) * part / 40;
            if packed[..end].ends_with(b"6\n") {
                continue; // A plain file that ends between two lines looks complete.
            }
            let Err(error) = read_bytes(&packed[..end], None).and_then(count) else {
                panic!("cut at {end} of {}: not detected", packed.len());
            };
            assert!(matches!(error, ReadError::Truncated { .. }), "{error}");
        }
    }
}

#[test]
fn damage_in_a_compressed_stream_is_detected() {
    let lines: String = (0..3000).map(|time| format!("{time} 0 1 F {time:x}000 6\n")).collect();
    let mut packed = xz(&format!("# fhtrace 1 x\n{lines}"));
    let middle = packed.len() / 2;
    packed[middle] ^= 0x10;
    let error = read_bytes(packed, None).and_then(count).unwrap_err();
    assert!(!matches!(error, ReadError::NotARecording { .. }), "{error}");
}

#[test]
fn place_is_printed_as_file_and_line() {
    let place = Place { file: Path::new("a/b.trace").into(), line: 12 };
    assert_eq!(place.to_string(), "a/b.trace:12");
}
