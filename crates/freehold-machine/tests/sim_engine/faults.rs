//! Faults of many processors.

use freehold::engine::Engine;
use freehold::fault::Access;
use freehold::space::{FaultLock, Locking, MapFlags, Prot, SpaceConfig};
use freehold_machine::{Machine, MachineConfig, Process};
use freehold_sim::{Machine as Model, Report, run};

const PAGE: u64 = 4096;
const GIB: u64 = 1 << 30;

/// Every processor of `cpus` faults in so many pages of a part of its own of one VMA.
fn one_vma(fault: FaultLock, cpus: usize, pages: u64) -> Report {
    let model = Model::named("e5-2690v4").expect("a machine");
    let machine: Machine =
        Machine::new(MachineConfig::phantom(64 * GIB).cpus(cpus).fast()).expect("a machine");
    let engine = Engine::new(machine.clone(), Default::default()).expect("an engine");
    let locking = Locking { fault, ..Locking::default() };
    let process = Process::new(&engine, &SpaceConfig { locking, ..SpaceConfig::default() }).expect("a space");
    let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS | MapFlags::NORESERVE;
    let at = process.mmap(0, GIB * cpus as u64, Prot::READ | Prot::WRITE, flags, None, 0).expect("a VMA");
    let tasks = (0..cpus).map(|number| {
        let (process, machine) = (&process, &machine);
        move || {
            let mut cpu = machine.cpu(number);
            let part = at + number as u64 * GIB;
            for page in 0..pages {
                process.touch(&mut cpu, part + page * PAGE, Access::WRITE).expect("a page");
            }
        }
    });
    run(&model, cpus, 1, tasks)
}

#[test]
fn show() {
    for fault in FaultLock::ALL {
        for cpus in [1, 4, 7, 16, 21, 56] {
            let started = std::time::Instant::now();
            let report = one_vma(fault, cpus, 1000);
            println!(
                "{fault:?} {cpus}: {:.0} faults/s/cpu, {} accesses, {} transfers, {} sleeps, {:?}",
                1e12 / report.elapsed_ns as f64,
                report.accesses,
                report.transfers,
                report.sleeps,
                started.elapsed(),
            );
            for line in report.lines.iter().take(2) {
                println!("  {line}");
            }
        }
    }
}
