//! Builds the static library for kernels in C: `cargo xtask c-library`.
//!
//! The crate `freehold-c` is an ordinary library in the workspace, because a static library without the
//! standard library needs an allocator and a panic handler of its own, which tests must not have. Only this
//! chore asks for the crate type `staticlib`, the feature with both, and the profile `c`, in which panics
//! abort. `engine/freehold-c/tests/c.rs` and `examples/c` call this chore.

use crate::suite::Build;

/// Builds the library and prints its path. With `--link-time`, the mandatory callbacks are external functions.
/// With `--conformance`, the library has the conformance suite.
///
/// # Errors
///
/// Fails if an argument is unknown, or if the library cannot be built.
pub fn run(args: &[&str]) -> Result<(), String> {
    // The file has the same name in all variants, so each has a folder.
    let (mut features, mut folder) = (String::from("staticlib"), String::from("target"));
    for (option, feature) in [("--conformance", "conformance"), ("--link-time", "link-time")] {
        if args.contains(&option) {
            features += &format!(",{feature}");
            folder += if folder == "target" { "/" } else { "-" };
            folder += feature;
        }
    }
    if let Some(unknown) = args.iter().find(|arg| !["--conformance", "--link-time"].contains(arg)) {
        return Err(format!("unknown argument: {unknown}"));
    }
    let args = ["rustc", "--quiet", "--profile", "c", "--package", "freehold-c", "--crate-type", "staticlib"];
    let mut cargo = Build::Plain.cargo(&args, None);
    cargo.args(["--features", &features, "--target-dir", &folder]).current_dir(crate::root());
    match cargo.status() {
        Ok(status) if status.success() => {
            println!("{folder}/c/libfreehold_c.a");
            Ok(())
        }
        Ok(status) => Err(format!("cannot build the library ({status})")),
        Err(error) => Err(format!("cannot start cargo: {error}")),
    }
}
