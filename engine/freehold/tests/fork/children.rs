//! fork: the mappings that a child inherits, and copy-on-write between parent and child, also if fork fails
//! or other threads store. Most scenarios run on every design. The tests check the words that each process
//! loads afterwards, and in one case the number of frames in use. `held_pages.rs` tests pages that another
//! task holds. A new flag of VMAs that fork treats in its own way belongs in
//! `child_inherits_no_dontfork_wipeonfork_or_locked_memory`.

use super::*;
use freehold::{
    PageCount,
    call::Advice,
    engine::Overcommit,
    error::{Errno, ForkError},
    fault::{FaultError, SegvCode},
    vma::flags::VmFlags,
};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use support::failure::{Failure, at_every_allocation};

fn fork(process: &Process, cpu: &Vcpu) -> Process {
    Process::of(cpu.call(|| process.fork()).unwrap())
}

#[test]
fn c56_parent_and_child_see_only_their_own_stores() {
    // C-56: neither process sees the stores of the other process. The pages lie under several page tables.
    everywhere(|_, process, cpu| {
        anon(process, BASE, 600);
        fill(process, cpu, BASE, 600, 1);
        let child = fork(process, cpu);
        child.check();
        assert_filled(&child, cpu, BASE, 600, 1);
        fill(process, cpu, BASE, 300, 5000);
        fill(&child, cpu, BASE + 200 * PAGE, 400, 9000);
        assert_filled(process, cpu, BASE, 300, 5000);
        assert_filled(process, cpu, BASE + 300 * PAGE, 300, 301);
        assert_filled(&child, cpu, BASE, 200, 1);
        assert_filled(&child, cpu, BASE + 200 * PAGE, 400, 9000);
    });
}

#[test]
fn shared_mappings_stay_shared_and_private_ones_are_copied() {
    everywhere(|world, process, cpu| {
        let shared = process.mmap(0, 2 * PAGE, RW, MapFlags::SHARED | MapFlags::ANONYMOUS, None, 0).unwrap();
        let file = world.file(4);
        let private = process.mmap(0, 4 * PAGE, RW, MapFlags::PRIVATE, Some(&file), 0).unwrap();
        process.store(cpu, shared, 1u64).unwrap();
        process.store(cpu, private, 2u64).unwrap();
        assert_eq!(process.load::<u64>(cpu, private + PAGE), Ok(Disk::number(1)));
        let child = fork(process, cpu);
        child.store(cpu, shared, 3u64).unwrap();
        child.store(cpu, private, 4u64).unwrap();
        child.store(cpu, private + PAGE, 5u64).unwrap();
        assert_eq!(process.load::<u64>(cpu, shared), Ok(3));
        assert_eq!(process.load::<u64>(cpu, private), Ok(2));
        assert_eq!(process.load::<u64>(cpu, private + PAGE), Ok(Disk::number(1)));
        // The check finds the pages of both processes through the reverse map.
        file.mapping().check();
        file.mapping().truncate(PAGE).unwrap();
        for (process, addr) in [(process, private + 2 * PAGE), (&child, private + PAGE)] {
            assert_eq!(process.load::<u64>(cpu, addr), Err(FaultError::Bus { addr }));
        }
        assert_eq!(child.load::<u64>(cpu, private), Ok(4));
    });
}

#[test]
fn child_inherits_no_dontfork_wipeonfork_or_locked_memory() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 8);
        fill(process, cpu, BASE, 8, 1);
        process.madvise(BASE, 2 * PAGE, Advice::DontFork).unwrap();
        process.madvise(BASE + 2 * PAGE, 2 * PAGE, Advice::WipeOnFork).unwrap();
        process.madvise(BASE + 6 * PAGE, PAGE, Advice::GuardInstall).unwrap();
        process.mlock(BASE + 4 * PAGE, 2 * PAGE).unwrap();
        let child = fork(process, cpu);
        child.check();
        assert_eq!(
            child.load::<u64>(cpu, BASE),
            Err(FaultError::Segv { addr: BASE, code: SegvCode::Maperr })
        );
        assert_eq!(child.load::<u64>(cpu, BASE + 2 * PAGE), Ok(0));
        assert_filled(&child, cpu, BASE + 4 * PAGE, 2, 5);
        let guard = BASE + 6 * PAGE;
        assert_eq!(
            child.load::<u64>(cpu, guard),
            Err(FaultError::Segv { addr: guard, code: SegvCode::Maperr })
        );
        assert!(child.maps(0).all(|line| !line.flags.intersects(VmFlags::LOCK_MASK)));
        assert_filled(process, cpu, BASE, 6, 1);
    });
}

#[test]
fn c35_descendants_may_exit_in_any_order() {
    // C-35: children of children exit in another order than they were forked.
    everywhere(|_, process, cpu| {
        anon(process, BASE, 4);
        fill(process, cpu, BASE, 4, 0);
        let mut tree = vec![(process.clone(), 0)];
        for generation in 1..=6u64 {
            let child = fork(&tree.last().unwrap().0, cpu);
            child.store(cpu, BASE + generation % 4 * PAGE, generation * 100).unwrap();
            tree.push((child, generation));
        }
        for step in [3, 1, 4, 0, 0, 0] {
            tree.remove(step);
            for (process, generation) in &tree {
                let page = BASE + generation % 4 * PAGE;
                let expected = if *generation == 0 { 0 } else { generation * 100 };
                assert_eq!(process.load::<u64>(cpu, page), Ok(expected));
            }
        }
    });
}

