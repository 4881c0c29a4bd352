//! The fuzz targets, a minute each.
//!
//! They need cargo-fuzz and a nightly toolchain; nothing else does but AddressSanitizer.

use std::{
    fs,
    process::{Command, Stdio},
};

/// How long each target runs, in seconds.
const SECONDS: u32 = 60;

/// Runs every target. Where cargo-fuzz or the toolchain is missing it says so, and nothing is wrong.
///
/// # Errors
///
/// Fails with the name of the target that found something; its input is below `lab/fuzz/artifacts`.
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
            .map_err(|error| format!("cargo fuzz could not be started: {error}"))?;
        if status.success() { Ok(()) } else { Err(format!("fuzz target {target}: failed ({status})")) }
    })
}

/// What the fuzzer needs and is not there.
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

/// The names of the targets: of the files in `lab/fuzz/fuzz_targets`.
///
/// # Errors
///
/// They cannot be listed.
pub fn targets() -> Result<Vec<String>, String> {
    let folder = crate::root().join("lab/fuzz/fuzz_targets");
    let files = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let names = files.flatten().filter_map(|file| file.path().file_stem()?.to_str().map(str::to_owned));
    let mut names: Vec<String> = names.collect();
    names.sort();
    Ok(names)
}

/// Cargo of the nightly toolchain. Not the cargo that has started this program: that belongs to one
/// toolchain.
fn nightly() -> Command {
    let mut cargo = Command::new("cargo");
    cargo.arg("+nightly").env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    cargo
}
