//! Recordings that are well formed and nonsense: numbers at their limits, areas where none can be, tasks that come and go
//! against all rules. Each is refused with its file and line, or replayed with what differs reported; nothing panics, hangs
//! or fills the memory.

use freehold_cli::picture;
use freehold_cli::replay::outcome::Outcome;
use freehold_cli::replay::{Options, ReplayError, maps_at, replay};
use freehold_cli::report;
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

const SNAPSHOTS: &str = include_str!("data/hostile.snap");
const EVENTS: &str = include_str!("data/hostile.trace");

/// A recording in a folder of its own.
struct Recording(TempDir);

impl Recording {
    fn new(trace: &str, snapshots: &str) -> Recording {
        let recording = Recording(tempfile::tempdir().expect("a folder"));
        fs::write(recording.path(), trace).expect("written");
        fs::write(recording.path().with_extension("snap"), snapshots).expect("written");
        recording
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("t.trace")
    }

    /// Does all that can be done with it.
    fn all(&self, options: &Options) -> Result<Outcome, ReplayError> {
        let outcome = replay(&self.path(), options, &());
        // What is drawn or listed of it is another matter; that it ends is this one.
        let drawn = picture::of_recording(&self.path());
        let _ = maps_at(&self.path(), u64::MAX / 2, None, options);
        if let Ok(outcome) = &outcome {
            assert!(drawn.is_ok(), "it is replayed, but not drawn");
            let outcomes = std::slice::from_ref(outcome);
            let words = report::single(outcome) + &report::compare(outcomes) + &report::json(outcomes, &[]);
            assert!(words.contains("recordings"));
        }
        outcome
    }
}

/// Events behind the good beginning of a recording.
fn after_exec(events: &str) -> Recording {
    Recording::new(&format!("# fhtrace 1 t\n# file 1 8192 /bin/t\n5 0 1 E 0\n{events}"), SNAPSHOTS)
}

#[test]
fn the_recording_itself_is_right() {
    let outcome = Recording::new(EVENTS, SNAPSHOTS).all(&Options::default());
    let outcome = outcome.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((outcome.difference_count, outcome.snapshots.all), (0, 1), "{:#?}", outcome.differences);
}

/// What Linux cannot have done is reported as done otherwise; what no program can have asked for does no harm.
#[test]
fn numbers_at_their_limits() {
    for (events, differences) in [
        // Faults beyond everything, resolved or not.
        ("10 0 1 F ffffffffffffffff 6 x1\n", 1),
        ("10 0 1 F ffffffffffffffff 6\n11 0 1 G 11 1\n", 0),
        ("10 0 1 F 800000000000 4 x1\n", 1),
        ("10 0 1 F 7ffffffffffff000 7 x1\n", 1),
        // Times that add up to more than there is; a freeze for longer than the recording.
        (
            "10 0 1 F 12008 7 x18446744073709551615\n11 0 1 F 12008 7 x18446744073709551615\n\
             11 0 1 munmap 20000 1000 = 0 e18446744073709551615 x18446744073709551615 w18446744073709551615\n",
            0,
        ),
        (
            "10 - - Z 18446744073709551615\n11 - - Z 18446744073709551615\n12 0 1 F 12008 7 x1\n\
             13 0 1 N 2 2 0\n14 0 2 F 12008 7 x1\n15 0 2 X g\n",
            0,
        ),
    ] {
        let outcome = after_exec(events).all(&Options { cpus: 2, ..Options::default() });
        let outcome = outcome.unwrap_or_else(|error| panic!("{error}: {events}"));
        assert_eq!(outcome.difference_count, differences, "{events}: {:#?}", outcome.differences);
    }
}
