//! Memory runs out in the middle of a swap-out, a swap-in and a fork of swapped pages: at each allocation in
//! turn, no page and no slot is lost.

use super::{Swapped, with_swapped};
use crate::support::{
    failure::{Failure, at_every_allocation},
    *,
};
use freehold::{
    fault::{Access, FaultError},
    remote::AccessMode,
};

/// Checks the contents of pages, without a failure.
fn assert_contents(process: &Process, pages: u64, first: u64) {
    for page in 0..pages {
        let mut bytes = [0; 8];
        process.read_memory(BASE + page * PAGE, &mut bytes, AccessMode::Plain).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), first + page);
    }
}

#[test]
fn swap_out_without_memory_leaves_pages_where_they_are() {
    let reached = at_every_allocation(&Failure::ALL, |point| {
        // The table of the slots is allocated in the call.
        let swapped = Swapped::new(64);
        let process = swapped.process(Locking::default());
        let mut cpu = swapped.world.machine.cpu(0);
        anon(&process, BASE, 4);
        fill(&process, &mut cpu, BASE, 4, 1);
        drop(cpu);
        let freed = point.fail(|| swapped.reclaim()).freed;
        assert_eq!((process.rss().anon, process.rss().swap), (4 - freed as i64, freed as i64), "{point}");
        process.check();
        assert_contents(&process, 4, 1);
        drop(process);
        swapped.end();
    });
    assert!(reached > 0, "a swap-out allocates");
}

#[test]
fn swap_in_without_memory_can_be_repeated() {
    with_swapped(2, |swapped, process, _| {
        let reached = at_every_allocation(&Failure::ALL, |point| {
            while swapped.reclaim().freed > 0 {}
            // The CPU has no free frame of its own.
            swapped.world.engine().trim();
            match point.fail(|| process.handle_fault(BASE, Access::WRITE)) {
                Ok(_) => {}
                Err(error) => assert_eq!(error, FaultError::OutOfMemory, "{point}"),
            }
            process.check();
            assert_contents(process, 2, 1);
        });
        assert!(reached > 0, "a swap-in allocates a frame");
    });
}

#[test]
fn fork_of_swapped_pages_without_memory_leaves_no_entry() {
    with_swapped(3, |swapped, process, _| {
        let reached = at_every_allocation(&Failure::ALL, |point| {
            while swapped.reclaim().freed > 0 {}
            match point.fail(|| process.fork()) {
                Ok(child) => {
                    assert_contents(&Process::of(child), 3, 1);
                }
                Err(_) => assert_eq!(swapped.used(), 3, "{point}"),
            }
            process.check();
            assert_contents(process, 3, 1);
            assert_eq!(swapped.used(), 0, "{point}: the failed child has left its entries");
        });
        assert!(reached > 0, "fork allocates");
    });
}
