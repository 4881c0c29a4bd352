//! The fuzz targets of `lab/fuzz`. Each runs for a minute. `cargo xtask fuzz` and `cargo xtask test --long`
//! run them.
//!
//! The targets need cargo-fuzz and a nightly toolchain. Of all other checks, only AddressSanitizer needs a
//! nightly toolchain. A new target is a file in `lab/fuzz/fuzz_targets` and an entry in
//! `lab/fuzz/Cargo.toml`, which `tests/fuzz.rs` checks.

use std::{
    fs,
    process::{Command, Stdio},
};

/// Duration of each target, in seconds.
const SECONDS: u32 = 60;

/// Runs every target. If cargo-fuzz or the toolchain is missing, prints a message and succeeds.
///
/// # Errors
///
/// Fails with the name of the target that found a bug. Its input is below `lab/fuzz/artifacts`.
pub fn run() -> Result<(), String> {
    println!("== fuzz targets, {SECONDS} s each");
    if let Some(missing) = missing() {
        println!("== left out: there is no {missing}");
        return Ok(());
    }
    targets()?.iter().try_for_each(|target| {
        println!("== fuzz: {target}");
        let limit = format!("-max_total_time={SECONDS}");
        let status = nightly()
            .args(["fuzz", "run", "--fuzz-dir", "lab/fuzz", target, "--", &limit])
            .current_dir(crate::root())
            .stdin(Stdio::null())
            .status()
            .map_err(|error| format!("cannot start cargo fuzz: {error}"))?;
        if status.success() { Ok(()) } else { Err(format!("fuzz target {target}: failed ({status})")) }
    })
}

/// Returns the name of a missing tool that the fuzzer needs.
fn missing() -> Option<&'static str> {
    let works = |words: &[&str]| nightly().args(words).output().is_ok_and(|answer| answer.status.success());
    if !works(&["--version"]) {
        Some("nightly toolchain (`cargo +nightly`)")
    } else if !works(&["fuzz", "--version"]) {
        Some("cargo-fuzz (`cargo install cargo-fuzz`)")
    } else {
        None
    }
}

/// Returns the names of the targets, which are the names of the files in `lab/fuzz/fuzz_targets`.
///
/// # Errors
///
/// Fails if the folder cannot be read.
pub fn targets() -> Result<Vec<String>, String> {
    let folder = crate::root().join("lab/fuzz/fuzz_targets");
    let files = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let names = files.flatten().filter_map(|file| file.path().file_stem()?.to_str().map(str::to_owned));
    let mut names: Vec<String> = names.collect();
    names.sort();
    Ok(names)
}

/// Returns a command for the cargo of the nightly toolchain. The cargo that started this program is not used,
/// because it belongs to one toolchain.
fn nightly() -> Command {
    let mut cargo = Command::new("cargo");
    cargo.arg("+nightly").env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    cargo
}
