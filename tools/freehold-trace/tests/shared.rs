//! Reads the shared recordings completely, if the folder `../shared/traces` is present. Compares the counts
//! of events with the manifest of that folder, and the written files with the originals byte for byte.
//!
//! The recordings come from another recorder, so the manifest is independent of this crate. Without the
//! folder the tests pass and check nothing. The last test of the file needs no recordings.

use freehold_trace::{CallName, Kind, Recording, SnapWriter, Snapshot, TraceWriter, Why};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

fn folder() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    folder.join("manifest.json").exists().then_some(folder)
}

fn manifest(folder: &Path) -> Vec<Value> {
    let text = fs::read_to_string(folder.join("manifest.json")).unwrap();
    let manifest: Value = serde_json::from_str(&text).unwrap();
    let all = manifest["traces"].as_array().unwrap().clone();
    all.into_iter().filter(|one| folder.join(format!("{}.trace.xz", name(one))).exists()).collect()
}

fn name(recording: &Value) -> &str {
    recording["name"].as_str().unwrap()
}

fn unpacked(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let file = BufReader::new(File::open(path).unwrap());
    liblzma::bufread::XzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    bytes
}

/// The counts of a recording, in the categories of the manifest.
#[derive(Default)]
struct Counts {
    records: u64,
    calls: BTreeMap<String, u64>,
    faults: BTreeMap<&'static str, u64>,
    snapshots: BTreeMap<&'static str, u64>,
}

impl Counts {
    fn add(&mut self, kind: &Kind, major: bool, resolved: bool) {
        self.records += 1;
        match kind {
            Kind::Fault { code, in_exec, .. } => {
                let mut fault = |what| *self.faults.entry(what).or_default() += 1;
                if *in_exec {
                    fault("inside execve");
                    return;
                }
                fault("total");
                fault(if code.user() { "user_mode" } else { "kernel_mode" });
                if major {
                    fault("major");
                }
                if resolved {
                    fault("completed");
                }
            }
            Kind::Call(call) => *self.calls.entry(call.name.as_str().to_owned()).or_default() += 1,
            Kind::Clone { flags, .. } => {
                let what = match flags {
                    _ if flags & 0x10000 != 0 => "clone thread",
                    _ if flags & 0x4000 != 0 => "vfork",
                    _ if flags & 0x100 != 0 => "clone vm",
                    _ => "fork",
                };
                *self.calls.entry(what.to_owned()).or_default() += 1;
            }
            Kind::Exec { .. } => *self.calls.entry("execve".to_owned()).or_default() += 1,
            // The manifest has one count for the exit of a task and the call that requests the exit.
            Kind::Exit { .. } => *self.calls.entry("exit".to_owned()).or_default() += 1,
            _ => {}
        }
    }

    fn compare(&self, manifest: &Value) {
        let name = name(manifest);
        assert_eq!(self.records, manifest["records"].as_u64().unwrap(), "{name}: records");
        let calls = manifest["calls"].as_object().unwrap();
        for (call, count) in calls.iter().filter(|(call, _)| !call.starts_with("signal")) {
            let found = self.calls.get(call).copied().unwrap_or(0);
            assert_eq!(found, count.as_u64().unwrap(), "{name}: {call}");
        }
        for call in self.calls.keys() {
            assert!(calls.contains_key(call), "{name}: {call} is missing in the manifest");
        }
        for what in ["total", "user_mode", "kernel_mode", "major", "completed"] {
            let found = self.faults.get(what).copied().unwrap_or(0);
            assert_eq!(found, manifest["faults"][what].as_u64().unwrap(), "{name}: faults, {what}");
        }
        let in_exec = manifest["faults"]["kinds"]["inside execve"].as_u64().unwrap_or(0);
        assert_eq!(
            self.faults.get("inside execve").copied().unwrap_or(0),
            in_exec,
            "{name}: faults inside execve"
        );
        for (why, count) in manifest["snapshots"].as_object().unwrap() {
            let found = self.snapshots.get(why.as_str()).copied().unwrap_or(0);
            assert_eq!(found, count.as_u64().unwrap(), "{name}: snapshots, {why}");
        }
    }
}

