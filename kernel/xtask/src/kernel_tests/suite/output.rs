//! Finds the cases of a program and their outcomes in the program's output. [`super::run`] calls [`cases`]
//! after each run. The tests below have an output of each form.
//!
//! Four forms are known:
//!
//! - GoogleTest: `[       OK ] Suite.Name (3 ms)`, and the same with `FAILED` and `SKIPPED`. A case that
//!   began and did not end has failed.
//! - TAP, which the selftests of Linux print: `ok 1 name`, `not ok 2 name`, `ok 3 name # SKIP why`. The
//!   number is not part of the name.
//! - The form of the test of userfaultfd: `Testing name on memory... done`, or `skipped` or `failed`. A case
//!   that began and did not end has failed.
//! - The form of the regression tests of Asterinas: `name summary: 3 tests passed, 0 tests failed`, and
//!   `name skipped: ...`.
//! - A program that prints none of these is one case by itself, [`END`]. Status 0 means that the case passed, and
//!   status 4 that it was skipped, as in Linux's selftests.
//!
//! A program that prints cases has the case [`END`] only if it was ended: by a signal, by its time limit, or
//! together with the machine. This case has failed.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The case that stands for the end of a program.
pub const END: &str = "end";

/// The status of a selftest of Linux that was skipped.
const SKIP: u8 = 4;

/// The outcome of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The case did what it should.
    Passed,
    /// The case found an error.
    Failed,
    /// The case does not apply to this machine.
    Skipped,
}

impl Outcome {
    /// Returns the word for the outcome.
    pub fn word(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

/// The cases of a program by name.
pub type Cases = BTreeMap<String, Outcome>;

/// Returns the cases of a program. `status` is the program's exit status, or `None` if the program did not
/// end by itself.
pub fn cases(output: &str, status: Option<u8>) -> Cases {
    let mut cases = Cases::new();
    // The case that has begun and not ended.
    let mut begun: Option<String> = None;
    for line in output.lines().map(str::trim_end) {
        if let Some(name) = after(line, "[ RUN      ] ") {
            begun = Some(name.to_owned());
        } else if let Some((name, outcome)) = of_gtest(line) {
            begun = None;
            add(&mut cases, name, outcome);
        } else if let Some((name, outcome)) = of_testing(line) {
            match outcome {
                Some(outcome) => add(&mut cases, name, outcome),
                None => begun = Some(name),
            }
        } else if let Some((name, outcome)) = of_tap(line).or_else(|| of_summary(line)) {
            add(&mut cases, name, outcome);
        }
    }
    if let Some(name) = begun {
        add(&mut cases, name, Outcome::Failed);
    }
    match status {
        Some(status) if status < 128 => {
            if cases.is_empty() {
                let outcome = match status {
                    0 => Outcome::Passed,
                    SKIP => Outcome::Skipped,
                    _ => Outcome::Failed,
                };
                add(&mut cases, END.into(), outcome);
            }
        }
        _ => add(&mut cases, END.into(), Outcome::Failed),
    }
    cases
}

/// Adds a case. A name that occurs again gets a number.
fn add(cases: &mut Cases, name: String, outcome: Outcome) {
    let numbered = |number: u32| if number == 1 { name.clone() } else { format!("{name} ({number})") };
    let free = (1..).map(numbered).find(|name| !cases.contains_key(name));
    cases.extend(free.map(|name| (name, outcome)));
}

/// Returns the part of a line after a mark. Text without an end of line may precede the mark.
fn after<'a>(line: &'a str, mark: &str) -> Option<&'a str> {
    line.find(mark).map(|at| &line[at + mark.len()..])
}

/// Parses the line that ends a case of GoogleTest. The summary at the end of the output repeats names of
/// cases without their times.
fn of_gtest(line: &str) -> Option<(String, Outcome)> {
    let marks = [
        ("[       OK ] ", Outcome::Passed),
        ("[  FAILED  ] ", Outcome::Failed),
        ("[  SKIPPED ] ", Outcome::Skipped),
    ];
    let (text, outcome) = marks.iter().find_map(|(mark, outcome)| Some((after(line, mark)?, *outcome)))?;
    let (name, _) = text.strip_suffix(" ms)")?.rsplit_once(" (")?;
    // A failed case with a parameter also names the parameter.
    let name = name.split_once(", where ").map_or(name, |(name, _)| name);
    Some((name.to_owned(), outcome))
}

/// Parses a line of the form of the test of userfaultfd. The outcome is `None` if the line has no known word.
fn of_testing(line: &str) -> Option<(String, Option<Outcome>)> {
    let (name, text) = line.strip_prefix("Testing ")?.split_once("... ")?;
    let words = [("done", Outcome::Passed), ("skipped", Outcome::Skipped), ("failed", Outcome::Failed)];
    let outcome = words.iter().find(|(word, _)| text.starts_with(word)).map(|(_, outcome)| *outcome);
    Some((name.to_owned(), outcome))
}

