//! Operations without an address space that ask the platform for memory (`src/shortage.rs`): moves of pages,
//! the growth of pools, and the creation of objects. `shortage.rs` tests the operations of address spaces, and
//! `sweep/retried.rs` repeats each of these operations with a failure at every allocation.

use crate::{
    shortage::{HOARD, ROUNDS, Shortage, answering, starve, with_hoard},
    support::{failure::Failure, *},
};
use freehold::{
    call::Advice,
    error::MigrateError,
    hugetlb::HugePageSize,
    platform::{
        PageOwner,
        ShortageAnswer::{Fail, Retry},
    },
};
use freehold_machine::Task;

/// A pool that grows asks for memory, and keeps what it has when the platform has no more. A pool that is large
/// enough does not ask.
#[test]
fn growth_of_a_pool_asks_for_memory() {
    let world = World::new();
    let engine = world.engine();
    let resize = |pages| engine.resize_huge_pool(HugePageSize::Mib2, pages, None);
    let fails = |shortage: &Shortage<'_>| {
        assert!(matches!(shortage.owner, PageOwner::Caller));
        assert_eq!((shortage.order, shortage.round), (9, 0));
        Fail
    };
    let (pages, asked) = answering(&world.machine, fails, || resize(100));
    assert!(0 < pages && pages < 8, "16 MiB of memory, not {pages} pages");
    assert_eq!(asked, 1);
    assert_eq!(answering(&world.machine, fails, || resize(1)), (1, 0));
    // Rounds without progress are bounded.
    assert_eq!(answering(&world.machine, |_| Retry, || resize(100)), (pages, u64::from(ROUNDS)));
    resize(0);
    world.end();
}

/// A move of a page asks for memory on behalf of the owner of the page, and succeeds when memory has become
/// free. A move to a node does not ask.
#[test]
fn move_of_a_page_asks_for_memory() {
    with_hoard(|world, process, hoard, cpu| {
        anon(process, BASE, 1);
        process.store(cpu, BASE, 7u64).unwrap();
        let (engine, frame) = (world.engine(), process.frame_at(BASE).unwrap());
        let pages = starve(hoard);
        let is_owner = move |shortage: &Shortage<'_>| match shortage.owner {
            PageOwner::SameAs(pfn) => assert_eq!((pfn, shortage.order), (frame, 0)),
            ref other => panic!("{other:?}"),
        };
        let fails = move |shortage: &Shortage<'_>| {
            is_owner(shortage);
            Fail
        };
        let (moved, asked) = answering(&world.machine, fails, || engine.migrate(frame));
        assert_eq!((moved, asked), (Err(MigrateError::OutOfMemory), 1));
        let (moved, asked) = answering(&world.machine, fails, || engine.migrate_to(frame, 0));
        assert_eq!((moved, asked), (Err(MigrateError::OutOfMemory), 0));
        hoard.madvise(HOARD, pages * PAGE, Advice::Free).unwrap();
        let space = hoard.space().clone();
        let answer = move |shortage: &Shortage<'_>| {
            is_owner(shortage);
            if space.drop_discardable() > 0 { Retry } else { Fail }
        };
        let (moved, asked) = answering(&world.machine, answer, || engine.migrate(frame));
        assert_eq!((moved.is_ok(), asked, process.load(cpu, BASE)), (true, 1, Ok(7u64)));
    });
}

/// A fatal signal ends the attempts to create an object.
#[test]
fn creation_asks_for_memory_until_a_fatal_signal() {
    let world = World::new();
    let create = || {
        Task::current().interrupt_wait(1);
        Failure::HeapFromThere.arm(1);
        let created = Mapping::memfd(world.engine(), PAGE).is_ok();
        Failure::HeapFromThere.stop();
        created
    };
    let answer = |shortage: &Shortage<'_>| {
        assert!(matches!(shortage.owner, PageOwner::Caller));
        Retry
    };
    let in_thread = || std::thread::scope(|scope| scope.spawn(create).join().unwrap());
    assert_eq!(answering(&world.machine, answer, in_thread), (false, 1));
    world.end();
}
