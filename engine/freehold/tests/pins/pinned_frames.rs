//! Frames that are pinned: a frame stays allocated after its page is unmapped, discarded or failed, and does
//! not move. The tests compare the word that the pin reads, the frames in use, and the error of a migration.

use super::*;
use freehold::{
    call::Advice,
    rmap::{Damage, MigrateError, OfflineError},
};

#[test]
fn pin_outlives_the_mapping() {
    let ways: [fn(&Process); 3] = [
        |process| process.munmap(BASE, 2 * PAGE).unwrap(),
        |process| process.madvise(BASE, 2 * PAGE, Advice::DontNeed).unwrap(),
        |process| assert_eq!(anon(process, BASE, 2), BASE),
    ];
    for away in ways {
        everywhere(|world, process, cpu| {
            anon(process, BASE, 2);
            fill(process, cpu, BASE, 2, 10);
            let pins = process.pin_user_pages(BASE, 2, WRITE).unwrap();
            away(process);
            assert_eq!((word(&pins, 0), word(&pins, 1), process.rss().anon), (10, 11, 0));
            put(&pins, 0, 5);
            if process.counts().map_count > 0 {
                assert_eq!(process.load(cpu, BASE), Ok(0u64), "the pinned page was mapped again");
            }
            let frames = pins.frames().to_vec();
            drop(pins);
            for frame in frames {
                assert!(world.machine.frame(frame).is_free(), "{frame:?}");
            }
        });
    }
}

#[test]
fn pin_outlives_the_space_and_the_engine() {
    let mut world = World::new();
    let process = world.process(Locking::default());
    anon(&process, BASE, 1);
    let pins = process.pin_user_pages(BASE, 1, WRITE).unwrap();
    drop(process);
    world.engine = None;
    put(&pins, 0, 9);
    assert_eq!(word(&pins, 0), 9);
    drop(pins);
    world.end();
}

#[test]
fn pinned_pages_are_not_migrated() {
    everywhere(|world, process, cpu| {
        anon(process, BASE, 2);
        fill(process, cpu, BASE, 2, 10);
        let child = Process::of(process.fork().unwrap());
        let pins = process.pin_user_pages(BASE, 1, READ).unwrap();
        let frame = pins.frames()[0];
        assert_eq!(world.engine().migrate(frame), Err(MigrateError::Busy));
        assert_eq!(world.engine().soft_offline(frame), Err(OfflineError::Busy));
        assert_eq!(process.frame_at(BASE), Some(frame));
        process.store(cpu, BASE, 20u64).unwrap();
        assert_eq!(word(&pins, 0), 20);
        drop(pins);
        let moved = world.engine().migrate(frame).unwrap();
        assert_eq!((process.frame_at(BASE), process.load(cpu, BASE)), (Some(moved), Ok(20u64)));
        assert_eq!(child.load(cpu, BASE), Ok(10u64));
        child.check();
    });
}

/// A memory failure takes a pinned page away from all programs. The pin keeps the frame out of use.
#[test]
fn memory_failure_unmaps_a_pinned_page() {
    for locking in Locking::ALL {
        let world = World::new();
        let process = world.process(locking);
        anon(&process, BASE, 1);
        let pins = process.pin_user_pages(BASE, 1, WRITE).unwrap();
        let frame = pins.frames()[0];
        assert_eq!(world.engine().memory_failure(frame), Ok(Damage::Lost));
        assert_eq!(process.pin_user_pages(BASE, 1, WRITE).err(), Some(PinError::BadAddress));
        let child = process.fork().unwrap();
        assert_eq!(child.pin_user_pages(BASE, 1, WRITE).err(), Some(PinError::BadAddress));
        put(&pins, 0, 1);
        drop((pins, child, process));
        let World { machine, engine } = world;
        drop(engine);
        assert_eq!(machine.accounting().frames, 1, "the frame that failed");
    }
}

/// Many pins of one page.
#[test]
fn page_can_be_pinned_many_times() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 1);
        let pins: Vec<_> = (0..3000).map(|_| process.pin_user_pages(BASE, 1, WRITE).unwrap()).collect();
        fill(process, cpu, BASE, 1, 10);
        process.munmap(BASE, PAGE).unwrap();
        for pin in pins {
            assert_eq!(word(&pin, 0), 10);
        }
    });
}
