//! MADV_PAGEOUT of anonymous memory (`src/call/madvise/pageout.rs`).

use super::{Swapped, swapped_pages, with_filled};
use crate::support::*;
use freehold::{call::Advice, engine::HugePages, remote::IoVec};
use freehold_machine::MemorySwap;

#[test]
fn pages_of_the_range_are_swapped_out() {
    with_filled(40, |swapped, process, cpu| {
        process.madvise(BASE + 2 * PAGE, 35 * PAGE, Advice::PageOut).unwrap();
        assert_eq!((process.rss().anon, swapped_pages(process), swapped.used()), (5, 35, 35));
        assert_filled(process, cpu, BASE, 40, 1);
        // The pages are written again, also those that did not change.
        process.madvise(BASE, 40 * PAGE, Advice::PageOut).unwrap();
        assert_eq!((process.rss().anon, swapped_pages(process)), (0, 40));
        assert_filled(process, cpu, BASE, 40, 1);
    });
}

#[test]
fn pages_that_two_processes_map_stay() {
    with_filled(4, |swapped, process, cpu| {
        let child = Process::of(process.fork().unwrap());
        // The store gives the child, and not the parent, a page of its own.
        child.store(cpu, BASE, 7u64).unwrap();
        for space in [process, &child] {
            space.madvise(BASE, 4 * PAGE, Advice::PageOut).unwrap();
        }
        assert_eq!([process, &child].map(swapped_pages), [1, 1]);
        assert_eq!(swapped.used(), 2);
        assert_filled(process, cpu, BASE, 4, 1);
        assert_eq!(child.load::<u64>(cpu, BASE), Ok(7));
        drop(child);
    });
}

#[test]
fn locked_and_pinned_pages_stay() {
    with_filled(4, |_, process, cpu| {
        process.mlock(BASE, PAGE).unwrap();
        assert!(process.madvise(BASE, PAGE, Advice::PageOut).is_err());
        process.munlock(BASE, PAGE).unwrap();
        let pins = process.pin_user_pages(BASE, 1, freehold::remote::PinFlags::WRITE).unwrap();
        process.madvise(BASE, 4 * PAGE, Advice::PageOut).unwrap();
        assert_eq!(swapped_pages(process), 3);
        drop(pins);
        process.madvise(BASE, 4 * PAGE, Advice::PageOut).unwrap();
        assert_eq!(swapped_pages(process), 4);
        assert_filled(process, cpu, BASE, 4, 1);
    });
}

#[test]
fn lazily_freed_pages_take_no_slot() {
    with_filled(4, |swapped, process, cpu| {
        process.madvise(BASE, 2 * PAGE, Advice::Free).unwrap();
        process.store(cpu, BASE, 9u64).unwrap();
        process.madvise(BASE, 4 * PAGE, Advice::PageOut).unwrap();
        assert_eq!((process.rss().anon, swapped.used()), (0, 3));
        assert_eq!(process.load::<u64>(cpu, BASE), Ok(9));
        assert_eq!(process.load::<u64>(cpu, BASE + PAGE), Ok(0));
        assert_filled(process, cpu, BASE + 2 * PAGE, 2, 3);
    });
}

#[test]
fn another_process_may_advise() {
    with_filled(6, |_, process, cpu| {
        let range = IoVec { base: BASE, len: 6 * PAGE };
        assert_eq!(process.process_madvise(&[range], Advice::PageOut, false), Ok(6 * PAGE));
        assert_eq!(swapped_pages(process), 6);
        assert_filled(process, cpu, BASE, 6, 1);
    });
}

#[test]
fn full_device_leaves_the_other_pages() {
    with_filled(70, |swapped, process, cpu| {
        process.madvise(BASE, 70 * PAGE, Advice::PageOut).unwrap();
        assert_eq!((process.rss().anon, swapped.used()), (6, 64));
        assert_filled(process, cpu, BASE, 70, 1);
    });
}

#[test]
fn part_of_a_huge_page_goes() {
    let world = World::with(16 << 20, Config::new().huge_pages(HugePages::Always));
    let device = MemorySwap::new(1024);
    let id = world.engine().swap_on(device.clone(), 0).unwrap();
    let swapped = Swapped { world, device, id };
    let process = swapped.process(Locking::default());
    let mut cpu = swapped.world.machine.cpu(0);
    anon(&process, BASE, 512);
    fill(&process, &mut cpu, BASE, 512, 1);
    process.madvise(BASE + 100 * PAGE, 50 * PAGE, Advice::PageOut).unwrap();
    assert_eq!((process.rss().anon, process.rss().swap), (462, 50));
    process.madvise(BASE, 512 * PAGE, Advice::PageOut).unwrap();
    assert_eq!((process.rss().anon, process.rss().swap), (0, 512));
    assert_filled(&process, &mut cpu, BASE, 512, 1);
    process.check();
    drop((process, cpu));
    swapped.end();
}
