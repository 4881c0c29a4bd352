//! Recordings of test suites (LTP, its POSIX suite, the kernel's own tests), of the causes of earlier
//! differences, and of real programs. All match Linux, except those that `recordings/exceptions.txt` lists
//! with reasons. A recording that matches Linux must be removed from that list. A new recording needs only
//! its files in a folder of `recordings/`, and a line in the list if it differs for a known reason.

use freehold_machine::Effort;
use freehold_replay::{Options, replay};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;

/// Smallest number of recordings. A smaller number means that some recordings were not found.
const LEAST: usize = 297;

/// Number of recordings that are replayed concurrently.
const WORKERS: usize = 2;

/// Folder of recordings that are too long to check for stale TLB entries on every access.
const PROGRAMS: &str = "programs";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recordings")
}

/// Returns the recordings by name, which begins with the name of their folder.
fn recordings() -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    for part in ["suites", "causes", PROGRAMS] {
        let files = fs::read_dir(folder().join(part)).expect("the folder of recordings is readable");
        for path in files.flatten().map(|entry| entry.path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if let Some(name) = name.strip_suffix(".trace.zst").or(name.strip_suffix(".trace.xz")) {
                found.insert(format!("{part}/{name}"), path);
            }
        }
    }
    assert!(found.len() >= LEAST, "only {} recordings", found.len());
    found
}

/// Returns the names of recordings that differ, with reasons.
fn exceptions() -> BTreeMap<String, String> {
    let text =
        fs::read_to_string(folder().join("exceptions.txt")).expect("the list of exceptions is readable");
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let parts = lines.map(|line| line.split_once(": ").expect("NAME: REASON"));
    parts.map(|(name, why)| (name.to_owned(), why.to_owned())).collect()
}

/// Combined results of all recordings.
#[derive(Default)]
struct Seen {
    differ: BTreeSet<String>,
    wrong: Vec<String>,
    places: u64,
}

#[test]
fn every_recording_matches_linux_or_is_a_listed_exception() {
    let exceptions = exceptions();
    // A quick run replays every fourth recording.
    let step = Effort::of(4, 1, 1);
    let left = Mutex::new(recordings().into_iter().step_by(step));
    let seen = Mutex::new(Seen::default());
    let look = || {
        loop {
            let Some((name, path)) = left.lock().unwrap().next() else { return };
            let options = Options { cpus: 2, oracles: !name.starts_with(PROGRAMS), ..Options::default() };
            let outcome = replay(&path, &options, &()).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(outcome.is_whole(), "{name}: {:?} {:?}", outcome.cut_off, outcome.unread_lines);
            let mut seen = seen.lock().unwrap();
            seen.places += outcome.placed.all;
            if !outcome.is_as_linux() {
                if !exceptions.contains_key(&name) {
                    seen.wrong.push(format!("{name}: {:#?}", outcome.differences.first()));
                }
                seen.differ.insert(name);
            }
        }
    };
    thread::scope(|scope| (0..WORKERS).for_each(|_| drop(scope.spawn(look))));
    let Seen { differ, wrong, places } = seen.into_inner().unwrap();
    assert!(places > 4_000 || step > 1, "only {places} placements compared");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let stale: Vec<_> = exceptions.keys().filter(|name| !differ.contains(*name)).collect();
    assert!(stale.is_empty() || step > 1, "listed exceptions that match Linux: {stale:?}");
}
