//! The recorded cases (`lab/freehold-model/cases`), on every subject: the model with and without the kernel's
//! quirks, the engine in every design, and the running kernel.
//!
//! A case is a list of calls with the results that all subjects must give; `src/cases.rs` describes the form
//! and runs a case. To add a case, write the calls to a file and add results with the example `record`. A
//! test runs all files and prints every case that failed.

use std::path::PathBuf;

use crate::support::{linux, lockings};
use freehold_model::linux::Options;
use freehold_model::{Engine, Model, Subject, World, cases};

/// Returns the paths of all cases, in alphabetical order.
fn files() -> Vec<PathBuf> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../cases");
    let entries = std::fs::read_dir(dir).expect("the folder of cases exists");
    let mut files: Vec<PathBuf> = entries.map(|e| e.expect("readable").path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "txt"));
    files.sort();
    assert!(!files.is_empty());
    files
}

/// Runs all cases on a subject. Panics with all differences.
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
fn model_passes_all_cases() {
    run_all(&mut Model::new(World::bare()));
}

#[test]
fn model_without_quirks_passes_all_cases() {
    run_all(&mut Model::new(Engine::world_for(false)));
}

#[test]
fn engine_passes_all_cases_in_every_design() {
    for locking in lockings() {
        let mut engine = Engine::new(Engine::world_for(false), locking);
        run_all(&mut engine);
        engine.check();
    }
}

#[test]
fn kernel_passes_all_cases() {
    if let Some(mut linux) = linux(Options::default()) {
        run_all(&mut linux);
    }
}
