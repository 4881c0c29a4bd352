//! The recorded cases, on every subject.

use std::path::PathBuf;

use crate::support::{linux, lockings};
use freehold_model::linux::Options;
use freehold_model::{Engine, Model, Subject, World, cases};

fn files() -> Vec<PathBuf> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../cases");
    let entries = std::fs::read_dir(dir).expect("the folder of cases exists");
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
