//! The recorded cases, on every subject.

use std::path::PathBuf;

use freehold_model::linux::{Linux, Options};
use freehold_model::{Model, Subject, World, cases};

fn files() -> Vec<PathBuf> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("cases");
    let entries = std::fs::read_dir(dir).expect("the cases are there");
    let mut files: Vec<PathBuf> = entries.map(|e| e.expect("readable").path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "txt"));
    files.sort();
    assert!(!files.is_empty());
    files
}

fn run_all(subject: &mut dyn Subject) {
    let mut failed = Vec::new();
    for file in files() {
        let case = std::fs::read_to_string(&file).expect("readable");
        if let Err(why) = cases::run(subject, &case) {
            failed.push(format!("{}: {why}", file.display()));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn the_model_passes() {
    run_all(&mut Model::new(World::bare()));
}

#[test]
fn the_kernel_passes() {
    match Linux::new(Options::default()) {
        Ok(mut linux) => run_all(&mut linux),
        Err(why) => {
            use std::io::Write as _;
            let _ = writeln!(std::io::stderr(), "SKIPPED: the kernel cannot be driven here: {why}");
        }
    }
}
