//! Runs tests of the engine's crates as programs of Linux on aarch64, emulated by QEMU: `cargo xtask hosted`.
//!
//! The tests then execute the instructions of Arm, among them its atomics, on real threads. QEMU on x86-64
//! does not reorder memory accesses as a processor of Arm may do, so this run does not replace loom. The
//! compiler is that of `cross.rs`; the standard library is built from source.
//!
//! Two kinds of tests are left out. Examples of the documentation need a rustdoc of the same version as the
//! compiler. The comparisons with the running kernel (`freehold-model`) would compare with the emulation.

use std::process::{Command, Stdio};

use crate::{cross, suite::Effort};

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64-static";

/// The test programs: arguments of `cargo test`.
const TESTS: [&[&str]; 6] = [
    &["--package", "freehold-sync", "--lib", "--tests"],
    &["--package", "freehold-range", "--lib", "--tests"],
    &["--package", "freehold-pagetable", "--lib", "--tests"],
    &["--package", "freehold-kit", "--lib", "--tests"],
    &["--package", "freehold-machine", "--lib"],
    &["--package", "freehold-tests", "--test", "engine"],
];

/// Runs the tests, or only those of the named packages. With `--install`, first downloads the compiler if it
/// is missing. Prints the reason and runs nothing if the linker or the emulator is missing.
///
/// # Errors
///
/// Fails if there is no compiler and the download was not asked for, if there are no tests of a named
/// package, or if a test fails.
pub fn run(args: &[&str]) -> Result<(), String> {
    let (installs, names) = match args {
        ["--install", names @ ..] => (true, names),
        names => (false, names),
    };
    if let Some(name) = names.iter().find(|name| TESTS.iter().all(|tests| tests[1] != **name)) {
        let all = TESTS.map(|tests| tests[1]).join(", ");
        return Err(format!("there are no tests of {name}; the packages are {all}"));
    }
    for (program, debian) in
        [(LINKER, "gcc-aarch64-linux-gnu and libc6-dev-arm64-cross"), (EMULATOR, "qemu-user-static")]
    {
        if Command::new(program).arg("--version").stdout(Stdio::null()).status().is_err() {
            println!("== left out: tests on aarch64: there is no {program} (Debian's packages {debian})");
            return Ok(());
        }
    }
    let Some(compiler) = cross::find(installs)? else {
        return Ok(());
    };
    let chosen = |tests: &&&[&str]| names.is_empty() || names.contains(&tests[1]);
    for tests in TESTS.iter().filter(chosen) {
        println!("== {} on {TARGET}", tests[1]);
        let mut cargo = compiler.hosted("test", TARGET);
        // The emulation makes tests about ten times slower.
        cargo.args(*tests).env("FREEHOLD_EFFORT", Effort::Quick.name());
        cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER);
        let runner = format!("{EMULATOR} -L /usr/aarch64-linux-gnu");
        cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner);
        cross::status(&mut cargo, &format!("run the tests of {}", tests[1]))?;
    }
    Ok(())
}