#[test]
fn last_owner_of_a_page_stores_without_a_copy() {
    // The last process that maps a page stores to it without a copy.
    everywhere(|world, process, cpu| {
        anon(process, BASE, 64);
        fill(process, cpu, BASE, 64, 1);
        let frames = |world: &World| world.machine.accounting().frames;
        let before = frames(world);
        drop(fork(process, cpu));
        fill(process, cpu, BASE, 64, 2);
        assert_eq!(frames(world), before);
    });
}

#[test]
fn parts_with_different_anon_vmas_do_not_merge_after_fork() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 4);
        fill(process, cpu, BASE, 4, 1);
        process.mprotect(BASE + 2 * PAGE, 2 * PAGE, R).unwrap();
        let child = fork(process, cpu);
        // The two parts of the parent still have one anon_vma. The two parts of the child have two anon_vmas,
        // and therefore do not merge.
        process.mprotect(BASE + 2 * PAGE, 2 * PAGE, RW).unwrap();
        child.mprotect(BASE + 2 * PAGE, 2 * PAGE, RW).unwrap();
        assert_eq!(layout(process), [(0, 4)]);
        assert_eq!(layout(&child), [(0, 2), (2, 4)]);
    });
}

#[test]
fn c64_failed_fork_leaves_the_parent_unchanged() {
    // C-64: each allocation of the fork fails, together with all later ones.
    for failure in [Failure::MemoryFromThere, Failure::HeapFromThere] {
        let points = at_every_allocation(&[failure], |point| {
            let world = World::new();
            let process = world.process(Locking::default());
            let mut cpu = world.machine.cpu(0);
            let file = world.file(4);
            for n in 0..20 {
                anon(&process, BASE + n * 600 * PAGE, 4);
                fill(&process, &mut cpu, BASE + n * 600 * PAGE, 4, n);
            }
            let mapped = process.mmap(0, 4 * PAGE, RW, MapFlags::PRIVATE, Some(&file), 0).unwrap();
            process.store(&mut cpu, mapped, 3u64).unwrap();
            let forked = point.fail(|| cpu.call(|| process.fork()));
            assert_eq!(forked.is_err(), point.reached());
            assert!(matches!(forked, Ok(_) | Err(ForkError::OutOfMemory)));
            file.mapping().check();
            process.check();
            drop(forked);
            for n in 0..20 {
                fill(&process, &mut cpu, BASE + n * 600 * PAGE, 4, 70 + n);
                assert_filled(&process, &mut cpu, BASE + n * 600 * PAGE, 4, 70 + n);
            }
            drop((process, cpu, file));
            world.end();
        });
        assert!(points > 0, "no failure was injected");
    }
}

#[test]
fn c21_child_gets_a_consistent_snapshot() {
    // C-21: a thread of the parent increments two counters, always the first before the second, while another
    // thread forks. No child may see the second counter ahead of the first, or see either counter change.
    for locking in [Locking::default(), Locking::ALL[0]] {
        let world = World::new();
        let process = world.process(locking);
        anon(&process, BASE, 2);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut cpu = world.machine.cpu(0);
                let mut n = 0u64;
                while !stop.load(SeqCst) {
                    n += 1;
                    process.store(&mut cpu, BASE, n).unwrap();
                    process.store(&mut cpu, BASE + PAGE, n).unwrap();
                }
            });
            let mut cpu = world.machine.cpu(1);
            for _ in 0..200 {
                let child = fork(&process, &cpu);
                let second: u64 = child.load(&mut cpu, BASE + PAGE).unwrap();
                let first: u64 = child.load(&mut cpu, BASE).unwrap();
                assert!(first >= second && first <= second + 1, "{first} and {second}");
                std::thread::yield_now();
                assert_eq!(child.load::<u64>(&mut cpu, BASE), Ok(first));
                assert_eq!(child.load::<u64>(&mut cpu, BASE + PAGE), Ok(second));
            }
            stop.store(true, SeqCst);
        });
        drop(process);
        world.end();
    }
}

#[test]
fn commit_limit_refuses_a_fork() {
    let machine = Machine::new(MachineConfig::backed(16 << 20)).unwrap();
    let config = Config::new().overcommit(Overcommit::Heuristic(PageCount::new(100)));
    let engine = Engine::new(machine.clone(), config).unwrap();
    let process = Process::new(&engine, &SpaceConfig::default()).unwrap();
    // Each mapping alone is within the limit. The two merge into one VMA.
    anon(&process, BASE, 60);
    anon(&process, BASE + 60 * PAGE, 60);
    assert_eq!(process.fork().map(drop).map_err(|error| error.errno()), Err(Errno::ENOMEM));
    process.check();
}
