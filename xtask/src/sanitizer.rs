//! The engine's suites under AddressSanitizer, which detects accesses to freed memory, and memory that a test
//! program has leaked when it ends.
//!
//! The suites need a nightly toolchain. Of all other checks, only the fuzzer needs a nightly toolchain. The
//! standard library is that of the toolchain, built without the sanitizer. Accesses to freed memory are
//! therefore detected in the engine's code, and not in the standard library's own code. A leak that is
//! permitted belongs in `xtask/leaks.supp`.

use std::{env, process::Command};

/// The packages that are checked: the test machine, the crates of the engine without `freehold-kit`, and the
/// tests of the machine and of the engine.
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

/// The file with the permitted leaks, in the sanitizer's format, relative to the repository's root.
const LEAKS: &str = "xtask/leaks.supp";

/// The target. The target is given explicitly, because build scripts and macros must not be built with the
/// sanitizer.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Runs the suites, or only the tests that `words` select; `words` are passed to cargo. Without a nightly
/// toolchain, prints a message and succeeds.
///
/// # Errors
///
/// Fails if the sanitizer or a test reports an error.
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
        // Stack frames are larger with the sanitizer.
        cargo.args(["--", "--skip", "no_entry_point_exceeds_the_stack_of_a_kernel"]);
    }
    let status = cargo
        .args(words)
        .env("RUSTFLAGS", flags("address"))
        .env(
            "LSAN_OPTIONS",
            format!("suppressions={}:print_suppressions=0", crate::root().join(LEAKS).display()),
        )
        .status()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("AddressSanitizer: failed ({status})")) }
}

/// Returns a command for the cargo of the nightly toolchain. The cargo that started this program is not used,
/// because it belongs to one toolchain.
fn nightly() -> Command {
    let mut cargo = Command::new("cargo");
    cargo.arg("+nightly").env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    cargo
}

fn flags(sanitizer: &str) -> String {
    format!("{} -Zsanitizer={sanitizer}", env::var("RUSTFLAGS").unwrap_or_default()).trim().to_owned()
}
