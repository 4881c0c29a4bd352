//! Replays every available recording on every locking design; all must match Linux.
//!
//! The recordings of the repository are always included. Recordings in `../shared/traces` are included if
//! they are small. With `FREEHOLD_EFFORT=long` (`cargo xtask replay`) all recordings run on every design with
//! ten seeds each, and the test prints one line per recording. Without this variable each recording runs on a
//! few consecutive designs, and the next recording starts one design later. To add a case, add a recording.

use freehold::space::Locking;
use freehold_machine::Effort;
use freehold_replay::outcome::Outcome;
use freehold_replay::{Options, replay};
use std::fs;
use std::path::{Path, PathBuf};

/// Size limit of a small compressed recording, in bytes.
const SMALL: u64 = 600_000;
/// Largest percentage of VMAs of files that may have other pages than on Linux.
const MAX_OTHERS: u64 = 15;
/// Number of seeds in the long run.
const SEEDS: u64 = 10;

/// Returns the paths of the recordings to replay, sorted.
fn recordings(long: bool) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let listed =
        |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let shipped = listed(root.join("recordings"));
    let beside = listed(root.join("../shared/traces"))
        .filter(|path| long || fs::metadata(path).is_ok_and(|data| data.len() < SMALL));
    let mut all: Vec<PathBuf> = shipped
        .chain(beside)
        .filter(|path| {
            let name = path.to_string_lossy();
            name.contains(".trace.") || name.contains(".strace")
        })
        .collect();
    all.sort();
    all
}

fn assert_as_linux(outcome: &Outcome, options: &Options) {
    assert!(
        outcome.is_as_linux(),
        "{} on {options:?}: {} differences, first {:#?}",
        outcome.name,
        outcome.difference_count,
        outcome.differences.first()
    );
    for tally in [outcome.calls, outcome.faults, outcome.snapshots] {
        assert_eq!(tally.all, tally.as_linux, "{}", outcome.name);
    }
    // The pages of the other VMAs are within the bounds of `resident.rs`, and no recording determines more.
    // Bounds that are too wide would fail this check.
    let files = outcome.file_vmas;
    let least = files.all - files.all * MAX_OTHERS / 100;
    assert!(files.as_linux >= least, "{}: only {} of {} VMAs", outcome.name, files.as_linux, files.all);
}

#[test]
fn every_recording_matches_linux_on_every_design() {
    let long = Effort::asked() == Effort::Long;
    let seeds = if long { SEEDS } else { 1 };
    // Each recording runs on this many designs. The next recording begins with the next design.
    let count = Effort::of(1, 4, Locking::ALL.len());
    for (turn, path) in recordings(long).into_iter().enumerate() {
        let mut shown = None;
        let designs = Locking::ALL.into_iter().enumerate().cycle().skip(turn).take(count);
        for (number, locking) in designs {
            for seed in 0..seeds {
                // In the short run each design gets its own seed, and memory with or without contents.
                let (seed, backed) = if long { (seed, seed == 0) } else { (number as u64, number % 4 == 0) };
                let options = Options {
                    cpus: 2,
                    design: locking.into(),
                    seed,
                    // For every second seed, tasks of one address space may map in any order.
                    places: seed % 2 == 0,
                    backed,
                    oracles: !long,
                    ..Options::default()
                };
                let outcome = replay(&path, &options, &()).unwrap_or_else(|error| panic!("{error}"));
                assert_as_linux(&outcome, &options);
                if locking == Locking::default() && !backed || shown.is_none() {
                    shown = Some(outcome);
                }
            }
        }
        if let Some(outcome) = shown {
            println!("{}", line(&outcome));
        }
    }
}

/// Returns the cost of a replay in one line.
fn line(outcome: &Outcome) -> String {
    let hold = outcome.exclusive_hold;
    let us = |ns: u64| ns as f64 / 1e3;
    let linux =
        hold.linux.map_or("-".to_owned(), |linux| format!("{:.1} / {:.0}", us(linux.p99), us(linux.max)));
    format!(
        "{:14} {:7} calls {:7} faults {:4} snapshots {} differences; hold 99 % / longest {:.1} / {:.0} us, Linux {linux} us; \
         {:.3} s, {:.0} times as fast as recorded",
        outcome.name,
        outcome.calls.all,
        outcome.faults.all,
        outcome.snapshots.all,
        outcome.difference_count,
        us(hold.freehold.p99),
        us(hold.freehold.max),
        outcome.wall.as_secs_f64(),
        outcome.recorded.as_secs_f64() / outcome.wall.as_secs_f64().max(1e-9),
    )
}
