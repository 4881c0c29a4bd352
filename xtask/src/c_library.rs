//! Builds the static library for kernels in C: `cargo xtask c-library`.
//!
//! The crate `freehold-c` is an ordinary library in the workspace, because a static library without the
//! standard library needs an allocator and a panic handler of its own, which tests must not have. Only this
//! chore asks for the crate type `staticlib`, the feature with both, and the profile `c`, in which panics
//! abort. `engine/freehold-c/tests/c.rs` and `examples/c` call this chore.

use crate::suite::Build;

/// Builds the library and prints its path. With `--link-time`, the callbacks are external functions.
///
/// # Errors
///
/// Fails if the argument is unknown, or if the library cannot be built.
pub fn run(args: &[&str]) -> Result<(), String> {
    // The file has the same name in both variants.
    let (features, folder) = match args {
        [] => ("staticlib", "target"),
        ["--link-time"] => ("staticlib,link-time", "target/link-time"),
        _ => return Err(format!("unknown arguments: {}", args.join(" "))),
    };
    let args = ["rustc", "--quiet", "--profile", "c", "--package", "freehold-c", "--crate-type", "staticlib"];
    let mut cargo = Build::Plain.cargo(&args, None);
    cargo.args(["--features", features, "--target-dir", folder]).current_dir(crate::root());
    match cargo.status() {
        Ok(status) if status.success() => {
            println!("{folder}/c/libfreehold_c.a");
            Ok(())
        }
        Ok(status) => Err(format!("cannot build the library ({status})")),
        Err(error) => Err(format!("cannot start cargo: {error}")),
    }
}
