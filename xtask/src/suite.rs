//! Test suites. A [`Suite`] is one run of cargo, with the [`Build`] that it needs, its arguments, and a
//! budget of time.
//!
//! `main.rs` runs the suites in [`PLAIN`], [`LOOM`], [`SHUTTLE`], [`SIM`], [`FORMATS`] and [`REPLAY`];
//! `test_program.rs` uses [`Build`] for mutations. Each checker replaces the atomics of the whole engine, so each build has its
//! own target directory. The variable `FREEHOLD_EFFORT` tells tests how much time they may take.
//!
//! A new suite belongs in the list of its build, with a measured budget. `tests/tidy.rs` checks that the
//! budgets match `docs/reference/testing.md`, and that the total duration ([`WHOLE`]) matches the README.

use std::{
    env,
    io::{self, Read},
    process::{Command, ExitStatus, Stdio},
    sync::Mutex,
    thread,
    time::Instant,
};

/// The kind of a build. The checkers of interleavings replace the atomics of the whole engine, so each has a
/// build of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Build {
    /// The ordinary build.
    Plain,
    /// The atomics are those of loom.
    Loom,
    /// The atomics are those of shuttle.
    Shuttle,
    /// Each access to an atomic takes virtual time.
    Sim,
}

impl Build {
    /// Returns the name of the build. The name is also that of the `cfg` that selects a checker's atomics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Build::Plain => "plain",
            Build::Loom => "loom",
            Build::Shuttle => "shuttle",
            Build::Sim => "sim",
        }
    }

    /// Returns a command that calls cargo with `args` for this build. The target directory is below `targets`
    /// if `targets` is given. Otherwise the plain build uses cargo's default, and each checker has a
    /// directory of its own.
    #[must_use]
    pub fn cargo(self, args: &[&str], targets: Option<&str>) -> Command {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(args);
        if self != Build::Plain {
            let flags = env::var("RUSTFLAGS").unwrap_or_default();
            cargo.env("RUSTFLAGS", format!("{flags} --cfg {}", self.name()).trim());
        }
        match self {
            Build::Plain => {}
            // Cargo accepts one profile only.
            _ if args.contains(&"--release") => {}
            Build::Loom | Build::Shuttle => drop(cargo.args(["--profile", "checked"])),
            Build::Sim => drop(cargo.args(["--profile", "sim"])),
        }
        match targets {
            Some(folder) => drop(cargo.args(["--target-dir", &format!("{folder}/{}", self.name())])),
            None if self == Build::Plain => {}
            None => drop(cargo.args(["--target-dir", &format!("target/{}", self.name())])),
        }
        cargo
    }
}

/// The time that the tests may take. Tests that choose a number of cases read the value with
/// `freehold_machine::Effort`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// All suites together take minutes: every suite runs, with fewer cases.
    Quick,
    /// The tests that a change must pass.
    Full,
    /// The tests take hours.
    Long,
}

impl Effort {
    /// All values.
    pub const ALL: [Self; 3] = [Effort::Quick, Effort::Full, Effort::Long];

    /// Returns the value of the environment variable that tests read.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Effort::Quick => "quick",
            Effort::Full => "full",
            Effort::Long => "long",
        }
    }
}

/// Tests that run together.
#[derive(Debug, Clone, Copy)]
pub struct Suite {
    /// The name of the suite, for a heading.
    pub name: &'static str,
    /// The build of the suite.
    pub build: Build,
    /// The arguments of cargo.
    pub args: &'static [&'static str],
    /// The arguments of the test programs.
    pub passed_on: &'static [&'static str],
    /// The format of page tables of the test machine, or `None` for the default. A name of
    /// `lab/freehold-machine/src/default_format.rs`.
    pub format: Option<&'static str>,
    /// Approximate duration in seconds of a quick run and of a full run: on two processors, while a suite of
    /// another build runs, including compilation.
    pub budget: [u32; 2],
    /// The part of the suite that a quick run executes.
    pub quick: Quick,
}

/// The part of a suite that a quick run executes.
#[derive(Debug, Clone, Copy)]
pub enum Quick {
    /// Every test, with fewer cases.
    Same,
    /// Some tests.
    Only {
        /// Arguments of cargo.
        args: &'static [&'static str],
        /// The tests that a quick run leaves out, and the reason.
        left_out: &'static str,
    },
    /// No tests.
    Nothing {
        /// The reason.
        why: &'static str,
    },
}

