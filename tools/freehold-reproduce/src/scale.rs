//! The scale of an experiment.
//!
//! A [`Scale`] holds the choices of the command line (quick or full, number of turns, processors, sizes,
//! host, threads, design). `freehold-cli` and `examples/simulate.rs` create it, and every experiment gets
//! sizes, numbers of threads, and durations from it, so that one option has the same effect on all
//! experiments. A scale does not change during a run. A new option needs a field, which
//! `command/reproduce.rs` of `freehold-cli` and `examples/simulate.rs` set. The tests are in
//! `scale_tests.rs`.

use super::executor::Place;
use super::memory;
use freehold::engine::Config;
use freehold::space::{Locking, Write};
use freehold_replay::locking::Design;
use std::time::Duration;

/// Sizes and times of a run.
#[derive(Clone, Debug)]
pub struct Scale {
    /// Use small sizes, for a run of two minutes.
    pub quick: bool,
    /// Number of turns of each side, if the user sets it.
    pub turns: Option<usize>,
    /// Duration of a turn of an experiment that counts the work done in a fixed time.
    pub turn: Duration,
    /// Number of processors to use.
    pub cpus: usize,
    /// Size of the largest mapping, in bytes.
    pub at_most: u64,
    /// Also measure the host's system calls where possible.
    pub host: bool,
    /// Numbers of threads for experiments that try several numbers, if the user sets them.
    pub threads: Option<Vec<usize>>,
    /// The designs that an experiment does not compare, if the user sets them.
    pub design: Option<Design>,
    /// Place where loads run.
    pub place: Place,
}

impl Scale {
    /// Creates the scale with the published sizes.
    pub fn full(cpus: usize) -> Scale {
        Scale {
            quick: false,
            turns: None,
            turn: Duration::from_secs(1),
            cpus,
            at_most: u64::MAX,
            host: true,
            threads: None,
            design: None,
            place: Place::default(),
        }
    }

    /// Creates the scale with small sizes.
    pub fn quick(cpus: usize) -> Scale {
        Scale { quick: true, turn: Duration::from_millis(200), ..Scale::full(cpus) }
    }

    /// Returns the locking for the properties that an experiment does not compare: the user's choice, or
    /// `usual`.
    pub fn locking(&self, usual: Locking) -> Locking {
        self.design.map_or(usual, |design| design.space)
    }

    /// Returns [`locking`](Self::locking) with the usual locking of all steps: the default, with exclusive
    /// writers.
    pub fn usual_locking(&self) -> Locking {
        self.locking(Locking::default().write(Write::Whole))
    }

    /// Returns the configuration of an engine.
    pub fn config(&self) -> Config {
        Config::new().file_rmap(self.design.unwrap_or_default().file_rmap)
    }

    /// Returns the number of turns.
    pub fn turns(&self) -> usize {
        self.turns.unwrap_or(self.choose(5, 3))
    }

    /// Returns the number of turns for an experiment whose turns each take several seconds.
    pub fn long_turns(&self) -> usize {
        self.turns.unwrap_or(3)
    }

    /// Returns `quick` if the scale has small sizes, otherwise `full`.
    pub fn choose<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Returns the sizes of mappings in bytes, each limited to the largest size, without repetitions.
    pub fn sizes(&self, full: &[u64], quick: &[u64]) -> Vec<u64> {
        let mut sizes: Vec<u64> =
            self.choose(full, quick).iter().map(|size| *size.min(&self.at_most)).collect();
        sizes.dedup();
        sizes
    }

    /// Returns a size of mappings in bytes, limited to the largest size.
    pub fn size(&self, full: u64, quick: u64) -> u64 {
        self.choose(full, quick).min(self.at_most)
    }

    /// Returns the numbers of threads: the user's choice, or powers of two up to the number of processors.
    pub fn threads(&self) -> Vec<usize> {
        if let Some(threads) = &self.threads {
            return threads.clone();
        }
        let doubled = std::iter::successors(Some(1), |threads| Some(threads * 2));
        let mut threads: Vec<usize> = doubled.take_while(|threads| *threads < self.cpus).collect();
        threads.push(self.cpus);
        threads
    }

    /// Returns true if the host can be measured with a mapping of this size: the size is at most half of the
    /// host's free memory.
    pub fn fits_host(&self, bytes: u64) -> bool {
        self.host && memory::available().is_none_or(|available| bytes <= available / 2)
    }

    /// Returns the time of all sides in all turns, in seconds.
    pub fn seconds(&self, sides: usize) -> f64 {
        (sides * self.turns()) as f64 * self.turn.as_secs_f64()
    }
}

#[cfg(test)]
#[path = "scale_tests.rs"]
mod tests;
