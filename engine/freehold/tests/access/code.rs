//! Writes to memory that a program may execute, on a format without coherent instruction fetches
//! (`Format::COHERENT_FETCH`). The engine publishes each page that it writes to. After each write another CPU
//! walks the tables, and the oracle of the machine panics if the page was not published.

use super::*;
use freehold::{
    counted::Counted,
    engine::Engine,
    fault::FaultError,
    remote::{AccessMode, IoVec, PinFlags},
    space::SpaceConfig,
};
use freehold_machine::{Machine, MachineConfig};
use freehold_pagetable::Aarch64;

type Arm = Machine<Aarch64>;
type ArmProcess = freehold_machine::Process<Aarch64>;

#[test]
fn writes_to_executable_memory_are_published() {
    let machine = Arm::new(MachineConfig::backed(1 << 20)).unwrap();
    let engine: Counted<Engine<Arm>> = Engine::new(machine.clone(), Config::new()).unwrap();
    let process = ArmProcess::new(&engine, &SpaceConfig::new()).unwrap();
    let other = ArmProcess::new(&engine, &SpaceConfig::new()).unwrap();
    for process in [&process, &other] {
        process.mmap(BASE, PAGE, RW | Prot::EXEC, ANON | MapFlags::FIXED, None, 0).unwrap();
    }
    let mut number = 0;
    // A CPU that has no translation yet walks the tables.
    let mut look = |process: &ArmProcess, value: u64| {
        number += 1;
        let found = process.load::<u64>(&mut machine.cpu(number), BASE);
        assert_eq!(found, Ok::<_, FaultError>(value));
    };
    let [one, two, three, four] = [1u64, 2, 3, 4].map(u64::to_le_bytes);
    assert_eq!(process.write_memory(BASE, &one, AccessMode::Plain), Ok(8));
    look(&process, 1);
    assert_eq!(process.write_memory(BASE, &two, AccessMode::Forced), Ok(8));
    look(&process, 2);
    process.pin_user_pages(BASE, 1, PinFlags::WRITE).unwrap().write(0, &three).unwrap();
    look(&process, 3);
    let word = [IoVec { base: BASE, len: 8 }];
    assert_eq!(other.write_memory(BASE, &four, AccessMode::Plain), Ok(8));
    assert_eq!(process.process_vm_readv(&word, &other, &word), Ok(8));
    look(&process, 4);
    assert_eq!(process.write_memory(BASE, &one, AccessMode::Plain), Ok(8));
    assert_eq!(process.process_vm_writev(&word, &other, &word), Ok(8));
    look(&other, 1);
    drop((process, other, engine));
    machine.accounting().assert_clean();
}
