//! How large an experiment is.

use super::executor::Place;
use super::memory;
use freehold::engine::Config;
use freehold::space::{Locking, Write};
use freehold_replay::locking::Design;
use std::time::Duration;

/// Sizes and times of a run.
#[derive(Clone, Debug)]
pub struct Scale {
    /// Everything small, to be done in two minutes.
    pub quick: bool,
    /// How often each side of a comparison does its work, if the user says.
    pub turns: Option<usize>,
    /// How long a turn is, for work that goes on for a time.
    pub turn: Duration,
    /// Processors to be used.
    pub cpus: usize,
    /// No mapping is larger, in bytes.
    pub at_most: u64,
    /// Do the same work with the host's own calls, where it can.
    pub host: bool,
    /// Numbers of threads, where an experiment tries several and the user says which.
    pub threads: Option<Vec<usize>>,
    /// The designs that an experiment does not compare, if the user says.
    pub design: Option<Design>,
    /// Where loads run.
    pub place: Place,
}

impl Scale {
    /// The published sizes.
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

    /// Small ones.
    pub fn quick(cpus: usize) -> Scale {
        Scale { quick: true, turn: Duration::from_millis(200), ..Scale::full(cpus) }
    }

    /// How an experiment's spaces are locked, but for what it compares: as `usual`, unless the user says.
    pub fn locking(&self, usual: Locking) -> Locking {
        self.design.map_or(usual, |design| design.space)
    }

    /// The same where the steps have nothing to say: one change of a space at a time, as they all have it,
    /// and the default.
    pub fn usual_locking(&self) -> Locking {
        self.locking(Locking { write: Write::Whole, ..Locking::default() })
    }

    /// The same for an engine.
    pub fn config(&self) -> Config {
        Config { file_rmap: self.design.unwrap_or_default().file_rmap, ..Config::default() }
    }

    /// How often each side of a comparison does its work.
    pub fn turns(&self) -> usize {
        self.turns.unwrap_or(self.choose(5, 3))
    }

    /// The same where a turn takes seconds.
    pub fn long_turns(&self) -> usize {
        self.turns.unwrap_or(3)
    }

    /// One of two, by how large everything is.
    pub fn choose<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Sizes of mappings, in bytes, none larger than allowed; the smallest that there is, if all are.
    pub fn sizes(&self, full: &[u64], quick: &[u64]) -> Vec<u64> {
        let mut sizes: Vec<u64> =
            self.choose(full, quick).iter().map(|size| *size.min(&self.at_most)).collect();
        sizes.dedup();
        sizes
    }

    /// A size of mappings, in bytes.
    pub fn size(&self, full: u64, quick: u64) -> u64 {
        self.choose(full, quick).min(self.at_most)
    }

    /// Numbers of threads: those that the user says, or from one to the processors there are, doubling.
    pub fn threads(&self) -> Vec<usize> {
        if let Some(threads) = &self.threads {
            return threads.clone();
        }
        let doubled = std::iter::successors(Some(1), |threads| Some(threads * 2));
        let mut threads: Vec<usize> = doubled.take_while(|threads| *threads < self.cpus).collect();
        threads.push(self.cpus);
        threads
    }

    /// Whether the host is to be asked for a mapping of so many bytes: not for more than half of what it has
    /// free.
    pub fn fits_host(&self, bytes: u64) -> bool {
        self.host && memory::available().is_none_or(|available| bytes <= available / 2)
    }

    /// What all sides of a comparison take in all turns, in seconds.
    pub fn seconds(&self, sides: usize) -> f64 {
        (sides * self.turns()) as f64 * self.turn.as_secs_f64()
    }
}

#[cfg(test)]
#[path = "scale_tests.rs"]
mod tests;
