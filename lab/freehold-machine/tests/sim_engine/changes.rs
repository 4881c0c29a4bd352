//! Changes of address spaces by many processors.

use crate::world::{ANON, PAGE, RW, World, in_turn, more, ran_alone};
use freehold::fault::Access;
use freehold::space::{Locking, Placement, Prot, Write};
use freehold_machine::Process;

/// Processes of their own have nothing in common but the engine: mapping, touching, unmapping.
#[test]
fn processes_that_map_and_unmap_pass_no_line_around() {
    if ran_alone(processes_that_map_and_unmap_pass_no_line_around) {
        return;
    }
    // So often that chance counts little: of what is freed after a grace period, the host's allocator gives
    // some to another processor, which is why it is 0.007 for the lock of an anon_vma.
    let more = more(50, |times| {
        let world = World::new(16);
        let processes: Vec<_> = (0..16).map(|_| world.process(Locking::default())).collect();
        let report = world.all(|number| {
            let (process, mut cpu) = (&processes[number], world.machine.cpu(number));
            for _ in 0..times {
                let at = process.mmap(0, 4 * PAGE, RW, ANON, None, 0).expect("a VMA");
                process.touch(&mut cpu, at, Access::WRITE).expect("a page");
                cpu.call(|| process.munmap(at, 4 * PAGE)).expect("unmapped");
            }
        });
        (world, report)
    });
    assert!(more.most() < 0.01, "{:?}", more.places);
}

/// VMAs, frames and tables of a process that begins and ends come from lists per CPU: fork, a page that is
/// copied, exit. What is passed on is what the host's allocator gives, and counts of references: the engine's,
/// its memory's and its slots', which each space holds.
#[test]
fn processes_that_fork_have_lists_per_cpu() {
    if ran_alone(processes_that_fork_have_lists_per_cpu) {
        return;
    }
    let more = more(20, |times| {
        let world = World::new(16);
        let processes: Vec<_> = (0..16)
            .map(|_| {
                let process = world.process(Locking::default());
                let at = process.mmap(0, 4 * PAGE, RW, ANON, None, 0).expect("a VMA");
                (process, at)
            })
            .collect();
        let report = world.all(|number| {
            let ((process, at), mut cpu) = (&processes[number], world.machine.cpu(number));
            for _ in 0..times {
                process.touch(&mut cpu, *at, Access::WRITE).expect("a page");
                let child = Process::of(process.fork().expect("a child"));
                child.touch(&mut cpu, *at, Access::WRITE).expect("a copy");
                cpu.call(|| drop(child));
            }
        });
        (world, report)
    });
    for of in [
        "freehold/src/vma",
        "freehold-vmspace/src/memory",
        "freehold-vmspace/src/frame",
        "freehold-pagetable",
    ] {
        let passed: f64 = more.places.iter().filter(|place| place.0.contains(of)).map(|place| place.1).sum();
        assert!(passed < 0.01, "{of}: {:?}", more.places);
    }
}

/// Threads of one process that map into one hole take turns at its mmap lock, so that the test above is known
/// to see it.
#[test]
fn threads_that_map_and_unmap_pass_the_mmap_lock_around() {
    if ran_alone(threads_that_map_and_unmap_pass_the_mmap_lock_around) {
        return;
    }
    let more = more(20, |times| {
        let world = World::new(16);
        let process = world.process_placed(Locking::default(), Placement::FirstFit);
        let report = world.all(|number| {
            let mut cpu = world.machine.cpu(number);
            for _ in 0..times {
                let at = process.mmap(0, 4 * PAGE, RW, ANON, None, 0).expect("a VMA");
                process.touch(&mut cpu, at, Access::WRITE).expect("a page");
                cpu.call(|| process.munmap(at, 4 * PAGE)).expect("unmapped");
            }
        });
        (world, report)
    });
    assert!(more.most() > 0.9, "{:?}", more.places);
}

/// Threads of one process whose changes run side by side, each in a stretch of its own between areas that
/// stay, have next to nothing in common.
#[test]
fn threads_that_map_and_unmap_side_by_side_pass_no_line_around() {
    if ran_alone(threads_that_map_and_unmap_side_by_side_pass_no_line_around) {
        return;
    }
    let more = more(40, |times| {
        let world = World::new(16);
        let locking = Locking { write: Write::RangesOnly, ..Locking::default() };
        let process = world.process_placed(locking, Placement::PerCpu);
        let report = world.all(|number| {
            let cpu = world.machine.cpu(number);
            cpu.call(|| {
                in_turn(number, 16, || {
                    for n in 0..48 {
                        let prot = if n % 2 == 0 { RW } else { Prot::READ };
                        process.mmap(0, 8 * PAGE, prot, ANON, None, 0).expect("an area that stays");
                    }
                });
                for _ in 0..times {
                    let at = process.mmap(0, 4 * PAGE, RW, ANON, None, 0).expect("a VMA");
                    process.munmap(at, 4 * PAGE).expect("unmapped");
                }
            });
        });
        (world, report)
    });
    // In turns it would be 0.9.
    assert!(more.most() < 0.1, "{:?}", more.places);
}

/// So have those that hold nothing else: fences keep their stretches in leaves of their own, and page tables
/// come and go without the others.
#[test]
fn threads_with_empty_arenas_pass_no_line_around() {
    if ran_alone(threads_with_empty_arenas_pass_no_line_around) {
        return;
    }
    let more = more(40, |times| {
        let world = World::new(16);
        let locking = Locking { write: Write::RangesOnly, ..Locking::default() };
        let process = world.process_placed(locking, Placement::PerCpu);
        let report = world.all(|number| {
            let mut cpu = world.machine.cpu(number);
            in_turn(number, 16, || {
                let at = cpu.call(|| process.mmap(0, 4 * PAGE, RW, ANON, None, 0)).expect("a VMA");
                cpu.call(|| process.munmap(at, 4 * PAGE)).expect("unmapped");
            });
            for _ in 0..times {
                let at = cpu.call(|| process.mmap(0, 4 * PAGE, RW, ANON, None, 0)).expect("a VMA");
                process.touch(&mut cpu, at, Access::WRITE).expect("a page");
                cpu.call(|| process.munmap(at, 4 * PAGE)).expect("unmapped");
            }
        });
        (world, report)
    });
    // The lines of anon_vmas pass: this host lets any processor free what has waited for a grace period, and
    // give it out again.
    let ours = ["freehold-range/", "freehold-pagetable/", "freehold/src/space/", "freehold-vmspace/"];
    let most = more.places.iter().find(|place| ours.iter().any(|part| place.0.contains(part)));
    assert!(most.is_none_or(|place| place.1 < 0.1), "{:?}", more.places);
}
