//! Makes the programs of the kernel's tests.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Mutex,
};

use super::table::{By, Source};
use xtask::test_program::executable;

/// What a program cannot be made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// This machine lacks a compiler: what, and how it is had.
    Missing(String),
    /// What the compiler said.
    Broken(String),
}

/// The compiler and its arguments, but for the files.
struct Compiler {
    program: &'static str,
    args: &'static [&'static str],
    from: &'static str,
}

impl By {
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

/// Where the sources are.
#[must_use]
pub fn sources() -> PathBuf {
    xtask::root().join("kernel/tests/programs")
}

impl Source {
    /// Its name without what follows the point.
    #[must_use]
    pub fn name(&self) -> String {
        Path::new(&self.source).file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Makes the program, if it is older than its sources, and says where it is.
    ///
    /// # Errors
    ///
    /// The compiler is missing, or refuses the program.
    pub fn make(&self) -> Result<PathBuf, Trouble> {
        // Two tests may have the same program.
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
        // Go is told not to look for a module around the file, nor to link to C.
        let architecture = if self.by == By::GoArm64 { "arm64" } else { "amd64" };
        command.envs([("GO111MODULE", "off"), ("CGO_ENABLED", "0"), ("GOARCH", architecture)]);
        command.args(compiler.args).arg("-o").arg(&program).arg(&source);
        run(&mut command, &compiler)?;
        Ok(program)
    }

    /// Makes an example of `freehold-model`. The packages and the profile are those of the tests, so that what
    /// they have compiled serves the example too.
    fn make_example(&self) -> Result<PathBuf, Trouble> {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo
            .args(["build", "--quiet", "--workspace", "--exclude", "freehold-bench"])
            .args(["--example", &self.source, "--message-format", "json-render-diagnostics"])
            .current_dir(xtask::root())
            .stdin(Stdio::null())
            .stderr(Stdio::inherit());
        let built = cargo.output().map_err(|error| Trouble::Broken(format!("cargo: {error}")))?;
        let messages = String::from_utf8_lossy(&built.stdout);
        let program = executable(&messages).filter(|_| built.status.success());
        program.map(PathBuf::from).ok_or_else(|| Trouble::Broken(format!("{} does not compile", self.source)))
    }
}

fn run(command: &mut Command, compiler: &Compiler) -> Result<(), Trouble> {
    let Compiler { program, from, .. } = compiler;
    let ran = command.output().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Trouble::Missing(format!("{program} (apt-get install {from})")),
        _ => Trouble::Broken(format!("{program}: {error}")),
    })?;
    if ran.status.success() {
        return Ok(());
    }
    Err(Trouble::Broken(format!(
        "{program} refuses the program:\n{}",
        String::from_utf8_lossy(&ran.stderr).trim()
    )))
}

/// Whether a file is there, and newer than others.
fn is_newer(file: &Path, others: &[&Path]) -> bool {
    let time = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified()).ok();
    time(file).is_some_and(|own| others.iter().all(|other| time(other).is_some_and(|it| it < own)))
}
