//! The table of the kernel's tests, `kernel/tests/tests.toml`.

use std::{collections::BTreeMap, fs, path::PathBuf};

use serde::Deserialize;

/// Where the table is, from the repository's root.
pub const TABLE: &str = "kernel/tests/tests.toml";

/// How a program is made.
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
    /// By cargo, statically: an example of `freehold-model`.
    Example,
}

/// A program of the project's own.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Its file in `kernel/tests/programs`, or the example's name.
    pub source: String,
    /// How it is made.
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

/// One test.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Test {
    /// Its name.
    pub name: String,
    /// Programs to make; they are found in `/tests`.
    pub programs: Vec<Source>,
    /// Files of `kernel/tests/programs` that are found in `/tests`.
    pub files: Vec<String>,
    /// Files and folders of this machine that are taken along.
    pub host: Vec<PathBuf>,
    /// Whether the tools of busybox are there; a script has them always.
    pub busybox: bool,
    /// What runs: a program and its arguments.
    pub command: Vec<String>,
    /// What runs on Linux in its place.
    pub command_on_linux: Vec<String>,
    /// What runs in place of a command: a script for busybox's shell.
    pub script: Option<String>,
    /// Options of the kernel.
    pub options: Vec<String>,
    /// Its environment, beside the usual.
    pub env: BTreeMap<String, String>,
    /// Processors; 1 if it does not say.
    pub cpus: Option<u32>,
    /// What QEMU's `-cpu` gets; `max` if it does not say.
    pub cpu: Option<String>,
    /// The kernel is the one for five levels of page tables.
    pub five_levels: bool,
    /// Memory; 512M if it does not say.
    pub memory: Option<String>,
    /// Seconds it may take; 60 if it does not say.
    pub limit: Option<u64>,
    /// When it runs.
    pub effort: Effort,
    /// The exit status that is right.
    pub status: u8,
    /// The output that is right, all of it.
    pub output: Option<String>,
    /// What the output must contain.
    pub contains: Vec<String>,
    /// The machine does not come to its end by itself, and of what the kernel says then these are parts.
    pub last_words: Vec<String>,
    /// The output is that of the same run on Linux.
    pub same_as_linux: bool,
    /// The run is recorded, and a replay of it answers the same.
    pub replayed: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    test: Vec<Test>,
}

/// Reads the table.
///
/// # Errors
///
/// It is not there, or it is wrong, and where.
pub fn read() -> Result<Vec<Test>, String> {
    let path = xtask::root().join(TABLE);
    let text = fs::read_to_string(&path).map_err(|error| format!("{TABLE}: {error}"))?;
    parse(&text).map_err(|error| format!("{TABLE}: {error}"))
}

fn parse(text: &str) -> Result<Vec<Test>, String> {
    let table: Table = toml::from_str(text).map_err(|error| error.to_string())?;
    for test in &table.test {
        let right = match (test.command.is_empty(), test.script.is_none()) {
            (true, true) => Err("has neither a command nor a script"),
            (false, false) => Err("has a command and a script"),
            _ if test.output.is_some() && test.same_as_linux => Err("says twice what its output is"),
            _ => Ok(()),
        };
        right.map_err(|what| format!("the test {:?} {what}", test.name))?;
    }
    Ok(table.test)
}

/// Those that a run means: all of the effort, or those whose names begin with one of the words.
///
/// # Errors
///
/// A word means none.
pub fn select(tests: Vec<Test>, words: &[String], full: bool) -> Result<Vec<Test>, String> {
    if words.is_empty() {
        return Ok(tests.into_iter().filter(|test| full || test.effort == Effort::Quick).collect());
    }
    if let Some(word) = words.iter().find(|word| !tests.iter().any(|test| test.name.starts_with(*word))) {
        return Err(format!("no test has a name that begins with {word}"));
    }
    let meant = |test: &Test| words.iter().any(|word| test.name.starts_with(word));
    Ok(tests.into_iter().filter(meant).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_can_be_read() {
        let tests = read().expect("it is right");
        let mut names: Vec<&str> = tests.iter().map(|test| test.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), tests.len(), "two tests have one name");
        for file in tests.iter().flat_map(|test| &test.files) {
            assert!(xtask::root().join("kernel/tests/programs").join(file).is_file(), "{file}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let wrong = [
            ("[[test]]\nname = 'a'", "neither a command nor a script"),
            ("[[test]]\nname = 'a'\ncommand = ['x']\nscript = 'y'", "a command and a script"),
            ("[[test]]\nname = 'a'\nscript = 'y'\noutput = ''\nsame_as_linux = true", "says twice"),
            ("[[test]]\nname = 'a'\nscript = 'y'\ncolour = 1", "unknown field"),
        ];
        for (text, said) in wrong {
            let why = parse(text).expect_err("it is wrong");
            assert!(why.contains(said), "{why}");
        }
    }

    #[test]
    fn words_are_beginnings_of_names() {
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
