//! The suite on the machine, with all its oracles, and on swap devices.

use crate::threads::Threads;
use freehold::{
    PAGE_SIZE,
    counted::Counted,
    engine::{Config, Engine},
    platform::Platform,
    swap::{SwapDevice, SwapRead, SwapWrite},
};
use freehold_kit::conformance::{self, Kernel, NotRun};
use freehold_machine::{Machine, MachineConfig, MemorySwap};
use std::{
    collections::HashMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

fn machine() -> Machine {
    Machine::new(MachineConfig::backed(16 << 20)).unwrap()
}

/// Runs the checks of an engine, and checks that nothing is left in use.
fn with_engine(run: impl FnOnce(&Counted<Engine<Machine>>, &Threads)) {
    let machine = machine();
    let engine = Engine::new(machine.clone(), Config::new()).unwrap();
    run(&engine, &Threads::new(&machine));
    drop(engine);
    machine.accounting().assert_clean();
}

#[test]
fn the_machine_passes() {
    let machine = machine();
    conformance::platform(&machine, &Threads::new(&machine)).assert_passed(&[]);
    machine.accounting().assert_clean();
}

#[test]
fn an_engine_on_the_machine_passes() {
    with_engine(|engine, kernel| conformance::engine(engine, kernel).assert_passed(&[]));
}

#[test]
fn the_swap_device_of_the_machine_passes() {
    with_engine(|engine, kernel| {
        conformance::swap(engine, MemorySwap::new(256), kernel).assert_passed(&[]);
    });
}

/// The kernel of a platform that never ends a charge: its count only grows.
struct NeverUncharges(Threads, AtomicU64);

impl Kernel<Machine> for NeverUncharges {
    fn charged(&self, machine: &Machine) -> Result<u64, NotRun> {
        let now = Kernel::<Machine>::charged(&self.0, machine)?;
        Ok(self.1.fetch_max(now, SeqCst).max(now))
    }
}

#[test]
fn a_charge_that_never_ends_is_found() {
    let machine = machine();
    let engine = Engine::new(machine.clone(), Config::new()).unwrap();
    let kernel = NeverUncharges(Threads::new(&machine), AtomicU64::new(0));
    let report = conformance::engine(&engine, &kernel);
    let failures: Vec<_> = report.failures().collect();
    let message = "all pages were unmapped, but 16 frames more than before are charged";
    assert_eq!(failures, [("engine::charges", message)], "{report}");
}

/// A swap device that stores two slots in the same place.
#[derive(Default)]
struct Mixing(Mutex<HashMap<u64, Vec<u8>>>);

impl<P: Platform> SwapDevice<P> for Mixing {
    fn slots(&self) -> u64 {
        256
    }

    fn read(&self, mut request: SwapRead<P>) {
        while let Some((slot, frame)) = request.next_page() {
            request.platform().write_frame(frame, 0, &self.0.lock().unwrap()[&(slot / 2)]);
            request.complete(slot, Ok(()));
        }
    }

    fn write(&self, mut request: SwapWrite<P>) {
        while let Some((slot, frame)) = request.next_page() {
            let mut page = vec![0; PAGE_SIZE as usize];
            request.platform().read_frame(frame, 0, &mut page);
            self.0.lock().unwrap().insert(slot / 2, page);
            request.complete(slot, Ok(()));
        }
    }
}

#[test]
fn a_swap_device_that_mixes_slots_is_found() {
    with_engine(|engine, kernel| {
        let report = conformance::swap(engine, Mixing::default(), kernel);
        let (check, message) = report.failures().next().expect("a failure");
        assert_eq!(check, "swap::contents");
        assert!(message.contains("of a space that was swapped out has the value 100"), "{report}");
        // Brings the pages back, so that the engine can end.
        assert!(report.checks().last().is_some_and(|check| check.name == "swap::off"));
    });
}
