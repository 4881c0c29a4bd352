//! Changes of address spaces by many CPUs.
//!
//! Each test lets 16 CPUs map, unmap or fork, and counts the transfers of cache lines per repetition
//! ([`more`]): in separate processes, in one process with range writers in separate arenas, and in one
//! process with the mmap lock. A test that expects no transfer fails when a shared word is added to the path.
//! The test with the mmap lock shows that the count is not always zero.

use crate::world::{ANON, PAGE, RW, World, in_turn, more, ran_alone};
use freehold::fault::Access;
use freehold::space::{Locking, Placement, Prot, Write};
use freehold_machine::Process;

/// Separate processes that map, touch and unmap memory write no common cache line.
#[test]
fn processes_that_map_and_unmap_share_no_cache_line() {
    if ran_alone(processes_that_map_and_unmap_share_no_cache_line) {
        return;
    }
    // With this many repetitions, one-time differences are negligible. After a grace period, the host's
    // allocator gives some freed memory to another CPU. This reuse causes 0.007 transfers for the lock of an
    // anon_vma.
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

/// The VMAs, frames and tables that fork, copy on write and exit use come from per-CPU lists. The remaining
/// transfers are caused by the host's allocator and by reference counts. Each space increments the reference
/// counts of the engine, its memory and its slots.
#[test]
fn processes_that_fork_use_per_cpu_lists() {
    if ran_alone(processes_that_fork_use_per_cpu_lists) {
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

/// Threads of one process that map into the same gap contend for the mmap lock. This test shows that the
/// other tests would detect a contended line.
#[test]
fn threads_that_map_and_unmap_contend_for_the_mmap_lock() {
    if ran_alone(threads_that_map_and_unmap_contend_for_the_mmap_lock) {
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

/// Range writers of one process, each in an arena of its own with VMAs that stay mapped, share almost no
/// line.
#[test]
fn range_writers_share_almost_no_cache_line() {
    if ran_alone(range_writers_share_almost_no_cache_line) {
        return;
    }
    let more = more(40, |times| {
        let world = World::new(16);
        let locking = Locking::default().write(Write::RangesOnly);
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
    // With an exclusive writer, the number would be 0.9.
    assert!(more.most() < 0.1, "{:?}", more.places);
}

/// Range writers in empty arenas also share almost no line: boundaries keep the arenas in separate leaves of
/// the VMA tree, and the arenas share no page tables.
#[test]
fn range_writers_in_empty_arenas_share_almost_no_cache_line() {
    if ran_alone(range_writers_in_empty_arenas_share_almost_no_cache_line) {
        return;
    }
    let more = more(40, |times| {
        let world = World::new(16);
        let locking = Locking::default().write(Write::RangesOnly);
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
    // Cache lines of anon_vmas are transferred between CPUs, because on this host any CPU may free memory
    // after a grace period, and another CPU may allocate that memory again.
    let ours = ["freehold-range/", "freehold-pagetable/", "freehold/src/space/", "freehold-vmspace/"];
    let most = more.places.iter().find(|place| ours.iter().any(|part| place.0.contains(part)));
    assert!(most.is_none_or(|place| place.1 < 0.1), "{:?}", more.places);
}
