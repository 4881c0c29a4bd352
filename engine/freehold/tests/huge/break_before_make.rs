//! Break-before-make: a collapse, a split and a discard on a format that demands a flush between two entries
//! of different sizes (`Format::BREAK_BEFORE_MAKE`). A second CPU holds translations and walk caches of the
//! range and does nothing else. The oracles of the machine panic if the tables have an entry of another size
//! before the flush. `lab/freehold-machine/tests/shuttle_engine/break_before_make.rs` has concurrent faults.

use super::*;
use freehold::{counted::Counted, engine::Engine, fault::FaultError, space::SpaceConfig};
use freehold_machine::{Machine, MachineConfig};
use freehold_pagetable::Aarch64;

type Arm = Machine<Aarch64>;

/// Runs `scenario` in a process with a range for one huge page at [`BASE`].
fn on_arm(scenario: impl Fn(&Arm, &freehold_machine::Process<Aarch64>)) {
    for locking in Locking::ALL {
        let machine = Arm::new(MachineConfig::backed(16 << 20)).unwrap();
        let config = Config::new().huge_pages(HugePages::Always);
        let engine: Counted<Engine<Arm>> = Engine::new(machine.clone(), config).unwrap();
        let process = freehold_machine::Process::new(&engine, &SpaceConfig::new().locking(locking)).unwrap();
        process.mmap(BASE, HUGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
        scenario(&machine, &process);
        process.check();
        drop((process, engine));
        machine.accounting().assert_clean();
    }
}

#[test]
fn collapse_flushes_the_table_of_small_pages_first() {
    on_arm(|machine, process| {
        process.set_thp_disable(ThpDisable::UnlessAdvised);
        let (mut cpu, mut other) = (machine.cpu(0), machine.cpu(1));
        for page in [0u64, 5, 511] {
            process.store(&mut other, BASE + page * PAGE, page + 1).unwrap();
        }
        cpu.call(|| process.madvise(BASE, HUGE, Advice::Collapse)).unwrap();
        let huge: u64 = process.smaps(0).map(|smap| smap.usage.anonymous_huge).sum();
        assert_eq!(huge, HUGE);
        for page in [0u64, 5, 511] {
            assert_eq!(process.load(&mut cpu, BASE + page * PAGE), Ok::<u64, FaultError>(page + 1));
            assert_eq!(process.load(&mut other, BASE + page * PAGE), Ok::<u64, FaultError>(page + 1));
        }
    });
}

#[test]
fn split_and_collapse_alternate_with_translations_in_another_cpu() {
    on_arm(|machine, process| {
        let (mut cpu, mut other) = (machine.cpu(0), machine.cpu(1));
        for round in 1..4u64 {
            process.store(&mut other, BASE + 5 * PAGE, round).unwrap();
            cpu.call(|| process.mprotect(BASE + 100 * PAGE, PAGE, R)).unwrap();
            assert_eq!(process.load(&mut other, BASE + 5 * PAGE), Ok::<u64, FaultError>(round));
            cpu.call(|| process.mprotect(BASE, HUGE, RW)).unwrap();
            cpu.call(|| process.madvise(BASE, HUGE, Advice::Collapse)).unwrap();
            assert_eq!(process.load(&mut cpu, BASE + 5 * PAGE), Ok::<u64, FaultError>(round));
        }
    });
}
