//! The setup that the examples in the engine's documentation share.

use crate::{Machine, MachineConfig};
use freehold::{counted::Counted, engine::Engine, prelude::Config};

/// Returns an engine with the default settings, on a machine with `bytes` bytes of memory.
///
/// # Panics
/// Panics if there is no memory for the machine.
#[must_use]
pub fn example_engine(bytes: u64) -> Counted<Engine<Machine>> {
    let machine = Machine::new(MachineConfig::backed(bytes)).expect("memory for a small machine");
    Engine::new(machine, Config::new()).expect("memory for an engine")
}