/// Parses a line of TAP that ends a case.
fn of_tap(line: &str) -> Option<(String, Outcome)> {
    let (text, outcome) = match line.strip_prefix("not ok ") {
        Some(text) => (text, Outcome::Failed),
        None => (line.strip_prefix("ok ")?, Outcome::Passed),
    };
    let (number, text) = text.split_once(' ')?;
    number.parse::<u32>().ok()?;
    let text = text.strip_prefix("- ").unwrap_or(text);
    // A case without a name is named by the reason why it was skipped.
    let (name, outcome) = match text.split_once("# SKIP") {
        Some((name, why)) if name.trim().is_empty() => (why, Outcome::Skipped),
        Some((name, _)) => (name, Outcome::Skipped),
        // What follows `#` is a remark, such as an error number.
        None => (text.split_once(" # ").map_or(text, |(name, _)| name), outcome),
    };
    Some((name.trim().to_owned(), outcome))
}

/// Parses a line that sums up the checks of a function.
fn of_summary(line: &str) -> Option<(String, Outcome)> {
    let is_name = |name: &&str| name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    if let Some((name, _)) = line.split_once(" skipped: `").filter(|(name, _)| is_name(name)) {
        return Some((name.to_owned(), Outcome::Skipped));
    }
    let (name, text) = line.split_once(" summary: ").filter(|(name, _)| is_name(name))?;
    let (_, failed) = text.strip_suffix(" tests failed")?.split_once(" tests passed, ")?;
    let outcome = if failed == "0" { Outcome::Passed } else { Outcome::Failed };
    Some((name.to_owned(), outcome))
}

#[cfg(test)]
mod tests {
    use super::{Outcome::*, *};

    fn of(pairs: &[(&str, Outcome)]) -> Cases {
        pairs.iter().map(|(name, outcome)| (name.to_string(), *outcome)).collect()
    }

    #[test]
    fn cases_of_googletest_are_found_once() {
        let output = "[ RUN      ] A.Right\ntext without end of line[       OK ] A.Right (3 ms)\n\
            [ RUN      ] A.Wrong/1\n[  FAILED  ] A.Wrong/1, where GetParam() = 4-byte object (0 ms)\n\
            [ RUN      ] A.Unfit\r\n[  SKIPPED ] A.Unfit (0 ms)\r\n\
            [  FAILED  ] 1 test, listed below:\n[  FAILED  ] A.Wrong/1, where GetParam() = 4-byte object\n";
        assert_eq!(
            cases(output, Some(1)),
            of(&[("A.Right", Passed), ("A.Wrong/1", Failed), ("A.Unfit", Skipped)])
        );
    }

    #[test]
    fn case_of_googletest_that_does_not_end_has_failed() {
        let output = "[ RUN      ] A.Right\n[       OK ] A.Right (3 ms)\n[ RUN      ] A.Dies\n";
        let expected = of(&[("A.Right", Passed), ("A.Dies", Failed), (END, Failed)]);
        assert_eq!(cases(output, Some(139)), expected);
        assert_eq!(cases(output, None), expected);
    }

    #[test]
    fn cases_of_tap_are_found() {
        let output = "TAP version 13\n1..6\n# ok 9 remark\n  ok 9 inner\nok 1 merge.split\nnot ok 2 with words\n\
            ok 3 no.feature # SKIP why\nok 4 # SKIP no huge pages\nok 5 - dashed\nnot ok 6 two # 22\nok then\n";
        let expected = [
            ("merge.split", Passed),
            ("with words", Failed),
            ("no.feature", Skipped),
            ("no huge pages", Skipped),
            ("dashed", Passed),
            ("two", Failed),
        ];
        assert_eq!(cases(output, Some(1)), of(&expected));
    }

    #[test]
    fn cases_of_the_test_of_userfaultfd_are_found() {
        let output = "Testing move on anon... done\nTesting move on shmem... skipped [reason: no]\n\
            Testing poison on anon... failed [reason: 3]\nTesting minor on anon... ERROR: text\n";
        let expected = [
            ("move on anon", Passed),
            ("move on shmem", Skipped),
            ("poison on anon", Failed),
            ("minor on anon", Failed),
        ];
        assert_eq!(cases(output, Some(1)), of(&expected));
    }

    #[test]
    fn summaries_of_functions_are_cases() {
        let output = "open_file: `open(...)` passed [got Success]\nopen_file summary: 3 tests passed, 0 tests failed\n\
            close_file summary: 1 tests passed, 2 tests failed\nexec skipped: `!file` is true\n\
            a text summary: 1 tests passed, 0 tests failed\n";
        let expected = of(&[("open_file", Passed), ("close_file", Failed), ("exec", Skipped)]);
        assert_eq!(cases(output, Some(1)), expected);
    }

    #[test]
    fn equal_names_are_numbered() {
        let expected = of(&[("read", Passed), ("read (2)", Failed), ("read (3)", Passed)]);
        assert_eq!(cases("ok 1 read\nnot ok 2 read\nok 3 read\n", Some(0)), expected);
    }

    #[test]
    fn status_is_the_outcome_of_a_program_without_cases() {
        for (status, outcome) in [(0, Passed), (4, Skipped), (1, Failed), (139, Failed)] {
            assert_eq!(cases("some text\n", Some(status)), of(&[(END, outcome)]));
        }
        assert_eq!(cases("", None), of(&[(END, Failed)]));
    }
}
