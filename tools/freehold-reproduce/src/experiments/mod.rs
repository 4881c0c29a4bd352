//! The experiments, one per file. `registry.rs` lists them; `docs/reference/measuring.md` describes them for
//! readers of the results. Most experiments repeat a step of Linux, which `docs/guide/five-steps.md`
//! describes.
//!
//! An experiment creates its *sides*, which are the compared lock designs and sometimes the host. It measures
//! all sides in each turn (`in_turns` in `measure.rs`), with every measured piece of work inside
//! `Steps::step`, and returns tables and plots ([`Findings`]). The tables show the sides next to the
//! published figures (`published.rs`). `single.rs`, `tasks.rs` and `victim.rs` contain the loads of
//! `mmap_churn.rs`, `i_mmap.rs` and `munmap_stall.rs`.
//!
//! A new experiment needs a line in `registry.rs`, a default machine in `examples/simulate.rs`, and a test in
//! `tests.rs`. The test also checks that [`Experiment::seconds`] is the sum of the expected seconds of the
//! steps.
//!
//! Two rules apply to [`Experiment::run`]. The name of a step ends in `, turn N`: a simulation adds up the
//! turns of all steps whose names are equal before this ending. Nothing is printed while a step runs.

mod dirtying;
mod fault_throughput;
mod file_reads;
mod hot_set;
mod hugetlb;
mod i_mmap;
mod mmap_churn;
mod munmap_hold;
mod munmap_stall;
mod page_fault;
pub(crate) mod published;
mod reclaim;
mod registry;
mod single;
mod tasks;
mod victim;
mod writers;

pub use registry::ALL;

use super::findings::Findings;
use super::scale::Scale;
use super::steps::Steps;

/// An experiment: a load that is measured on several sides.
pub trait Experiment: Sync {
    /// Returns the name on the command line.
    fn name(&self) -> &'static str;
    /// Returns the subject in one line.
    fn title(&self) -> &'static str;
    /// Returns the names of the designs that the experiment compares, in order.
    fn sides(&self) -> Vec<String>;
    /// Returns the number of bytes of host memory that the experiment needs.
    fn memory(&self, scale: &Scale) -> u64;
    /// Returns the approximate time in seconds: the sum of the times of its steps.
    fn seconds(&self, scale: &Scale) -> f64;
    /// Runs the experiment.
    ///
    /// # Errors
    ///
    /// Fails if the engine or the host refuses an operation, usually because there is no memory.
    fn run(&self, scale: &Scale, steps: &Steps) -> anyhow::Result<Findings>;
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
