//! The parts of the project's chores that have unit tests. The command is `main.rs`.
//!
//! | files | chore |
//! | --- | --- |
//! | `suite.rs` | runs the test suites, each with the build that it needs |
//! | `mutants.rs` | runs mutations: `mutation.rs` reads a mutation, `tree.rs` makes the mutation in a copy of the repository, `test_program.rs` builds and runs the test, `table.rs` writes the table of all mutations |
//! | `package.rs` | packages the published crates, and builds an embedder from the packages |
//! | `bare.rs` | runs the example for bare metal |
//! | `c_library.rs` | builds the static library for kernels in C |
//! | `cross.rs` | builds the engine for other processors |
//! | `hosted.rs` | runs tests as programs of Linux on aarch64 |
//! | `size.rs` | measures the size of the engine's code |
//! | `fuzz.rs`, `sanitizer.rs` | run the fuzz targets, and the suites under AddressSanitizer |
//!
//! The rules for the text of the repository are tests, in `tests/tidy.rs`. The chores of the kernel are a
//! separate package in `kernel/xtask`. A new chore is a module here with a function `run`, and an arm of
//! `main` in `main.rs`. `cargo test --package xtask` runs the unit tests and the rules.
#![deny(unsafe_code)]

pub mod bare;
pub mod c_library;
pub mod cross;
pub mod fuzz;
pub mod hosted;
pub mod mutants;
pub mod mutation;
pub mod package;
pub mod sanitizer;
pub mod size;
pub mod suite;
pub mod table;
pub mod test_program;
mod tree;

use std::path::{Path, PathBuf};

/// The folders of crates: those that an embedder links, those that check and measure the engine, and those of
/// the command `freehold`.
pub const WINGS: [&str; 3] = ["engine", "lab", "tools"];

/// Returns the folder of a package in the repository, or in a copy of the repository, at `root`. A package
/// `name-tests` is in the folder `tests` of the package `name`.
#[must_use]
pub fn package_folder(root: &Path, package: &str) -> PathBuf {
    let tested = package.strip_suffix("-tests");
    let path = tested.map_or(package.into(), |tested| Path::new(tested).join("tests"));
    let folders = WINGS.map(|wing| root.join(wing).join(&path));
    let found = folders.iter().find(|folder| folder.is_dir());
    found.unwrap_or(&folders[0]).clone()
}

/// Returns the root folder of the repository.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the repository").to_path_buf()
}
