//! `cargo xtask mutants`: removes one protection after another, and checks that a test fails for each.
//!
//! All work is done in a copy of the tree under `target/mutants` (`tree.rs`). Adjacent mutations in the list
//! share a test program (`test_program.rs`), so the next mutation reuses most of the previous build.
//! `mutation.rs` describes the files that define the mutations. A mutation that no test catches, or that
//! cannot be run, makes the command fail. [`run`] is the entry point, and `Bench::judge` runs one mutation.

use std::{
    collections::BTreeSet,
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use crate::{
    mutation::{Caught, Mutation},
    suite::Build,
    test_program::{Outcome, TestProgram},
    tree::Tree,
};

/// The work folder, relative to the repository's root.
const FOLDER: &str = "target/mutants";

/// The selected mutations, and how to run them.
#[derive(Debug, Default)]
pub struct Selection {
    /// Parts of names. An empty list selects all mutations.
    pub names: Vec<String>,
    /// True if the tests must first pass without the mutations.
    pub baseline: bool,
}

impl Selection {
    /// Parses the arguments of a command line.
    ///
    /// # Errors
    ///
    /// Fails if an option is unknown.
    pub fn of(words: &[&str]) -> Result<Self, String> {
        let mut it = Self { names: Vec::new(), baseline: true };
        for word in words {
            match *word {
                "--no-baseline" => it.baseline = false,
                option if option.starts_with('-') => return Err(format!("unknown option {option}")),
                name => it.names.push(name.to_owned()),
            }
        }
        Ok(it)
    }

    fn has(&self, mutation: &Mutation) -> bool {
        self.names.is_empty() || self.names.iter().any(|name| mutation.name.contains(name.as_str()))
    }
}

/// Runs the selected mutations, and prints a line for each.
///
/// # Errors
///
/// Fails with the number of mutations that survived or could not be run, or with the reason why none was run.
pub fn run(selection: &Selection) -> Result<(), String> {
    let root = crate::root();
    let mut mutations = Mutation::all(&root)?;
    mutations.retain(|mutation| selection.has(mutation));
    if mutations.is_empty() {
        return Err("no mutation matches the given names".to_owned());
    }
    mutations.sort_by_cached_key(neighbourhood);
    let folder = root.join(FOLDER);
    let bench = Bench { tree: Tree::copy(&root, &folder.join("tree"))?, folder };
    let started = Instant::now();
    if selection.baseline {
        bench.baseline(&mutations)?;
    }
    let mut counts = Counts::default();
    for mutation in &mutations {
        counts.add(bench.judge(mutation));
    }
    println!("{} ({:.0} s)", counts.summary(), started.elapsed().as_secs_f64());
    if counts.failed == 0 { Ok(()) } else { Err(counts.summary()) }
}

/// Returns the sort key of a mutation: first by test program, then by changed file.
fn neighbourhood(mutation: &Mutation) -> (Option<(Build, String, String)>, String, String) {
    let program = mutation.caught.as_ref().map(|it| (it.suite, it.package.clone(), it.target.clone()));
    (program, mutation.edit[0].file.clone(), mutation.name.clone())
}

/// The result of a mutation.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// The test failed, as it must.
    Caught,
    /// The test passed without the protection.
    Survived,
    /// Not run: the mutation gives a reason why no behaviour changes.
    Argued,
    /// The mutation could not be run.
    Unclear(String),
}

/// Numbers of mutations, by result.
#[derive(Debug, Default)]
struct Counts {
    passed: usize,
    failed: usize,
    argued: usize,
}

impl Counts {
    fn add(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Caught => self.passed += 1,
            Verdict::Survived | Verdict::Unclear(_) => self.failed += 1,
            Verdict::Argued => self.argued += 1,
        }
    }

    fn summary(&self) -> String {
        let argued = match self.argued {
            0 => String::new(),
            number => format!(", {number} argued"),
        };
        format!("mutants: {} passed, {} failed{argued}", self.passed, self.failed)
    }
}

/// Interprets the outcome of the test while the protection is removed.
fn verdict(test: &Caught, outcome: &Outcome) -> Verdict {
    match outcome {
        Outcome::Failed => Verdict::Caught,
        Outcome::Passed => Verdict::Survived,
        Outcome::Hung if test.hang => Verdict::Caught,
        Outcome::Hung => Verdict::Unclear(format!("the test did not end within {} s", test.limit())),
    }
}

