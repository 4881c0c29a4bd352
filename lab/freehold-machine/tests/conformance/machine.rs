//! The suite on the machine, with all its oracles.

use crate::threads::Threads;
use freehold_kit::conformance;
use freehold_machine::{Machine, MachineConfig};

#[test]
fn the_machine_passes() {
    let machine: Machine = Machine::new(MachineConfig::backed(16 << 20)).unwrap();
    conformance::platform(&machine, &Threads::new(&machine)).assert_passed(&[]);
    machine.accounting().assert_clean();
}
