//! The chores of the project, as one command. This file only selects the chore; `lib.rs` lists the modules
//! that do the work.
//!
//! - `cargo xtask test` runs every test suite with few cases. `--full` runs the tests that a change must
//!   pass. `--long` gives the random suites more time, and adds the fuzz targets, AddressSanitizer and the
//!   mutations.
//! - `cargo xtask plain`, `loom`, `shuttle` and `sim` each run one part of the tests.
//! - `cargo xtask formats` runs the engine's tests on every other format of page tables, or on the named
//!   formats.
//! - `cargo xtask granules` runs the tests of page sizes with pages of 16 KiB and 64 KiB.
//! - `cargo xtask replay` replays every available recording on every design, with ten seeds each, and prints
//!   a line for each.
//! - `cargo xtask simulate` runs the experiments on simulated machines. `cargo xtask simulate replay` runs a
//!   recording on a simulated machine.
//! - `cargo xtask coverage` compares the memory accesses that the simulation sees with a trace.
//! - `cargo xtask package` packages the published crates, and builds a program from the packages alone.
//! - `cargo xtask c-library` builds the static library for kernels in C.
//! - `cargo xtask cross` builds the engine for aarch64 and riscv64. `cargo xtask bare` runs the example for
//!   bare metal on emulated machines of these architectures, and `cargo xtask hosted` runs the engine's
//!   tests as programs of Linux on aarch64.
//! - `cargo xtask size` measures the size of the engine's code.
//! - `cargo xtask mutants` removes protections and checks that a test fails for each.
//! - `cargo xtask fuzz` runs the fuzz targets, and `cargo xtask asan` the engine's suites under
//!   AddressSanitizer.
//! - `cargo xtask boot` and `cargo xtask kernel-tests` start the command of the package `kernel/xtask`.
//!
//! A new chore needs an arm of `main`, a line in `USAGE` and a line here. A chore that contributors run also
//! needs a row in `docs/reference/testing.md`.
#![deny(unsafe_code)]

use std::{env, process::ExitCode};

use xtask::{
    bare, c_library, cross, fuzz, hosted,
    mutants::{self, Selection},
    package, sanitizer, size,
    suite::{self, Build, Effort, FORMATS, LOOM, OTHER_FORMATS, PLAIN, REPLAY, SHUTTLE, SIM, Suite, every},
    table,
};

