//! Runs the experiments in virtual time. `cargo xtask sim` builds this program with `cfg(sim)`; without it,
//! the program has no tests.
//!
//! The loads run with tiny sizes on one and four processors of a simulated machine (`figures`). One test runs
//! nearly all experiments; the other runs one experiment in two processes, and compares the figures. Figures
//! that differ mean that the engine or a load depends on addresses or on the host's time. A new experiment is
//! included automatically, unless its name is excluded in the first test.
#![cfg(sim)]

use freehold_reproduce::{Place, Plan, Scale};
use freehold_sim::Machine;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: freehold_sim::Apart = freehold_sim::Apart;

/// Environment variable that tells a child process to print its figures.
const PRINT: &str = "PRINT_FIGURES";

/// Returns the findings of an experiment on these numbers of processors.
fn figures(name: &str, cpus: &[usize]) -> String {
    let place = Place { machine: Machine::named("e5-2690v4").expect("a machine"), seed: 1 };
    let scale = Scale {
        turns: Some(1),
        turn: Duration::from_micros(300),
        at_most: 1 << 20,
        host: false,
        threads: Some(cpus.to_vec()),
        place,
        ..Scale::full(cpus.iter().copied().max().unwrap_or(1))
    };
    let report = Plan::new(&[name.to_owned()], scale).run(true, String::new(), |_| {}).expect("a report");
    assert!(report.failed.is_empty(), "{:?}", report.failed);
    report.markdown()
}

#[test]
fn every_experiment_takes_only_virtual_time() {
    // The excluded experiments have large numbers of tasks and run only in full runs.
    let experiments = freehold_reproduce::experiments();
    let names =
        experiments.iter().map(|(name, _)| *name).filter(|name| !["i-mmap", "hugetlb"].contains(name));
    let names = Mutex::new(names);
    // Each thread runs a separate simulation.
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(name) =
                    { names.lock().expect("no thread panics while it holds the lock").next() }
                {
                    let text = figures(name, &[1, 4]);
                    assert!(text.contains("In virtual time, on 4 processors"), "{text}");
                    // A single task transfers no cache lines.
                    let passes = name != "munmap-hold";
                    assert_eq!(text.contains("**fields on which most time was lost"), passes, "{text}");
                }
            });
        }
    });
}

#[test]
fn the_same_seed_gives_the_same_figures_in_every_process() {
    if std::env::var_os(PRINT).is_some() {
        freehold_sim::same_addresses();
        println!("{}", figures("page-fault", &[1, 4]));
        return;
    }
    let run = || {
        let this = std::env::current_exe().expect("the path of this program");
        let only = "the_same_seed_gives_the_same_figures_in_every_process";
        let args = ["--exact", only, "--nocapture", "--test-threads=1"];
        let output = Command::new(this).args(args).env(PRINT, "").output().expect("the child process runs");
        let text = String::from_utf8(output.stdout).expect("text");
        let rows = text.lines().filter(|line| line.starts_with('|'));
        rows.map(str::to_owned).collect::<Vec<_>>()
    };
    let (one, other) = (run(), run());
    assert!(one.len() > 10, "{one:?}");
    assert_eq!(one, other);
}
