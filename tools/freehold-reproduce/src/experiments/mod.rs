//! The experiments, one per file.

mod fault_throughput;
mod hugetlb;
mod i_mmap;
mod mmap_churn;
mod munmap_hold;
mod munmap_stall;
mod page_fault;
mod published;
mod registry;
mod single;
mod tasks;
mod victim;
mod writers;

pub use registry::ALL;

use super::findings::Findings;
use super::scale::Scale;
use super::steps::Steps;

/// An experiment that repeats published measurements.
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