/// The tests of every crate, in the build without a checker of interleavings.
pub const PLAIN: &[Suite] = &[
    Suite {
        name: "tests of every crate: units, properties, scenarios, the model, Linux",
        build: Build::Plain,
        // Benchmarks are excluded, because they have no tests and their dependencies take long to compile.
        // Examples have no tests either, and clippy compiles them.
        args: &[
            "test",
            "--workspace",
            "--exclude",
            "freehold-bench",
            "--quiet",
            "--lib",
            "--bins",
            "--tests",
        ],
        passed_on: &[],
        format: None,
        budget: [460, 650],
        quick: Quick::Same,
    },
    Suite {
        name: "examples of the documentation",
        build: Build::Plain,
        args: &["test", "--workspace", "--exclude", "freehold-bench", "--quiet", "--doc"],
        passed_on: &[],
        format: None,
        budget: [10, 10],
        quick: Quick::Same,
    },
    Suite {
        name: "stack usage of a build without optimisation",
        build: Build::Plain,
        args: &[
            "test",
            "--config",
            "profile.dev.opt-level=0",
            "--quiet",
            "--package",
            "freehold-tests",
            "--test",
            "stack_depth",
        ],
        passed_on: &[],
        format: None,
        budget: [0, 20],
        quick: Quick::Nothing {
            why: "it builds the engine again, without optimisation; a full run detects growth",
        },
    },
];

/// The suites that loom checks.
pub const LOOM: &[Suite] = &[
    Suite {
        name: "loom: every interleaving of the lock words, the range map, the page tables",
        build: Build::Loom,
        args: &[
            "test",
            "--quiet",
            "--package",
            "freehold-sync",
            "--package",
            "freehold-range",
            "--package",
            "freehold-pagetable",
            "--package",
            "freehold-kit",
            "--test",
            "loom*",
        ],
        passed_on: &[],
        format: None,
        budget: [115, 280],
        quick: Quick::Same,
    },
    Suite {
        name: "loom: the records of frames",
        build: Build::Loom,
        args: &["test", "--quiet", "--package", "freehold-vmspace", "--package", "freehold", "--lib"],
        passed_on: &[],
        format: None,
        budget: [15, 15],
        quick: Quick::Same,
    },
];

/// The suites that shuttle checks.
pub const SHUTTLE: &[Suite] = &[Suite {
    name: "shuttle: random interleavings of the whole engine",
    build: Build::Shuttle,
    args: &["test", "--quiet", "--package", "freehold-machine-tests", "--test", "shuttle*"],
    passed_on: &[],
    format: None,
    budget: [140, 240],
    quick: Quick::Same,
}];

/// Tests in virtual time. One call of cargo builds all three packages. A call for one package would build the
/// whole engine again, because each package needs other features of shared crates.
pub const SIM: &[Suite] = &[Suite {
    name: "simulation: many processors in virtual time, cache-line transfers, recordings, experiments",
    build: Build::Sim,
    args: &[
        "test",
        "--quiet",
        "--package",
        "freehold-machine-tests",
        "--package",
        "freehold-replay",
        "--package",
        "freehold-reproduce",
        "--test",
        "sim*",
    ],
    passed_on: &[],
    format: None,
    budget: [75, 160],
    quick: Quick::Only {
        args: &["test", "--quiet", "--package", "freehold-machine-tests", "--test", "sim*"],
        left_out: "recordings and experiments, which need a build of the replayer",
    },
}];

/// The engine's tests on the format that differs most from x86-64: few levels, without hardware bits.
pub const FORMATS: &[Suite] = &[engine_on("page tables of RISC-V: the engine on Sv39 with Svade", "sv39")];

/// The engine's tests on the other formats.
pub const OTHER_FORMATS: &[Suite] = &[
    engine_on("page tables of x86-64 with five levels", "x86_5"),
    engine_on("page tables of RISC-V: Sv48 with Svadu and Svrsw60t59b", "sv48"),
    engine_on("page tables of RISC-V: Sv57 with Svade and Svrsw60t59b", "sv57"),
    engine_on("page tables of Arm: without FEAT_HAFDBS", "aarch64_0"),
    engine_on("page tables of Arm: with FEAT_HAFDBS", "aarch64"),
];

/// Returns the suite that runs the engine's tests and the conformance suite on a format.
const fn engine_on(name: &'static str, format: &'static str) -> Suite {
    Suite {
        name,
        build: Build::Plain,
        args: &[
            "test",
            "--quiet",
            "--package",
            "freehold-tests",
            "--package",
            "freehold-machine-tests",
            "--test",
            "engine",
            "--test",
            "conformance",
        ],
        passed_on: &[],
        format: Some(format),
        budget: [0, 250],
        quick: Quick::Nothing {
            why: "it builds the engine again; fault::software_bits runs on three formats in every run",
        },
    }
}

/// Approximate duration in seconds of all suites, in a quick run and in a full run. The duration is less than
/// the sum of the budgets, because two suites run at a time.
pub const WHOLE: [u32; 2] = [475, 1000];

/// Returns the suites that a change must pass.
#[must_use]
pub fn every() -> Vec<Suite> {
    [PLAIN, LOOM, SHUTTLE, SIM, FORMATS].concat()
}

/// The replay of every available recording.
pub const REPLAY: &[Suite] = &[Suite {
    name: "replay: every available recording, on every design of locking, ten seeds each",
    build: Build::Plain,
    args: &["test", "--release", "--quiet", "--package", "freehold-replay", "--test", "replay"],
    passed_on: &["corpus::", "--nocapture"],
    format: None,
    budget: [960, 960],
    quick: Quick::Same,
}];

