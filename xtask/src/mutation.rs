//! A mutation: removes a protection, and names the test that must fail.
//!
//! Each mutation is a file in `xtask/mutants`, named after its place and the removed protection:
//!
//! ```toml
//! what = "A zap sets the dirty bit again after the flush. Without this step, a store is lost."
//! [[edit]]
//! file = "engine/freehold-vmspace/src/zap.rs"
//! before = '''
//! text that occurs exactly once in the file
//! '''
//! after = '''
//! the text that replaces it
//! '''
//! [caught]
//! suite = "plain"     # or loom, shuttle, sim
//! package = "freehold-tests"
//! target = "engine"   # a test program of the package, or "lib" for its unit tests
//! test = "module::name_of_the_test"
//! ```
//!
//! `caught` may also have `hang = true` (the test may also fail by never ending) and `seconds` (the time
//! limit of the test). A mutation that changes no behaviour has `argued`, the reason, instead of `caught`.
//! Such a mutation is not run. `tests/tidy.rs` checks that every mutation applies to the current sources and
//! that its test exists.
//!
//! A new key of these files is a field of [`Mutation`], [`Edit`] or [`Caught`], and a row of the table of
//! fields in `xtask/mutants/README.md`.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use crate::suite::Build;

/// The folder of the mutations, relative to the repository's root.
pub const FOLDER: &str = "xtask/mutants";

/// Time limit of a test without `seconds`, in seconds.
const USUAL_LIMIT: u64 = 300;

/// A removed protection.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mutation {
    /// The name of the file, without its extension.
    #[serde(skip)]
    pub name: String,
    /// The protection, and what goes wrong without it, in one line.
    pub what: String,
    /// The replacements.
    pub edit: Vec<Edit>,
    /// The test that must fail.
    pub caught: Option<Caught>,
    /// The reason why no test can fail, for a mutation that changes no behaviour. `caught` is then absent.
    pub argued: Option<String>,
}

/// One replacement in one file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    /// The file, relative to the repository's root.
    pub file: String,
    /// Text that occurs exactly once in the file.
    pub before: String,
    /// The text that replaces `before`.
    pub after: String,
}

/// The test that must fail.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Caught {
    /// The build of the test.
    pub suite: Build,
    /// The package that contains the test.
    pub package: String,
    /// The test program, or `lib`.
    pub target: String,
    /// The name of the test, or a part of the name that selects the test.
    pub test: String,
    /// True if a test that never ends counts as failed.
    #[serde(default)]
    pub hang: bool,
    /// Time limit of the test, in seconds.
    pub seconds: Option<u64>,
}

impl Mutation {
    /// Parses the text of a file.
    ///
    /// # Errors
    ///
    /// Fails with a description of the first error in the text.
    pub fn parse(name: &str, text: &str) -> Result<Self, String> {
        let mut it: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        it.name = name.to_owned();
        if it.edit.is_empty() {
            return Err("has no `edit`".to_owned());
        }
        if it.caught.is_some() == it.argued.is_some() {
            return Err("needs either `caught` or `argued`".to_owned());
        }
        if it.what.contains(['\n', '|']) || it.what.is_empty() {
            return Err("`what` is not one plain line".to_owned());
        }
        Ok(it)
    }

    /// Reads all mutations of the repository at `root`, ordered by name.
    ///
    /// # Errors
    ///
    /// Fails with the name of the first file that cannot be read or parsed, and the reason.
    pub fn all(root: &Path) -> Result<Vec<Self>, String> {
        let folder = root.join(FOLDER);
        let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let mut paths = entries
            .map(|entry| Ok(entry?.path()))
            .collect::<io::Result<Vec<PathBuf>>>()
            .map_err(|error| format!("{}: {error}", folder.display()))?;
        paths.retain(|path| path.extension().is_some_and(|ending| ending == "toml"));
        paths.sort();
        let read = |path: &PathBuf| {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let text = fs::read_to_string(path).map_err(|error| error.to_string());
            text.and_then(|text| Self::parse(&name, &text)).map_err(|why| format!("{name}: {why}"))
        };
        paths.iter().map(read).collect()
    }
}

impl Edit {
    /// Returns the text after the replacement.
    ///
    /// # Errors
    ///
    /// Fails if `before` and `after` are equal, or if `before` does not occur exactly once.
    pub fn apply(&self, text: &str) -> Result<String, String> {
        if self.before == self.after {
            return Err(format!("{}: `before` and `after` are equal", self.file));
        }
        match text.matches(&self.before).count() {
            1 => Ok(text.replacen(&self.before, &self.after, 1)),
            times => Err(format!("{}: the text to replace occurs {times} times", self.file)),
        }
    }
}

impl Caught {
    /// Time limit of the test, in seconds.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.seconds.unwrap_or(USUAL_LIMIT)
    }

    /// Returns the last part of the test's path: the name of a function, or the beginning of the name.
    #[must_use]
    pub fn function(&self) -> &str {
        self.test.rsplit("::").next().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "what = \"gone\"\n[[edit]]\nfile = \"a.rs\"\nbefore = '''\none\n'''\nafter = '''\ntwo\n'''\n\
                         [caught]\nsuite = \"loom\"\npackage = \"p\"\ntarget = \"lib\"\ntest = \"m::t\"\n";

    #[test]
    fn mutation_file_is_parsed() {
        let it = Mutation::parse("a-b", WHOLE).expect("a valid file");
        assert_eq!((it.name.as_str(), it.what.as_str()), ("a-b", "gone"));
        assert_eq!((it.edit[0].before.as_str(), it.edit[0].after.as_str()), ("one\n", "two\n"));
        let caught = it.caught.expect("a test");
        assert_eq!((caught.suite, caught.function(), caught.hang), (Build::Loom, "t", false));
        assert_eq!(caught.limit(), USUAL_LIMIT);
    }

    #[test]
    fn parse_error_names_the_wrong_field() {
        let refused = |text: &str| Mutation::parse("a", text).expect_err("an invalid file");
        assert!(refused(&WHOLE.replace("gone", "")).contains("`what`"));
        assert!(refused(&WHOLE.replace("[caught]", "argued = \"x\"\n[caught]")).contains("argued"));
        let (head, _) = WHOLE.split_once("[caught]").expect("both parts");
        assert!(refused(head).contains("either"));
        assert!(refused(&format!("{WHOLE}surprise = 1\n")).contains("surprise"));
        assert!(refused(&WHOLE.replace("loom", "room")).contains("room"));
    }

    #[test]
    fn edit_applies_only_to_text_that_occurs_once() {
        let edit = |before: &str, after: &str| Edit {
            file: "f".to_owned(),
            before: before.to_owned(),
            after: after.to_owned(),
        };
        assert_eq!(edit("b", "x").apply("abc").as_deref(), Ok("axc"));
        assert!(edit("b", "x").apply("abcb").expect_err("two places").contains("2 times"));
        assert!(edit("b", "x").apply("acc").expect_err("none").contains("0 times"));
        assert!(edit("b", "b").apply("abc").expect_err("equal texts").contains("equal"));
    }
}
