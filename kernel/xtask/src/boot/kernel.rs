//! Builds the kernel and checks its image. The flags and the profile must agree with `kernel/build.sh`, the
//! script for a build by hand. The two variants have target folders of their own, because flags and features
//! differ from those of the workspace. Cargo's messages say where the image is. A further variant of the
//! kernel needs a function like [`build_for_five_levels`] and a target folder of its own.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::redzone;
use xtask::test_program::executable;

/// Flags for the compiler. The kernel must have no red zone, because an interrupt in the kernel pushes its
/// frame onto the same stack.
const FLAGS: &str = "-Cno-redzone=yes --cfg bare_metal";

/// Builds the kernel and returns the path of its image. Checks each new image ([`redzone`]).
///
/// # Errors
///
/// Fails if the kernel does not compile or uses the red zone.
pub fn build() -> Result<PathBuf, String> {
    build_with(&["--target-dir", "target/kernel"])
}

/// Builds the kernel for CPUs with five levels of page tables.
///
/// # Errors
///
/// Fails like [`build`].
pub fn build_for_five_levels() -> Result<PathBuf, String> {
    build_with(&["--features", "five-levels", "--target-dir", "target/kernel-five-levels"])
}

/// Builds the kernel with further arguments for cargo.
fn build_with(more: &[&str]) -> Result<PathBuf, String> {
    let root = xtask::root();
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["build", "--quiet", "--package", "freehold-kernel", "--profile", "kernel"])
        .args(["--message-format", "json-render-diagnostics"])
        .args(more)
        .env("RUSTFLAGS", FLAGS)
        .current_dir(&root)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    let built = cargo.output().map_err(|error| format!("cannot start cargo: {error}"))?;
    if !built.status.success() {
        return Err("the kernel does not compile".into());
    }
    let messages = String::from_utf8_lossy(&built.stdout);
    let image = PathBuf::from(executable(&messages).ok_or("cargo reports no kernel image")?);
    look_at(&image)?;
    Ok(image)
}

/// Checks an image unless it was checked before. A file next to the image records which image was checked.
fn look_at(image: &Path) -> Result<(), String> {
    let said = |error| format!("{}: {error}", image.display());
    let meta = fs::metadata(image).map_err(said)?;
    let stamp = format!("{:?} {}\n", meta.modified().map_err(said)?, meta.len());
    let noted = image.with_extension("redzone");
    if fs::read_to_string(&noted).is_ok_and(|text| text == stamp) {
        return Ok(());
    }
    redzone::check(image)?;
    fs::write(&noted, stamp).map_err(said)
}
