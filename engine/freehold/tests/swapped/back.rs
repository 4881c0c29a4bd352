//! Faults at swap entries (`src/fault/swap.rs`): reads, waits, failures, and whether the page is
//! exclusive afterwards.

use super::{Swapped, with_swapped};
use crate::support::*;
use freehold::fault::{Access, FaultError};
use freehold::{reclaim::ReclaimRequest, remote::AccessMode};

#[test]
fn read_is_a_major_fault_and_a_page_in_the_cache_is_not() {
    with_swapped(1, |swapped, process, _| {
        let child = Process::of(process.fork().unwrap());
        assert_eq!((swapped_count(process), swapped_count(&child), swapped.used()), (1, 1, 1));
        let resolved = process.handle_fault(BASE, Access::READ).unwrap();
        assert!(resolved.major);
        // The page stays in the cache for the child.
        assert!(!child.handle_fault(BASE, Access::READ).unwrap().major);
        assert_eq!((process.frame_at(BASE), swapped.used()), (child.frame_at(BASE), 0));
        assert_eq!(swapped.device.stats().pages_read, 1);
        child.check();
    });
}

fn swapped_count(process: &Process) -> i64 {
    process.rss().swap
}

#[test]
fn store_goes_to_the_page_if_the_entry_was_the_last() {
    with_swapped(2, |_, process, cpu| {
        process.store(cpu, BASE, 50u64).unwrap();
        let frame = process.frame_at(BASE);
        process.store(cpu, BASE, 51u64).unwrap();
        assert_eq!(process.frame_at(BASE), frame, "the page was not copied");
        // Read first, then written.
        assert_eq!(process.load::<u64>(cpu, BASE + PAGE), Ok(2));
        let frame = process.frame_at(BASE + PAGE);
        process.store(cpu, BASE + PAGE, 52u64).unwrap();
        assert_eq!(process.frame_at(BASE + PAGE), frame, "the page was not copied");
    });
}

#[test]
fn store_copies_a_page_that_another_entry_needs() {
    with_swapped(1, |swapped, process, cpu| {
        let child = Process::of(process.fork().unwrap());
        process.store(cpu, BASE, 50u64).unwrap();
        assert_eq!(child.load::<u64>(cpu, BASE), Ok(1));
        assert_eq!(process.load::<u64>(cpu, BASE), Ok(50));
        assert_ne!(process.frame_at(BASE), child.frame_at(BASE));
        assert_eq!(swapped.used(), 0);
        child.check();
    });
}

#[test]
fn page_in_the_cache_does_not_change_while_an_entry_names_it() {
    with_swapped(1, |swapped, process, cpu| {
        let child = Process::of(process.fork().unwrap());
        // The parent's page is in the cache; the child's entry names the slot.
        assert_eq!(process.load::<u64>(cpu, BASE), Ok(1));
        process.mprotect(BASE, PAGE, R).unwrap();
        process.mprotect(BASE, PAGE, RW).unwrap();
        process.store(cpu, BASE, 50u64).unwrap();
        swapped.reclaim();
        swapped.reclaim();
        assert_eq!(child.load::<u64>(cpu, BASE), Ok(1));
        assert_eq!(process.load::<u64>(cpu, BASE), Ok(50));
    });
}

#[test]
fn page_that_is_being_written_comes_back_without_a_read() {
    let swapped = Swapped::new(8);
    let process = swapped.process(Locking::default());
    let mut cpu = swapped.world.machine.cpu(0);
    anon(&process, BASE, 1);
    fill(&process, &mut cpu, BASE, 1, 7);
    swapped.device.complete_later(true);
    let reclaimed = swapped.reclaim();
    assert_eq!((reclaimed.writing, swapped.device.waiting()), (1, 1));
    assert_eq!(process.load::<u64>(&mut cpu, BASE), Ok(7));
    let frame = process.frame_at(BASE);
    // The device still reads the frame, so the store makes a copy.
    process.store(&mut cpu, BASE, 8u64).unwrap();
    assert_ne!(process.frame_at(BASE), frame);
    assert!(swapped.device.complete_next());
    assert_eq!((process.load::<u64>(&mut cpu, BASE), swapped.device.stats().pages_read), (Ok(8), 0));
    drop((process, cpu));
    swapped.end();
}

