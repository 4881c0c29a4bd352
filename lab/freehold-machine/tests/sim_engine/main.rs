//! The engine on many CPUs in virtual time. The tests exist only in builds for the simulation (`cfg(sim)`):
//! `cargo xtask sim` runs them.
//!
//! The tests count how often cache lines are transferred between CPUs. The counts are the same in every run.
//! A one-time action, such as the first access to a line or a VMA that becomes per-CPU, costs transfers once.
//! The tests therefore measure the cost of each additional repetition ([`world::more`]). A test fails if a
//! shared word is added to a frequent path. The message of the test lists the places in the source whose
//! accesses cause transfers, the most frequent first. Tests of paths are in `faults.rs`, `files.rs` (faults
//! on one file), `changes.rs` (mmap, munmap, fork), `charges.rs` (accounts of pages) and `reclaim.rs` (faults
//! beside reclaim). `grace.rs` and `names.rs` test the host and its reports, and `world.rs` has the helpers.
//! Each test begins with `ran_alone`, because addresses must be the same in every run.
#![cfg(sim)]

#[global_allocator]
static APART: freehold_sim::Apart = freehold_sim::Apart;

mod changes;
mod charges;
mod faults;
mod files;
mod grace;
mod names;
mod reclaim;
mod world;
