//! The parts of the project's chores that have tests of their own; the command is `main.rs`.
#![deny(unsafe_code)]

pub mod boot;
pub mod fuzz;
pub mod kernel_bench;
pub mod kernel_tests;
pub mod mutants;
pub mod mutation;
pub mod sanitizer;
pub mod suite;
pub mod table;
mod test_program;
mod tree;

use std::path::{Path, PathBuf};

/// The folder that the repository lies in.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository").to_path_buf()
}