/// Runs suites. Suites of one build run one after another. Suites of different builds run two at a time,
/// because a long test keeps only one processor busy; the output of such a suite is printed when the suite
/// ends.
///
/// # Errors
///
/// Fails with the suites that failed, and the reasons. No suite starts after a suite has failed.
pub fn run(suites: &[Suite], effort: Effort) -> Result<(), String> {
    let builds: Vec<&[Suite]> =
        suites.chunk_by(|one, next| (one.build, one.format) == (next.build, next.format)).collect();
    let output = if builds.len() > 1 { Output::AtTheEnd } else { Output::AtOnce };
    let left = Mutex::new(builds.into_iter());
    let failures = Mutex::new(Vec::new());
    let next = || left.lock().expect("no thread panics").next();
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                for suite in std::iter::from_fn(next).flatten() {
                    if !failures.lock().expect("no thread panics").is_empty() {
                        break;
                    }
                    if let Err(why) = suite.run(effort, output) {
                        failures.lock().expect("no thread panics").push(format!("{}: {why}", suite.name));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no thread panics");
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// Number of suites that run at the same time.
const AT_A_TIME: usize = 2;

/// The time at which the output of a suite is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Output {
    /// While the suite runs.
    AtOnce,
    /// When the suite ends, so that the output of two suites does not mix.
    AtTheEnd,
}

impl Suite {
    /// Runs the suite. Prints how long it should take and how long it took.
    fn run(&self, effort: Effort, output: Output) -> Result<(), String> {
        let args = match (effort, self.quick) {
            (Effort::Quick, Quick::Nothing { why }) => {
                println!("== left out: {}: {why}", self.name);
                return Ok(());
            }
            (Effort::Quick, Quick::Only { args, .. }) => args,
            _ => self.args,
        };
        let budget = match effort {
            Effort::Quick => format!("about {} s", self.budget[0]),
            Effort::Full => format!("about {} s", self.budget[1]),
            Effort::Long => "hours".to_owned(),
        };
        println!("== begins: {} ({budget})", self.name);
        if let (Effort::Quick, Quick::Only { left_out, .. }) = (effort, self.quick) {
            println!("== left out: {left_out}");
        }
        let started = Instant::now();
        let mut cargo = self.build.cargo(args, None);
        if let Some(format) = self.format {
            let flags = env::var("RUSTFLAGS").unwrap_or_default();
            cargo.env("RUSTFLAGS", format!("{flags} --cfg machine_format=\"{format}\"").trim());
            cargo.args(["--target-dir", "target/formats"]);
        }
        if !self.passed_on.is_empty() {
            cargo.arg("--").args(self.passed_on);
        }
        // The cases of a full run are those of the default format.
        let cases = match (self.format, effort) {
            (Some(_), Effort::Full) => Effort::Quick,
            (_, effort) => effort,
        };
        cargo.env("FREEHOLD_EFFORT", cases.name()).stdin(Stdio::null());
        let (status, said) = match output {
            Output::AtOnce => cargo.status().map(|status| (status, String::new())),
            Output::AtTheEnd => output_of(cargo),
        }
        .map_err(|error| format!("cannot start cargo: {error}"))?;
        let took = started.elapsed().as_secs_f64();
        println!("{said}== took {took:.0} s ({budget}): {}", self.name);
        if status.success() { Ok(()) } else { Err(format!("failed ({status})")) }
    }
}

/// Runs a command. Returns its status, and its standard output and standard error in the order in which they
/// were written.
fn output_of(mut command: Command) -> io::Result<(ExitStatus, String)> {
    let (mut reader, writer) = io::pipe()?;
    let mut child = command.stdout(writer.try_clone()?).stderr(writer).spawn()?;
    // The command holds the writing ends of the pipe, so it must be dropped before the pipe is read.
    drop(command);
    let mut said = Vec::new();
    reader.read_to_end(&mut said)?;
    Ok((child.wait()?, String::from_utf8_lossy(&said).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suite(build: Build, args: &'static [&'static str]) -> Suite {
        Suite { name: args[0], build, args, passed_on: &[], format: None, budget: [1, 1], quick: Quick::Same }
    }

    #[test]
    fn run_reports_only_the_failed_suite() {
        let good = suite(Build::Plain, &["--version"]);
        let bad = suite(Build::Loom, &["no-such-command"]);
        assert_eq!(run(&[good], Effort::Quick), Ok(()));
        for suites in [vec![good, bad], vec![bad, good], vec![bad]] {
            let why = run(&suites, Effort::Quick).expect_err("one fails");
            assert!(why.starts_with("no-such-command: failed") && !why.contains("--version"), "{why}");
        }
    }

    #[test]
    fn output_of_keeps_the_order_of_both_streams() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo one; echo two >&2; echo three; exit 3"]);
        let (status, said) = output_of(shell).expect("there is a shell");
        assert_eq!((status.code(), said.as_str()), (Some(3), "one\ntwo\nthree\n"));
    }

    #[test]
    fn release_build_of_a_checker_has_one_profile() {
        let has_profile = |args: &[&str]| Build::Sim.cargo(args, None).get_args().any(|it| it == "--profile");
        assert!(has_profile(&["test"]) && !has_profile(&["run", "--release"]));
    }
}
