//! Checks that the published crates can be packaged, and that a program can be built from the packages alone.
//!
//! [`run`] does three things. `cargo package` builds each crate of [`PUBLISHED`] from its own package and
//! from the packages of the crates before it. Then the example `examples/embedding` is built and run as a
//! project of its own, with the unpacked packages instead of the folders of this repository. Last, the lock
//! file of that project is counted: an embedder must not get the checkers and their dependencies
//! (`MOST_PACKAGES`).
//!
//! A new published crate belongs in [`PUBLISHED`], after its dependencies. Needs a registry for the few
//! dependencies that the packages have. `cargo package` also works in a tree with changes that are not
//! committed.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::Command,
};

/// The published crates, each after its dependencies. `freehold-sim` is an optional dependency of
/// `freehold-sync`, for the simulation.
pub const PUBLISHED: [&str; 7] = [
    "freehold-sim",
    "freehold-sync",
    "freehold-pagetable",
    "freehold-range",
    "freehold-vmspace",
    "freehold",
    "freehold-kit",
];

/// Largest number of packages in the lock file of an embedder, including the embedder itself.
const MOST_PACKAGES: usize = 15;

/// The embedder, relative to the repository's root.
const EMBEDDER: &str = "examples/embedding";

/// Packages the published crates and builds the embedder from the packages.
///
/// # Errors
///
/// Fails with the step that failed.
pub fn run() -> Result<(), String> {
    let root = crate::root();
    let target = env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), |target| root.join(target));
    let mut package = cargo();
    package.args(["package", "--quiet", "--allow-dirty"]);
    for name in PUBLISHED {
        package.args(["--package", name]);
    }
    finish(package.current_dir(&root), "package the published crates")?;

    let folder = target.join("embedder");
    write_embedder(&root, &target.join("package"), &folder)
        .map_err(|error| format!("cannot write {}: {error}", folder.display()))?;
    finish(cargo().args(["run", "--quiet"]).current_dir(&folder), "run the embedder of the packages")?;
    let lock = fs::read_to_string(folder.join("Cargo.lock"))
        .map_err(|error| format!("cannot read the embedder's lock file: {error}"))?;
    let packages = lock.lines().filter(|line| *line == "[[package]]").count();
    println!("{} crates packaged; an embedder's lock file has {packages} packages", PUBLISHED.len());
    if packages > MOST_PACKAGES {
        return Err(format!(
            "an embedder's lock file has {packages} packages, more than {MOST_PACKAGES}:\n{lock}"
        ));
    }
    Ok(())
}

/// Returns a command that runs cargo.
fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs a command. `what` says in an error what the command does.
fn finish(command: &mut Command, what: &str) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("cannot {what} ({status})")),
        Err(error) => Err(format!("cannot {what}: cannot start cargo: {error}")),
    }
}

/// Writes the embedder to `folder`, as a project outside of this workspace that knows only the packages.
fn write_embedder(root: &Path, packages: &Path, folder: &Path) -> io::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder.join("src"))?;
    for file in fs::read_dir(root.join(EMBEDDER).join("src"))? {
        let file = file?;
        fs::copy(file.path(), folder.join("src").join(file.file_name()))?;
    }
    let unpacked = |name: &str| -> io::Result<PathBuf> {
        let folder = packages.join(format!("{name}-{}", env!("CARGO_PKG_VERSION")));
        fs::canonicalize(folder)
    };
    let mut manifest = String::from(
        "[package]\nname = \"embedder\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n",
    );
    for name in ["freehold", "freehold-kit"] {
        manifest += &format!("{name} = \"{}\"\n", env!("CARGO_PKG_VERSION"));
    }
    manifest += "\n[patch.crates-io]\n";
    for name in PUBLISHED.iter().filter(|name| **name != "freehold-sim") {
        manifest += &format!("{name} = {{ path = {:?} }}\n", unpacked(name)?);
    }
    fs::write(folder.join("Cargo.toml"), manifest)
}
