//! Options of a replay, which `freehold-cli`, `examples/simulate_replay.rs` and tests set. The options do not
//! change during a replay. `lib.rs` starts a replay again with another option if the recording needs memory
//! with contents or protection keys. A new option that users may set also needs an argument in `freehold-cli`
//! (`cli.rs`, `command/replay.rs`).

use super::locking::Design;
use super::short::Memory;
use super::workers::Workers;
use freehold_trace::plan::SEGMENT;

/// Options of a replay.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of virtual CPUs. Each virtual CPU has a worker.
    pub cpus: usize,
    /// Memory has contents. If false, memory is phantom: frames without contents.
    pub backed: bool,
    /// The machine has protection keys. A replay that needs them starts again with this option.
    pub keys: bool,
    /// The locking design.
    pub design: Design,
    /// Seed that determines the interleaving.
    pub seed: u64,
    /// Check for stale TLB entries on every access. Slower.
    pub oracles: bool,
    /// Largest number of steps planned and run at a time. With a smaller number, tasks synchronise more
    /// often.
    pub segment: usize,
    /// Compare the addresses that the kernel chose. If true, calls that change the set of free addresses keep
    /// their order. If false, the replay uses Linux's addresses.
    pub places: bool,
    /// Largest number of steps that a task takes in a row. Large enough to keep the cost of switching small.
    pub turn: u32,
    /// Memory of a limited size, and its policy. The replay then has one virtual CPU and no huge pages of
    /// anonymous memory. `None` means more memory than any recording needs.
    pub memory: Option<Memory>,
    /// The workers: threads of the host, or, with `cfg(sim)`, tasks on a simulated machine.
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
            memory: None,
            workers: Workers::default(),
        }
    }
}
