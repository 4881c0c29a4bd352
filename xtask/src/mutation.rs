//! A mutation: a protection taken away, and the test that must notice.
//!
//! Each is a file in `xtask/mutants`, named after where it is and what goes:
//!
//! ```toml
//! what = "the dirty bit is not set again after the flush of a zap"
//! [[edit]]
//! file = "engine/freehold-vmspace/src/zap.rs"
//! before = '''
//! text that occurs exactly once in the file
//! '''
//! after = '''
//! the text that replaces it
//! '''
//! [caught]
//! suite = "plain"     # or loom, shuttle
//! package = "freehold"
//! target = "engine"   # a test program of the package, or "lib" for its unit tests
//! test = "tlb::a_store_after_the_entry_was_cleared_is_not_lost"
//! ```
//!
//! `caught` may also have `hang = true` (the test may fail by never ending) and `seconds` (how long it may
//! take). Instead of `caught`, `argued` says why no behaviour changes; such a mutation is not run.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use crate::suite::Build;

/// Where the mutations lie, from the repository's root.
pub const FOLDER: &str = "xtask/mutants";

/// How long a test may take if nothing else is said, in seconds.
const USUAL_LIMIT: u64 = 300;

/// A protection taken away.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mutation {
    /// The name of its file, without the ending.
    #[serde(skip)]
    pub name: String,
    /// Which protection is gone, in one line.
    pub what: String,
    /// What is changed.
    pub edit: Vec<Edit>,
    /// The test that must fail.
    pub caught: Option<Caught>,
    /// Why no behaviour changes.
    pub argued: Option<String>,
}

/// One replacement in one file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    /// The file, from the repository's root.
    pub file: String,
    /// Text that occurs exactly once in it.
    pub before: String,
    /// What replaces it.
    pub after: String,
}

/// The test that must fail.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Caught {
    /// What it is built for.
    pub suite: Build,
    /// The package that it belongs to.
    pub package: String,
    /// Its test program, or `lib`.
    pub target: String,
    /// Its name, or the part of it that selects it.
    pub test: String,
    /// Whether never ending counts as failing.
    #[serde(default)]
    pub hang: bool,
    /// How long it may take, in seconds.
    pub seconds: Option<u64>,
}

impl Mutation {
    /// Reads one.
    ///
    /// # Errors
    ///
    /// What is wrong with the text.
    pub fn parse(name: &str, text: &str) -> Result<Self, String> {
        let mut it: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        it.name = name.to_owned();
        if it.edit.is_empty() {
            return Err("changes nothing".to_owned());
        }
        if it.caught.is_some() == it.argued.is_some() {
            return Err("needs either `caught` or `argued`".to_owned());
        }
        if it.what.contains(['\n', '|']) || it.what.is_empty() {
            return Err("`what` is not one plain line".to_owned());
        }
        Ok(it)
    }

    /// All mutations of the repository at `root`, by name.
    ///
    /// # Errors
    ///
    /// The first that cannot be read, and why.
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
    /// The text with the replacement made.
    ///
    /// # Errors
    ///
    /// Why it cannot be made.
    pub fn apply(&self, text: &str) -> Result<String, String> {
        if self.before == self.after {
            return Err(format!("{}: nothing is changed", self.file));
        }
        match text.matches(&self.before).count() {
            1 => Ok(text.replacen(&self.before, &self.after, 1)),
            times => Err(format!("{}: the text to replace occurs {times} times", self.file)),
        }
    }
}

impl Caught {
    /// How long the test may take, in seconds.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.seconds.unwrap_or(USUAL_LIMIT)
    }

    /// The last part of the test's path: the name of a function, or its beginning.
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
    fn a_file_is_read() {
        let it = Mutation::parse("a-b", WHOLE).expect("it is right");
        assert_eq!((it.name.as_str(), it.what.as_str()), ("a-b", "gone"));
        assert_eq!((it.edit[0].before.as_str(), it.edit[0].after.as_str()), ("one\n", "two\n"));
        let caught = it.caught.expect("it names a test");
        assert_eq!((caught.suite, caught.function(), caught.hang), (Build::Loom, "t", false));
        assert_eq!(caught.limit(), USUAL_LIMIT);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let refused = |text: &str| Mutation::parse("a", text).expect_err("it is wrong");
        assert!(refused(&WHOLE.replace("gone", "")).contains("`what`"));
        assert!(refused(&WHOLE.replace("[caught]", "argued = \"x\"\n[caught]")).contains("argued"));
        let (head, _) = WHOLE.split_once("[caught]").expect("it has both");
        assert!(refused(head).contains("either"));
        assert!(refused(&format!("{WHOLE}surprise = 1\n")).contains("surprise"));
        assert!(refused(&WHOLE.replace("loom", "room")).contains("room"));
    }

    #[test]
    fn an_edit_fits_in_one_place() {
        let edit = |before: &str, after: &str| Edit {
            file: "f".to_owned(),
            before: before.to_owned(),
            after: after.to_owned(),
        };
        assert_eq!(edit("b", "x").apply("abc").as_deref(), Ok("axc"));
        assert!(edit("b", "x").apply("abcb").expect_err("two places").contains("2 times"));
        assert!(edit("b", "x").apply("acc").expect_err("none").contains("0 times"));
        assert!(edit("b", "b").apply("abc").expect_err("the same").contains("nothing"));
    }
}