const USAGE: &str = "usage: cargo xtask test [--full | --long] | plain | loom | shuttle | sim | replay
       cargo xtask formats [NAME...]
       cargo xtask granules
       cargo xtask mutants [--no-baseline] [PART OF A NAME...] | mutants --table
       cargo xtask simulate [EXPERIMENT...] [--machine NAME] [--set SECTION.KEY=VALUE]... [--cpus N,N,...]
                            [--locking CHOICES] [--seed N] [--at-most MIB] [--turn MICROSECONDS]
                            [--report FILE] [--markdown FILE] [--json FILE]
       cargo xtask simulate replay FILE [--machine NAME] [--cpus N,N,...] [--locking CHOICES]...
                            [--seed N] [--report FILE] [--json FILE]
       cargo xtask coverage
       cargo xtask boot [OPTION]... -- PROGRAM [ARGUMENT...] | boot --script TEXT | boot --help
       cargo xtask boot --bench [--linux] [--markdown FILE]...
       cargo xtask kernel-tests [--full] [--linux] [--ltp DIR] [NAME...] | kernel-tests --help
       cargo xtask package | size
       cargo xtask c-library [--link-time] [--conformance]
       cargo xtask cross [--install] | bare [--install] [MACHINE...]
       cargo xtask hosted [--install] [PACKAGE...]
       cargo xtask fuzz
       cargo xtask asan [ARGUMENT OF CARGO TEST...]";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    if let ["boot" | "kernel-tests", ..] = words.as_slice() {
        return of_kernel(&words);
    }
    let done = match words.as_slice() {
        ["test"] => suite::run(&every(), Effort::Quick),
        ["test", "--full"] => suite::run(&every(), Effort::Full),
        ["test", "--long"] => suite::run(&[every(), OTHER_FORMATS.to_vec()].concat(), Effort::Long)
            .and_then(|()| hosted_tests())
            .and_then(|()| fuzz::run())
            .and_then(|()| sanitizer::run(&[]))
            .and_then(|()| Selection::of(&[]))
            .and_then(|all| mutants::run(&all)),
        ["fuzz"] => fuzz::run(),
        ["plain"] => suite::run(PLAIN, Effort::Full),
        ["loom"] => suite::run(LOOM, Effort::Full),
        ["shuttle"] => suite::run(SHUTTLE, Effort::Full),
        ["sim"] => suite::run(SIM, Effort::Full),
        ["formats", names @ ..] => formats(names),
        ["granules"] => granules(),
        ["simulate", "replay", rest @ ..] => simulate("freehold-replay", "simulate_replay", rest),
        ["simulate", rest @ ..] => simulate("freehold-reproduce", "simulate", rest),
        ["size"] => size::run(),
        ["package"] => package::run(),
        ["c-library", rest @ ..] => c_library::run(rest),
        ["bare", rest @ ..] => bare::run(rest),
        ["hosted", rest @ ..] => hosted::run(rest),
        ["cross", rest @ ..] => cross::run(rest),
        ["coverage"] => simulate("freehold-machine", "coverage", &[]),
        ["asan", rest @ ..] => sanitizer::run(rest),
        ["replay"] => suite::run(REPLAY, Effort::Long),
        ["mutants", "--table"] => table::write(),
        ["mutants", rest @ ..] => Selection::of(rest).and_then(|selection| mutants::run(&selection)),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the tests on aarch64 if there is a compiler. Otherwise prints that the tests are left out.
fn hosted_tests() -> Result<(), String> {
    if cross::has_compiler() {
        return hosted::run(&[]);
    }
    println!(
        "== left out: tests on aarch64, because their compiler is missing (cargo xtask cross --install)"
    );
    Ok(())
}

/// Runs a chore of the kernel, which has a package of its own. Returns the exit status of the chore.
fn of_kernel(words: &[&str]) -> ExitCode {
    let program = ["run", "--quiet", "--bin", "kernel-xtask", "--"];
    match Build::Plain.cargo(&program, None).args(words).status() {
        Ok(status) => {
            status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
        }
        Err(error) => {
            eprintln!("xtask: cannot start cargo: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the engine's tests on the formats with these names, or on all formats except the default.
fn formats(names: &[&str]) -> Result<(), String> {
    let all: Vec<Suite> = [FORMATS, OTHER_FORMATS].concat();
    let known: Vec<&str> = all.iter().filter_map(|suite| suite.format).collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(name)) {
        return Err(format!("no format {unknown}; there are {}", known.join(", ")));
    }
    let named = |suite: &Suite| names.is_empty() || suite.format.is_some_and(|name| names.contains(&name));
    suite::run(&all.into_iter().filter(named).collect::<Vec<_>>(), Effort::Full)
}

/// Runs the tests of page sizes in a build for each larger page size.
fn granules() -> Result<(), String> {
    for size in ["16k", "64k"] {
        println!("== begins: pages of Arm: {size}");
        let args = ["test", "--quiet", "--package", "freehold-machine-tests", "--test", "granule"];
        let mut cargo = Build::Plain.cargo(&args, None);
        let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
        let choice = format!("{flags} --cfg granule=\"{size}\" --cfg machine_format=\"aarch64\"");
        cargo.env("RUSTFLAGS", choice.trim()).args(["--target-dir", "target/formats"]);
        match cargo.status() {
            Ok(status) if status.success() => {}
            Ok(status) => return Err(format!("the tests with pages of {size} failed ({status})")),
            Err(error) => return Err(format!("cannot start cargo: {error}")),
        }
    }
    Ok(())
}

/// Runs a program in virtual time.
fn simulate(package: &str, example: &str, args: &[&str]) -> Result<(), String> {
    let program = ["run", "--quiet", "--release", "--package", package, "--example", example];
    let status = Build::Sim.cargo(&program, None).arg("--").args(args).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("the simulation failed ({status})")),
        Err(error) => Err(format!("cannot start cargo: {error}")),
    }
}
