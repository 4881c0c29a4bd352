//! Frames whose reference count is almost at its maximum. If a program can create and keep any number of
//! references of some kind, the engine refuses them near the maximum, so that the count does not overflow.
//! `near_reference_limit` adds references to the record of a frame, because a test cannot create as many in
//! any other way. A fork, a fault or a pin that would add one more reference must fail and change nothing. A
//! new operation that adds references to a page on request of a program needs a test here.

use super::*;
use freehold::{engine::HugePages, error::ForkError, fault::FaultError, platform::Frame};

/// Number of additional references with which a page of these tests reaches the limit.
const MORE: i32 = 1 << 30;

/// Runs `f` while a frame has [`MORE`] additional references.
fn near_reference_limit<R>(frame: &Frame, f: impl FnOnce() -> R) -> R {
    frame.pretend_references(MORE);
    let result = f();
    frame.pretend_references(-MORE);
    result
}

fn frame<'w>(world: &'w World, process: &Process, at: u64) -> &'w Frame {
    world.machine.frame(process.frame_at(at).expect("the page is present"))
}

#[test]
fn fork_fails_at_the_maximum_reference_count() {
    everywhere(|world, process, cpu| {
        anon(process, BASE, 3);
        fill(process, cpu, BASE, 3, 10);
        // The first fork shares the page. If only one space mapped the page, the later fork would copy the
        // page instead of adding a reference.
        let child = Process::of(process.fork().unwrap());
        let frame = frame(world, process, BASE + PAGE);
        near_reference_limit(frame, || assert_eq!(process.fork().err(), Some(ForkError::OutOfMemory)));
        drop(Process::of(process.fork().unwrap()));
        support::assert_filled(process, cpu, BASE, 3, 10);
        support::assert_filled(&child, cpu, BASE, 3, 10);
        child.check();
    });
}

#[test]
fn fork_of_a_huge_page_fails_at_the_maximum_reference_count() {
    for locking in Locking::ALL {
        let world = World::with(24 << 20, Config::new().huge_pages(HugePages::Always));
        world.live(locking, |world, process, cpu| {
            anon(process, BASE, 512);
            fill(process, cpu, BASE, 512, 10);
            let child = Process::of(process.fork().unwrap());
            let frame = frame(world, process, BASE + 100 * PAGE);
            near_reference_limit(frame, || assert_eq!(process.fork().err(), Some(ForkError::OutOfMemory)));
            support::assert_filled(&child, cpu, BASE, 512, 10);
            child.check();
        });
    }
}

#[test]
fn fault_fails_at_the_maximum_reference_count() {
    everywhere(|world, process, cpu| {
        let file = world.file(8);
        let map = |at| {
            process.mmap(at, 4 * PAGE, RW, MapFlags::SHARED | MapFlags::FIXED, Some(&file), 0).unwrap();
        };
        map(BASE);
        process.store(cpu, BASE + PAGE, 7u64).unwrap();
        let (frame, again) = (frame(world, process, BASE + PAGE), BASE + 0x100_0000);
        map(again);
        near_reference_limit(frame, || {
            assert_eq!(process.load::<u64>(cpu, again + PAGE), Err(FaultError::OutOfMemory));
            assert_eq!(process.store(cpu, again + PAGE, 8u64), Err(FaultError::OutOfMemory));
            // Adjacent pages are mapped; only this page is not.
            assert_eq!(process.load(cpu, again), Ok(Disk::number(0)));
            assert_eq!(process.pin_user_pages(BASE + PAGE, 1, WRITE).err(), Some(PinError::TooMany));
        });
        assert_eq!(process.load(cpu, again + PAGE), Ok(7u64));
    });
}
