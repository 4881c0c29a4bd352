//! The result of a run of the suite: one outcome for each check.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// The result of a check: nothing, or a sentence that names the mistake.
pub(super) type Found = Result<(), String>;

/// Returns from the check with a mistake if the condition is false.
macro_rules! require {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(alloc::format!($($message)+).into());
        }
    };
}
pub(super) use require;

/// The outcome of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The check found no mistake.
    Passed,
    /// The check found a mistake, which the text names.
    Failed(String),
    /// The check did not run, for the reason in the text.
    NotRun(String),
}

/// One check and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The name of the check, for example `format::markers`.
    pub name: &'static str,
    /// The outcome.
    pub outcome: Outcome,
}

/// The outcomes of all checks of a run, in the order of the checks.
///
/// # Examples
///
/// ```
/// use freehold_kit::conformance;
/// use freehold_pagetable::Sv39;
///
/// let report = conformance::format::<Sv39>();
/// assert_eq!(report.failures().count(), 0, "{report}");
/// report.assert_passed(&[]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    checks: Vec<Check>,
}

impl Report {
    /// Returns all checks.
    pub fn checks(&self) -> &[Check] {
        &self.checks
    }

    /// Returns the names of the checks that found a mistake, each with its message.
    pub fn failures(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.checks.iter().filter_map(|check| match &check.outcome {
            Outcome::Failed(mistake) => Some((check.name, mistake.as_str())),
            _ => None,
        })
    }

    /// Returns the names of the checks that did not run, each with the reason.
    pub fn not_run(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.checks.iter().filter_map(|check| match &check.outcome {
            Outcome::NotRun(reason) => Some((check.name, reason.as_str())),
            _ => None,
        })
    }

    /// Checks that no check failed, and that exactly the checks of `not_run` did not run. A test that lists
    /// these checks fails if a later change stops further checks from running.
    ///
    /// # Panics
    /// Panics with the report otherwise.
    #[track_caller]
    pub fn assert_passed(&self, not_run: &[&str]) {
        assert!(self.failures().next().is_none(), "the suite found a mistake\n{self}");
        let skipped: Vec<_> = self.not_run().map(|(name, _)| name).collect();
        assert!(skipped == not_run, "these checks did not run: {skipped:?}, expected: {not_run:?}\n{self}");
    }

    /// Adds an outcome.
    pub(super) fn add(&mut self, name: &'static str, outcome: Outcome) {
        self.checks.push(Check { name, outcome });
    }

    /// Adds the result of a check that ran.
    pub(super) fn add_found(&mut self, name: &'static str, found: Found) {
        self.add(name, found.map_or_else(Outcome::Failed, |()| Outcome::Passed));
    }
}

/// One line for each check, and a line with the numbers of checks at the end.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Check { name, outcome } in &self.checks {
            match outcome {
                Outcome::Passed => writeln!(f, "passed   {name}")?,
                Outcome::Failed(mistake) => writeln!(f, "FAILED   {name}: {mistake}")?,
                Outcome::NotRun(reason) => writeln!(f, "not run  {name}: {reason}")?,
            }
        }
        let (failed, not_run) = (self.failures().count(), self.not_run().count());
        let passed = self.checks.len() - failed - not_run;
        f.write_str(&format!("{passed} passed, {failed} failed, {not_run} not run"))
    }
}
