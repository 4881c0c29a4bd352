//! The shortest test through every layer: map, access, fork and unmap, on each design.
//!
//! If a change breaks everything, start here: each test makes a few calls of the engine through a [`Process`]
//! and a CPU, without threads. `on_every_design` builds machine, engine and process, and checks at the end
//! that all memory is free. The subjects themselves are tested in `engine/freehold/tests`, so a test of one
//! subject belongs there.

use freehold::engine::{Config, Engine};
use freehold::fault::{FaultError, SegvCode};
use freehold::space::{Locking, MapFlags, Prot, SpaceConfig};
use freehold_machine::{Machine, MachineConfig, Process};

const RW: Prot = Prot::READ.union(Prot::WRITE);
const ANON: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS);

/// Runs `test` with a new machine and process for each lock design. Checks that nothing leaked.
fn on_every_design(test: impl Fn(&Process, &mut freehold_machine::Cpu<freehold_machine::DefaultFormat>)) {
    for locking in Locking::ALL {
        let machine: Machine = Machine::new(MachineConfig::backed(16 << 20)).expect("a machine");
        let engine = Engine::new(machine.clone(), Config::default()).expect("an engine");
        let process = Process::new(&engine, &SpaceConfig::new().locking(locking)).expect("a process");
        let mut cpu = machine.cpu(0);
        test(&process, &mut cpu);
        process.check();
        drop((process, engine));
        let left = machine.accounting();
        assert!(left.is_clean(), "{locking:?} leaves {left:?}");
    }
}

#[test]
fn memory_is_zeroed_stored_to_and_unmapped() {
    on_every_design(|process, cpu| {
        let at = process.mmap(0, 1 << 20, RW, ANON, None, 0).expect("room");
        assert_eq!(process.load::<u64>(cpu, at + 8), Ok(0));
        process.store(cpu, at + 8, 42u64).expect("writable");
        assert_eq!(process.load::<u64>(cpu, at + 8), Ok(42));
        assert_eq!(process.rss().anon, 1);
        process.munmap(at, 4096).expect("mapped");
        let gone = Err(FaultError::Segv { addr: at + 8, code: SegvCode::Maperr });
        assert_eq!(process.load::<u64>(cpu, at + 8), gone);
        assert_eq!(process.rss().anon, 0);
    });
}

#[test]
fn child_keeps_its_contents() {
    on_every_design(|process, cpu| {
        let at = process.mmap(0, 64 << 10, RW, ANON, None, 0).expect("room");
        process.store(cpu, at, 1u32).expect("writable");
        let child = Process::of(process.fork().expect("memory for a child"));
        process.store(cpu, at, 2u32).expect("writable");
        assert_eq!(child.load::<u32>(cpu, at), Ok(1));
        child.store(cpu, at, 3u32).expect("writable");
        assert_eq!(process.load::<u32>(cpu, at), Ok(2));
        child.check();
    });
}
