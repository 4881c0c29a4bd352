//! Tests of the public functions of this crate on the machine of `freehold-machine`. One program, with one
//! module per subject.
//!
//! A test gets a machine of 1 MiB, which is small enough to run out of frames. When it has dropped
//! everything, it calls `assert_clean`: the machine then panics if the crate has kept a frame or a table.
//! Functions that only `freehold` may call are tested there. A new subject gets a module here.
#![cfg(not(loom))]

mod numbers;
mod run;

use freehold_machine::{Machine, MachineConfig};
use freehold_sync::counted::Counted;
use freehold_vmspace::Memory;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn machine() -> (Machine, Counted<Memory<Machine>>) {
    let machine: Machine = Machine::new(MachineConfig::backed(1 << 20)).unwrap();
    let memory = Counted::try_new(Memory::new(machine.clone()).unwrap()).ok().unwrap();
    (machine, memory)
}

/// Returns true if `f` panics with a message that begins with `message`. An arithmetic overflow, which only a
/// build with debug assertions reports, does not count.
fn refuses<R>(f: impl FnOnce() -> R, message: &str) -> bool {
    let Err(why) = catch_unwind(AssertUnwindSafe(|| drop(f()))) else { return false };
    let text = why.downcast_ref::<&str>().map(|why| why.to_string());
    let text = text.or_else(|| why.downcast_ref::<String>().cloned());
    assert!(text.as_ref().is_some_and(|text| text.starts_with(message)), "{text:?}");
    true
}
