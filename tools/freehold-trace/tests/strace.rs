//! Outputs of strace 6.1, and the events that are read from them.
//!
//! The files `tests/data/NAME.strace` are outputs for small programs that were made for the tests.
//! `NAME.trace` contains the events in the project's own format, which were checked by hand when the files
//! were created. To add a case, run strace with the options of `docs/guide/replay.md`, create the events with
//! `cargo run --example show FILE`, and check them by hand. Single lines and errors are tested in
//! `src/strace/tests.rs`.

use freehold_trace::{Format, Kind, Recording, TraceWriter};
use std::fs;
use std::path::{Path, PathBuf};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// Returns the events of a recording in the project's own format, and the number of skipped calls.
fn rewritten(path: &Path) -> (String, u64) {
    let mut recording = Recording::open(path).unwrap();
    assert_eq!(recording.format(), Format::Strace);
    let mut writer = TraceWriter::new(Vec::new(), recording.name()).unwrap();
    let mut files = 0;
    while let Some(event) = recording.next_event().unwrap_or_else(|error| panic!("{error}")) {
        for file in &recording.files()[files..] {
            writer.file(file).unwrap();
        }
        files = recording.files().len();
        writer.event(&event).unwrap();
    }
    let text = String::from_utf8(writer.finish().unwrap()).unwrap();
    (text, recording.skipped().values().sum())
}

#[track_caller]
fn check(name: &str, skipped: u64) {
    let expected = fs::read_to_string(data(&format!("{name}.trace"))).unwrap();
    let (text, others) = rewritten(&data(&format!("{name}.strace")));
    for (number, (found, expected)) in text.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found, expected, "{name}.trace:{}", number + 1);
    }
    assert_eq!(text.lines().count(), expected.lines().count());
    assert_eq!(others, skipped);
}

/// The output contains every flag and call that the reader supports, huge pages, System V memory, a kill, and
/// a thread that calls execve.
#[test]
fn output_with_all_calls_is_read() {
    check("flags", 4);
}

/// The output contains six threads, children of threads, vfork, a child in the parent's address space, and
/// signals.
#[test]
fn output_with_threads_is_read() {
    check("threads", 10);
}

#[test]
fn output_with_process_vm_calls_is_read() {
    check("transfer", 1);
    let mut recording = Recording::open(&data("transfer.strace")).unwrap();
    let mut moved = Vec::new();
    while let Some(event) = recording.next_event().unwrap() {
        if let Kind::Call(call) = event.kind
            && let (Some(transfer), Some(count)) = (call.transfer, call.returned.value())
        {
            let shown: usize = transfer.shown.iter().map(Vec::len).sum();
            moved.push((transfer.process, count, shown));
        }
    }
    assert_eq!(
        moved,
        [
            (Some(2), 130, 10 + 64 + 20),
            (Some(2), 64, 64),
            (Some(2), 16, 16),
            (Some(2), 0, 0),
            (Some(1), 130, 94)
        ]
    );
}

/// The events of each output are equal to those that are read from its `NAME.trace`.
#[test]
fn events_of_strace_output_equal_those_of_its_recording() {
    for name in ["flags", "threads", "transfer"] {
        let mut events = [Vec::new(), Vec::new()];
        for (suffix, events) in ["strace", "trace"].into_iter().zip(&mut events) {
            let mut recording = Recording::open(&data(&format!("{name}.{suffix}"))).unwrap();
            while let Some(mut event) = recording.next_event().unwrap() {
                event.line = 0;
                if let Kind::Call(call) = &mut event.kind {
                    call.transfer = None;
                    call.beside.clear();
                }
                events.push(event);
            }
        }
        assert_eq!(events[0], events[1]);
    }
}

/// The shared strace output of a Redis server has the expected numbers of events. Passes if the file is
/// absent.
#[test]
fn shared_strace_output_is_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces/sample-redis.strace.xz");
    if path.exists() {
        let (text, _) = rewritten(&path);
        let count = |part: &str| text.lines().filter(|line| line.contains(part)).count();
        assert_eq!((count(" E "), count(" N "), count(" X")), (16, 25, 26));
        assert_eq!(
            (count(" mmap "), count(" munmap "), count(" mprotect "), count(" madvise ")),
            (1109, 40, 236, 360)
        );
    }
}
