//! A machine with one CPU and one task, for the programs of this folder and of the other examples.
//!
//! `platform.rs` implements the platform that Freehold requires, and `process.rs` acts as the CPU.
//! `README.md` explains both, and `main.rs` is the first program.
#![deny(unsafe_code)]

mod platform;
mod process;

pub use platform::{Board, tick};
pub use process::Process;
