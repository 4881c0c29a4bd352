//! A test program in the copy of the tree (`tree.rs`): builds it and runs its tests.
//!
//! `mutants.rs` uses a [`TestProgram`] for each mutation, while the mutation is made in the copy. The program
//! is started directly, not by cargo, so that a test that hangs can be killed at its time limit; it gets
//! `CARGO_MANIFEST_DIR`, as from cargo, and fixed seeds. All other variables are those of `cargo xtask`. A
//! kill does not reach the children of the program. `cargo xtask mutants fork-rights-flush` tries a change
//! here.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::mutation::Caught;

/// The outcome of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// All selected tests passed.
    Passed,
    /// A test failed, or the program died.
    Failed,
    /// The program was still running at its time limit.
    Hung,
}

/// A compiled test program.
pub struct TestProgram {
    /// The path of the executable.
    program: PathBuf,
    /// The folder of the package, in which the tests run.
    package: PathBuf,
}

impl TestProgram {
    /// Builds the program of `test` from the tree at `tree`, with a target directory below `targets`.
    ///
    /// # Errors
    ///
    /// Fails with the compiler's output.
    pub fn build(tree: &Path, targets: &Path, test: &Caught) -> Result<Self, String> {
        let mut args = vec!["test", "--no-run", "--quiet", "--message-format", "json-render-diagnostics"];
        args.extend(["--package", &test.package]);
        match test.target.as_str() {
            "lib" => args.push("--lib"),
            target => args.extend(["--test", target]),
        }
        let built = test
            .suite
            .cargo(&args, Some(&targets.to_string_lossy()))
            .current_dir(tree)
            .output()
            .map_err(|error| format!("cannot start cargo: {error}"))?;
        if !built.status.success() {
            return Err(format!("does not compile:\n{}", String::from_utf8_lossy(&built.stderr)));
        }
        let messages = String::from_utf8_lossy(&built.stdout);
        let program = executable(&messages).ok_or("cargo has built no test program")?;
        Ok(Self { program: program.into(), package: crate::package_folder(tree, &test.package) })
    }

    /// Returns how many tests `filter` selects.
    ///
    /// # Errors
    ///
    /// Fails if the program cannot be started.
    pub fn selects(&self, filter: &str) -> Result<usize, String> {
        let listed = self
            .command()
            .args(["--list", filter])
            .output()
            .map_err(|error| format!("cannot start the test program: {error}"))?;
        Ok(String::from_utf8_lossy(&listed.stdout).lines().filter(|line| line.ends_with(": test")).count())
    }

    /// Runs the tests that `filter` selects, for at most `limit`, and writes their output to the file `said`.
    ///
    /// # Errors
    ///
    /// Fails if the program cannot be started, or if the file cannot be written.
    pub fn run(&self, filter: &str, limit: Duration, said: &Path) -> Result<Outcome, String> {
        let file = |file: std::io::Result<File>| file.map_err(|error| format!("{}: {error}", said.display()));
        let out = file(File::create(said))?;
        let err = file(out.try_clone())?;
        let mut child = self
            .command()
            .arg(filter)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .map_err(|error| format!("cannot start the test program: {error}"))?;
        let started = Instant::now();
        let mut pause = Duration::from_millis(5);
        loop {
            if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
                return Ok(if status.success() { Outcome::Passed } else { Outcome::Failed });
            }
            if started.elapsed() > limit {
                child.kill().and_then(|()| child.wait()).map_err(|error| error.to_string())?;
                return Ok(Outcome::Hung);
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(200));
        }
    }

    /// Returns a command that starts the program, with the environment that cargo gives a test.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(&self.package).env("CARGO_MANIFEST_DIR", &self.package);
        // With fixed seeds, random suites draw the same numbers in each run, so a mutation is caught always
        // or never.
        command.env("SHUTTLE_RANDOM_SEED", "1").env("PROPTEST_RNG_SEED", "1");
        command
    }
}

/// Returns the program that cargo's messages name. The messages are one line of JSON each.
#[must_use]
pub fn executable(messages: &str) -> Option<&str> {
    let after = |line: &'_ str| line.find("\"executable\":\"").map(|at| at + "\"executable\":\"".len());
    messages.lines().filter_map(|line| line[after(line)?..].split('"').next()).next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executable_is_read_from_the_messages_of_cargo() {
        let messages = "{\"reason\":\"compiler-artifact\",\"executable\":null}\n\
                        {\"reason\":\"compiler-artifact\",\"executable\":\"t/debug/deps/a-1\",\"fresh\":false}\n\
                        {\"reason\":\"build-finished\",\"success\":true}\n";
        assert_eq!(executable(messages), Some("t/debug/deps/a-1"));
        assert_eq!(executable("{\"executable\":null}"), None);
    }

    /// Runs this test program itself, with filters for its own tests.
    #[test]
    fn run_returns_passed_failed_or_hung() {
        let itself = TestProgram {
            program: std::env::current_exe().expect("a test has a program"),
            package: env!("CARGO_MANIFEST_DIR").into(),
        };
        let said = std::env::temp_dir().join(format!("freehold-said-{}", std::process::id()));
        let run = |filter: &str| itself.run(filter, Duration::MAX, &said);
        assert_eq!(itself.selects("executable_is_read"), Ok(1));
        assert_eq!(itself.selects("no_such_test"), Ok(0));
        assert_eq!(run("executable_is_read"), Ok(Outcome::Passed));
        assert_eq!(run("--no-such-option"), Ok(Outcome::Failed));
        let sleeper =
            TestProgram { program: "/bin/sleep".into(), package: env!("CARGO_MANIFEST_DIR").into() };
        assert_eq!(sleeper.run("infinity", Duration::from_millis(50), &said), Ok(Outcome::Hung));
        std::fs::remove_file(said).expect("it was written");
    }
}
