//! The experiments, one a file.

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

/// Something that was published, to be measured here.
pub trait Experiment: Sync {
    /// What it is called on the command line.
    fn name(&self) -> &'static str;
    /// What it is about, in a line.
    fn title(&self) -> &'static str;
    /// What its comparisons compare, in order: names of designs.
    fn sides(&self) -> Vec<String>;
    /// Bytes of the host's memory that it needs.
    fn memory(&self, scale: &Scale) -> u64;
    /// About how many seconds it takes: what its steps say together.
    fn seconds(&self, scale: &Scale) -> f64;
    /// Does it.
    ///
    /// # Errors
    ///
    /// What the engine or the host refuses: no memory, as a rule.
    fn run(&self, scale: &Scale, steps: &Steps) -> anyhow::Result<Findings>;
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
