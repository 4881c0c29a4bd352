//! Which pages are swapped out, and the way of a page to the device (`src/reclaim/swap_out.rs`).

use super::{Swapped, with_swapped};
use crate::support::*;
use freehold::{
    call::{Advice, LockFlags},
    reclaim::ReclaimRequest,
    remote::PinFlags,
};

#[test]
fn contents_come_back() {
    with_swapped(20, |swapped, process, cpu| {
        assert_eq!(swapped.device.stats().write_requests, 1, "consecutive slots are written together");
        assert_filled(process, cpu, BASE, 20, 1);
        assert_eq!((process.rss().anon, swapped.used()), (20, 0));
    });
}

#[test]
fn pages_go_and_come_back_many_times() {
    with_swapped(8, |swapped, process, cpu| {
        for round in 2..40 {
            assert_filled(process, cpu, BASE, 8, round - 1);
            fill(process, cpu, BASE, 8, round);
            while swapped.reclaim().freed > 0 {}
            assert_eq!(process.rss().anon, 0, "round {round}");
        }
        assert_filled(process, cpu, BASE, 8, 39);
    });
}

#[test]
fn reclaim_stops_at_its_target_also_while_writes_are_under_way() {
    for later in [false, true] {
        let swapped = Swapped::new(64);
        let process = swapped.process(Locking::default());
        let mut cpu = swapped.world.machine.cpu(0);
        anon(&process, BASE, 40);
        fill(&process, &mut cpu, BASE, 40, 1);
        swapped.device.complete_later(later);
        let reclaimed = swapped.world.engine().reclaim(&ReclaimRequest::pages(10));
        assert_eq!((reclaimed.freed + reclaimed.writing, reclaimed.writing > 0), (10, later));
        assert_eq!(process.rss().swap, 10);
        while swapped.device.complete_next() {}
        swapped.device.complete_later(false);
        assert_filled(&process, &mut cpu, BASE, 40, 1);
        drop((process, cpu));
        swapped.end();
    }
}

#[test]
fn page_of_zeroes_takes_no_slot() {
    let swapped = Swapped::new(8);
    let process = swapped.process(Locking::default());
    let mut cpu = swapped.world.machine.cpu(0);
    anon(&process, BASE, 3);
    fill(&process, &mut cpu, BASE, 3, 1);
    process.store(&mut cpu, BASE + PAGE, 0u64).unwrap();
    let child = Process::of(process.fork().unwrap());
    assert_eq!(swapped.reclaim().freed, 3);
    assert_eq!((process.rss().anon, process.rss().swap, swapped.used()), (0, 2, 2));
    for space in [&process, &child] {
        assert_eq!(space.load::<u64>(&mut cpu, BASE + PAGE), Ok(0));
        space.store(&mut cpu, BASE + PAGE, 9u64).unwrap();
        space.check();
    }
    assert_eq!(process.load::<u64>(&mut cpu, BASE + PAGE), Ok(9));
    drop((process, child, cpu));
    swapped.end();
}

#[test]
fn locked_and_pinned_pages_stay() {
    let swapped = Swapped::new(64);
    let process = swapped.process(Locking::default());
    let mut cpu = swapped.world.machine.cpu(0);
    anon(&process, BASE, 8);
    fill(&process, &mut cpu, BASE, 8, 1);
    process.mlock2(BASE, 2 * PAGE, LockFlags::empty()).unwrap();
    let pins = process.pin_user_pages(BASE + 2 * PAGE, 2, PinFlags::WRITE).unwrap();
    swapped.reclaim();
    assert_eq!((process.rss().anon, process.rss().swap), (4, 4));
    assert!(process.frame_at(BASE).is_some() && process.frame_at(BASE + 3 * PAGE).is_some());
    drop(pins);
    process.munlock(BASE, 2 * PAGE).unwrap();
    swapped.reclaim();
    assert_eq!((process.rss().anon, process.rss().swap), (0, 8));
    // The right to write through a pin has outlived the fork-like checks: the contents are unchanged.
    assert_filled(&process, &mut cpu, BASE, 8, 1);
    drop((process, cpu));
    swapped.end();
}

#[test]
fn pages_in_use_stay() {
    let swapped = Swapped::new(64);
    let process = swapped.process(Locking::default());
    let mut cpu = swapped.world.machine.cpu(0);
    anon(&process, BASE, 2);
    fill(&process, &mut cpu, BASE, 2, 1);
    let read = |cpu: &mut Vcpu, page: u64| process.load::<u64>(cpu, BASE + page * PAGE).unwrap();
    swapped.world.engine().reclaim(&ReclaimRequest::pages(u64::MAX).visits(256));
    assert_eq!(process.rss().anon, 2, "accessed since the last visit");
    // A CPU sets the accessed bit of an entry only without a cached translation.
    [Prot::empty(), RW].into_iter().for_each(|prot| process.mprotect(BASE, PAGE, prot).unwrap());
    read(&mut cpu, 0);
    swapped.world.engine().reclaim(&ReclaimRequest::pages(u64::MAX).visits(256));
    assert_eq!((process.frame_at(BASE).is_some(), process.frame_at(BASE + PAGE)), (true, None));
    drop((process, cpu));
    swapped.end();
}

