//! The list of a suite's expected results, `kernel/tests/suites/NAME.toml`: its fields, as types, and its
//! text. `kernel/tests/README.md` describes the fields. [`super::run`] reads the list, and writes it with
//! `--save`. A test below checks that each list is written as [`List::text`] writes it, and that each
//! difference has its reason.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::PathBuf};

use serde::Deserialize;

use super::output::{Cases, Outcome};

/// The folder with the lists, from the repository's root.
const LISTS: &str = "kernel/tests/suites";

/// The reason of a new entry, which a person must replace.
pub const UNEXPLAINED: &str = "unexplained";

/// A program of a suite: its machine, and the expected outcomes of its cases.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Program {
    /// Arguments of the program.
    pub arguments: Vec<String>,
    /// Other files of the folder that the program needs.
    pub files: Vec<String>,
    /// Options of the kernel.
    pub options: Vec<String>,
    /// Shell commands that run before the program.
    pub before: Option<String>,
    /// Number of CPUs; 2 by default.
    pub cpus: Option<u32>,
    /// Size of memory; 1G by default.
    pub memory: Option<String>,
    /// Time limit in seconds; 120 by default.
    pub limit: Option<u64>,
    /// Cases that pass.
    pub passed: Vec<String>,
    /// Cases that fail, with the reasons.
    pub failed: BTreeMap<String, String>,
    /// Cases that are skipped, with the reasons.
    pub skipped: BTreeMap<String, String>,
    /// Cases whose outcome is not the same in each run, with the reasons. `*` at the end of a name stands for
    /// any text.
    pub varies: BTreeMap<String, String>,
}

/// The list of a suite.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct List {
    /// The comment at the top.
    head: String,
    /// The programs by name.
    pub programs: BTreeMap<String, Program>,
}

impl Program {
    /// Returns the expected outcomes.
    pub fn expected(&self) -> Cases {
        let passed = self.passed.iter().map(|name| (name.clone(), Outcome::Passed));
        let failed = self.failed.keys().map(|name| (name.clone(), Outcome::Failed));
        let skipped = self.skipped.keys().map(|name| (name.clone(), Outcome::Skipped));
        passed.chain(failed).chain(skipped).collect()
    }

    /// Returns true if the outcome of a case is not the same in each run.
    fn varies(&self, case: &str) -> bool {
        let is_meant = |name: &String| match name.strip_suffix('*') {
            Some(start) => case.starts_with(start),
            None => case == name,
        };
        self.varies.keys().any(is_meant)
    }

    /// Replaces the expected outcomes. Keeps the reasons.
    pub fn set(&mut self, cases: &Cases) {
        let this = self.clone();
        let this = &this;
        let known: BTreeMap<_, _> = this.failed.iter().chain(&this.skipped).collect();
        let of = |wanted: Outcome| {
            let is_meant =
                move |(name, outcome): &(&String, &Outcome)| **outcome == wanted && !this.varies(name);
            cases.iter().filter(is_meant).map(|(name, _)| name)
        };
        let with_reasons = |wanted| {
            let reason = |name| known.get(name).map_or(UNEXPLAINED.into(), |reason| reason.to_string());
            of(wanted).map(|name| (name.clone(), reason(name))).collect::<BTreeMap<_, _>>()
        };
        let (failed, skipped) = (with_reasons(Outcome::Failed), with_reasons(Outcome::Skipped));
        self.passed = of(Outcome::Passed).cloned().collect();
        (self.failed, self.skipped) = (failed, skipped);
    }

    /// Returns the differences of a run from the expected outcomes, one a line.
    pub fn differences(&self, seen: &Cases) -> Vec<String> {
        let expected = self.expected();
        let mut names: Vec<_> = expected.keys().chain(seen.keys()).collect();
        names.sort();
        names.dedup();
        let word = |outcome: Option<&Outcome>| outcome.map_or("missing", |outcome| outcome.word());
        let mut lines = Vec::new();
        for name in names.into_iter().filter(|name| !self.varies(name)) {
            let (was, should) = (seen.get(name), expected.get(name));
            match should {
                _ if was == should => {}
                Some(_) => lines.push(format!("{name}: {} instead of {}", word(was), word(should))),
                None => lines.push(format!("{name}: {}, not in the list", word(was))),
            }
        }
        lines
    }
}

/// Returns the path of a suite's list.
pub fn path(suite: &str) -> PathBuf {
    xtask::root().join(LISTS).join(format!("{suite}.toml"))
}

impl List {
    /// Reads the list of a suite. A missing list is empty.
    ///
    /// # Errors
    ///
    /// Fails if the list is invalid. The message says where.
    pub fn read(suite: &str) -> Result<Self, String> {
        let text = fs::read_to_string(path(suite)).unwrap_or_default();
        Self::parse(&text).map_err(|error| format!("{LISTS}/{suite}.toml: {error}"))
    }

    /// Parses a list.
    fn parse(text: &str) -> Result<Self, String> {
        let head = text.split_inclusive('\n').take_while(|line| line.starts_with('#')).collect();
        let programs = toml::from_str(text).map_err(|error| error.to_string())?;
        Ok(Self { head, programs })
    }

