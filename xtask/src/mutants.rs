//! `cargo xtask mutants`: takes one protection after another away, and sees a test fail each time.
//!
//! All is done in a copy of the tree under `target/mutants`. Neighbours in the list have their test program
//! in common, so most of what one builds serves the next.

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

/// Where all is done, from the repository's root.
const FOLDER: &str = "target/mutants";

/// What to run.
#[derive(Debug, Default)]
pub struct Selection {
    /// Parts of names; none means all.
    pub names: Vec<String>,
    /// Whether to see first that the tests pass without the mutations.
    pub baseline: bool,
}

impl Selection {
    /// What the words of a command line say.
    ///
    /// # Errors
    ///
    /// A word that means nothing.
    pub fn of(words: &[&str]) -> Result<Self, String> {
        let mut it = Self { names: Vec::new(), baseline: true };
        for word in words {
            match *word {
                "--no-baseline" => it.baseline = false,
                option if option.starts_with('-') => return Err(format!("{option} means nothing")),
                name => it.names.push(name.to_owned()),
            }
        }
        Ok(it)
    }

    fn has(&self, mutation: &Mutation) -> bool {
        self.names.is_empty() || self.names.iter().any(|name| mutation.name.contains(name.as_str()))
    }
}

/// Runs the mutations selected, and prints a row for each.
///
/// # Errors
///
/// How many survived or could not be run; or why none was.
pub fn run(selection: &Selection) -> Result<(), String> {
    let root = crate::root();
    let mut mutations = Mutation::all(&root)?;
    mutations.retain(|mutation| selection.has(mutation));
    if mutations.is_empty() {
        return Err("no mutation has such a name".to_owned());
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

/// Mutations with the same test program, then those with the same file changed, are neighbours.
fn neighbourhood(mutation: &Mutation) -> (Option<(Build, String, String)>, String, String) {
    let program = mutation.caught.as_ref().map(|it| (it.suite, it.package.clone(), it.target.clone()));
    (program, mutation.edit[0].file.clone(), mutation.name.clone())
}

/// How a mutation ended.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Caught,
    Survived,
    Argued,
    /// It could not be judged.
    Unclear(String),
}

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

/// What a run of the test with the protection gone means.
fn verdict(test: &Caught, outcome: &Outcome) -> Verdict {
    match outcome {
        Outcome::Failed => Verdict::Caught,
        Outcome::Passed => Verdict::Survived,
        Outcome::Hung if test.hang => Verdict::Caught,
        Outcome::Hung => Verdict::Unclear(format!("the test did not end within {} s", test.limit())),
    }
}

/// Where mutations are made and judged.
struct Bench {
    tree: Tree,
    folder: PathBuf,
}

impl Bench {
    /// Sees that every test that is to fail passes now.
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

    /// Builds the test's program from the tree as it is, and runs the test.
    fn run(&self, test: &Caught, name: &str) -> Result<Outcome, String> {
        let program = TestProgram::build(&self.tree.folder, &self.folder, test)?;
        if program.selects(&test.test)? == 0 {
            return Err(format!("there is no test {}", test.test));
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
    fn only_a_failure_catches() {
        assert_eq!(verdict(&test(false), &Outcome::Failed), Verdict::Caught);
        assert_eq!(verdict(&test(false), &Outcome::Passed), Verdict::Survived);
        assert_eq!(verdict(&test(true), &Outcome::Hung), Verdict::Caught);
        assert_eq!(verdict(&test(true), &Outcome::Passed), Verdict::Survived);
        let Verdict::Unclear(why) = verdict(&test(false), &Outcome::Hung) else {
            panic!("a hang that nobody announced is no catch")
        };
        assert!(why.contains("7 s"));
    }

    #[test]
    fn the_sum_names_what_did_not_pass() {
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
    fn words_select() {
        let words = Selection::of(&["--no-baseline", "zap"]).expect("both mean something");
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
