//! The chores of the project: every test suite, in order, by one command.
//!
//! `cargo xtask test` runs what a change must pass; `cargo xtask test --long` gives the random suites more time.
//! `cargo xtask loom`, `cargo xtask shuttle` and `cargo xtask plain` run one of its parts. `cargo xtask replay` replays every
//! recording at hand on every design, ten seeds each, and prints a line for each.
//!
//! The checkers of interleavings replace the atomics of the whole engine, so each has a build of its own beside the
//! ordinary one, under `target/loom` and `target/shuttle`.
#![deny(unsafe_code)]

use std::{
    env,
    process::{Command, ExitCode},
    time::Instant,
};

/// One run of cargo.
struct Suite {
    name: &'static str,
    /// The switch that selects a checker's atomics.
    cfg: Option<&'static str>,
    args: &'static [&'static str],
}

const PLAIN: &[Suite] = &[Suite {
    name: "tests of every crate: units, documentation, properties, scenarios, the model, Linux",
    cfg: None,
    args: &["test", "--workspace", "--quiet"],
}];

const LOOM: &[Suite] = &[
    Suite {
        name: "loom: every interleaving of the lock words, the range map, the page tables",
        cfg: Some("loom"),
        args: &[
            "test",
            "--profile",
            "checked",
            "--quiet",
            "--package",
            "freehold-sync",
            "--package",
            "freehold-range",
            "--package",
            "freehold-pagetable",
            "--test",
            "loom*",
        ],
    },
    Suite {
        name: "loom: the records of frames",
        cfg: Some("loom"),
        args: &["test", "--profile", "checked", "--quiet", "--package", "freehold", "--lib"],
    },
];

const SHUTTLE: &[Suite] = &[Suite {
    name: "shuttle: random interleavings of the whole engine",
    cfg: Some("shuttle"),
    args: &["test", "--profile", "checked", "--quiet", "--package", "freehold-machine", "--test", "shuttle*"],
}];

const REPLAY: &[Suite] = &[Suite {
    name: "replay: every recording at hand, on every design of locking, ten seeds each",
    cfg: None,
    args: &[
        "test",
        "--release",
        "--quiet",
        "--package",
        "freehold-cli",
        "--test",
        "corpus",
        "--",
        "--nocapture",
    ],
}];

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let (suites, long): (Vec<&Suite>, bool) = match words.as_slice() {
        ["test"] => (PLAIN.iter().chain(LOOM).chain(SHUTTLE).collect(), false),
        ["test", "--long"] => (PLAIN.iter().chain(LOOM).chain(SHUTTLE).collect(), true),
        ["plain"] => (PLAIN.iter().collect(), false),
        ["loom"] => (LOOM.iter().collect(), false),
        ["shuttle"] => (SHUTTLE.iter().collect(), false),
        ["replay"] => (REPLAY.iter().collect(), true),
        _ => {
            eprintln!("usage: cargo xtask test [--long] | plain | loom | shuttle | replay");
            return ExitCode::from(2);
        }
    };
    for suite in suites {
        if let Err(why) = suite.run(long) {
            eprintln!("xtask: {}: {why}", suite.name);
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

impl Suite {
    fn run(&self, long: bool) -> Result<(), String> {
        println!("== {}", self.name);
        let started = Instant::now();
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(self.args);
        if long {
            cargo.env("FREEHOLD_LONG", "1");
        }
        if let Some(cfg) = self.cfg {
            let flags = env::var("RUSTFLAGS").unwrap_or_default();
            cargo.env("RUSTFLAGS", format!("{flags} --cfg {cfg}").trim());
            cargo.args(["--target-dir", &format!("target/{cfg}")]);
        }
        let status = cargo.status().map_err(|error| format!("cargo could not be started: {error}"))?;
        println!("== {:.0} s", started.elapsed().as_secs_f64());
        if status.success() { Ok(()) } else { Err(format!("failed ({status})")) }
    }
}