#[test]
fn full_device_leaves_the_other_pages() {
    let swapped = Swapped::new(4);
    let process = swapped.process(Locking::default());
    let mut cpu = swapped.world.machine.cpu(0);
    anon(&process, BASE, 8);
    fill(&process, &mut cpu, BASE, 8, 1);
    let file = swapped.world.file(4);
    (0..4).for_each(|page| file.mapping().fill(freehold::PageIndex::new(page)).unwrap());
    let freed = swapped.reclaim().freed;
    assert_eq!((freed, process.rss().swap, swapped.used()), (8, 4, 4), "four pages of the file go too");
    assert_filled(&process, &mut cpu, BASE, 8, 1);
    drop((process, cpu, file));
    swapped.end();
}

#[test]
fn failed_write_leaves_the_page_in_memory() {
    let swapped = Swapped::new(64);
    let process = swapped.process(Locking::default());
    let mut cpu = swapped.world.machine.cpu(0);
    anon(&process, BASE, 4);
    fill(&process, &mut cpu, BASE, 4, 1);
    swapped.device.fail_writes([1, 2]);
    let reclaimed = swapped.reclaim();
    assert_eq!((reclaimed.freed, reclaimed.writing, process.rss().swap), (2, 2, 4));
    assert_filled(&process, &mut cpu, BASE, 4, 1);
    assert_eq!(swapped.world.engine().swap_usage(swapped.id).unwrap().bad, 2);
    // The page is an ordinary one again.
    swapped.device.fail_writes([]);
    while swapped.reclaim().freed > 0 {}
    assert_eq!(process.rss().anon, 0);
    assert_filled(&process, &mut cpu, BASE, 4, 1);
    drop((process, cpu));
    swapped.end();
}

#[test]
fn batch_of_pages_needs_one_flush() {
    let swapped = Swapped::new(64);
    let processes = [(); 2].map(|()| swapped.process(Locking::default()));
    let mut cpu = swapped.world.machine.cpu(0);
    for process in &processes {
        anon(process, BASE, 16);
        fill(process, &mut cpu, BASE, 16, 1);
    }
    let before = swapped.world.machine.flushes();
    assert_eq!(swapped.reclaim().freed, 32);
    assert_eq!(swapped.world.machine.flushes() - before, 2);
    for process in &processes {
        assert_filled(process, &mut cpu, BASE, 16, 1);
    }
    drop((processes, cpu));
    swapped.end();
}

/// A batch holds the locks of few homes at a time.
#[test]
fn pages_of_many_spaces_go_in_one_visit() {
    let swapped = Swapped::new(64);
    let processes = [(); 20].map(|()| swapped.process(Locking::default()));
    let mut cpu = swapped.world.machine.cpu(0);
    for process in &processes {
        anon(process, BASE, 1);
        fill(process, &mut cpu, BASE, 1, 1);
    }
    let reclaimed = swapped.reclaim();
    assert_eq!((reclaimed.freed, reclaimed.kept), (20, 0));
    for process in &processes {
        assert_filled(process, &mut cpu, BASE, 1, 1);
    }
    drop((processes, cpu));
    swapped.end();
}

#[test]
fn parts_of_huge_pages_go() {
    let swapped = {
        let world = World::with(16 << 20, Config::new().huge_pages(freehold::engine::HugePages::Always));
        let device = freehold_machine::MemorySwap::new(1024);
        let id = world.engine().swap_on(device.clone(), 0).unwrap();
        Swapped { world, device, id }
    };
    let process = swapped.process(Locking::default());
    let mut cpu = swapped.world.machine.cpu(0);
    anon(&process, BASE, 512);
    fill(&process, &mut cpu, BASE, 512, 1);
    while swapped.reclaim().freed > 0 {}
    assert_eq!(process.rss().swap, 512);
    assert_filled(&process, &mut cpu, BASE, 512, 1);
    process.check();
    drop((process, cpu));
    swapped.end();
}

#[test]
fn lazily_freed_page_that_was_written_again_is_swapped_out() {
    with_swapped(1, |swapped, process, cpu| {
        anon(process, BASE + PAGE, 3);
        fill(process, cpu, BASE + PAGE, 3, 5);
        process.madvise(BASE + PAGE, 3 * PAGE, Advice::Free).unwrap();
        process.store(cpu, BASE + 2 * PAGE, 77u64).unwrap();
        while swapped.reclaim().freed > 0 {}
        assert_eq!((process.rss().anon, process.rss().swap), (0, 2));
        let words = [1, 2, 3].map(|page| process.load::<u64>(cpu, BASE + page * PAGE).unwrap());
        assert_eq!(words, [0, 77, 0]);
    });
}
