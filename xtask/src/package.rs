//! Checks that the published crates can be packaged, and that programs can be built from the packages alone.
//!
//! [`run`] does three things:
//!
//! 1. `cargo package` makes a package of each crate of [`PUBLISHED`].
//! 2. The example `examples/embedding` is built and tested as a project of its own, with the unpacked packages in
//!    place of the folders of this repository, and without the features of `freehold`. The lock file of that
//!    project must not contain the checkers and their dependencies (`MAX_PACKAGES`).
//! 3. A project that uses the atomics of `freehold-sim` is checked, because the example does not use that
//!    package.
//!
//! cargo could also build the packages itself. But cargo unpacks packages into a cache, and does not refresh
//! this cache if a package changes and keeps its version. cargo could then build an earlier state of the
//! crates.
//!
//! A new published crate belongs in [`PUBLISHED`], after its dependencies. The chore needs `tar`, and a
//! registry for the few dependencies of the packages. It works in a tree with changes that are not committed.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use crate::suite::Build;

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
const MAX_PACKAGES: usize = 15;

/// Packages the published crates and builds programs from the packages.
///
/// # Errors
///
/// Fails with the step that failed.
pub fn run() -> Result<(), String> {
    let root = crate::root();
    let target = root.join("target/packages");
    let written = |folder: &Path| format!("cannot write {}", folder.display());
    if target.exists() {
        fs::remove_dir_all(&target).map_err(|error| format!("{}: {error}", written(&target)))?;
    }
    let mut package =
        Build::Plain.cargo(&["package", "--quiet", "--allow-dirty", "--no-verify", "--target-dir"], None);
    package.arg(&target);
    for name in PUBLISHED {
        package.args(["--package", name]);
    }
    finish(package.current_dir(&root), "package the published crates")?;
    let packages = target.join("package");
    for name in PUBLISHED {
        let archive = packages.join(format!("{name}-{VERSION}.crate"));
        finish(Command::new("tar").arg("xzf").arg(archive).arg("-C").arg(&packages), "unpack a package")?;
    }

    let embedder = Project {
        name: "embedder",
        dependencies: "freehold = { version = \"*\", default-features = false }\n\
                       freehold-kit = { version = \"*\", features = [\"conformance\"] }\n",
    };
    let folder = embedder.write(&target).map_err(|error| format!("{}: {error}", written(&target)))?;
    copy_files(&root.join("examples/embedding/src"), &folder.join("src"))
        .map_err(|error| format!("{}: {error}", written(&folder)))?;
    let build = target.join("build");
    finish(
        Build::Plain.cargo(&["test", "--quiet", "--target-dir"], None).arg(&build).current_dir(&folder),
        "test the embedder",
    )?;
    let lock = fs::read_to_string(folder.join("Cargo.lock"))
        .map_err(|error| format!("cannot read the embedder's lock file: {error}"))?;
    let count = lock.lines().filter(|line| *line == "[[package]]").count();
    println!("{} crates packaged; an embedder's lock file has {count} packages", PUBLISHED.len());
    if count > MAX_PACKAGES {
        return Err(format!(
            "an embedder's lock file has {count} packages, more than {MAX_PACKAGES}:\n{lock}"
        ));
    }

    let dependencies = "freehold-sync = { version = \"*\", features = [\"checkers\"] }\n";
    let simulated = Project { name: "simulated", dependencies };
    let folder = simulated.write(&target).map_err(|error| format!("{}: {error}", written(&target)))?;
    let mut check = Build::Plain.cargo(&["check", "--quiet", "--target-dir"], None);
    check.arg(&build).env("RUSTFLAGS", "--cfg sim");
    finish(check.current_dir(&folder), "check the simulated atomics")
}

/// The version of all packages.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A project outside of this workspace, which depends only on the packages.
struct Project {
    name: &'static str,
    /// Lines of the section `[dependencies]`.
    dependencies: &'static str,
}

impl Project {
    /// Writes the project, with an empty program, beside the folder of the packages. Returns its folder.
    fn write(&self, target: &Path) -> io::Result<PathBuf> {
        let Project { name, dependencies } = self;
        let folder = target.join(name);
        fs::create_dir_all(folder.join("src"))?;
        fs::write(folder.join("src/main.rs"), "fn main() {}\n")?;
        let patches: String = PUBLISHED
            .iter()
            .map(|name| format!("{name} = {{ path = \"../package/{name}-{VERSION}\" }}\n"))
            .collect();
        let manifest = format!(
            "[package]\nname = \"{name}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
             [features]\nhugetlb = []\n\n[dependencies]\n{dependencies}\n[patch.crates-io]\n{patches}"
        );
        fs::write(folder.join("Cargo.toml"), manifest)?;
        Ok(folder)
    }
}

/// Copies the files of one folder to another.
fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    for file in fs::read_dir(from)? {
        let file = file?;
        fs::copy(file.path(), to.join(file.file_name()))?;
    }
    Ok(())
}

/// Runs a command. `what` says in an error what the command does.
fn finish(command: &mut Command, what: &str) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("cannot {what} ({status})")),
        Err(error) => Err(format!("cannot {what}: cannot start the command: {error}")),
    }
}
