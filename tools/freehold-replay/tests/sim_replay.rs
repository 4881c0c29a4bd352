//! Replays recordings on many processors in virtual time, with the workers of `src/workers/virtual_time.rs`.
//!
//! `cargo xtask sim` builds this program with `cfg(sim)`; without it, the program has no tests. Linux's
//! recorded answers decide, as in `main.rs`: a test fails if any answer differs. The report of the simulated
//! machine (`freehold-sim`) gives the virtual time of the replay, the busy time of each processor and the
//! moved cache lines (`transfers`). Virtual time does not depend on the speed of the host, so the tests may
//! compare times.
//!
//! These tests check the workers and the engine under the simulation, with one recording of the repository.
//! Other recordings, and all lock designs, are replayed by `main.rs` on threads.
//!
//! `cargo xtask simulate replay FILE` shows the report of any recording.
#![cfg(sim)]

use freehold::space::Locking;
use freehold_replay::locking::Design;
use freehold_replay::{Options, Workers, outcome::Outcome, replay};
use freehold_sim::{Machine, Report};
use std::path::Path;

/// Replays a recording of the repository on this number of processors of a simulated machine.
fn on(cpus: usize, recording: &str) -> (Outcome, Report) {
    on_design(cpus, recording, Design::default())
}

fn on_design(cpus: usize, recording: &str, design: Design) -> (Outcome, Report) {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../recordings")).join(recording);
    let workers = Workers::on(Machine::named("e5-2690v4").expect("a machine"));
    let options = Options { cpus, design, workers, ..Options::default() };
    let outcome = replay(&*path, &options, &()).expect("a recording");
    (outcome, options.workers.report().expect("a run"))
}

#[test]
fn recording_matches_linux_on_many_processors() {
    let (outcome, report) = on(8, "git.trace.zst");
    assert!(outcome.is_as_linux(), "{:?}", outcome.differences);
    assert!(outcome.calls.all > 0);
    assert_eq!(outcome.wall.as_nanos(), u128::from(report.elapsed_ns));
    assert_eq!(report.busy_ns.len(), 8);
}

#[test]
fn replay_takes_less_time_on_more_processors() {
    let (one, four) = (on(1, "git.trace.zst").1, on(4, "git.trace.zst").1);
    assert_eq!(one.transfers, 0);
    assert!(four.elapsed_ns < one.elapsed_ns, "{} and {}", four.elapsed_ns, one.elapsed_ns);
}

#[test]
fn waits_on_many_processors_name_their_holders() {
    // Every change and every fault takes the mmap lock.
    let (outcome, _) = on_design(8, "git.trace.zst", Locking::ALL[0].into());
    let waits = &outcome.waits;
    assert!(waits.all.count > 10, "{:?}", waits.all);
    assert_eq!((waits.all.count, waits.all.longest_ns), {
        let counted = outcome.mmap_lock_wait.freehold;
        (counted.count, counted.max)
    });
    let known: u64 = waits.groups.iter().map(|group| group.sum.count).sum();
    assert!(known * 10 > waits.all.count * 9, "{known} of {} waits have a holder", waits.all.count);
    assert!(waits.groups.iter().any(|group| group.command == "git" && group.holder == "mmap"));
    let end = outcome.wall.as_nanos();
    assert!(waits.longest.iter().all(|wait| u128::from(wait.from_ns + wait.ns) <= end));
}