fn check(folder: &Path, manifest: &Value) {
    let name = name(manifest);
    let path = folder.join(format!("{name}.trace.xz"));
    let mut recording = Recording::open(&path).unwrap();
    assert_eq!(recording.name(), name);
    let mut trace = TraceWriter::new(Vec::new(), name).unwrap();
    let mut snapshots = SnapWriter::new(Vec::new(), name).unwrap();
    let (mut counts, mut files) = (Counts::default(), 0);
    while let Some(event) = recording.next_event().unwrap_or_else(|error| panic!("{error}")) {
        for file in &recording.files()[files..] {
            trace.file(file).unwrap();
        }
        files = recording.files().len();
        trace.event(&event).unwrap();
        counts.add(&event.kind, event.cost.major, event.cost.after.is_some());
        if let Kind::Snapshot { id, why, process } = event.kind {
            let snapshot = recording.snapshot(id).unwrap_or_else(|error| panic!("{error}")).unwrap();
            assert_eq!((snapshot.id, snapshot.why, snapshot.process), (id, why, process));
            *counts.snapshots.entry(counted_as(why)).or_default() += 1;
            plausible(&snapshot);
            snapshots.snapshot(&snapshot).unwrap();
            assert_eq!(recording.snapshot(id).unwrap(), None, "each snapshot is returned once");
        }
    }
    counts.compare(manifest);
    let mut written = trace.finish().unwrap();
    // The recordings have version 1. Their lines are those of the current version, except for the number in
    // the first line.
    written["# fhtrace ".len()] = b'1';
    assert!(written == unpacked(&path), "{name}: the written trace differs");
    same_snapshots(name, &snapshots.finish().unwrap(), &unpacked(&folder.join(format!("{name}.snap.xz"))));
}

fn counted_as(why: Why) -> &'static str {
    match why {
        Why::Exec | Why::MidExec => "exec",
        Why::Freeze => "freeze",
        Why::Exit => "exit",
    }
}

/// Checks that VMAs and pages are in ascending order and do not overlap.
fn plausible(snapshot: &Snapshot) {
    assert!(snapshot.areas.is_sorted_by(|a, b| a.end <= b.start), "snapshot {}", snapshot.id);
    assert!(snapshot.pages.is_sorted_by(|a, b| a.first + a.count <= b.first), "snapshot {}", snapshot.id);
}

/// Compares snapshots byte for byte, except for the pages of snapshots in which the recorder listed some
/// pages twice.
fn same_snapshots(name: &str, written: &[u8], read: &[u8]) {
    let parts = |bytes: &[u8]| -> Vec<String> {
        String::from_utf8(bytes.to_vec()).unwrap().split("\n@ ").map(str::to_owned).collect()
    };
    let (written, read) = (parts(written), parts(read));
    assert_eq!(written.len(), read.len());
    for (written, read) in written.iter().zip(&read) {
        if read.contains("\nP -") {
            let without = |part: &str| -> Vec<String> {
                part.lines().filter(|line| !line.starts_with('P')).map(str::to_owned).collect()
            };
            assert_eq!(without(written), without(read), "{name}");
        } else {
            assert_eq!(written, read, "{name}");
        }
    }
}

/// Reads only the recordings with few lines. Every run of the tests includes this test.
#[test]
fn small_recordings_match_manifest_and_original() {
    let Some(folder) = folder() else { return };
    for one in manifest(&folder).iter().filter(|one| one["records"].as_u64().unwrap() < 110_000) {
        check(&folder, one);
    }
}

/// Run with `cargo test -p freehold-trace --release --test trace -- --ignored`.
#[test]
#[ignore = "takes half a minute"]
fn all_recordings_match_manifest_and_original() {
    let Some(folder) = folder() else { return };
    let all = manifest(&folder);
    assert!(all.len() >= 18);
    for one in &all {
        check(&folder, one);
    }
}

/// Different calls have different names.
#[test]
fn names_of_calls_are_distinct() {
    for name in CallName::ALL {
        assert_eq!(CallName::parse(name.as_str()), Some(*name));
    }
}
