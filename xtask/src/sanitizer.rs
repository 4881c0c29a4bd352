//! The engine's suites under AddressSanitizer, which sees reads and writes of memory that was given back, and
//! what is left when a test program ends.
//!
//! It needs a nightly toolchain; nothing else does but the fuzzer. The standard library is the one that comes
//! with it, without the sanitizer: what its own code does to freed memory is not seen, and what the engine's
//! does is.

use std::{env, process::Command};

/// What runs under it: all that has unsafe code, and the machine that it runs on.
const PACKAGES: &[&str] = &[
    "freehold-sync",
    "freehold-range",
    "freehold-pagetable",
    "freehold-vmspace",
    "freehold",
    "freehold-tests",
    "freehold-machine",
    "freehold-machine-tests",
];

/// What may be left: a file for the sanitizer, from the repository's root.
const LEAKS: &str = "xtask/leaks.supp";

/// The target, named because build scripts and macros must not be built with the sanitizer.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Runs the suites; or what those words select, if there are any, which cargo is told. Without a nightly
/// toolchain it says so, and nothing is wrong.
///
/// # Errors
///
/// That something was found.
pub fn run(words: &[&str]) -> Result<(), String> {
    println!("== AddressSanitizer: the engine's suites");
    if !nightly().arg("--version").output().is_ok_and(|answer| answer.status.success()) {
        println!("== left out: there is no nightly toolchain (`cargo +nightly`)");
        return Ok(());
    }
    let mut cargo = nightly();
    cargo.args(["test", "--quiet", "--no-fail-fast", "--target", TARGET, "--target-dir", "target/asan"]);
    if words.is_empty() {
        cargo.arg("--tests").args(PACKAGES.iter().flat_map(|package| ["--package", package]));
        // Frames are larger with the sanitizer.
        cargo.args(["--", "--skip", "no_entry_needs_more_than_a_kernel_has"]);
    }
    let status = cargo
        .args(words)
        .env("RUSTFLAGS", flags("address"))
        .env(
            "LSAN_OPTIONS",
            format!("suppressions={}:print_suppressions=0", crate::root().join(LEAKS).display()),
        )
        .status()
        .map_err(|error| format!("cargo could not be started: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("AddressSanitizer: failed ({status})")) }
}

/// Cargo of the nightly toolchain. Not the cargo that has started this program: that belongs to one
/// toolchain.
fn nightly() -> Command {
    let mut cargo = Command::new("cargo");
    cargo.arg("+nightly").env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    cargo
}

fn flags(sanitizer: &str) -> String {
    format!("{} -Zsanitizer={sanitizer}", env::var("RUSTFLAGS").unwrap_or_default()).trim().to_owned()
}
