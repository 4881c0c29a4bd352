//! Builds the engine for processors other than x86-64: `cargo xtask cross`.
//!
//! The standard library for these targets is built from source (`-Zbuild-std`), so a build needs a compiler
//! with the source of the standard library, but no linker and no emulator. `install` downloads such a
//! compiler, Debian's package rustc-web, into `target/cross` and installs nothing on the system. The variable
//! `CROSS_RUSTC` names another compiler, for example a nightly one of rustup with the component rust-src.
//!
//! The builds check that the engine compiles. The engine's tests run on the formats of these processors on the
//! test machine (`cargo xtask formats`). A new target is a line of `TARGETS`.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::suite::Build;

/// The targets.
const TARGETS: [&str; 3] =
    ["aarch64-unknown-none-softfloat", "riscv64gc-unknown-none-elf", "aarch64-unknown-linux-gnu"];

/// The crates that an embedder links. Cargo also builds the crates that these three use.
const PACKAGES: [&str; 3] = ["freehold", "freehold-kit", "freehold-c"];

/// The packages of Debian that have the compiler and the source, except those that [`packages`] finds.
const DEBIAN: [&str; 3] = ["rustc-web", "libstd-rust-web-dev", "rust-web-src"];

/// A compiler with the source of the standard library.
pub struct Compiler {
    path: PathBuf,
    /// `target/cross`, which contains the results of builds.
    pub folder: PathBuf,
}

/// Builds the engine for every target. With `--install`, first downloads the compiler if it is missing. If the
/// download fails, prints the reason and builds nothing.
///
/// # Errors
///
/// Fails if there is no compiler and the download was not asked for, or if a build fails.
pub fn run(args: &[&str]) -> Result<(), String> {
    let installs = match args {
        [] => false,
        ["--install"] => true,
        _ => return Err("usage: cargo xtask cross [--install]".to_owned()),
    };
    match find(installs)? {
        Some(compiler) => TARGETS.iter().try_for_each(|target| build(&compiler, target)),
        None => Ok(()),
    }
}

/// Returns true if `CROSS_RUSTC` names a compiler, or if a compiler was downloaded.
#[must_use]
pub fn has_compiler() -> bool {
    find(false).is_ok()
}

/// Returns the compiler that `CROSS_RUSTC` names, or the downloaded compiler. With `installs`, downloads it if
/// it is missing; if the download fails, prints the reason and returns `None`.
///
/// # Errors
///
/// Fails if there is no compiler and the download was not asked for.
pub fn find(installs: bool) -> Result<Option<Compiler>, String> {
    let folder = crate::root().join("target/cross");
    let named = env::var_os("CROSS_RUSTC").map(PathBuf::from);
    let downloaded = || Some(folder.join("rustc")).filter(|path| path.is_file());
    if let Some(path) = named.or_else(downloaded) {
        return Ok(Some(Compiler { path, folder }));
    }
    if !installs {
        return Err(
            "there is no compiler for other processors. `cargo xtask cross --install` downloads Debian's \
             rustc-web (140 MB) into target/cross; or set CROSS_RUSTC to a compiler with the source of the \
             standard library"
                .to_owned(),
        );
    }
    println!("== downloading Debian's rustc-web into target/cross");
    if let Err(why) = install(&folder) {
        println!("== left out: builds for other processors: {why}");
        return Ok(None);
    }
    Ok(Some(Compiler { path: folder.join("rustc"), folder }))
}

impl Compiler {
    /// Returns a cargo command for a target, with `core` and `alloc` built from source.
    pub fn cargo(&self, verb: &str, target: &str) -> Command {
        let library =
            ["-Zbuild-std=core,alloc,compiler_builtins", "-Zbuild-std-features=compiler-builtins-mem"];
        self.cargo_with(&library, verb, target, "build")
    }

    /// Returns a cargo command for a target with an operating system, with `std` built from source.
    pub fn hosted(&self, verb: &str, target: &str) -> Command {
        self.cargo_with(&["-Zbuild-std"], verb, target, "hosted")
    }

    /// Returns a cargo command that builds the standard library, into a folder below `target/cross`.
    fn cargo_with(&self, library: &[&str], verb: &str, target: &str, folder: &str) -> Command {
        let mut cargo = Build::Plain.cargo(&[verb], None);
        cargo.args(library).args(["--quiet", "--target", target]);
        cargo.arg("--target-dir").arg(self.folder.join(folder));
        // The options of cargo and the source of the standard library are those of a nightly compiler.
        cargo.env("RUSTC_BOOTSTRAP", "1").env("RUSTC", &self.path).current_dir(crate::root());
        cargo
    }
}

/// Builds the engine for one target.
fn build(compiler: &Compiler, target: &str) -> Result<(), String> {
    println!("== {target}");
    let mut cargo = compiler.cargo("build", target);
    for package in PACKAGES {
        cargo.args(["--package", package]);
    }
    status(&mut cargo, &format!("build for {target}"))
}

/// Runs a command that prints its own errors.
pub(crate) fn status(command: &mut Command, what: &str) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("cannot start cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("cannot {what} ({status})")) }
}

/// Downloads the compiler and unpacks it. The file `rustc` in the folder starts it.
fn install(folder: &Path) -> Result<(), String> {
    let (packed, unpacked) = (folder.join("packages"), folder.join("root"));
    fs::create_dir_all(&packed).map_err(|error| format!("cannot create {}: {error}", packed.display()))?;
    output(Command::new("apt-get").arg("download").args(packages()?).current_dir(&packed))?;
    let files = fs::read_dir(&packed).map_err(|error| format!("cannot list the packages: {error}"))?;
    for file in files.flatten() {
        output(Command::new("dpkg-deb").arg("-x").arg(file.path()).arg(&unpacked))?;
    }
    let usr = unpacked.join("usr");
    let usr = usr.display();
    let text = format!(
        "#!/bin/sh\nexport LD_LIBRARY_PATH={usr}/lib/x86_64-linux-gnu:{usr}/lib\nexec {usr}/bin/rustc \"$@\"\n"
    );
    let starter = folder.join("rustc");
    fs::write(&starter, text).map_err(|error| format!("cannot write {}: {error}", starter.display()))?;
    output(Command::new("chmod").arg("+x").arg(&starter))?;
    output(Command::new(&starter).arg("--version")).map(drop)
}

/// Returns the packages to download. The names of the libraries contain their versions.
fn packages() -> Result<Vec<String>, String> {
    let needs = |package: &str, prefix: &str| {
        let text = output(Command::new("apt-cache").args(["depends", package]))?;
        let mut names = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        let found = names.find(|name| name.starts_with(prefix)).map(str::to_owned);
        found.ok_or_else(|| format!("Debian's package {package} was not found (apt-get update)"))
    };
    let library = needs("libstd-rust-web-dev", "libstd-rust-web-")?;
    let llvm = needs(&library, "libllvm")?;
    Ok(DEBIAN.iter().map(|name| (*name).to_owned()).chain([library, llvm]).collect())
}

/// Runs a command. Returns its standard output.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("cannot start {name}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{name} failed: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }
}
