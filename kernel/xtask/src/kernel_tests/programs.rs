//! Builds the programs of the kernel's tests, with the compilers of this machine. The results are in
//! `target/kernel-tests`, one folder for each kind of build, and are built again only after a change of the
//! source or of `check.h`. Cargo builds examples, in its own target folder. Tests share programs, so one lock
//! serialises the builds. A missing compiler leaves a test out; a program that does not compile fails the
//! test. Warnings of the C and Rust compilers are errors.
//!
//! A new kind of build needs a variant of `By` (`table.rs`), an arm in `By::compiler` and in `By::folder`,
//! and its name in `kernel/tests/README.md`.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Mutex,
};

use super::table::{By, Source};
use xtask::test_program::executable;

/// The reason why a program cannot be built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// This machine lacks a compiler. The text names the compiler and says how to install it.
    Missing(String),
    /// The output of the compiler.
    Broken(String),
}

/// The compiler and its arguments, except the files.
struct Compiler {
    program: &'static str,
    args: &'static [&'static str],
    /// The Debian package of the compiler.
    from: &'static str,
}

impl By {
    /// Returns the compiler, or `None` for an example, which cargo builds.
    fn compiler(self) -> Option<Compiler> {
        const C: [&str; 5] = ["-O1", "-Wall", "-Wextra", "-Werror", "-pthread"];
        const STATIC: [&str; 6] = ["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-static"];
        const RUST: [&str; 6] =
            ["--edition", "2024", "-O", "-Ctarget-feature=+crt-static", "-Dwarnings", "-Cdebuginfo=0"];
        let (program, args, from): (_, &'static [&'static str], _) = match self {
            By::Gcc => ("gcc", &STATIC, "gcc"),
            By::GccDynamic => ("gcc", &C, "gcc"),
            By::Musl => ("musl-gcc", &STATIC, "musl-tools"),
            By::Rustc => ("rustc", &RUST, "rustc"),
            By::Go | By::GoArm64 => ("go", &["build"], "golang-go"),
            By::Example => return None,
        };
        Some(Compiler { program, args, from })
    }

    /// Returns the name of the folder for programs of this kind.
    fn folder(self) -> &'static str {
        match self {
            By::Gcc => "gcc",
            By::GccDynamic => "gcc-dynamic",
            By::Musl => "musl",
            By::Rustc => "rustc",
            By::Go => "go",
            By::GoArm64 => "go-arm64",
            By::Example => "example",
        }
    }
}

/// Returns the folder of the sources.
#[must_use]
pub fn sources() -> PathBuf {
    xtask::root().join("kernel/tests/programs")
}

impl Source {
    /// Returns the program's name: the source's name without its extension.
    #[must_use]
    pub fn name(&self) -> String {
        Path::new(&self.source).file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Builds the program if it is older than its sources. Returns its path.
    ///
    /// # Errors
    ///
    /// Fails if the compiler is missing or refuses the program.
    pub fn make(&self) -> Result<PathBuf, Trouble> {
        // Two tests may use the same program.
        static MAKING: Mutex<()> = Mutex::new(());
        let _one = MAKING.lock().expect("no compiler panics");
        let Some(compiler) = self.by.compiler() else { return self.make_example() };
        let source = sources().join(&self.source);
        let program = xtask::root().join("target/kernel-tests").join(self.by.folder()).join(self.name());
        let broken = |error: std::io::Error| Trouble::Broken(format!("{}: {error}", program.display()));
        if is_newer(&program, &[&source, &sources().join("check.h")]) {
            return Ok(program);
        }
        fs::create_dir_all(program.parent().unwrap_or(&program)).map_err(broken)?;
        let mut command = Command::new(compiler.program);
        // Go must not search for a module around the file, nor link to C.
        let architecture = if self.by == By::GoArm64 { "arm64" } else { "amd64" };
        command.envs([("GO111MODULE", "off"), ("CGO_ENABLED", "0"), ("GOARCH", architecture)]);
        command.args(compiler.args).arg("-o").arg(&program).arg(&source);
        run(&mut command, &compiler)?;
        Ok(program)
    }

    /// Builds an example of `freehold-model`. Packages and profile are those of the tests, so that the
    /// example shares their compiled crates.
    fn make_example(&self) -> Result<PathBuf, Trouble> {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo
            .args(["build", "--quiet", "--workspace", "--exclude", "freehold-bench"])
            .args(["--example", &self.source, "--message-format", "json-render-diagnostics"])
            .current_dir(xtask::root())
            .stdin(Stdio::null())
            .stderr(Stdio::inherit());
        let built =
            cargo.output().map_err(|error| Trouble::Broken(format!("cannot start cargo: {error}")))?;
        let messages = String::from_utf8_lossy(&built.stdout);
        let program = executable(&messages).filter(|_| built.status.success());
        program.map(PathBuf::from).ok_or_else(|| Trouble::Broken(format!("{} does not compile", self.source)))
    }
}

/// Runs a compiler.
fn run(command: &mut Command, compiler: &Compiler) -> Result<(), Trouble> {
    let Compiler { program, from, .. } = compiler;
    let ran = command.output().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Trouble::Missing(format!("{program} (apt-get install {from})")),
        _ => Trouble::Broken(format!("cannot start {program}: {error}")),
    })?;
    if ran.status.success() {
        return Ok(());
    }
    Err(Trouble::Broken(format!("{program} failed:\n{}", String::from_utf8_lossy(&ran.stderr).trim())))
}

/// Returns true if a file exists and is newer than the others.
fn is_newer(file: &Path, others: &[&Path]) -> bool {
    let time = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified()).ok();
    time(file).is_some_and(|own| others.iter().all(|other| time(other).is_some_and(|it| it < own)))
}