#[test]
fn tasks_that_need_the_same_page_cause_one_read() {
    with_swapped(1, |swapped, process, _| {
        swapped.device.complete_later(true);
        let load = |number: usize| {
            move || {
                let mut cpu = swapped.world.machine.cpu(number);
                process.load::<u64>(&mut cpu, BASE)
            }
        };
        std::thread::scope(|scope| {
            let tasks = [1, 2, 3].map(|number| spawn_until_waiting(scope, load(number)));
            assert_eq!((swapped.device.waiting(), swapped.device.stats().read_requests), (1, 1));
            // A task that waits holds no lock.
            process.mprotect(BASE, PAGE, R).unwrap();
            process.mprotect(BASE, PAGE, RW).unwrap();
            assert!(swapped.device.complete_next());
            tasks.into_iter().for_each(|task| assert_eq!(task.join().unwrap(), Ok(1)));
        });
        swapped.device.complete_later(false);
    });
}

#[test]
fn failed_read_is_a_bus_error_for_that_page_alone() {
    with_swapped(3, |swapped, process, cpu| {
        let stored = swapped.device.stored();
        swapped.device.fail_reads(stored);
        assert_eq!(process.load::<u64>(cpu, BASE + PAGE), Err(FaultError::Bus { addr: BASE + PAGE }));
        assert_eq!(process.store(cpu, BASE + PAGE, 1u64), Err(FaultError::Bus { addr: BASE + PAGE }));
        let mut bytes = [0; 8];
        assert!(process.read_memory(BASE + PAGE, &mut bytes, AccessMode::Plain).is_err());
        swapped.device.fail_reads([]);
        // The page is still on the device.
        assert_filled(process, cpu, BASE, 3, 1);
    });
}

#[test]
fn failed_read_of_a_page_that_is_gone_is_no_error() {
    with_swapped(1, |swapped, process, _| {
        swapped.device.complete_later(true);
        std::thread::scope(|scope| {
            let load = spawn_until_waiting(scope, || {
                let mut cpu = swapped.world.machine.cpu(1);
                process.load::<u64>(&mut cpu, BASE)
            });
            process.madvise(BASE, PAGE, freehold::call::Advice::DontNeed).unwrap();
            assert!(swapped.device.drop_next());
            assert_eq!(load.join().unwrap(), Ok(0), "the page was discarded");
        });
        swapped.device.complete_later(false);
    });
}

#[test]
fn fatal_signal_ends_the_wait_for_a_device_that_hangs() {
    with_swapped(1, |swapped, process, _| {
        swapped.device.complete_later(true);
        let killed = killed(|| process.handle_fault(BASE, Access::READ));
        assert_eq!(killed, Err(FaultError::Killed));
        assert_eq!(swapped.device.waiting(), 1);
        // Munmap does not wait for the read.
        process.munmap(BASE, PAGE).unwrap();
        assert!(swapped.device.complete_next());
        assert_eq!(swapped.used(), 0);
        swapped.device.complete_later(false);
    });
}

#[test]
fn page_that_was_just_read_stays_in_the_cache() {
    with_swapped(1, |swapped, process, _| {
        let child = Process::of(process.fork().unwrap());
        assert!(process.handle_fault(BASE, Access::READ).unwrap().major);
        process.munmap(BASE, PAGE).unwrap();
        anon(process, BASE, 1);
        // Visits slots, and no frame.
        let drop_one = || swapped.world.engine().reclaim(&ReclaimRequest::pages(1).visits(0)).freed;
        assert_eq!(drop_one(), 0, "accessed since the last visit");
        assert!(!child.handle_fault(BASE, Access::READ).unwrap().major);
    });
}

#[test]
fn clean_page_leaves_the_cache_without_a_write() {
    with_swapped(2, |swapped, process, cpu| {
        let child = Process::of(process.fork().unwrap());
        assert_filled(process, cpu, BASE, 2, 1);
        process.munmap(BASE, 2 * PAGE).unwrap();
        anon(process, BASE, 2);
        let written = swapped.device.stats().pages_written;
        // The pages count as accessed once.
        let freed: u64 = (0..3).map(|_| swapped.reclaim().freed).sum();
        assert_eq!((freed, swapped.device.stats().pages_written), (2, written));
        assert_filled(&child, cpu, BASE, 2, 1);
        drop(child);
    });
}

#[test]
fn calls_on_the_memory_of_a_process_find_swapped_pages() {
    with_swapped(3, |_, process, _| {
        let mut bytes = [0; 8];
        process.read_memory(BASE, &mut bytes, AccessMode::Plain).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), 1);
        process.write_memory(BASE + PAGE, &5u64.to_le_bytes(), AccessMode::Plain).unwrap();
        process.read_memory(BASE + PAGE, &mut bytes, AccessMode::Plain).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), 5);
        let pins = process.pin_user_pages(BASE + 2 * PAGE, 1, freehold::remote::PinFlags::WRITE).unwrap();
        drop(pins);
    });
}