/// The work folder and the copy of the tree in which mutations are made.
struct Bench {
    tree: Tree,
    folder: PathBuf,
}

impl Bench {
    /// Checks that every test that must fail with a mutation passes without it.
    fn baseline(&self, mutations: &[Mutation]) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        for test in mutations.iter().filter_map(|mutation| mutation.caught.as_ref()) {
            if !seen.insert((test.suite, &test.package, &test.target, &test.test)) {
                continue;
            }
            let named = format!("{} {} {}", test.package, test.target, test.test);
            match self.run(test, "baseline").map_err(|why| format!("{named}: {why}"))? {
                Outcome::Passed => {}
                outcome => return Err(format!("{named}: {outcome:?} on the unchanged tree")),
            }
        }
        println!("{} tests pass on the unchanged tree", seen.len());
        Ok(())
    }

    /// Runs the test of a mutation in the mutated copy, and prints the result.
    fn judge(&self, mutation: &Mutation) -> Verdict {
        let started = Instant::now();
        let judged = match &mutation.caught {
            None => Verdict::Argued,
            Some(test) => match self.tree.with(mutation, || self.run(test, &mutation.name)) {
                Ok(outcome) => verdict(test, &outcome),
                Err(why) => Verdict::Unclear(why),
            },
        };
        let word = match &judged {
            Verdict::Caught => "caught",
            Verdict::Survived => "SURVIVED",
            Verdict::Argued => "argued",
            Verdict::Unclear(_) => "ERROR",
        };
        println!("{word:8} {:5.0} s  {}: {}", started.elapsed().as_secs_f64(), mutation.name, mutation.what);
        if let Verdict::Unclear(why) = &judged {
            println!("{why}");
        }
        judged
    }

    /// Builds the test's program from the current tree, and runs the test.
    fn run(&self, test: &Caught, name: &str) -> Result<Outcome, String> {
        let program = TestProgram::build(&self.tree.folder, &self.folder, test)?;
        if program.selects(&test.test)? == 0 {
            return Err(format!("no test {}", test.test));
        }
        let said = self.folder.join("said");
        fs::create_dir_all(&said).map_err(|error| format!("{}: {error}", said.display()))?;
        program.run(&test.test, Duration::from_secs(test.limit()), &said.join(format!("{name}.txt")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(hang: bool) -> Caught {
        Caught {
            suite: Build::Plain,
            package: "p".to_owned(),
            target: "t".to_owned(),
            test: "x".to_owned(),
            hang,
            seconds: Some(7),
        }
    }

    #[test]
    fn mutation_is_caught_by_a_failure_or_an_expected_hang() {
        assert_eq!(verdict(&test(false), &Outcome::Failed), Verdict::Caught);
        assert_eq!(verdict(&test(false), &Outcome::Passed), Verdict::Survived);
        assert_eq!(verdict(&test(true), &Outcome::Hung), Verdict::Caught);
        assert_eq!(verdict(&test(true), &Outcome::Passed), Verdict::Survived);
        let Verdict::Unclear(why) = verdict(&test(false), &Outcome::Hung) else {
            panic!("an unexpected hang does not catch a mutation")
        };
        assert!(why.contains("7 s"));
    }

    #[test]
    fn summary_counts_passed_failed_and_argued() {
        let mut counts = Counts::default();
        for verdict in [Verdict::Caught, Verdict::Survived, Verdict::Unclear(String::new()), Verdict::Caught]
        {
            counts.add(verdict);
        }
        assert_eq!(counts.summary(), "mutants: 2 passed, 2 failed");
        counts.add(Verdict::Argued);
        assert_eq!(counts.summary(), "mutants: 2 passed, 2 failed, 1 argued");
    }

    #[test]
    fn arguments_select_mutations() {
        let words = Selection::of(&["--no-baseline", "zap"]).expect("both are known");
        assert!(!words.baseline);
        let named = |name: &str| Mutation {
            name: name.to_owned(),
            what: String::new(),
            edit: Vec::new(),
            caught: Some(test(false)),
            argued: None,
        };
        assert!(words.has(&named("space-zap-dirty")) && !words.has(&named("fork-flush")));
        assert!(Selection::of(&[]).is_ok_and(|all| all.baseline && all.has(&named("fork-flush"))));
        assert!(Selection::of(&["--fast"]).is_err());
    }
}