    /// Returns the list as text.
    pub fn text(&self) -> String {
        let mut text = self.head.clone();
        for (name, program) in &self.programs {
            let _ = write!(text, "\n[{}]\n{program}", key(name));
        }
        text
    }
}

/// Writes the fields of a program, without those that have their defaults.
impl std::fmt::Display for Program {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (field, words) in
            [("arguments", &self.arguments), ("files", &self.files), ("options", &self.options)]
        {
            if !words.is_empty() {
                writeln!(to, "{field} = {words:?}")?;
            }
        }
        if let Some(before) = &self.before {
            writeln!(to, "before = {before:?}")?;
        }
        if let Some(cpus) = self.cpus {
            writeln!(to, "cpus = {cpus}")?;
        }
        if let Some(memory) = &self.memory {
            writeln!(to, "memory = {memory:?}")?;
        }
        if let Some(limit) = self.limit {
            writeln!(to, "limit = {limit}")?;
        }
        if !self.passed.is_empty() {
            writeln!(to, "passed = [")?;
            self.passed.iter().try_for_each(|name| writeln!(to, "    {name:?},"))?;
            writeln!(to, "]")?;
        }
        for (field, cases) in [("failed", &self.failed), ("skipped", &self.skipped), ("varies", &self.varies)]
        {
            cases.iter().try_for_each(|(name, reason)| writeln!(to, "{field}.{name:?} = {reason:?}"))?;
        }
        Ok(())
    }
}

/// Returns a name as a key of TOML.
fn key(name: &str) -> String {
    let is_bare = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    if name.chars().all(is_bare) { name.into() } else { format!("{name:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# About it.\n\n[fork]\narguments = [\"-x\"]\nlimit = 9\npassed = [\n    \"A.b\",\n    \"A \\\"c\\\"\",\n]\n\
        failed.\"d e\" = \"has no e\"\nskipped.\"f\" = \"as on Linux\"\n\n[\"g.h\"]\npassed = [\n    \"end\",\n]\n";

    #[test]
    fn lists_are_in_the_written_form_and_explain_each_difference() {
        for entry in fs::read_dir(xtask::root().join(LISTS)).expect("a folder").flatten() {
            let text = fs::read_to_string(entry.path()).expect("a list");
            let list = List::parse(&text).expect("a valid list");
            assert_eq!(list.text(), text, "{}", entry.path().display());
            for (name, program) in &list.programs {
                let mut reasons = program.failed.iter().chain(&program.skipped).chain(&program.varies);
                let bare = reasons.find(|(_, reason)| reason.is_empty() || *reason == UNEXPLAINED);
                assert_eq!(bare, None, "{name}");
                assert_eq!(
                    program.expected().len(),
                    program.passed.len() + program.failed.len() + program.skipped.len(),
                    "{name} has a case twice"
                );
            }
        }
    }

    #[test]
    fn text_of_a_list_is_parsed_to_the_same_list() {
        let list = List::parse(TEXT).expect("a valid list");
        assert_eq!(list.text(), TEXT);
        assert!(List::parse("[a]\ncolour = 1\n").is_err_and(|why| why.contains("unknown field")));
    }

    #[test]
    fn differences_in_both_directions_are_reported() {
        let list = List::parse(TEXT).expect("a valid list");
        let fork = &list.programs["fork"];
        assert!(fork.differences(&fork.expected()).is_empty());
        let mut seen = fork.expected();
        seen.remove("A.b");
        seen.insert("A \"c\"".into(), Outcome::Failed);
        seen.insert("d e".into(), Outcome::Passed);
        seen.insert("new".into(), Outcome::Passed);
        let said = [
            "A \"c\": failed instead of passed",
            "A.b: missing instead of passed",
            "d e: passed instead of failed",
            "new: passed, not in the list",
        ];
        assert_eq!(fork.differences(&seen), said);
        let varies =
            BTreeMap::from(["A.b", "A \"c\"", "d e", "new"].map(|name| (name.into(), "load".into())));
        let mut free = Program { varies, ..fork.clone() };
        assert!(free.differences(&seen).is_empty());
        free.varies = BTreeMap::from([("*".into(), "load".into())]);
        assert!(free.differences(&seen).is_empty());
        free.varies = BTreeMap::from([("A*".into(), "load".into())]);
        assert_eq!(free.differences(&seen), said[2..]);
        free.set(&seen);
        assert_eq!(free.passed, ["d e", "new"]);
    }

    #[test]
    fn new_outcomes_keep_the_reasons() {
        let mut fork = List::parse(TEXT).expect("a valid list").programs["fork"].clone();
        let cases = [("d e", Outcome::Skipped), ("f", Outcome::Passed), ("new", Outcome::Failed)];
        fork.set(&cases.map(|(name, outcome)| (name.to_owned(), outcome)).into());
        assert_eq!(fork.passed, ["f"]);
        assert_eq!(fork.skipped["d e"], "has no e");
        assert_eq!(fork.failed["new"], UNEXPLAINED);
        assert_eq!(fork.limit, Some(9));
    }
}
