//! How to replay.

use super::locking::Design;
use super::workers::Workers;
use freehold_trace::plan::SEGMENT;

/// How to replay.
#[derive(Clone, Debug)]
pub struct Options {
    /// Virtual CPUs, each with a worker.
    pub cpus: usize,
    /// With contents; else on memory that has none.
    pub backed: bool,
    /// The machine has protection keys; a replay that needs them begins again with them by itself.
    pub keys: bool,
    /// How locks are used.
    pub design: Design,
    /// What varies the interleaving.
    pub seed: u64,
    /// Look for stale translations all the time, which costs time.
    pub oracles: bool,
    /// Steps planned and run at a time, at most: with fewer, tasks meet more often.
    pub segment: usize,
    /// Compare where things go that have no fixed place. For this, calls that change which addresses are
    /// free keep their order; else Linux's places are taken over.
    pub places: bool,
    /// Steps that a task takes in a row, at most. Enough to make the price of a switch small.
    pub turn: u32,
    /// What the workers are.
    pub workers: Workers,
}

impl Default for Options {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Options {
            cpus,
            backed: false,
            keys: false,
            design: Design::default(),
            seed: 0,
            oracles: false,
            segment: SEGMENT,
            places: true,
            turn: 256,
            workers: Workers::default(),
        }
    }
}
