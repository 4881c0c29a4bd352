//! The table of the kernel's tests, `kernel/tests/tests.toml`: its fields, as types, and the selection of
//! tests. `kernel/tests/README.md` describes the fields for readers of the table, so change that document
//! together with the types. Unknown fields are errors. A test below checks that the table is valid and that
//! its files exist. A new field also needs code: in `mod.rs`, which packs and boots a test, or in
//! `verdict.rs`, which judges a test.

use std::{collections::BTreeMap, fs, path::PathBuf};

use serde::Deserialize;

/// Path of the table, from the repository's root.
pub const TABLE: &str = "kernel/tests/tests.toml";

/// How a program is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum By {
    /// By gcc, statically, with glibc.
    Gcc,
    /// By gcc, with shared libraries.
    GccDynamic,
    /// By musl-gcc, statically.
    Musl,
    /// By rustc, statically, from one file.
    Rustc,
    /// By Go, from one file.
    Go,
    /// By Go, for 64-bit ARM: a program that an emulator runs.
    GoArm64,
    /// By cargo, with shared libraries: an example of `freehold-model`.
    Example,
}

/// A program of this project.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// The file in `kernel/tests/programs`, or the name of the example.
    pub source: String,
    /// How the program is built.
    pub by: By,
}

/// When a test runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effort {
    /// Always.
    #[default]
    Quick,
    /// With `--full`, or by its name.
    Full,
}

/// A test.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Test {
    /// The test's name.
    pub name: String,
    /// Programs to build. They are in `/tests`.
    pub programs: Vec<Source>,
    /// Files of `kernel/tests/programs` to copy to `/tests`.
    pub files: Vec<String>,
    /// Files and folders of this machine to copy.
    pub host: Vec<PathBuf>,
    /// Adds the tools of busybox. A test with a script always has them.
    pub busybox: bool,
    /// The program to run, and its arguments.
    pub command: Vec<String>,
    /// The program to run on Linux instead, and its arguments.
    pub command_on_linux: Vec<String>,
    /// A script for busybox's shell, in place of a command.
    pub script: Option<String>,
    /// Options of the kernel.
    pub options: Vec<String>,
    /// Additional variables of the environment.
    pub env: BTreeMap<String, String>,
    /// Number of CPUs; 1 by default.
    pub cpus: Option<u32>,
    /// Argument of QEMU's `-cpu`; `max` by default.
    pub cpu: Option<String>,
    /// Boots the kernel for five levels of page tables.
    pub five_levels: bool,
    /// The clocks of the machine count instructions: one nanosecond for each.
    pub counted: bool,
    /// The longest time in nanoseconds that interrupts may be off. Needs `counted`.
    pub irq_off_limit: Option<u64>,
    /// Size of memory; 512M by default.
    pub memory: Option<String>,
    /// Time limit in seconds, for a test that hangs; 240 by default.
    pub limit: Option<u64>,
    /// When the test runs.
    pub effort: Effort,
    /// The expected exit status.
    pub status: u8,
    /// The expected output.
    pub output: Option<String>,
    /// Texts that the output must contain.
    pub contains: Vec<String>,
    /// Texts that the kernel's last report must contain. The machine must end by a panic or at its time
    /// limit.
    pub last_words: Vec<String>,
    /// Texts that lines of the kernel's log must contain.
    pub logged: Vec<String>,
    /// The output must equal that of the same run on Linux.
    pub same_as_linux: bool,
    /// The run is recorded, and its replay must not differ.
    pub replayed: bool,
}

/// The whole file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    test: Vec<Test>,
}

/// Reads the table.
///
/// # Errors
///
/// Fails if the table is missing or invalid. The message says where.
pub fn read() -> Result<Vec<Test>, String> {
    let path = xtask::root().join(TABLE);
    let text = fs::read_to_string(&path).map_err(|error| format!("cannot read {TABLE}: {error}"))?;
    parse(&text).map_err(|error| format!("{TABLE}: {error}"))
}

/// Parses the table, and checks that each test has either a command or a script, and at most one expected
/// output.
fn parse(text: &str) -> Result<Vec<Test>, String> {
    let table: Table = toml::from_str(text).map_err(|error| error.to_string())?;
    for test in &table.test {
        let right = match (test.command.is_empty(), test.script.is_none()) {
            (true, true) => Err("has neither a command nor a script"),
            (false, false) => Err("has a command and a script"),
            _ if test.output.is_some() && test.same_as_linux => Err("gives its output twice"),
            _ if test.irq_off_limit.is_some() && !test.counted => Err("limits a time that is not exact"),
            _ => Ok(()),
        };
        right.map_err(|what| format!("test {:?} {what}", test.name))?;
    }
    Ok(table.test)
}

/// Selects the tests of a run. Without words, the run has the quick tests or, with `full`, all tests. With
/// words, it has the tests whose names begin with one of the words, quick or not.
///
/// # Errors
///
/// Fails if no test's name begins with a word.
pub fn select(tests: Vec<Test>, words: &[String], full: bool) -> Result<Vec<Test>, String> {
    if words.is_empty() {
        return Ok(tests.into_iter().filter(|test| full || test.effort == Effort::Quick).collect());
    }
    if let Some(word) = words.iter().find(|word| !tests.iter().any(|test| test.name.starts_with(*word))) {
        return Err(format!("no test name begins with {word}"));
    }
    let meant = |test: &Test| words.iter().any(|word| test.name.starts_with(word));
    Ok(tests.into_iter().filter(meant).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_of_tests_is_valid() {
        let tests = read().expect("a valid table");
        let mut names: Vec<&str> = tests.iter().map(|test| test.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), tests.len(), "two tests have the same name");
        for file in tests.iter().flat_map(|test| &test.files) {
            assert!(xtask::root().join("kernel/tests/programs").join(file).is_file(), "{file}");
        }
    }

    #[test]
    fn invalid_tables_are_reported() {
        let wrong = [
            ("[[test]]\nname = 'a'", "neither a command nor a script"),
            ("[[test]]\nname = 'a'\ncommand = ['x']\nscript = 'y'", "a command and a script"),
            ("[[test]]\nname = 'a'\nscript = 'y'\noutput = ''\nsame_as_linux = true", "output twice"),
            ("[[test]]\nname = 'a'\nscript = 'y'\nirq_off_limit = 1", "not exact"),
            ("[[test]]\nname = 'a'\nscript = 'y'\ncolour = 1", "unknown field"),
        ];
        for (text, said) in wrong {
            let why = parse(text).expect_err("an invalid table");
            assert!(why.contains(said), "{why}");
        }
    }

    #[test]
    fn words_select_tests_by_the_start_of_their_names() {
        let named = |name: &str, effort| Test { name: name.into(), effort, ..Test::default() };
        let all = vec![named("a-1", Effort::Quick), named("a-2", Effort::Full), named("b", Effort::Quick)];
        let names = |words: &[&str], full| {
            let words: Vec<String> = words.iter().map(ToString::to_string).collect();
            select(all.clone(), &words, full)
                .map(|tests| tests.into_iter().map(|test| test.name).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(names(&[], false).as_deref(), Ok("a-1 b"));
        assert_eq!(names(&[], true).as_deref(), Ok("a-1 a-2 b"));
        assert_eq!(names(&["a"], false).as_deref(), Ok("a-1 a-2"));
        assert!(names(&["b", "c"], false).is_err_and(|why| why.ends_with("with c")));
    }
}
