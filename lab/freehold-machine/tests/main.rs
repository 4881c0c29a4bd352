//! Tests of the machine itself, in one program: `cargo test --package freehold-machine-tests --test machine`.
//!
//! `first_steps.rs` makes a few calls of the engine, `host.rs` tests threads and grace periods, `memory.rs`
//! frames, tables and contents, `tlb.rs` translations and flushes, `oracles.rs` the checks of the machine,
//! and `snapshot_pager.rs` the pager of an example. `common` has the minimal kernel that most tests use
//! instead of the engine, so that a test can make one mistake at a time. The tests compile under the checker
//! of schedules too (`cfg(shuttle)`), where `common::run` explores schedules of a test; the suites of
//! `cargo xtask` run this program only without the checker. The other programs of this folder test the
//! engine: `shuttle_engine`, `shuttle_files`, `sim_engine`, and `heap`.

mod break_before_make;
mod common;
mod first_steps;
mod host;
mod invalid_entries;
mod memory;
mod oracles;
#[cfg(not(any(loom, shuttle)))]
mod snapshot_pager;
mod tlb;
