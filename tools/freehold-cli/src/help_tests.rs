//! Tests the help texts (`help.rs`, `cli.rs`): each subcommand has the same parts, lines fit into a terminal,
//! and documents quote the same strace command.
//!
//! A test renders the help of all subcommands with clap, so that a new subcommand is tested automatically;
//! only the number of subcommands must be raised here.

use crate::cli::Cli;
use clap::CommandFactory;
use freehold_record::strace_command_line;
use std::fs;
use std::path::{Path, PathBuf};

/// Width of a terminal in columns.
const WIDTH: usize = 100;

/// Returns the name, the short help and the long help of each subcommand.
fn jobs() -> Vec<(String, String, String)> {
    let mut command = Cli::command();
    command.build();
    let jobs = command.get_subcommands_mut().filter(|job| job.get_name() != "help");
    jobs.map(|job| {
        (job.get_name().to_owned(), job.render_help().to_string(), job.render_long_help().to_string())
    })
    .collect()
}

#[test]
fn all_subcommands_have_the_same_help_parts() {
    let jobs = jobs();
    assert_eq!(jobs.len(), 5);
    for (name, short, long) in jobs {
        let more = format!("\nRun 'freehold {name} --help' for details and examples.");
        assert!(short.contains(&more), "{short}");
        let parts = ["\n\nExit status: ", "\n\nUsage: freehold ", "\n\nExamples:\n  "];
        let places: Vec<Option<usize>> = parts.iter().map(|part| long.find(part)).collect();
        assert!(places.is_sorted() && places[0].is_some(), "{places:?} in\n{long}");
        assert!(!long.contains("for details and examples"), "{long}");
        assert!(!short.contains("Exit status"), "{short}");
    }
}

#[test]
fn help_fits_into_100_columns() {
    for (name, short, long) in jobs() {
        for line in short.lines().chain(long.lines()) {
            let fits = line.chars().count() <= WIDTH || line.trim() == strace_command_line();
            assert!(fits, "{name}: {} columns\n{line}", line.chars().count());
        }
    }
}

/// The strace command whose output can be replayed is defined once in the code. Every document that quotes
/// the command must quote it exactly.
#[test]
fn all_documents_quote_the_same_strace_command() {
    let expected = strace_command_line();
    for (name, _, long) in jobs() {
        let named = long.contains(&expected);
        assert_eq!(named, name == "replay" || name == "record", "{long}");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut places = 0;
    for path in documents(&root) {
        let text = fs::read_to_string(&path).expect("a document");
        let text = text.replace("\\\n", " ").split_whitespace().collect::<Vec<_>>().join(" ");
        for (at, _) in text.match_indices("strace -f -ttt") {
            // The bare words `strace -f -ttt` describe the kind of output. They are not a command to run.
            let rest = &text[at..];
            if !rest.starts_with("strace -f -ttt`") {
                assert!(
                    rest.starts_with(&expected),
                    "{}: {}",
                    path.display(),
                    rest.chars().take(200).collect::<String>()
                );
                places += 1;
            }
        }
    }
    assert!(places >= 2, "docs/reference/trace-format.md and docs/guide/replay.md must quote the command");
}

/// Returns the paths of README.md and of all documents in `docs/guide` and `docs/reference`.
fn documents(root: &Path) -> Vec<PathBuf> {
    let folders = ["docs/guide", "docs/reference"];
    let entries = folders.map(|folder| fs::read_dir(root.join(folder)).expect("a folder"));
    let docs = entries.into_iter().flatten().map(|entry| entry.expect("an entry").path());
    let texts = docs.filter(|path| path.extension().is_some_and(|ending| ending == "md"));
    texts.chain([root.join("README.md")]).collect()
}
